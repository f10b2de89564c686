"""`penstock`: which commands there are, what is missing, what is broken, and how it ends."""

import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli._commands import KNOWN, Command, find_commands
from penstock.cli._completion import script, words_of
from penstock.cli._options import options_rows
from penstock.cli.testing import run_in_terminal

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


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
    """It is told in words, with what may repair it, and the others run."""
    assert main([name], commands=commands) == 1
    errors = capsys.readouterr().err
    assert reason in errors
    assert f"pip install --force-reinstall {KNOWN[name].package}" in errors
    assert main(["--help"], commands=commands) == 0
    assert main(["lag", "x"], commands=commands) == 1


def test_what_is_not_installed_is_listed_with_what_brings_it(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the list, as JSON, and when it is called."""
    assert main(["--help"], commands=commands) == 0
    usage, *rest = capsys.readouterr().out.splitlines()
    assert usage.startswith("usage: penstock ")
    lines = {line.split("\t")[0]: line.split("\t") for line in rest}
    assert lines["console"][2] == "pip install penstock-console"
    assert lines["lag"][2] == "-"
    assert lines["zebra"][1] == "from some.module"
    assert list(lines)[: len(KNOWN)] == list(KNOWN)
    assert main(["--json"], commands=commands) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["command"] for one in listed if one["installed"]} == {"lag", "tail", "sink", "stages", "zebra"}
    assert main(["options", "x"], commands=commands) == 1
    assert 'pip install "penstock-cli[spark]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["lga"], "did you mean lag?"), (["--colour"], "--colour"), (["--json", "lag"], "penstock lag --json")],
)
def test_wrong_usage_is_code_2_and_says_what_is_meant(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    """One or two lines on the standard error, nothing on the other."""
    assert main(arguments, commands=commands) == 2
    said = capsys.readouterr()
    assert (word in said.err, said.out) == (True, "")


def test_the_version_is_those_of_all_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """Penstock's own first, then what they stand on."""
    assert main(["--version"]) == 0
    versions = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert next(iter(versions)) == "penstock-cli"
    assert {"penstock-terminal", "python"} <= versions.keys()


def test_installed_commands_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of ours that is there loads, its help names it as it is called here, and wrong usage is one line."""
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
    offered = words_of(find_commands())
    # Also what only a sub-command takes, such as the one that is meant when none is named.
    assert {"ls", "gc", "--registry-store", "--watch", "--dry-run"} <= set(offered["registry"])
    assert "--grace-seconds" not in offered["registry"]
    assert {"resume", "--force"} <= set(offered["stages"])
    assert "complete -c penstock" in script("fish", {"lag": ["--json"]})
    assert "bashcompinit" in script("zsh", {"lag": ["--json"]})


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
    """By each of their names, with what becomes of it; an option of ours that has it by another name comes along."""
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


@pytest.mark.parametrize(
    ("module", "package"),
    [("pyspark", "'penstock-spark-plugin[pyspark]'"), ("penstock.spark_plugin", '"penstock-cli[spark]"')],
)
def test_options_say_what_to_install(module: str, package: str) -> None:
    """The plugin, or the PySpark that the plugin leaves to platforms."""
    script = f"import sys; sys.modules[{module!r}] = None\nfrom penstock.cli._options import main\nsys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("pip install")) == (1, 1)
    assert f"pip install {package}" in done.stderr


def test_a_pipe_gets_lines_and_a_terminal_a_table() -> None:
    """Real processes: the same command, seen by a script and by a person, with colours and without."""
    environ = {**os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS"):  # which other commands may have set for what they run
        environ.pop(name, None)
    piped = subprocess.run([*PENSTOCK, "--help"], capture_output=True, text=True, timeout=60, check=True, env=environ)
    assert "\x1b" not in piped.stdout
    usage, *lines = piped.stdout.splitlines()
    assert usage.startswith("usage: penstock ")
    assert all(line.count("\t") == 2 for line in lines)
    shown = run_in_terminal([*PENSTOCK, "--help"], environ=environ)
    assert (shown.code, "COMMAND" in shown.text, "\x1b[" in shown.text) == (0, True, True)
    plain = run_in_terminal([*PENSTOCK, "--help"], environ={**environ, "NO_COLOR": "1"}, columns=50)
    assert "\x1b[3" not in plain.text
    assert max(map(len, plain.text.split("penstock COMMAND")[0].splitlines()[2:])) <= 50
    head = f"{' '.join(PENSTOCK)} options | head -1"
    cut = subprocess.run(
        ["bash", "-o", "pipefail", "-c", head], capture_output=True, text=True, timeout=60, check=False
    )
    assert (cut.returncode, cut.stderr) == (0, "")


def test_a_command_that_fails_when_it_is_asked_for_help_takes_no_completion_from_the_others() -> None:
    """As one whose package wants something that is not there: it is completed without its flags."""

    def broken(arguments: object) -> int:
        raise RuntimeError("no config file")

    def helpful(arguments: object) -> int:
        print("--since  --until")
        return 0

    offered = words_of(find_commands([Point("mine", lambda: broken), Point("yours", lambda: helpful)]))
    assert (offered["mine"], offered["yours"]) == ([], ["--since", "--until"])
