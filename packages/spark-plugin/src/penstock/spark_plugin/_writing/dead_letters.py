"""Records that cannot be written, kept as files."""

import contextlib
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from penstock.async_sink import DynamoDbRequestEntry, SqsRequestEntry, TerminalRecord
from penstock.aws import AwsError
from penstock.rpc import make_folder, open_regular
from penstock.spark_plugin._places import S3_SCHEMES, Place
from penstock.spark_plugin._writing.records import WriteAttempt
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_log = logging.getLogger(__name__)
_FAR = (*S3_SCHEMES, "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""Schemes that Arrow has a file system for."""
_OF_KINESIS = ("endpointUrl", "caBundle")
_KEY_FIELDS = {"partitionKey": "partition_key", "explicitHashKey": "explicit_hash_key"}
_MESSAGE_FIELDS = ("messageGroupId", "messageDeduplicationId", "delaySeconds")


def dead_letter_folder(path: str, options: Mapping[str, str] | None = None) -> Path | Place:
    """The folder that the option `deadLetterPath` means; `options` are the write's options of AWS.

    Raises:
        OptionError: the folder is neither on a mounted file system nor on one that Arrow reaches.
    """
    parts = urlsplit(path)
    if parts.scheme in _FAR:
        kept = {name: text for name, text in (options or {}).items() if name not in _OF_KINESIS}
        try:
            return Place.parse(path, kept)
        except ValueError as error:
            raise OptionError.invalid("deadLetterPath", path, str(error).removeprefix("write ")) from error
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise OptionError.invalid(
            "deadLetterPath", path, "a path, or file:///…, of a file system that executors mount, or s3://BUCKET/FOLDER"
        )
    return Path(unquote(parts.path)) if parts.scheme else Path(path)


class DeadLetterFile:
    """The dead letters of one write task, a JSON object a line.

    The file is named after query, micro-batch and partition, and a write that is not a stream's after its `jobId` and
    itself, so that other writes of that job leave it alone. It appears under its name when the task has ended well: a
    task that runs again replaces it, a task that fails leaves none. A micro-batch that runs again replaces what writes
    of the same `jobId` kept in its `foreachBatch` the time before. Its fields: `data` (base64, which Spark reads as
    binary), `partitionKey`, `explicitHashKey`, `kind` (`kinesis`, `firehose`, `sqs` or `dynamodb`), `streamName`,
    `reason`, `errorCode`, `errorMessage`, `attempts`, `row` (of the partition; null if it was sent), `time`; of a
    message also `messageGroupId`, `messageDeduplicationId` and `delaySeconds`. The data of an item is its attribute
    values as JSON, or its row as JSON with the reason `not encoded`.
    """

    def __init__(self, folder: Path | Place, attempt: WriteAttempt) -> None:
        self.count = 0
        """Records so far."""
        parts = attempt.job, f"{attempt.batch:010}", f"{attempt.partition:05}", attempt.query
        name = "-".join(filter(None, parts)).replace("/", "_")
        # Spark does not read files whose names begin with a dot or a low line.
        name = f"job{name}" if name.startswith((".", "_")) else name
        # Where the run is not known nothing is removed: it may be of another write in this one.
        self._all_runs, self._this_run = (f"{name}-", f"{name}-{attempt.run}-") if attempt.run else ("", "")
        name = "-".join(filter(None, (name, attempt.run, attempt.write)))
        # Elsewhere only a task that is tried again finds what it kept: the others need not ask a store that is far.
        self._may_be_there = attempt.is_stream or attempt.attempt > 0
        # A task of a former run that ends late is to leave alone what the newer one has kept meanwhile.
        self._began_ns = time.time_ns()
        self._place = folder if isinstance(folder, Place) else None
        self._name = f"{name}.json"
        # Others may write into the folder: a name that they can tell could be a link of theirs.
        partial = f".{name}.{attempt.attempt}.{os.getpid()}.{secrets.token_hex(8)}.partial"
        self._partial_name = partial
        folder = Path() if isinstance(folder, Place) else folder
        self.path = folder / self._name
        self._partial = folder / partial
        self._file: IO[bytes] | None = None
        # Bad rows come from the task's thread, refused records from the sink's.
        self._lock = threading.Lock()

    def add(self, letters: Sequence[dict[str, Any]]) -> None:
        """Keep records.

        Raises:
            SparkPluginError: the folder cannot be written.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = [json.dumps({**letter, "time": time}, ensure_ascii=False).encode() + b"\n" for letter in letters]
        with self._lock, self._typed():
            if self._file is None and self._place is not None:
                self._file = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115  # closed by commit and discard
            elif self._file is None:
                make_folder(self.path.parent)
                number = open_regular(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
                self._file = os.fdopen(number, "wb")
            self._file.write(b"".join(lines))
            self.count += len(letters)

    def commit(self) -> None:
        """Make the file durable and give it its name. What was kept when the task ran before goes.

        Raises:
            SparkPluginError: the file cannot be kept, for example because the disk is full.
        """
        with self._lock:
            kept = self._file
            if kept is not None:
                with self._typed():
                    self._keep_near(kept) if self._place is None else self._keep_far(kept, self._place)
                    kept.close()
                    self._file = None
            try:
                if self._place is None:
                    self._remove_near(is_kept=kept is not None)
                else:
                    self._remove_far(self._place, is_kept=kept is not None)
            except (OSError, AwsError) as error:
                # All is written: a task that failed now would write it again.
                folder = self.path.parent if self._place is None else self._place.shown
                _log.warning("%s: cannot remove dead letters of an earlier try, if there are any: %s", folder, error)

    def _keep_near(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        self._partial.replace(self.path)
        opened = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def _remove_near(self, *, is_kept: bool) -> None:
        if not is_kept:
            self.path.unlink(missing_ok=True)
        if self._all_runs and self.path.parent.exists():
            for path in self.path.parent.iterdir():
                # Another task of the same rows may be at it, too.
                with contextlib.suppress(FileNotFoundError):
                    if self._is_of_former_run(path.name) and path.stat().st_mtime_ns < self._began_ns:
                        path.unlink()

    def _keep_far(self, file: IO[bytes], place: Place) -> None:
        system, folder = place.open()
        target = f"{folder}/{self._name}"
        file.seek(0)
        data = file.read()
        # On S3 an object appears whole.
        sent = target if place.is_s3 else f"{folder}/{self._partial_name}"
        if not place.is_s3:
            system.create_dir(folder, recursive=True)
        with system.open_output_stream(sent) as out:
            out.write(data)
        if not place.is_s3:
            system.move(sent, target)

    def _remove_far(self, place: Place, *, is_kept: bool) -> None:
        is_asked = self._may_be_there and not is_kept
        if not is_asked and not self._all_runs:
            return
        system, folder = place.open()
        target = f"{folder}/{self._name}"
        if is_asked and system.get_file_info(target).is_file:
            system.delete_file(target)
        if self._all_runs:
            for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
                if self._is_of_former_run(info.base_name) and (info.mtime_ns or 0) < self._began_ns:
                    system.delete_file(info.path)

    def _is_of_former_run(self, name: str) -> bool:
        """Whether a file was kept by this part of a micro-batch, for the same job, in another run of the query."""
        return name.startswith(self._all_runs) and name.endswith(".json") and not name.startswith(self._this_run)

    def discard(self) -> None:
        """Leave nothing behind of a task that failed."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
                if self._place is None:
                    with contextlib.suppress(OSError):
                        self._partial.unlink()

    @contextlib.contextmanager
    def _typed(self) -> Any:
        try:
            yield
        except (OSError, AwsError) as error:
            folder = self.path.parent if self._place is None else self._place.shown
            reason = getattr(error, "strerror", None) or str(error)
            raise SparkPluginError.of("DEAD_LETTERS_NOT_KEPT", path=str(folder), reason=reason) from error


class DeadLetterFileHandler:
    """Keeps the records that the writer of one stream cannot deliver; a terminal record handler of the sink."""

    takes_many = True

    def __init__(self, file: DeadLetterFile, stream: str, kind: str = "kinesis") -> None:
        self._file = file
        self._stream = stream
        self._kind = kind

    async def open(self) -> None:
        """Nothing to open: the file is the task's."""

    async def close(self) -> None:
        """Nothing to close."""

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> None:
        """Keep the records."""
        self._file.add(
            [
                letter(
                    *data_and_fields(record.entry),
                    self._stream,
                    kind=self._kind,
                    reason=record.reason.value,
                    error_code=record.error_code,
                    error_message=record.error_message,
                    attempts=record.attempts,
                )
                for record in records
            ]
        )


def data_and_fields(entry: Any) -> tuple[bytes, dict[str, Any]]:
    """The data of an entry that was not delivered, and its other fields by the names of their columns."""
    if isinstance(entry, SqsRequestEntry):
        fields = entry.group_id, entry.deduplication_id, entry.delay_seconds
        return entry.body.encode(), dict(zip(_MESSAGE_FIELDS, fields, strict=True))
    if isinstance(entry, DynamoDbRequestEntry):
        return json.dumps(entry.item, default=lambda value: b64encode(value).decode()).encode(), {}
    keys = {name: getattr(entry, field, None) for name, field in _KEY_FIELDS.items()}
    return bytes(entry.data), keys


def letter(
    data: bytes | None,
    fields: Mapping[str, Any],
    stream: str | None,
    *,
    kind: str = "kinesis",
    reason: str,
    error_code: str = "",
    error_message: str = "",
    attempts: int = 0,
    row: int | None = None,
) -> dict[str, Any]:
    """The fields of one dead letter but its time."""
    return {
        "data": None if data is None else b64encode(data).decode(),
        **dict.fromkeys(_KEY_FIELDS),
        **fields,
        "kind": kind,
        "streamName": stream,
        "reason": reason,
        "errorCode": error_code,
        "errorMessage": error_message,
        "attempts": attempts,
        "row": row,
    }
