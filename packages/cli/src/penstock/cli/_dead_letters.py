"""`penstock dead-letters`: records that could not be written, looked at and written again."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli._aws import add_aws_arguments, aws_options, missing, run_calls
from penstock.terminal import Cell, Column, ExitCode, Parser, Row, Screen, Table, add_json_argument, positive_count

if TYPE_CHECKING:
    from penstock.async_sink import TerminalRecord

PROG: Final = "penstock dead-letters"
REDRIVEN: Final = "_redriven"
"""Folder beside the letters, with those that were written again; Spark reads no folder of such a name."""
_GATEWAY_FILE: Final = "rejected.jsonl"
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


class LetterError(Exception):
    """A file holds what is no dead letter."""


@dataclass(frozen=True)
class Letter:
    """A dead letter of the Spark plugin, or of a durable gateway."""

    file: Path
    line: str
    """As it stands in the file."""
    kind: str
    stream: str | None
    data: bytes | None
    key: str | None
    explicit_hash_key: str | None
    code: str
    why: str
    time: str
    is_redriven: bool


def main(argv: Sequence[str]) -> int:
    """List, show or redrive dead letters. Returns the exit code."""
    parser = Parser(
        prog=PROG,
        description="Records that could not be written: PATH is the deadLetterPath of a Spark job, or the folder of a "
        "durable gateway (its --durable).",
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
    redrive.add_argument("--execute", action="store_true", help="do it; else it is only shown")
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
        command.add_argument("path", type=Path, metavar="PATH")
        command.add_argument("--stream", metavar="NAME", help="only letters for this stream")
        command.add_argument("--code", metavar="CODE", help="only letters with this error code")
        add_json_argument(command)
    add_aws_arguments(redrive)
    arguments = parser.parse_args(argv)
    screen = Screen(sys.stdout, as_json=arguments.json)
    try:
        letters = [
            one
            for one in read_letters(arguments.path)
            if arguments.stream in (None, one.stream) and arguments.code in (None, one.code)
        ]
    except (OSError, LetterError) as error:
        reason = f"cannot read {arguments.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        cure = ": name a job's deadLetterPath, or the folder of a gateway's --durable" if reason != str(error) else ""
        sys.stderr.write(f"{PROG} {arguments.command}: {reason}{cure}\n")
        return ExitCode.USAGE
    if arguments.command == "ls":
        screen.show(Table(columns=_FILES, rows=list(_file_rows(letters)), empty="no dead letters"))
        return ExitCode.OK
    if arguments.command == "show":
        chosen = [one for one in letters if arguments.all or not one.is_redriven]
        screen.show(Table(columns=_LETTERS, rows=[_letter_row(one) for one in chosen], empty="no dead letters"))
        return ExitCode.OK
    return _redrive(arguments, [one for one in letters if not one.is_redriven], screen)


def read_letters(path: Path) -> Iterator[Letter]:
    """The letters of a folder, or of one file, file by file in the order of names.

    Raises:
        OSError: it cannot be read.
        LetterError: a file holds something else; names file and line.
    """
    if path.is_dir():
        own = path / _GATEWAY_FILE
        files = [own] if own.exists() else sorted(one for one in path.glob("*.json") if not one.name.startswith("."))
    else:
        files = [path]
    for file in files:
        noted = file.parent / REDRIVEN / file.name
        # Two letters may be alike in every field: each is noted by itself.
        redriven = Counter(noted.read_text().splitlines() if noted.exists() else ())
        for number, line in enumerate(file.read_text().splitlines(), 1):
            is_redriven = redriven[line] > 0
            redriven[line] -= is_redriven
            try:
                yield _parse(file, line, is_redriven)
            except (ValueError, KeyError, TypeError) as error:
                raise LetterError(f"{file}, line {number}, is not a dead letter: {error!r}") from error


def _parse(file: Path, line: str, is_redriven: bool) -> Letter:
    document: dict[str, Any] = json.loads(line)
    if "entry" not in document:
        return Letter(
            file=file,
            line=line,
            kind="kinesis",
            stream=document["streamName"],
            data=None if document["data"] is None else base64.b64decode(document["data"]),
            key=document["partitionKey"],
            explicit_hash_key=document["explicitHashKey"],
            code=document["errorCode"],
            why=": ".join(filter(None, (document["errorCode"], document["errorMessage"]))) or document["reason"],
            time=document["time"],
            is_redriven=is_redriven,
        )
    from penstock.proto.sink_gateway.v1 import sink_gateway_pb2

    entry = sink_gateway_pb2.Entry.FromString(base64.b64decode(document["entry"]))
    return Letter(
        file=file,
        line=line,
        kind=document["kind"],
        stream=document["destination"],
        data=entry.data,
        key=entry.partition_key or None,
        explicit_hash_key=entry.explicit_hash_key or None,
        code=document["error_code"],
        why=f"{document['error_code']}: {document['error_message']}",
        time=datetime.fromtimestamp(document["time"], UTC).isoformat(timespec="milliseconds"),
        is_redriven=is_redriven,
    )


def _file_rows(letters: Sequence[Letter]) -> Iterator[Row]:
    for file, stream in dict.fromkeys((one.file, one.stream) for one in letters):
        chosen = [one for one in letters if (one.file, one.stream) == (file, stream)]
        left = [one for one in chosen if not one.is_redriven]
        causes = Counter(one.code or one.why for one in left)
        document = {
            "file": str(file),
            "streamName": stream,
            "open": len(left),
            "redriven": len(chosen) - len(left),
            "causes": dict(causes),
        }
        why = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(3)) or "-"
        cells: list[Cell | str] = [file.name, stream or "-", Cell(str(len(left)), style="red" if left else "green")]
        yield Row([*cells, str(len(chosen) - len(left)), why], document)


def _letter_row(one: Letter) -> Row:
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


def _redrive(arguments: argparse.Namespace, letters: Sequence[Letter], screen: Screen) -> int:
    groups: dict[str, list[Letter]] = {}
    kept: Counter[str] = Counter()
    for one in letters:
        stream = arguments.to or one.stream
        if one.kind != "kinesis":
            kept[f"is for {one.kind}, which is not written from here"] += 1
        elif one.data is None:
            kept["has no data"] += 1
        elif not (one.key or arguments.key):
            kept["has no partition key: say --key"] += 1
        elif stream is None:
            kept["names no stream: say --to"] += 1
        else:
            groups.setdefault(stream, []).append(one)
    for why, count in kept.items():
        sys.stderr.write(f"{PROG} redrive: {count} stay: a letter {why}\n")

    def report(stream: str, written: int, failed: int, state: str) -> None:
        document = {"streamName": stream, "letters": written + failed, "written": written, "failed": failed}
        screen.show_row(Row([stream, f"{state}: {written}", f"failed: {failed}"], {**document, "state": state}))
        screen.flush()

    if not arguments.execute:
        for stream, chosen in groups.items():
            report(stream, len(chosen), 0, "would be written")
        screen.say("--execute does it", "bold")
        return ExitCode.OK
    try:
        import penstock.async_sink  # noqa: F401  # it writes
    except ImportError as error:
        return missing(PROG, error)

    def calls() -> int:
        are_all_written = not kept
        for stream, chosen in groups.items():
            written = _write(arguments, stream, chosen)
            report(stream, written, len(chosen) - written, "written")
            are_all_written = are_all_written and written == len(chosen)
        return ExitCode.OK if are_all_written else ExitCode.FAILED

    return run_calls(f"{PROG} redrive", arguments, calls)


def _write(arguments: argparse.Namespace, stream: str, letters: Sequence[Letter]) -> int:
    """Write letters to a stream and note those that are acknowledged. Returns how many."""
    import asyncio

    from penstock.async_sink import AsyncSinkConfig, CallbackHandler, KinesisRequestEntry, KinesisStreamsSink
    from penstock.async_sink.errors import RecordError

    failed: set[int] = set()
    sent: list[Letter] = []

    def give_up(record: TerminalRecord[Any]) -> None:
        failed.add(record.record_number)
        sys.stderr.write(f"{PROG} redrive: {stream}: {record.error_code}: {record.error_message}\n")

    sink = KinesisStreamsSink(
        aws_options(arguments),
        stream,
        config=AsyncSinkConfig(max_attempts=arguments.attempts),
        terminal=lambda: CallbackHandler(give_up),
    )

    async def write() -> None:
        async with sink.create_writer() as writer:
            for one in letters:
                assert one.data is not None
                entry = KinesisRequestEntry(one.data, one.key or arguments.key, one.explicit_hash_key)
                try:
                    await writer.write(entry)
                except RecordError as error:
                    # It is the record that cannot be written, as before: the others can.
                    sys.stderr.write(f"{PROG} redrive: {stream}: {error}\n")
                else:
                    sent.append(one)

    asyncio.run(write())
    done = [one for number, one in enumerate(sent) if number not in failed]
    for file in dict.fromkeys(one.file for one in done):
        noted = file.parent / REDRIVEN / file.name
        noted.parent.mkdir(exist_ok=True)
        with noted.open("a") as opened:
            opened.writelines(f"{one.line}\n" for one in done if one.file == file)
    return len(done)
