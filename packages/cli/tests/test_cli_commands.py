"""`penstock`: which commands there are, what is missing, what is broken, and how it ends."""

import fnmatch
import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli._commands import KNOWN, Command, find_commands
from penstock.cli._completion import script, words_of
from penstock.cli._options import options_rows
from penstock.emulator.testing import running_emulator


class Point:
    value = "some.module:main"

    def __init__(self, name: str, load: Callable[[], object]) -> None:
        self.name = name
        self.load = load


def fail() -> object:
    raise ImportError("no module named half")


def leave() -> object:
    raise SystemExit("this package needs another Python")


def interrupted(arguments: object) -> int:
    raise KeyboardInterrupt


@pytest.fixture
def commands() -> dict[str, Command]:
    points = [
        Point("lag", lambda: lambda arguments: len(arguments)),
        Point("tail", fail),
        Point("sink", leave),
        Point("stages", lambda: "not callable"),
        Point("zebra", lambda: interrupted),
    ]
    return find_commands(points)


def test_a_command_gets_its_arguments_and_gives_its_exit_code(commands: dict[str, Command]) -> None:
    """Flags behind it are its own."""
    assert main(["lag", "--json", "a", "-h"], commands=commands) == 3
    assert main(["lag"], commands=commands) == 0
    assert main(["zebra"], commands=commands) == 130


