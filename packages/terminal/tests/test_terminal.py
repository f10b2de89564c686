"""One table in three forms, and what ends a command."""

import argparse
import io
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from penstock.terminal import (
    Cell,
    Column,
    ExitCode,
    Parser,
    Row,
    Screen,
    Table,
    add_json_argument,
    age,
    bar,
    describe_by_flag,
    plain,
    positive_count,
    positive_seconds,
    run_command,
    size,
    watch,
    with_default,
)

TABLE = Table(
    columns=[Column("SHARD"), Column("BEHIND", justify="right")],
    rows=[
        Row(
            ["shard-0", Cell("1m 5s", style="red", raw="65.0", share=0.5)],
            {"shard": "shard-0", "seconds": 65.0},
        ),
        Row(["bad\x1b[2J\nid", Cell("0s", raw="0.0")], {"shard": "bad", "seconds": 0.0}, line="bad\x1b[2J\tline"),
    ],
    title="lag",
)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *, as_json: bool = False, **environ: str) -> str:
    Screen(out, as_json=as_json, environ={"TERM": "xterm-256color", "COLUMNS": "80", **environ}).show(TABLE)
    return out.getvalue()


def test_a_pipe_gets_a_line_a_row() -> None:
    """Raw values with tabs between them, without headings or colours, whatever FORCE_COLOR says."""
    assert shown(io.StringIO(), FORCE_COLOR="1") == "shard-0\t65.0\nbad [2J\tline\n"


def test_json_is_an_object_a_line_also_on_a_terminal() -> None:
    """What `--json` writes does not depend on where to."""
    for out in (io.StringIO(), Terminal()):
        lines = shown(out, as_json=True).splitlines()
        assert [json.loads(line)["seconds"] for line in lines] == [65.0, 0.0]


def test_a_terminal_gets_headings_and_colours_but_no_control_characters_of_values() -> None:
    """An escape sequence in a value is text."""
    text = shown(Terminal())
    assert "SHARD" in text
    assert "\x1b[" in text
    assert "\x1b[2J" not in text
    assert "bad [2J id" in text
    assert "lag" in text


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_left_out_on_request(environ: dict[str, Any]) -> None:
    """The table stays."""
    text = shown(Terminal(), **environ)
    assert "BEHIND" in text
    assert "\x1b" not in text


