"""Reads dead letters and writes them to their streams again.

Dead letters are files with a JSON object per line in the folder `deadLetterPath` of a Spark job. The files are not
changed: letters that a stream has acknowledged are noted in the folder `_redriven` beside them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.async_sink.errors import RecordError, SinkError
from penstock.rpc import lock_file, open_regular

if TYPE_CHECKING:
    from penstock.async_sink import TerminalRecord
    from penstock.aws import AwsOptions

__all__ = ["NOT_ENCODED", "DeadLetter", "RedriveSummary", "read_dead_letters", "redrive", "why_it_stays"]

NOT_ENCODED: Final = "not encoded"
"""Reason of a letter whose data is its row as JSON, because it could not be encoded."""

REDRIVEN: Final = "_redriven"
"""Folder beside the letters; Spark reads no folder of such a name."""
_AT_A_TIME: Final = 5_000
_BYTES_AT_A_TIME: Final = 64 << 20
"""Of lines: a letter may hold 10 MiB."""
_LONGEST_LINE: Final = 64 << 20
"""Bytes of a letter: a row that is too large for its stream is a letter, too."""


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be written.

    Attributes:
        file: where it stands.
        line: the line of the file.
        kind: of its destination, such as `kinesis`.
        stream: name or ARN of the destination; None where a row named none.
        data: None for a row without data.
        key: partition key, None where it had none.
        explicit_hash_key: as the writer gave it.
        code: the service's error code, empty for a row that was never sent.
        why: what was wrong, for people.
        time: when, ISO 8601.
        is_redriven: whether it has been written since.
        is_encoded: whether `data` is the data of a record; otherwise it is a row as JSON that could not be encoded.
    """

    file: Path
    line: str = field(repr=False)
    kind: str
    stream: str | None
    data: bytes | None = field(repr=False)
    key: str | None
    explicit_hash_key: str | None
    code: str
    why: str
    time: str
    is_redriven: bool
    is_encoded: bool = True


