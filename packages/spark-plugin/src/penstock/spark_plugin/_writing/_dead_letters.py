"""Records that cannot be written, kept as files."""

import contextlib
import json
import os
import secrets
import threading
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from penstock.async_sink import TerminalRecord
from penstock.spark_plugin._writing._record_ids import WriteAttempt
from penstock.spark_plugin.errors import DeadLetterError, InvalidOptionError


def dead_letter_folder(path: str) -> Path:
    """The folder that the option `deadLetterPath` means.

    Raises:
        InvalidOptionError: It is on no file system that is mounted here.
    """
    parts = urlsplit(path)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise InvalidOptionError("deadLetterPath", path, "a path, or file:///…, of a file system that executors mount")
    return Path(unquote(parts.path)) if parts.scheme else Path(path)


class DeadLetterFile:
    """The dead letters of one write task, a JSON object a line.

    The file is named after query, micro-batch and partition (and the write, where one in a `foreachBatch` has no name),
    and appears under its name when the task has ended well: a task that runs again replaces it, a task that fails
    leaves none. Its fields: `data` (base64, which Spark reads as binary), `partitionKey`, `explicitHashKey`,
    `streamName`, `reason`, `errorCode`, `errorMessage`, `attempts`, `row` (of the partition; null if it was sent),
    `time`.
    """

    def __init__(self, folder: Path, attempt: WriteAttempt) -> None:
        self.count = 0
        """Records so far."""
        parts = attempt.job, f"{attempt.batch:010}", f"{attempt.partition:05}", attempt.write
        name = "-".join(filter(None, parts)).replace("/", "_")
        # Spark does not read files whose names begin with a dot or a low line.
        name = f"job{name}" if name.startswith((".", "_")) else name
        self._comes_again = attempt.comes_again
        self.path = folder / f"{name}.json"
        # Others may write into the folder: a name that they can tell could be a link of theirs.
        self._partial = folder / f".{name}.{attempt.attempt}.{os.getpid()}.{secrets.token_hex(8)}.partial"
        self._file: IO[bytes] | None = None
        # Bad rows come from the task's thread, refused records from the sink's.
        self._lock = threading.Lock()

    def add(self, letters: Sequence[dict[str, Any]]) -> None:
        """Keep records.

        Raises:
            DeadLetterError: The folder cannot be written.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = [json.dumps({**letter, "time": time}, ensure_ascii=False).encode() + b"\n" for letter in letters]
        with self._lock, self._typed():
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._partial.open("xb")
            self._file.write(b"".join(lines))
            self.count += len(letters)

    def commit(self) -> None:
        """Make the file durable and give it its name. Without dead letters that of a run before goes.

        Raises:
            DeadLetterError: It cannot be done; the disk is full, say.
        """
        with self._lock, self._typed():
            if self._file is None:
                if self._comes_again and self.path.exists():
                    self.path.unlink()
                return
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._file = None

    def discard(self) -> None:
        """Leave nothing behind of a task that failed."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
                with contextlib.suppress(OSError):
                    self._partial.unlink()

    @contextlib.contextmanager
    def _typed(self) -> Any:
        try:
            yield
        except OSError as error:
            raise DeadLetterError(str(self.path.parent), error.strerror or str(error)) from error


class DeadLetterFileHandler:
    """Keeps what the writer of one stream gives up; a terminal record handler of the sink."""

    takes_many = True

    def __init__(self, file: DeadLetterFile, stream: str) -> None:
        self._file = file
        self._stream = stream

    async def open(self) -> None:
        """Nothing to open: the file is the task's."""

    async def close(self) -> None:
        """Nothing to close."""

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> None:
        """Keep the records."""
        self._file.add(
            [
                letter(
                    bytes(record.entry.data),
                    getattr(record.entry, "partition_key", None),
                    getattr(record.entry, "explicit_hash_key", None),
                    self._stream,
                    reason=record.reason.value,
                    error_code=record.error_code,
                    error_message=record.error_message,
                    attempts=record.attempts,
                )
                for record in records
            ]
        )


def letter(
    data: bytes | None,
    partition_key: str | None,
    explicit_hash_key: str | None,
    stream: str | None,
    *,
    reason: str,
    error_code: str = "",
    error_message: str = "",
    attempts: int = 0,
    row: int | None = None,
) -> dict[str, Any]:
    """The fields of one dead letter but its time."""
    return {
        "data": None if data is None else b64encode(data).decode(),
        "partitionKey": partition_key,
        "explicitHashKey": explicit_hash_key,
        "streamName": stream,
        "reason": reason,
        "errorCode": error_code,
        "errorMessage": error_message,
        "attempts": attempts,
        "row": row,
    }