def test_a_table_that_would_cut_words_becomes_a_line_per_cell() -> None:
    """At the width at which it fits it is a table; long values fold, but names and numbers stay in one piece."""
    columns = [*map(Column, ("STREAM", "CONSUMER", "REGISTRATION")), Column("ERROR")]
    rows = [
        Row(["flights", "billing", "not ours at all", "it " * 30]),
        Row(["flights", "delays", Cell("ours", "red"), "-"]),
    ]
    table = Table(columns=columns, rows=rows)

    def lines(width: int) -> list[str]:
        out = Terminal()
        Screen(out, environ={"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(width)}).show(table)
        return [line.rstrip() for line in out.getvalue().splitlines()]

    wide = lines(41)
    assert wide[0].split() == ["STREAM", "CONSUMER", "REGISTRATION", "ERROR"]
    assert wide[2].split()[:6] == ["flights", "billing", "not", "ours", "at", "all"]
    assert max(map(len, wide)) <= 41
    assert lines(40)[0] == "STREAM        flights"
    narrow = lines(30)
    assert narrow[:3] == ["STREAM        flights", "CONSUMER      billing", "REGISTRATION  not ours at all"]
    assert narrow[-5:] == ["", "STREAM        flights", "CONSUMER      delays", "REGISTRATION  ours", "ERROR         -"]
    assert max(map(len, narrow)) <= 30


async def test_watching_goes_on_until_what_is_looked_at_fails() -> None:
    """On a terminal in place, in a pipe one after the other."""
    for out in (io.StringIO(), Terminal()):
        looks: list[int] = []

        async def look(looks: list[int] = looks) -> list[Table]:
            looks.append(1)
            if len(looks) > 3:
                raise OSError("gone")
            return [TABLE]

        async def sleep(seconds: float) -> None:
            assert seconds == 2.0

        screen = Screen(out, environ={"TERM": "xterm"})
        with pytest.raises(OSError, match="gone"):
            await watch(screen, look, 2.0, sleep=sleep)
        assert len(looks) == 4
        assert out.getvalue().count("shard-0") >= 3


def test_values_as_people_read_them() -> None:
    """Ages, sizes, bars."""
    assert [age(seconds) for seconds in (0, 61, 90_061)] == ["0s", "1m 1s", "1d 1h"]
    assert [size(count) for count in (0, 2048, 3 * 1024**3)] == ["0 B", "2.0 KiB", "3.0 GiB"]
    assert bar(0.5, 4) == "██  "
    assert bar(0.0, 4) == "    "
    assert bar(0.0001, 4).strip()
    assert bar(7, 4, ascii_only=True) == "####"
    assert plain("a\tb\x07") == "a b "


def test_the_end_of_a_command_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C is 130, and a reader that has seen enough is not an error."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    def cut() -> int:
        raise BrokenPipeError

    assert run_command(interrupted) == ExitCode.INTERRUPTED.value == 130
    assert run_command(lambda: 3) == ExitCode.UNREACHABLE
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert run_command(cut) == 0


def test_flags_may_stand_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever they are, also in a sub-command; behind `--` nothing is a flag, and what is unknown is still refused."""
    parser = Parser(prog="put")
    commands = parser.add_subparsers(dest="command")
    for one in (parser_of := Parser(prog="put"), commands.add_parser("into")):
        one.add_argument("stream")
        one.add_argument("files", nargs="*")
        one.add_argument("--key")
        one.add_argument("--quiet", action="store_true")
    for words in (
        "flights --key k a b",
        "--key k flights a b",
        "flights a --key=k --quiet b",
        "flights a b --key k",
        "flights --key k -- a b",
    ):
        for found in (parser_of.parse_args(words.split()), parser.parse_args(["into", *words.split()])):
            assert (found.stream, found.files, found.key) == ("flights", ["a", "b"], "k"), words
    found = parser_of.parse_args(["flights", "--key", "-1h", "-", "--", "--key"])
    assert (found.files, found.key) == (["-", "--key"], "-1h")
    with pytest.raises(SystemExit):
        parser_of.parse_args(["flights", "--kye", "k", "a"])
    assert "unrecognized arguments: --kye" in capsys.readouterr().err


def test_help_names_variables_in_brackets_and_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are text, and a new flag cannot make an old script ambiguous."""
    parser = Parser(prog="penstock look")
    add_json_argument(parser)
    parser.add_argument("--endpoint", help="host:port [PENSTOCK_X_ENDPOINT], 100 %% sure")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "[PENSTOCK_X_ENDPOINT], 100 % sure" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--end", "x"])
    assert ended.value.code == ExitCode.USAGE
    said = "penstock look: unrecognized arguments: --end x (did you mean --endpoint?): see penstock look --help\n"
    assert capsys.readouterr().err == said
    parser.add_subparsers(dest="command").add_parser("lag")
    with pytest.raises(SystemExit):
        parser.parse_args(["lag", "--end"])
    # It is this help that lists the flags.
    said = "penstock look lag: unrecognized arguments: --end: see penstock look lag --help\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (positive_seconds, {"0.5": 0.5}, ("0", "-1", "nan", "inf", "soon")),
        (positive_count, {"2": 2}, ("0", "1.5", "x")),
    ],
)
def test_numbers_that_cannot_be_are_named_as_people_would(
    kind: Callable[[str], float], good: dict[str, float], bad: tuple[str, ...]
) -> None:
    """Not by the name of a Python function."""
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not a "):
            kind(text)


