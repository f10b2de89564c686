"""Checkpoints of Spark's queries: reads the position of a query, and resets a stopped query to another position.

Without Spark. A checkpoint holds `offsets/N` (where micro-batch N ends, a line for each source) and `commits/N` (it is
done), both in Spark's own format. Spark writes each file once and never again; so does this.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from penstock.aws import AwsSession
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError, PositionsError
from penstock.rpc import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_VERSION: Final = "v1"
_NO_COMMIT: Final = f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}'
_S3: Final = ("s3", "s3a", "s3n")
_MOST_CHARACTERS: Final = 64 * 1024 * 1024
"""Of a file: an offset with the positions of 50,000 shards has 10 MiB."""
BACKUPS: Final = "penstock-reset"
"""Folder of a checkpoint that keeps what stood there before it was reset."""


class _Files(Protocol):
    """The files of a checkpoint, wherever it is."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder; empty if the folder does not exist."""

    def read(self, name: str) -> str:
        """A file's text."""

    def create(self, name: str, text: str) -> None:
        """Write a file that does not exist yet, completely or not at all.

        Raises:
            FileExistsError: it is there.
        """


@dataclass(frozen=True)
class LoggedBatch:
    """A micro-batch in a checkpoint.

    Attributes:
        number: counts a query's micro-batches from 0.
        head: Spark's own facts about it, as JSON.
        sources: an offset for each source of the query, as JSON; `-` where a source had none.
        is_committed: whether the micro-batch is done.
    """

    number: int
    head: str
    sources: tuple[str, ...]
    is_committed: bool

    def documents(self) -> dict[int, dict[str, Any]]:
        """The offsets of sources that read Kinesis by Penstock, by the source's number."""
        found = {}
        for number, text in enumerate(self.sources):
            with suppress(ValueError):
                document = json.loads(text)
                if isinstance(document, dict) and "streams" in document and "version" in document:
                    found[number] = document
        return found