@dataclass
class RedriveSummary:
    """The result of a redrive.

    Attributes:
        written: letters that a stream has acknowledged, by its name.
        failed: letters that were refused again, by the stream's name.
        kept: letters that were not sent, by why.
        is_unreachable: whether the last letter that was refused had no answer from Kinesis.
    """

    written: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    is_unreachable: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether no letter is left."""
        return not (self.failed.total() or self.kept.total())


def read_dead_letters(path: Path) -> Iterator[DeadLetter]:
    """The letters of a folder, or of one file, file by file in the order of names. Holds one at a time.

    A file of a folder that goes meanwhile is left out: a micro-batch that ran again removed it.

    Raises:
        OSError: it cannot be read.
        SinkError: DEAD_LETTER_FILE: a file holds something else; names file and line.
    """
    in_folder = (one for one in path.glob("*.json") if not one.name.startswith("."))
    for file in sorted(in_folder) if path.is_dir() else [path]:
        try:
            yield from _letters(file)
        except FileNotFoundError:
            if file == path:
                raise


def why_it_stays(letter: DeadLetter, to: str | None = None, key: str | None = None) -> str | None:
    """Why a letter cannot be sent to its stream, or to the stream `to`, with `key` if it has none; None if it can."""
    if letter.kind != "kinesis":
        return f"is for {letter.kind}, which is not written from here"
    if letter.data is None:
        return "has no data"
    if not letter.is_encoded:
        return "is a row that could not be encoded, as JSON: correct the row or the schema, and write the row again"
    if not (letter.key or key):
        return "has no partition key: say --key"
    return None if to or letter.stream else "names no stream: say --to"


def redrive(
    path: Path,
    options: AwsOptions,
    *,
    wanted: Callable[[DeadLetter], bool] = lambda letter: True,
    to: str | None = None,
    key: str | None = None,
    max_attempts: int = 20,
    report: Callable[[str, str], None] = lambda stream, words: None,
) -> RedriveSummary:
    """Write letters that are not redriven yet to their streams, and note acknowledged letters.

    Delivery is at least once: after a kill between the two steps, some letters are written again. One process at a time
    redrives a folder. Blocks until all letters are processed.

    Args:
        path: a folder of letters, or a file of them.
        options: how to reach Kinesis.
        wanted: which of them.
        to: name or ARN of the stream for all of them; default: the one that each is for.
        key: partition key of those that have none; without it they stay.
        max_attempts: how often a record is sent before it stays a letter.
        report: gets the stream of each letter that is refused again, and why.

    Raises:
        OSError: the letters cannot be read, or no note can be written beside them; then they were not sent.
        SinkError: DEAD_LETTER_FILE: a file holds something else; letters before it may be written.
        SinkError: DEAD_LETTERS_BUSY: another process redrives these letters.
        SinkError: a stream cannot be written at all.
    """
    summary = RedriveSummary()
    with _alone(path if path.is_dir() else path.parent):
        letters = (one for one in read_dead_letters(path) if not one.is_redriven and wanted(one))
        for chunk in _chunks(letters):
            of_stream: dict[str, list[DeadLetter]] = {}
            for one in chunk:
                why = why_it_stays(one, to, key)
                if why is None:
                    of_stream.setdefault(to or one.stream or "", []).append(one)
                else:
                    summary.kept[why] += 1
            _make_notes({one.file for some in of_stream.values() for one in some})
            for stream, some in of_stream.items():
                done = asyncio.run(_write(options, stream, some, key, max_attempts, report, summary))
                _note(done)
                summary.written[stream] += len(done)
                summary.failed[stream] += len(some) - len(done)
    return summary


def _chunks(letters: Iterator[DeadLetter]) -> Iterator[list[DeadLetter]]:
    chunk: list[DeadLetter] = []
    size = 0
    for one in letters:
        chunk.append(one)
        size += len(one.line)
        if len(chunk) >= _AT_A_TIME or size >= _BYTES_AT_A_TIME:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


async def _write(
    options: AwsOptions,
    stream: str,
    letters: list[DeadLetter],
    key: str | None,
    max_attempts: int,
    report: Callable[[str, str], None],
    summary: RedriveSummary,
) -> list[DeadLetter]:
    """Write letters to a stream. Returns those that it acknowledged; notes whether it was reached."""
    from penstock.async_sink import AsyncSinkConfig, CallbackHandler, KinesisRequestEntry, KinesisStreamsSink
    from penstock.async_sink._destinations.kinesis.entry import MAX_RECORD_BYTES

    failed: set[int] = set()
    sent: list[DeadLetter] = []

    def give_up(record: TerminalRecord[Any]) -> None:
        failed.add(record.record_number)
        summary.is_unreachable = record.error_code == "AwsConnectionError"
        report(stream, f"{record.error_code}: {record.error_message}")

    is_arn = stream.startswith("arn:")
    sink = KinesisStreamsSink(
        options,
        stream_name=None if is_arn else stream,
        stream_arn=stream if is_arn else None,
        # The largest that any stream takes: one that takes less says so itself.
        config=AsyncSinkConfig(
            max_attempts=max_attempts,
            max_record_size_in_bytes=MAX_RECORD_BYTES,
            max_batch_size_in_bytes=MAX_RECORD_BYTES,
        ),
        terminal=lambda: CallbackHandler(give_up),
    )
    async with sink.create_writer() as writer:
        for one in letters:
            entry = KinesisRequestEntry(one.data or b"", one.key or key or "", one.explicit_hash_key)
            try:
                await writer.write(entry)
            except RecordError as error:
                # It is the record that cannot be written, as before: the others can.
                report(stream, str(error))
            else:
                sent.append(one)
    return [one for number, one in enumerate(sent) if number not in failed]


def _make_notes(files: Iterable[Path]) -> None:
    """Make sure that letters of these files can be noted, before they are sent."""
    for file in files:
        with _notes(file):
            pass


def _note(done: list[DeadLetter]) -> None:
    for file in dict.fromkeys(one.file for one in done):
        with _notes(file) as number:
            lines = [one.line.encode() + b"\n" for one in done if one.file == file]
            with open(number, "ab", closefd=False) as opened:
                size = os.fstat(number).st_size
                if size and os.pread(number, 1, size - 1) != b"\n":
                    # A full disk or a cut of the power left half a line, which the next one is not part of.
                    opened.write(b"\n")
                opened.writelines(lines)
            os.fsync(number)


@contextmanager
def _notes(file: Path) -> Iterator[int]:
    """The notes of a file of letters, open. Only users that can read the letters can read the notes."""
    try:
        mode = file.stat().st_mode & 0o666
    except FileNotFoundError:
        mode = 0  # a micro-batch that ran again has removed it
    with _own(file.parent / REDRIVEN / file.name, mode | 0o600) as number:
        yield number


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from redriving the same letters, which would be written twice."""
    (folder / REDRIVEN).mkdir(exist_ok=True)
    with _own(folder / REDRIVEN / ".lock") as number:
        if not lock_file(number):
            raise SinkError.of("DEAD_LETTERS_BUSY", folder=str(folder))
        yield