def test_a_command_without_a_name_is_the_default_one_but_a_wrong_name_is_none() -> None:
    """A word is taken for a sub-command, unless the default one takes words."""
    commands = ("ls", "watch")
    assert with_default([], "ls", commands) == ["ls"]
    assert with_default(["--json"], "ls", commands) == ["ls", "--json"]
    assert with_default(["watch", "x"], "ls", commands) == ["watch", "x"]
    assert with_default(["wtach", "x"], "ls", commands) == ["wtach", "x"]
    assert with_default(["flights"], "ls", commands, takes_words=True) == ["ls", "flights"]
    assert with_default(["--help"], "ls", commands) == ["--help"]


def test_an_option_is_told_by_its_flag() -> None:
    """Libraries know it by another name; a secret goes by its file's; one that is not a flag here is left out."""

    class OptionError(ValueError):
        def __init__(self, option: str) -> None:
            super().__init__(f"{option}: is missing")
            self.option = option

    arguments = argparse.Namespace(endpoint_url=None, profile=None, token_file=None)

    def told(option: str) -> str:
        return describe_by_flag(OptionError(option), arguments, "PENSTOCK_X", initialPosition="--from")

    assert told("endpointUrl") == "--endpoint-url (PENSTOCK_X_ENDPOINT_URL): is missing"
    assert told("awsProfile") == "--profile (PENSTOCK_X_PROFILE): is missing"
    assert told("initialPosition") == "--from: is missing"
    assert told("token") == "--token-file (PENSTOCK_X_TOKEN): is missing"
    assert told("somethingElse") == "is missing"
    assert describe_by_flag(ValueError("so"), arguments, "PENSTOCK_X") == "so"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("needs spill_bytes", "needs --spill-bytes"),
        ("set clientCaFile, too", "set --client-ca-file, too"),
        ("must not be less than default_time_to_live", "must not be less than --time-to-live"),
        ("set a token (token_file), or other_setting", "set a token (--token-file), or other_setting"),
        ("cannot read /run/token_file", "cannot read /run/token_file"),
        ("'spill_bytes' is not a number", "'spill_bytes' is not a number"),
        ("cannot read token_file.pem", "cannot read token_file.pem"),
        ("cannot read C:token_file", "cannot read C:token_file"),
    ],
)
def test_other_settings_that_a_reason_names_are_told_by_their_flags(reason: str, told: str) -> None:
    """What the user wrote, such as a path, stays as it is, and so does a setting that is not a flag here."""

    class OptionError(ValueError):
        option = "limit"

    arguments = argparse.Namespace(limit=None, spill_bytes=None, client_ca_file=None, token_file=None)
    error = OptionError(f"limit: {reason}")
    said = describe_by_flag(error, arguments, "PENSTOCK_X", default_time_to_live="--time-to-live")
    assert said == f"--limit (PENSTOCK_X_LIMIT): {told}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: STREAM"),
        (["--kye", "k"], "unrecognized arguments: --kye k (did you mean --key?)"),
        (["flights", "--kye=k"], "unrecognized arguments: --kye=k (did you mean --key?)"),
        (["flights", "--xyzzy"], "unrecognized arguments: --xyzzy"),
    ],
)
def test_wrong_usage_names_what_is_missing_or_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what is really required; an unknown flag comes before what is missing."""
    parser = Parser(prog="penstock put")
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--key")
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert capsys.readouterr().err == f"penstock put: {said}: see penstock put --help\n"
    assert parser.parse_args(["flights"]).files == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list"], "there is no command 'list' (did you mean ls?)"),
        (["zzz"], "there is no command 'zzz' (choose from ls, describe)"),
        ([], "needs a command (choose from ls, describe)"),
        (["ls", "--jsn"], "unrecognized arguments: --jsn (did you mean --json?)"),
    ],
)
def test_a_wrong_sub_command_is_refused_with_the_one_that_resembles_it(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or with all of them."""
    parser = Parser(prog="penstock streams")
    commands = parser.add_subparsers(dest="command", required=True)
    add_json_argument(commands.add_parser("ls"))
    commands.add_parser("describe")
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    prog = "penstock streams ls" if len(words) > 1 else "penstock streams"
    assert capsys.readouterr().err == f"{prog}: {said}: see {prog} --help\n"