class SparkCheckpoint:
    """The checkpoint of a streaming query. Its calls block.

    Args:
        location: a folder, `file:///…`, or `s3://BUCKET/PREFIX` (also `s3a`), as `checkpointLocation` names it.
        session: credentials and region, for S3.

    Raises:
        CheckpointError: it is of a file system that is not known here.
    """

    def __init__(self, location: str, session: AwsSession | None = None) -> None:
        self.location = location
        self._files = self._open(location, session)

    def _open(self, location: str, session: AwsSession | None) -> _Files:
        parts = urlsplit(location)
        if parts.scheme in _S3:
            if not parts.netloc:
                raise self._error("names no bucket: give s3://BUCKET/PREFIX")
            if session is None:
                raise self._error("needs a session of AWS to be read")
            return _S3Objects(AwsSession.of(session), parts.netloc, parts.path.strip("/"), location)
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            raise self._error(f"is on {parts.scheme}: give a folder, file:///… or s3://BUCKET/PREFIX")
        return _LocalFiles(Path(unquote(parts.path)) if parts.scheme else Path(location))

    def numbers(self) -> list[int]:
        """The micro-batches that are logged, oldest first; Spark keeps the last hundred.

        Raises:
            CheckpointError: no micro-batch is logged.
        """
        found = self._numbers("offsets")
        if not found:
            raise self._error("has no offsets: it is not a checkpoint of a query, or the query has logged nothing yet")
        return found

    def batch(self, number: int) -> LoggedBatch:
        """One micro-batch.

        Raises:
            CheckpointError: the micro-batch is not logged, or was logged by an unknown version of Spark.
        """
        try:
            version, head, *sources = self._files.read(f"offsets/{number}").splitlines()
        except (FileNotFoundError, ValueError) as error:
            raise self._error(f"has no micro-batch {number} that can be read") from error
        if version != _VERSION:
            raise self._error(f"has offsets in version {version!r} of Spark's log; {_VERSION} is known")
        return LoggedBatch(number, head, tuple(sources), number in self._numbers("commits"))

    def positions(self) -> dict[int, StreamPositions]:
        """Where the last micro-batch that is done has ended, by the number of the source.

        Before the first is done, where it began. Only sources that read Kinesis by Penstock.

        Raises:
            CheckpointError: the query has no such source, or its offsets cannot be read.
        """
        numbers, done = self.numbers(), {*self._numbers("commits")}
        committed = [number for number in numbers if number in done]
        batch = self.batch(committed[-1] if committed else numbers[0])
        found = {}
        for source, document in batch.documents().items():
            where = document if committed else document.get("since", document)
            found[source] = self.parse(where)
        if not found:
            raise self._error("has no source that reads Kinesis by Penstock")
        return found

    def parse(self, document: Mapping[str, Any]) -> StreamPositions:
        """The positions of a source's offset.

        Raises:
            CheckpointError: the offset holds no positions.
        """
        try:
            return StreamPositions.from_json(document)
        except PositionsError as error:
            raise self._error(f"has an offset that cannot be read: {error}") from error

    @property
    def is_stateful(self) -> bool:
        """Whether the query keeps state from one micro-batch to the next."""
        return bool(self._files.names("state"))

    def activity(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is logged and what is done: of two answers that differ, a query has written between them."""
        return tuple(self._numbers("offsets")), tuple(self._numbers("commits"))

    def check_reset(self, *, give_up_batch: bool = False) -> LoggedBatch:
        """The last micro-batch, after which `reset` lets the query continue; `give_up_batch` as in `reset`.

        Raises:
            CheckpointError: the query keeps state, which is of its own micro-batches, or the last one is not done.
        """
        if self.is_stateful:
            raise self._error(
                "is of a query with state, which belongs to the records that it has read: begin a new checkpoint with "
                "the initialPosition that you want"
            )
        last = self.batch(self.numbers()[-1])
        if not last.is_committed and not give_up_batch:
            raise self._error(
                f"has micro-batch {last.number} planned, but not done: the query runs, or failed in it. Let it finish, "
                "or abandon that micro-batch, with its rows that were not written"
            )
        return last

    def reset(self, positions: Mapping[int, StreamPositions], *, give_up_batch: bool = False, note: str = "") -> int:
        """Let the query continue from other positions, as if a micro-batch without rows had led there.

        No file is changed: the next micro-batch is logged and committed. What stood last is copied to the folder
        `penstock-reset` of the checkpoint.

        Args:
            positions: of each source that is to continue elsewhere, by its number.
            give_up_batch: commit a last micro-batch that is not done; else it is an error.
            note: for whoever looks into the backup.

        Returns:
            The number of the micro-batch that was added.

        Raises:
            CheckpointError: see `check_reset`; or a query writes to the checkpoint, or a source does not exist.
        """
        last = self.check_reset(give_up_batch=give_up_batch)
        documents, sources = last.documents(), list(last.sources)
        for source, place in positions.items():
            if source not in documents:
                raise self._error(f"has no source {source} that reads Kinesis by Penstock")
            # What a run is called, and its number at services, stay.
            kept = {name: documents[source][name] for name in ("epoch", "query") if name in documents[source]}
            sources[source] = json.dumps({**place.to_json(), **kept})
        commits = [number for number in self._numbers("commits") if number <= last.number]
        commit = self._files.read(f"commits/{commits[-1]}") if commits else _NO_COMMIT
        added = last.number + 1
        try:
            backup = {"from": last.sources, "to": sources, "committed": last.is_committed, "note": note}
            self._files.create(f"{BACKUPS}/{added}.json", json.dumps(backup, indent=1) + "\n")
            self._files.create(f"offsets/{added}", "\n".join((_VERSION, last.head, *sources)))
            if not last.is_committed:
                self._files.create(f"commits/{last.number}", commit)
            self._files.create(f"commits/{added}", commit)
        except FileExistsError as error:
            raise self._error(f"has changed meanwhile ({error}): a query runs on it. Stop it first") from error
        return added

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name) for name in self._files.names(folder) if name.isdecimal())

    def _error(self, reason: str) -> CheckpointError:
        return CheckpointError(name=self.location, reason=reason)


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._folder / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> str:
        path = self._folder / name
        try:
            with open(open_regular(path), encoding="utf-8") as file:
                text = file.read(_MOST_CHARACTERS + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(name=str(path), reason=f"cannot be read: {error.strerror}") from None
        if len(text) > _MOST_CHARACTERS:
            raise CheckpointError(name=str(path), reason=f"has more than {_MOST_CHARACTERS:,} characters")
        return text

    def create(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Hadoop keeps a checksum beside each file; one of a file that was there before would refuse ours.
        if (path.parent / f".{path.name}.crc").exists():
            raise FileExistsError(f"{name} was there before")
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with partial.open("x") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename it fails where the name is taken.
            os.link(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _asked(location: str) -> Iterator[None]:
    """Raise S3's refusals and time-outs as errors of the checkpoint."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise CheckpointError(name=location, reason=f"cannot be reached: {error}") from error


class _S3Objects:
    def __init__(self, session: AwsSession, bucket: str, prefix: str, location: str) -> None:
        self._client = session.client("s3")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._location = location

    def names(self, folder: str) -> list[str]:
        place = f"{self._prefix}{folder}/"
        with _asked(self._location):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=place)
            return [found["Key"].removeprefix(place) for page in pages for found in page.get("Contents", ())]

    def read(self, name: str) -> str:
        with _asked(self._location):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except self._client.exceptions.NoSuchKey as error:
                raise FileNotFoundError(name) from error
            return str(answer["Body"].read().decode())

    def create(self, name: str, text: str) -> None:
        key, body = self._prefix + name, text.encode()
        with _asked(self._location):
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*")
            except self._client.exceptions.ClientError as error:
                if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                    raise FileExistsError(name) from error
                raise
