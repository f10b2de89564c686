"""A durable gateway's journal: what it has accepted and not yet written, on disk."""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.async_sink._entries import EntryFailure
from penstock.async_sink._gateway._journal_files import JournalFiles
from penstock.async_sink._gateway._journal_format import AcceptedBatch
from penstock.async_sink._gateway._rejected import append_lines, line_of
from penstock.async_sink.errors import GatewayStorageError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

_logger = logging.getLogger(__name__)
_SEGMENT_BYTES = 64 * 1024 * 1024


class Journal:
    """A batch is on disk before it is acknowledged, until it is settled. What comes at the same time shares a sync."""

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
        self._files = JournalFiles(folder, fsync=fsync, segment_bytes=segment_bytes, write=write)
        self._next_sequence = self._files.next_sequence
        # Being written, or settled and not yet forgotten.
        self._in_hand: set[int] = set()
        self._giving_out = threading.Lock()
        self._waiting: list[tuple[AcceptedBatch, asyncio.Future[None]]] = []
        self._settled: list[int] = []
        self._rejected: list[str] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pending_batches(self) -> int:
        """Batches that are accepted and not settled."""
        return len(self._files.places)

    def pending_by_destination(self) -> Counter[tuple[str, str]]:
        """Batches that are accepted and not settled, by (kind, name) of their destination."""
        return Counter((place.kind, place.destination) for place in list(self._files.places.values()))

    def destinations(self) -> list[tuple[str, str]]:
        """(kind, name) of the destinations with pending batches that nobody has in hand."""
        places = list(self._files.places.items())
        return sorted({(place.kind, place.destination) for number, place in places if number not in self._in_hand})

    def pending(self, kind: str, destination: str) -> list[AcceptedBatch]:
        """Batches of a destination that nobody has in hand, in the order of acceptance; now the caller has. Blocks."""
        # Two callers at once must not both have a batch.
        with self._giving_out:
            wanted = [
                number
                for number, place in sorted(self._files.places.items())
                if (place.kind, place.destination) == (kind, destination) and number not in self._in_hand
            ]
            found = self._files.read(wanted)
            self._in_hand.update(wanted)
        return found

    def release(self, sequence: int) -> None:
        """The batch is not being written any more, and not settled: `pending` gives it out again."""
        self._in_hand.discard(sequence)

    async def append(self, kind: str, destination: str, client_id: str, weight: int, batch: bytes) -> int:
        """Keep a batch; returns its sequence when it is on disk.

        Raises:
            GatewayStorageError: it could not be written; then it is not kept.
        """
        if self._files.broken is not None or self._closed:
            raise GatewayStorageError(str(self._files.broken or "the journal is closed"))
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
        except asyncio.CancelledError:
            # Its client broke off without an acknowledgement: nobody would ever take what is on disk then.
            if (record, written) in self._waiting:
                self._waiting.remove((record, written))
                self._in_hand.discard(record.sequence)
            else:
                self.settle(record.sequence)
            raise
        return record.sequence

    def settle(self, sequence: int) -> None:
        """Every entry of the batch has its word: forget it. On disk with the next write."""
        self._settled.append(sequence)
        self._start()

    def reject(self, kind: str, destination: str, client_id: str, entry: pb.Entry, failure: EntryFailure) -> None:
        """Keep an entry that was refused for good after its client was told that it is safe; call before `settle`."""
        self._rejected.append(line_of(kind, destination, client_id, entry, failure))
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
                # Once more, for what was settled meanwhile.
                await self._write_group()
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
        self._in_hand.difference_update(settled)
        for _, written in waiting:
            if not written.done():
                written.set_result(None)

    def _write(self, accepted: Sequence[AcceptedBatch], settled: Sequence[int], rejected: list[str]) -> None:
        if rejected:
            append_lines(self._folder, rejected, fsync=self._fsync)
            # They are there, whatever becomes of the rest.
            rejected.clear()
        self._files.write(accepted, settled)

    async def close(self) -> None:
        """Write what waits, and give the folder free. Pending batches stay on disk."""
        if self._closed:
            return
        self._closed = True
        task = self._task
        if task is not None:
            self._wake.set()
            await task
        self._files.close()
