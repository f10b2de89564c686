"""`penstock put`: lines into a stream, by the sink."""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from penstock.cli._aws import add_aws_arguments, aws_options, is_utf8, missing, run_calls
from penstock.terminal import (
    Column,
    ExitCode,
    Parser,
    Row,
    Screen,
    Table,
    add_json_argument,
    positive_count,
    size,
)

if TYPE_CHECKING:
    from penstock.async_sink import TerminalRecord

PROG: Final = "penstock put"
_CHUNK_BYTES: Final = 1 << 18
_MOST_BYTES: Final = 1024 * 1024
_MOST_KEY: Final = 256
_TOLD: Final = 10
_ATTEMPTS: Final = 20
_COLUMNS: Final = (
    Column("STREAM"),
    Column("RECORDS", justify="right"),
    Column("BYTES", justify="right"),
    Column("FAILED", justify="right"),
    Column("RETRIED", justify="right"),
    Column("SECONDS", justify="right"),
)


@dataclass
class Failures:
    """Lines that are not in the stream; the first of them are reported as they come."""

    count: int = 0
    given_up: int = 0
    """Of these, how many Kinesis did not take."""
    is_unreachable: bool = False
    """Whether the last of them had no answer."""

    def add(self, what: str, reason: str) -> None:
        """Count a line or record, and tell it."""
        self.count += 1
        if self.count <= _TOLD:
            sys.stderr.write(f"{PROG}: {what}: {reason}\n")
        elif self.count == _TOLD + 1:
            sys.stderr.write(f"{PROG}: further ones that fail are only counted\n")

    def give_up(self, record: TerminalRecord[Any]) -> None:
        """The sink does not send it again."""
        self.given_up += 1
        self.is_unreachable = record.error_code == "AwsConnectionError"
        reason = f"{record.error_code}: {record.error_message} (after {record.attempts} attempts)"
        self.add(f"record {record.record_number + 1} of those sent", reason)


def main(argv: Sequence[str]) -> int:
    """Put lines into a stream. Returns 1 when a line is not in the stream."""
    parser = Parser(
        prog=PROG,
        description="Put lines into a stream, each as a record without its end of line. The command ends when Kinesis "
        "has acknowledged all of them. It sends throttled and failed records again.",
        epilog="exit codes: 0 all lines are in the stream, 1 some lines are not, or Kinesis refused, 2 wrong usage, "
        "3 Kinesis cannot be reached, 130 interrupted, after writing the lines that were read",
    )
    parser.add_argument("stream", metavar="STREAM", help="name of a stream")
    parser.add_argument("files", nargs="*", metavar="FILE", help="files to read; standard input by default, or for -")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key", help="partition key of all records; default: a random key for each record")
    keys.add_argument("--key-separator", metavar="TEXT", help="text between the key and the data of each line")
    parser.add_argument("--rate", type=positive_count, metavar="N", help="at most N records per second")
    parser.add_argument(
        "--attempts",
        type=positive_count,
        default=_ATTEMPTS,
        metavar="N",
        help=f"attempts to send a record before it counts as failed; default: {_ATTEMPTS}",
    )
    add_json_argument(parser)
    add_aws_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.key is not None and not (1 <= len(arguments.key) <= _MOST_KEY and is_utf8(arguments.key)):
        parser.error("--key must be 1 to 256 characters of UTF-8")
    if arguments.key_separator == "":
        parser.error("--key-separator must not be empty")
    try:
        import penstock.async_sink
        import penstock.rpc  # noqa: F401  # all are needed
    except ImportError as error:
        return missing(PROG, error)
    try:
        # Each is closed when it is read; all are opened first, so that nothing is written where one is missing.
        files = [
            sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115
            for name in arguments.files or ["-"]
        ]
    except OSError as error:
        sys.stderr.write(f"{PROG}: {error.filename}: {error.strerror}\n")
        return ExitCode.USAGE
    return run_calls(PROG, arguments, lambda: _put(arguments, files))


