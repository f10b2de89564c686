"""A durable gateway's journal: what it has accepted and not yet written, on disk."""

import asyncio
import errno
import fcntl
import json
import logging
import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

from penstock.async_sink._entries import EntryFailure
from penstock.async_sink._gateway._journal_format import HEADER, AcceptedBatch, SettledBatch, decode, encode, scan
from penstock.async_sink.errors import GatewayStorageError, JournalError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

_logger = logging.getLogger(__name__)
_SEGMENT_BYTES = 64 * 1024 * 1024
_MAX_OLD_SEGMENTS = 8
_REJECTED = "rejected.jsonl"


@dataclass
class _Segment:
    path: Path
    live: set[int]
    """Sequences of its batches that are not settled."""


@dataclass(frozen=True)
class _Place:
    segment: _Segment
    offset: int
    length: int
    kind: str
    destination: str


class Journal:
    """Files in a folder, written by appending. A batch is there before it is acknowledged, until it is settled.

    Files whose batches are all settled are removed from the oldest on, so that a word about a settled batch outlives
    the batch. One process at a time has the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fsync: bool = True,
        segment_bytes: int = _SEGMENT_BYTES,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        """Open the folder, and find what is pending. Blocks; `write` is for tests of full disks.

        Raises:
            JournalError: a file is damaged, or another process has the folder.
            OSError: the folder cannot be read or written.
        """
        self._folder = folder
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._os_write = write
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise JournalError(str(folder), 0, "is in use by another process") from error
        self._places: dict[int, _Place] = {}
        # Being written, or settled and not yet forgotten.
        self._in_hand: set[int] = set()
        self._segments: list[_Segment] = []
        self._next_sequence = 1
        self._broken: OSError | None = None
        self._waiting: list[tuple[AcceptedBatch, asyncio.Future[None]]] = []
        self._settled: list[int] = []
        self._rejected: list[str] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._load()
        self._start_segment()

    def _load(self) -> None:
        for path in sorted(self._folder.glob("journal-*.log")):
            segment = _Segment(path, set())
            content = path.read_bytes()
            end = min(len(HEADER), len(content))
            for offset, length, record in scan(content, str(path)):
                end = offset + length
                self._next_sequence = max(self._next_sequence, record.sequence + 1)
                if isinstance(record, AcceptedBatch):
                    self._place(record, segment, offset, length)
                else:
                    self._forget(record.sequence)
            if end < len(content):
                _logger.warning("%s was cut off in a record: its last %d bytes are left out", path, len(content) - end)
                os.truncate(path, end)
            self._segments.append(segment)

    def _place(self, record: AcceptedBatch, segment: _Segment, offset: int, length: int) -> None:
        self._forget(record.sequence)
        segment.live.add(record.sequence)
        self._places[record.sequence] = _Place(segment, offset, length, record.kind, record.destination)

    def _forget(self, sequence: int) -> None:
        place = self._places.pop(sequence, None)
        if place is not None:
            place.segment.live.discard(sequence)

    def _start_segment(self) -> None:
        number = 1 + max((int(segment.path.stem.rpartition("-")[2]) for segment in self._segments), default=0)
        path = self._folder / f"journal-{number:08d}.log"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if self._os_write(file, memoryview(HEADER)) < len(HEADER):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # The file before it stays in use.
            os.close(file)
            path.unlink()
            raise
        self._file = file
        self._size = len(HEADER)
        self._segments.append(_Segment(path, set()))
        if self._fsync:
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _append_bytes(self, content: bytes) -> None:
        """All of it or nothing: a record that is half there would be damage once another one follows."""
        view, done = memoryview(content), 0
        try:
            while done < len(content):
                done += self._os_write(self._file, view[done:])
        except OSError:
            try:
                os.ftruncate(self._file, self._size)
                os.lseek(self._file, self._size, os.SEEK_SET)
            except OSError as error:
                self._broken = error
            raise
        self._size += len(content)

    @property
    def pending_batches(self) -> int:
        """Batches that are accepted and not settled."""
        return len(self._places)

    def destinations(self) -> list[tuple[str, str]]:
        """(kind, name) of the destinations with pending batches that nobody has in hand."""
        return sorted(
            {
                (place.kind, place.destination)
                for sequence, place in list(self._places.items())
                if sequence not in self._in_hand
            }
        )

    def pending(self, kind: str, destination: str) -> list[AcceptedBatch]:
        """Batches of a destination that nobody has in hand, in the order of acceptance; now the caller has. Blocks."""
        found = []
        for sequence, place in sorted(self._places.items()):
            if (place.kind, place.destination) == (kind, destination) and sequence not in self._in_hand:
                with place.segment.path.open("rb") as file:
                    file.seek(place.offset)
                    record = decode(file.read(place.length))
                assert isinstance(record, AcceptedBatch)
                assert record.sequence == sequence
                found.append(record)
        self._in_hand.update(record.sequence for record in found)
        return found

    def release(self, sequence: int) -> None:
        """The batch is not being written any more, and not settled: `pending` gives it out again."""
        self._in_hand.discard(sequence)

    async def append(self, kind: str, destination: str, client_id: str, weight: int, batch: bytes) -> int:
        """Keep a batch; returns its sequence when it is on disk. Batches that come at the same time share one sync.

        Raises:
            GatewayStorageError: it could not be written; then it is not kept.
        """
        if self._broken is not None or self._closed:
            raise GatewayStorageError(str(self._broken or "the journal is closed"))
        record = AcceptedBatch(self._next_sequence, kind, destination, client_id, weight, batch)
        self._next_sequence += 1
        self._in_hand.add(record.sequence)
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        self._start()
        try:
            await written
        except GatewayStorageError:
            self._in_hand.discard(record.sequence)
            raise
        return record.sequence

    def settle(self, sequence: int) -> None:
        """Every entry of the batch has its word: forget it. On disk with the next write."""
        self._settled.append(sequence)
        self._start()

    def reject(self, kind: str, destination: str, client_id: str, entry: pb.Entry, failure: EntryFailure) -> None:
        """Keep an entry that was refused for good after its client was told that it is safe; call before `settle`."""
        line: dict[str, Any] = {
            "time": time(),
            "kind": kind,
            "destination": destination,
            "client": client_id,
            "error_code": failure.error_code,
            "error_message": failure.error_message,
            "entry": b64encode(entry.SerializeToString()).decode(),
        }
        self._rejected.append(json.dumps(line, ensure_ascii=True) + "\n")
        self._start()

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="gateway journal")

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write_group()
            if self._closed and not self._waiting:
                return

    async def _write_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        settled, self._settled = self._settled, []
        rejected, self._rejected = self._rejected, []
        if not waiting and not settled and not rejected:
            return
        try:
            await asyncio.to_thread(self._write, [record for record, _ in waiting], settled, rejected)
        except OSError as error:
            _logger.error("the journal in %s cannot be written: %s", self._folder, error)
            # Settled batches are kept until a later write succeeds: else they would only be written twice.
            self._settled[:0], self._rejected[:0] = settled, rejected
            for _, written in waiting:
                if not written.done():
                    written.set_exception(GatewayStorageError(str(error)))
            return
        for _, written in waiting:
            if not written.done():
                written.set_result(None)

    def _write(self, accepted: Sequence[AcceptedBatch], settled: Sequence[int], rejected: Sequence[str]) -> None:
        if self._broken is not None:
            raise self._broken
        if rejected:
            with (self._folder / _REJECTED).open("a", encoding="ascii") as file:
                file.writelines(rejected)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
        frames = [encode(record) for record in accepted]
        start = self._size
        self._append_bytes(b"".join((*frames, *(encode(SettledBatch(sequence)) for sequence in settled))))
        if self._fsync:
            try:
                os.fsync(self._file)
            except OSError as error:
                # What a failed sync has left on the disk nobody knows; trying it again would say that all is well.
                self._broken = error
                raise
        for record, frame in zip(accepted, frames, strict=True):
            self._place(record, self._segments[-1], start, len(frame))
            start += len(frame)
        for sequence in settled:
            self._forget(sequence)
            self._in_hand.discard(sequence)
        try:
            self._tidy()
        except OSError as error:
            _logger.warning("the journal in %s cannot be tidied up: %s", self._folder, error)

    def _tidy(self) -> None:
        """Begin a new file when this one is large, and remove the oldest ones that nobody needs."""
        if self._size >= self._segment_bytes:
            file = self._file
            self._start_segment()
            os.close(file)
        if len(self._segments) > _MAX_OLD_SEGMENTS:
            self._carry_forward(self._segments[0])
        while len(self._segments) > 1 and not self._segments[0].live:
            self._segments.pop(0).path.unlink(missing_ok=True)

    def _carry_forward(self, oldest: _Segment) -> None:
        """Write the batches of a file again: one destination that stands still must not keep the others' files."""
        with oldest.path.open("rb") as file:
            for sequence in sorted(oldest.live):
                place = self._places[sequence]
                file.seek(place.offset)
                frame = file.read(place.length)
                record = decode(frame)
                assert isinstance(record, AcceptedBatch)
                start = self._size
                self._append_bytes(frame)
                self._place(record, self._segments[-1], start, len(frame))
        if self._fsync:
            os.fsync(self._file)

    async def close(self) -> None:
        """Write what waits, and give the folder free. Pending batches stay on disk."""
        if self._closed:
            return
        self._closed = True
        task = self._task
        if task is not None:
            self._wake.set()
            await task
        os.close(self._file)
        os.close(self._lock)