@contextmanager
def _own(path: Path, mode: int | None = None) -> Iterator[int]:
    """Open a file for appending, and make it if it is missing. `mode` is passed to `open_regular`."""
    number = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    try:
        yield number
    finally:
        os.close(number)


def _open(path: Path, flags: int = os.O_RDONLY, mode: int | None = None) -> int:
    """Open a file. A link is refused, of its folder too: other users may write into the folder of letters."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return open_regular(path.name, flags, mode=mode, dir_fd=folder)
    finally:
        os.close(folder)


def _letters(file: Path) -> Iterator[DeadLetter]:
    # Two letters may be equal in every field: each gets its own note.
    redriven: Counter[bytes] = Counter()
    with suppress(FileNotFoundError):
        redriven.update(hashlib.sha256(line).digest() for line in _lines(file.parent / REDRIVEN / file.name, _open))
    for number, line in enumerate(_lines(file, open_regular), 1):
        digest = hashlib.sha256(line).digest()
        is_redriven = redriven[digest] > 0
        redriven[digest] -= is_redriven
        try:
            yield _parse(file, line.decode(), is_redriven)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unreadable(file, number, repr(error)) from error


def _lines(file: Path, opener: Callable[[Path], int]) -> Iterator[bytes]:
    try:
        number = opener(file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(file, 1, error.strerror or str(error)) from error
    # Not all that ends a line for Python ends one here: keys and messages hold what they like.
    with open(number, "rb") as opened:
        count = 0
        while line := opened.readline(_LONGEST_LINE + 1):
            count += 1
            if len(line) > _LONGEST_LINE:
                raise _unreadable(file, count, f"it has more than {_LONGEST_LINE} bytes")
            yield line.removesuffix(b"\n")


def _unreadable(file: Path, line: int, reason: str) -> SinkError:
    return SinkError.of("DEAD_LETTER_FILE", file=str(file), line=line, reason=reason)


def _parse(file: Path, line: str, is_redriven: bool) -> DeadLetter:
    document: dict[str, Any] = json.loads(line)
    letter = DeadLetter(
        file=file,
        line=line,
        kind=document.get("kind", "kinesis"),
        stream=document["streamName"],
        data=None if document["data"] is None else base64.b64decode(document["data"]),
        key=document["partitionKey"],
        explicit_hash_key=document["explicitHashKey"],
        code=document["errorCode"],
        why=": ".join(filter(None, (document["errorCode"], document["errorMessage"]))) or document["reason"],
        time=document["time"],
        is_redriven=is_redriven,
        is_encoded=document.get("reason") != NOT_ENCODED,
    )
    for name in ("kind", "stream", "key", "explicit_hash_key", "code", "time"):
        value = getattr(letter, name)
        if not isinstance(value, str) and (value is not None or name in ("kind", "code", "time")):
            raise TypeError(f"{name} is not a text")
    return letter