def _put(arguments: argparse.Namespace, files: Sequence[BinaryIO]) -> int:
    from datetime import timedelta

    import pyarrow as pa

    from penstock.async_sink import (
        AsyncSinkConfig,
        CallbackHandler,
        KinesisStreamsSink,
        kinesis_strategy,
        rate_strategy,
    )
    from penstock.rpc import LoopThread

    failures = Failures()
    sink = KinesisStreamsSink(
        aws_options(arguments),
        arguments.stream,
        config=AsyncSinkConfig(
            max_attempts=arguments.attempts,
            # A bucket lets a request go that is larger than it, and then waits: 500 at once are no 10 a second.
            max_batch_size=min(500, arguments.rate or 500),
            # Somebody types, and looks for the record elsewhere.
            max_time_in_buffer=timedelta(milliseconds=200),
        ),
        strategy=rate_strategy(kinesis_strategy, records_per_second=arguments.rate),
        terminal=lambda: CallbackHandler(failures.give_up),
    )
    began, interrupted, given = time.monotonic(), False, 0
    lines = _Lines(arguments.key, arguments.key_separator, failures)
    with LoopThread("put") as loop:
        writer = sink.create_writer()
        loop.call(writer.__aenter__())
        try:
            try:
                for records in _records(files, lines):
                    data, keys = zip(*records, strict=True)
                    given += len(records)
                    batch = pa.record_batch({"data": pa.array(data, pa.binary()), "partitionKey": list(keys)})
                    loop.call(writer.write_many(batch))
            except KeyboardInterrupt:
                interrupted = True
            loop.call(writer.flush(end_of_input=True))
        finally:
            loop.call(writer.close())
    metrics = writer.metrics
    seconds = time.monotonic() - began
    document = {
        "streamName": arguments.stream,
        "records": metrics.records_out,
        "bytes": metrics.bytes_out,
        "failed": failures.count,
        "retried": metrics.retried,
        "throttled": metrics.throttled,
        "seconds": round(seconds, 3),
    }
    counted = "1 record" if metrics.records_out == 1 else f"{metrics.records_out} records"
    text = f"{counted}, {metrics.bytes_out} bytes to {arguments.stream} in {seconds:.1f} s; {failures.count} failed"
    cells = [arguments.stream, str(metrics.records_out), size(metrics.bytes_out), str(failures.count)]
    row = Row([*cells, str(metrics.retried), f"{seconds:.1f}"], document, text)
    Screen(sys.stdout, as_json=arguments.json).show(Table(columns=_COLUMNS, rows=[row]))
    if interrupted:
        lost = given - metrics.records_out - failures.given_up
        sys.stderr.write(f"{PROG}: interrupted: {lost} records that were read are not written\n")
        return ExitCode.INTERRUPTED
    if failures.is_unreachable and not metrics.records_out:
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if failures.count else ExitCode.OK


class _Lines:
    """Makes records of lines, and counts the lines that cannot be records."""

    def __init__(self, key: str | None, separator: str | None, failures: Failures) -> None:
        self._key = key
        # As it was given: lines are bytes, of whatever encoding.
        self._separator = os.fsencode(separator) if separator is not None else None
        self._failures = failures
        self._number = 0

    def record(self, line: bytes) -> tuple[bytes, str] | None:
        """Data and partition key; None where the line is reported as one that fails."""
        self._number += 1
        key = self._key if self._key is not None else f"{random.getrandbits(64):016x}"
        if self._separator is not None:
            head, found, line = line.partition(self._separator)
            if not found:
                self._fail("has no key: --key-separator is not in it")
                return None
            try:
                key = head.decode()
            except UnicodeDecodeError:
                # With marks in the place of what it holds, keys that differ would be one.
                self._fail("its key is not UTF-8, as keys of Kinesis are: convert the file, such as by iconv")
                return None
            if not 1 <= len(key) <= _MOST_KEY:
                self._fail(f"its key has {len(key)} characters; 1 to {_MOST_KEY} are allowed")
                return None
        if len(line) + len(key.encode()) > _MOST_BYTES:
            self._fail(f"{len(line)} bytes with a key of {len(key.encode())}: a record holds {_MOST_BYTES}")
            return None
        return line, key

    def _fail(self, reason: str) -> None:
        self._failures.add(f"line {self._number}", reason)


def _records(files: Sequence[BinaryIO], lines: _Lines) -> Iterator[list[tuple[bytes, str]]]:
    """Records that can be read without waiting, so that a typed line is sent at once."""
    for file in files:
        rest = b""
        with file:
            while chunk := _read(file):
                *whole, rest = (rest + chunk).split(b"\n")
                if found := [one for line in whole if (one := lines.record(line)) is not None]:
                    yield found
        if rest and (last := lines.record(rest)) is not None:
            yield [last]


def _read(file: BinaryIO) -> bytes:
    return file.read1(_CHUNK_BYTES) if isinstance(file, io.BufferedReader) else file.read(_CHUNK_BYTES)
