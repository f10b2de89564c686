"""A destination's batches in the journal: kept, written, settled, and gone on with after a kill."""

import asyncio
import logging
import time

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._gateway.feeder import Feeder
from penstock.async_sink._gateway.journal import Journal
from penstock.async_sink._gateway.kinds import DestinationKind
from penstock.async_sink._gateway.session import BatchTracker, Orphanage
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

_logger = logging.getLogger(__name__)
_WARNING_SECONDS = 10.0


class DurableBatches:
    """Connects a destination's feeder with the journal."""

    def __init__(
        self, journal: Journal, kind: DestinationKind, name: str, feeder: Feeder, orphanage: Orphanage
    ) -> None:
        self._journal = journal
        self._kind = kind
        self._name = name
        self._feeder = feeder
        self._orphanage = orphanage
        self._in_hand: set[int] = set()
        self._released = False
        self._told = False
        self._rejected = 0
        self._warned_at: float | None = None

    @property
    def in_hand(self) -> int:
        """Batches that are kept for this opening of the destination, and not settled."""
        return len(self._in_hand)

    async def keep(self, client_id: str, weight: int, batch: pb.Batch) -> int:
        """Write an accepted batch to the journal; returns its sequence.

        Raises:
            GatewayStorageError: it could not be kept.
        """
        content = batch.SerializeToString()
        sequence = await self._journal.append(self._kind.name, self._name, client_id, weight, content)
        if self._released:
            # Closed meanwhile: its next opening writes the batch.
            self._journal.release(sequence)
        else:
            self._in_hand.add(sequence)
        return sequence

    def settled(self, sequence: int, client_id: str, batch: pb.Batch, tracker: BatchTracker) -> None:
        """Every entry of the batch is settled. What was refused after its acknowledgement goes to `rejected.jsonl`."""
        if tracker.answered:
            for index, failure in sorted(tracker.failed.items()):
                self._journal.reject(self._kind.name, self._name, client_id, batch.entries[index], failure)
                self._warn_of_rejected(failure)
        self._in_hand.discard(sequence)
        self._journal.settle(sequence)

    def _warn_of_rejected(self, failure: EntryFailure) -> None:
        """A destination may refuse all that comes, for a cause of its own: then somebody has to look."""
        self._rejected += 1
        now = time.monotonic()
        if self._warned_at is None or now - self._warned_at >= _WARNING_SECONDS:
            self._warned_at = now
            _logger.warning(
                "%s %s has refused %d acknowledged record(s) for good, which are kept in rejected.jsonl: %s: %s",
                self._kind.name,
                self._name,
                self._rejected,
                failure.error_code,
                failure.error_message,
            )

    async def resume(self, name: str) -> None:
        """Queue what the journal holds under that name of the destination and is not being written."""
        records = await asyncio.to_thread(self._journal.pending, self._kind.name, name)
        self._in_hand.update(record.sequence for record in records)
        if self._released:
            self.release()
            return
        for record in records:
            batch = pb.Batch.FromString(record.content)
            entries, sizes = self._kind.from_messages(batch.entries)
            size = sum(sizes)
            sequence, client_id = record.sequence, record.client_id

            def settled(
                tracker: BatchTracker, sequence: int = sequence, client_id: str = client_id, batch: pb.Batch = batch
            ) -> None:
                self.settled(sequence, client_id, batch, tracker)
                self._orphanage.settled(tracker.entry_count, tracker.size_in_bytes)

            tracker = BatchTracker(batch.batch_id, len(entries), size, settled, self._abandoned)
            # Its client is gone, or has its acknowledgement.
            tracker.answered = True
            self._orphanage.taken(len(entries), size)
            self._feeder.add(client_id, entries, size, tracker, weight=record.weight)

    def _abandoned(self, error: BaseException) -> None:
        self._orphanage.abandon()
        if not self._told:
            self._told = True
            _logger.warning("batches for %s %s stay in the journal: %s", self._kind.name, self._name, error)

    def release(self) -> None:
        """The destination is closed: what is not settled waits for its next opening."""
        self._released = True
        for sequence in self._in_hand:
            self._journal.release(sequence)
        self._in_hand.clear()
