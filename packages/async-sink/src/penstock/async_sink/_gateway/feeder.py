"""Hands the clients' batches to the shared writer, by turns."""

import asyncio
from collections.abc import Sequence
from typing import Any

from opentelemetry import context as otel_context

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.loop import Signal
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._gateway.session import BatchTracker
from penstock.async_sink._gateway.turns import FairTurns
from penstock.async_sink.errors import GatewayDrainingError, RecordError

# A turn is worth a tenth of a request: clients share requests, and nobody waits for others' whole batches.
_TURNS_PER_REQUEST = 10


class _Slice:
    """Entries of a batch that are handed over in one turn; an entry listener."""

    def __init__(self, entries: Sequence[Any], offset: int, tracker: BatchTracker, settled: Signal) -> None:
        self.entries = entries
        self.tracker = tracker
        self.context = otel_context.get_current()
        self._offset = offset
        self._settled = settled

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        self.tracker.acknowledged(self._offset + entry_index, attempts)
        self._settled.notify()

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.tracker.rejected(self._offset + entry_index, attempts, failure)
        self._settled.notify()

    def abandoned(self, error: BaseException) -> None:
        self.tracker.abandoned(error)
        self._settled.notify()


class Feeder:
    """Keeps the writer's buffer short, and what waits in queues by client: the order in them is decided by turns."""

    def __init__(self, writer: AsyncSinkWriter[Any, Any]) -> None:
        config = writer.config
        self._writer = writer
        self._turns: FairTurns[_Slice] = FairTurns()
        self._slice_entries = max(1, config.max_batch_size // _TURNS_PER_REQUEST)
        self._request_entries = config.max_batch_size
        self._request_bytes = config.max_batch_size_in_bytes
        # Enough for the next requests while answers come; what is in here has had its turn.
        self._enough_entries = max(2 * config.max_batch_size, config.max_buffered_requests // 4)
        self._changed = Signal()
        self._settled = Signal()
        self._taken: _Slice | None = None
        self._task: asyncio.Task[None] | None = None
        self.queued_entries = 0
        self.failure: BaseException | None = None

    def open(self) -> None:
        """Begin to hand over."""
        self._task = asyncio.create_task(self._feed(), name=f"gateway feeder {self._writer.destination}")

    def add(
        self, client_id: str, entries: Sequence[Any], size_in_bytes: int, tracker: BatchTracker, *, weight: int
    ) -> None:
        """Queue an accepted batch. Never waits: the client's credits bound what is here."""
        if self.failure is not None:
            tracker.abandoned(self.failure)
            return
        for offset in range(0, len(entries), self._slice_entries):
            part = entries[offset : offset + self._slice_entries]
            share = len(part) / len(entries)
            request_share = max(len(part) / self._request_entries, share * size_in_bytes / self._request_bytes)
            cost = _TURNS_PER_REQUEST * request_share
            self._turns.add(client_id, _Slice(part, offset, tracker, self._settled), cost=cost, weight=weight)
        self.queued_entries += len(entries)
        self._changed.notify()

    async def wait_until_empty(self) -> None:
        """Wait until the writer has everything.

        Raises:
            SinkError: the writer has failed.
        """
        while self.queued_entries:
            await self._changed.wait()
            if self.failure is not None:
                raise self.failure

    async def _feed(self) -> None:
        while True:
            while not self._turns:
                await self._changed.wait()
            while self._writer.buffered_entries >= self._enough_entries and self._writer.failure is None:
                await self._settled.wait()
            self._taken = taken = self._turns.take()
            # The spans of requests belong to the trace of the client that wrote them.
            token = otel_context.attach(taken.context)
            try:
                await self._hand_over(taken)
            except Exception as error:
                self._fail(error)
                # What it has already would be forgotten when the destination is opened anew.
                self._writer.fail(error)
                return
            finally:
                otel_context.detach(token)
            self._taken = None
            self.queued_entries -= len(taken.entries)
            if not self.queued_entries:
                self._changed.notify()

    async def _hand_over(self, taken: _Slice) -> None:
        first = self._writer.records_written
        try:
            await self._writer.write_many(taken.entries, listener=taken)
        except RecordError:
            # The writer knows more of its destination than the contract does. One entry must not end all clients.
            for index in range(self._writer.records_written - first, len(taken.entries)):
                await self._hand_over_one(taken, index)

    async def _hand_over_one(self, taken: _Slice, index: int) -> None:
        try:
            await self._writer.write(taken.entries[index], listener=taken, index=index)
        except RecordError as error:
            if self._writer.failure is not None:
                raise
            failure = EntryFailure(index, type(error).__name__, error.reason, throttled=False, final=True)
            taken.rejected(index, 1, failure)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        left = [*self._turns.clear()] if self._taken is None else [self._taken, *self._turns.clear()]
        for tracker in dict.fromkeys(each.tracker for each in left):
            tracker.abandoned(error)
        self._changed.notify()

    async def close(self) -> None:
        """End without handing over what waits; what is added from now on is sent elsewhere."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        gone = GatewayDrainingError(self._writer.destination)
        if self.failure is None:
            self._fail(self._writer.failure or gone)
        # Streams that were opened before may go on: the destination of their next batch may have been opened anew.
        self.failure = gone