@pytest.mark.parametrize(
    ("name", "reason"), [("tail", "no module named half"), ("sink", "another Python"), ("stages", "cannot be called")]
)
def test_a_broken_package_breaks_no_other_command(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    """It is reported with a command that may repair it, and the others run."""
    assert main([name], commands=commands) == 1
    errors = capsys.readouterr().err
    assert reason in errors
    assert f"pip install --force-reinstall {KNOWN[name].package}" in errors
    assert main(["--help"], commands=commands) == 0
    assert main(["lag", "x"], commands=commands) == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["lga"], "did you mean lag?"),
        (["--colour"], "--colour"),
        (["--verison"], "did you mean --version?"),
        (["--json", "lag"], "penstock lag --json"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_is_meant(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    """One or two lines on the standard error, nothing on the other."""
    assert main(arguments, commands=commands) == 2
    said = capsys.readouterr()
    assert (word in said.err, said.out) == (True, "")


def test_the_version_is_those_of_all_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """Penstock's own first, then the libraries below them."""
    assert main(["--version"]) == 0
    versions = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert next(iter(versions)) == "penstock-cli"
    assert {"penstock-terminal", "python"} <= versions.keys()


def test_installed_commands_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """Each installed command of Penstock loads, its help has its name, and wrong usage is one line."""
    for command in find_commands().values():
        if command.entry_point is None or command.name not in KNOWN or command.name == "console":
            continue
        assert main([command.name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: penstock {command.name}"), command.name
        assert main([command.name, "--no-such-flag", "x"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"penstock {command.name}"), command.name
        assert (said.count("\n"), "--help" in said) == (1, True), said


def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    """The script is tried in a real bash."""
    file = tmp_path / "penstock.bash"
    file.write_text(script("bash", {"lag": ["--watch", "--json"], "stages": ["ls", "watch"]}))
    for line, wanted in (("penstock la", "lag"), ("penstock lag --w", "--watch"), ("penstock stages l", "ls")):
        words = line.split(" ")
        ask = f'. {file}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _penstock; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [wanted]
    offered, takers = words_of(find_commands())
    # Also what only a sub-command takes, such as the one that is meant when none is named.
    assert {"ls", "gc", "--registry-store", "--watch", "--dry-run"} <= set(offered["registry"])
    assert "--grace-seconds" not in offered["registry"]
    assert {"resume", "--force"} <= set(offered["stages"])
    # A command that does nothing but serve has no other flags to offer.
    assert {"serve", "--reader-endpoint", "--port"} <= set(offered["console"])
    assert {"put", "streams", "tail", "lag"} <= set(takers)
    assert not {"options", "emulator", "stages"} & set(takers)
    assert "complete -c penstock" in script("fish", {"lag": ["--json"]})
    assert "bashcompinit" in script("zsh", {"lag": ["--json"]})


def test_names_of_streams_are_completed_and_kept_for_ten_seconds(tmp_path: Path) -> None:
    """Kinesis is asked once, again after ten seconds, and at once where a variable leads to another place."""
    file, asked = tmp_path / "script", tmp_path / "asked"
    file.write_text(script("bash", {"tail": ["--from"], "stages": ["ls"]}, ["tail"]))
    (tmp_path / "penstock").write_text(f"#!/bin/sh\necho x >> {asked}\necho flights\necho delays\n")
    (tmp_path / "penstock").chmod(0o755)
    ask = "COMP_WORDS=(penstock {0} '{1}'); COMP_CWORD=2; _penstock; echo \"${{COMPREPLY[@]}}\""
    twice = [ask.format("tail", "fl"), ask.format("tail", "")]
    lines = [f". {file}", *twice, "SECONDS=11", twice[1], "export AWS_REGION=eu-west-1", twice[1]]
    lines += [ask.format("tail", "--f"), ask.format("stages", "")]
    wanted = ["flights", *["--from flights delays"] * 3, "--from", "ls"]
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True, env=variables)
    assert done.stdout.splitlines() == wanted, done.stderr
    assert asked.read_text().count("x") == 3


def test_names_of_streams_come_from_kinesis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One on a line; without an answer there are none, and no message."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with running_emulator(tls=False) as emulator:
        monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.endpoint_url)
        for name in ("flights", "delays"):
            emulator.client().create_stream(StreamName=name, ShardCount=1)
        assert main(["completion", "streams"]) == 0
    assert capsys.readouterr().out == "delays\nflights\n"
    assert main(["completion", "streams"]) == 1
    assert capsys.readouterr() == ("", "")


def test_a_command_that_would_refuse_for_a_missing_module_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `options` without PySpark; the list says what to install."""
    find_spec = importlib.util.find_spec
    assert find_commands()["options"].entry_point is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find_spec(name))
    options = find_commands()["options"]
    assert (options.entry_point, options.package) == (None, "penstock-spark-plugin[pyspark]")


def test_options_are_searched_by_words(capsys: pytest.CaptureFixture[str]) -> None:
    """All words have to be found; names of other connectors count; nothing found is code 1."""
    assert main(["options", "--json", "efo", "consumerName"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "efoConsumerName" in {one["option"] for one in found}
    assert main(["options", "no-such-thing"]) == 1
    assert "no option has the words no-such-thing" in capsys.readouterr().err
    assert options_rows("| a | b |\n| --- | --- |\n| x \\| y | `z` |\n") == [{"a": "x | y", "b": "z"}]


@pytest.mark.parametrize(
    ("name", "connector", "here", "why"),
    [
        ("source.init.position", "Flink", "initialPosition", ""),
        ("SOURCE.reader.type", "Flink", "recordPublisher", ""),
        ("scan.stream.initpos", "Flink", "initialPosition", ""),
        ("registeredConsumerId", "Databricks", "efoConsumerName", "ARNs are efoConsumerArn.<stream>"),
        ("kinesis.executor.metadata.anything", "AWS connector", "not needed", "offsets are in Spark's checkpoint"),
    ],
)
def test_options_of_other_connectors_are_found(
    capsys: pytest.CaptureFixture[str], name: str, connector: str, here: str, why: str
) -> None:
    """By each name, with what it means here, and with the option that replaces it."""
    assert main(["options", "--json", name]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (others,) = (
        one
        for one in found
        if one.get("connector") == connector and fnmatch.fnmatchcase(name.lower(), one["option"].lower())
    )
    assert (others["here"], why in others["why"]) == (here, True)
    if here != "not needed":
        assert here in {one["option"] for one in found if "type" in one}
    assert main(["options", name]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if one.lower().startswith(others["option"].lower()))
    assert (connector in line, here in line, why in line) == (True, True, True)
