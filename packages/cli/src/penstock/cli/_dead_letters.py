"""`penstock dead-letters`: records that could not be written, looked at and written again."""

from __future__ import annotations

import argparse
import base64
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from penstock.cli._aws import add_aws_arguments, aws_options, is_utf8, missing, run_calls
from penstock.terminal import Cell, Column, ExitCode, Parser, Row, Screen, Table, add_json_argument, positive_count

if TYPE_CHECKING:
    from penstock.async_sink.dead_letters import DeadLetter

PROG: Final = "penstock dead-letters"
_ATTEMPTS: Final = 20
_DATA_CHARACTERS: Final = 100
_FILES: Final = (
    Column("FILE"),
    Column("STREAM"),
    Column("OPEN", justify="right"),
    Column("REDRIVEN", justify="right"),
    Column("WHY"),
)
_LETTERS: Final = (
    Column("TIME"),
    Column("STREAM"),
    Column("KEY"),
    Column("BYTES", justify="right"),
    Column("WHY"),
    Column("DATA"),
)
_EXITS: Final = "exit codes: 0 done, or shown, 1 some are not written, 2 wrong usage, 3 Kinesis cannot be reached"


def main(argv: Sequence[str]) -> int:
    """List, show or redrive dead letters. Returns the exit code."""
    parser = Parser(
        prog=PROG,
        description="Records that could not be written: PATH is the deadLetterPath of a Spark job.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    ls = commands.add_parser("ls", help="files, and how many letters they hold", epilog=_EXITS)
    show = commands.add_parser("show", help="the letters themselves", epilog=_EXITS)
    show.add_argument("--all", action="store_true", help="those that were written again, too")
    redrive = commands.add_parser(
        "redrive",
        help="write them again",
        description="Write letters again to their streams. Shows what would be written; --execute does it. The files "
        "stay as they are: what Kinesis has acknowledged is noted in the folder _redriven beside them, and is not "
        "written again. At least once: one that is killed between the two writes some again.",
        epilog=_EXITS,
    )
    redrive.add_argument("--execute", action="store_true", help="write the records; without it, only show them")
    redrive.add_argument("--to", metavar="STREAM", help="to this stream; default: the one that the letter is for")
    redrive.add_argument("--key", help="partition key of letters that have none; without it they stay")
    redrive.add_argument(
        "--attempts",
        type=positive_count,
        default=_ATTEMPTS,
        metavar="N",
        help=f"how often a record is sent before it stays a letter; default: {_ATTEMPTS}",
    )
    for command in (ls, show, redrive):
        command.add_argument("path", type=_path, metavar="PATH")
        command.add_argument("--stream", metavar="NAME", help="only letters for this stream")
        command.add_argument("--code", metavar="CODE", help="only letters with this error code")
        add_json_argument(command)
    add_aws_arguments(redrive)
    arguments = parser.parse_args(argv)
    if arguments.command == "redrive" and arguments.key is not None and not is_utf8(arguments.key):
        redrive.error("--key must be UTF-8")
    screen = Screen(sys.stdout, as_json=arguments.json)
    try:
        from penstock.async_sink.dead_letters import read_dead_letters
        from penstock.async_sink.errors import SinkError
    except ImportError as error:
        return missing(PROG, error)
    try:
        if arguments.command == "redrive":
            return _redrive(arguments, screen)
        letters = (one for one in read_dead_letters(arguments.path) if _is_wanted(arguments, one))
        if arguments.command == "ls":
            screen.show(Table(columns=_FILES, rows=list(_file_rows(letters)), empty="no dead letters"))
        else:
            rows = [_letter_row(one) for one in letters if arguments.all or not one.is_redriven]
            screen.show(Table(columns=_LETTERS, rows=rows, empty="no dead letters"))
    except OSError as error:
        reason = f"cannot read {arguments.path}: {error.strerror}"
        cure = "name a job's deadLetterPath"
        sys.stderr.write(f"{PROG} {arguments.command}: {reason}: {cure}\n")
        return ExitCode.USAGE
    except SinkError as error:
        if error.code not in ("DEAD_LETTER_FILE", "DEAD_LETTERS_BUSY"):
            raise
        sys.stderr.write(f"{PROG} {arguments.command}: {error}\n")
        return ExitCode.USAGE
    return ExitCode.OK


def _path(text: str) -> Path:
    """A folder or file, also by a URL as `deadLetterPath` takes it."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"letters are not read from {parts.scheme}:// here: copy them into a folder, such as by 'aws s3 sync', and "
            "name that (what is redriven is noted there), or read them with Spark"
        )
    return Path(text)


@dataclass
class _Held:
    """Letters of a file for a stream."""

    redriven: int = 0
    causes: Counter[str] = field(default_factory=Counter)


def _file_rows(letters: Iterable[DeadLetter]) -> Iterator[Row]:
    held: dict[tuple[Path, str | None], _Held] = {}
    for one in letters:
        found = held.setdefault((one.file, one.stream), _Held())
        if one.is_redriven:
            found.redriven += 1
        else:
            found.causes[one.code or one.why] += 1
    for (file, stream), some in held.items():
        document = {
            "file": str(file),
            "streamName": stream,
            "open": some.causes.total(),
            "redriven": some.redriven,
            "causes": dict(some.causes),
        }
        why = ", ".join(f"{cause} ({count})" for cause, count in some.causes.most_common(3)) or "-"
        left = Cell(str(some.causes.total()), style="red" if some.causes else "green")
        cells: list[Cell | str] = [file.name, stream or "-", left]
        yield Row([*cells, str(some.redriven), why], document)


def _letter_row(one: DeadLetter) -> Row:
    data = one.data or b""
    text = data[:_DATA_CHARACTERS].decode(errors="replace")
    document: dict[str, Any] = {
        "file": str(one.file),
        "kind": one.kind,
        "streamName": one.stream,
        "partitionKey": one.key,
        "dataBase64": None if one.data is None else base64.b64encode(one.data).decode(),
        "errorCode": one.code,
        "why": one.why,
        "time": one.time,
        "isRedriven": one.is_redriven,
    }
    cells: list[Cell | str] = [Cell(one.time, style="dim"), one.stream or "-", one.key or "-"]
    shown = "null" if one.data is None else text + ("…" if len(data) > _DATA_CHARACTERS else "")
    return Row([*cells, str(len(data)), Cell(one.why, style="yellow"), shown], document)


def _redrive(arguments: argparse.Namespace, screen: Screen) -> int:
    from penstock.async_sink.dead_letters import RedriveSummary, read_dead_letters, redrive, why_it_stays

    def report(summary: RedriveSummary, state: str) -> None:
        for why, count in summary.kept.items():
            sys.stderr.write(f"{PROG} redrive: {count} stay: a letter {why}\n")
        for stream in dict.fromkeys([*summary.written, *summary.failed]):
            written, failed = summary.written[stream], summary.failed[stream]
            document = {"streamName": stream, "letters": written + failed, "written": written, "failed": failed}
            screen.show_row(Row([stream, f"{state}: {written}", f"failed: {failed}"], {**document, "state": state}))
            screen.flush()

    if not arguments.execute:
        shown = RedriveSummary()
        for one in read_dead_letters(arguments.path):
            if not one.is_redriven and _is_wanted(arguments, one):
                why = why_it_stays(one, arguments.to, arguments.key)
                if why is None:
                    shown.written[arguments.to or one.stream or ""] += 1
                else:
                    shown.kept[why] += 1
        report(shown, "would be written")
        screen.say("--execute does it", "bold")
        return ExitCode.OK

    def calls() -> int:
        summary = redrive(
            arguments.path,
            aws_options(arguments),
            wanted=partial(_is_wanted, arguments),
            to=arguments.to,
            key=arguments.key,
            max_attempts=arguments.attempts,
            report=lambda stream, words: print(f"{PROG} redrive: {stream}: {words}", file=sys.stderr),
        )
        report(summary, "written")
        if summary.is_unreachable and not summary.written.total():
            return ExitCode.UNREACHABLE
        return ExitCode.OK if summary.is_complete else ExitCode.FAILED

    return run_calls(f"{PROG} redrive", arguments, calls)


def _is_wanted(arguments: argparse.Namespace, letter: DeadLetter) -> bool:
    return arguments.stream in (None, letter.stream) and arguments.code in (None, letter.code)
