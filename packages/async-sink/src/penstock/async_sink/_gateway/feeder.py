"""Hands the clients' batches to the shared writer, by turns."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from opentelemetry import context as otel_context

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._gateway.session import BatchTracker
from penstock.async_sink.errors import RecordError, SinkError
from penstock.rpc import Signal

T = TypeVar("T")

_QUANTUM = 1.0


class _Client(Generic[T]):
    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.weight = 1
        self.deficit = 0.0
        self.items: deque[tuple[float, T]] = deque()


class FairTurns(Generic[T]):
    """Queues of clients that are served in turn, each by its weight; an item costs as much as the caller says.

    In each round a client is served as much as its weight; what it could not use of that for an item too large, it
    keeps for its next turn. A client without items gets nothing, and saves nothing up. The items of a client keep their
    order.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        self._round: deque[_Client[T]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, client_id: str, item: T, *, cost: float, weight: int = 1) -> None:
        """Queue an item; the latest weight counts. A cost of 1 is what a weight of 1 is worth in a round."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client(client_id)
            self._round.append(client)
        client.weight = weight
        client.items.append((cost, item))
        self._count += 1

    def take(self) -> T:
        """The next item.

        Raises:
            IndexError: the feeder is empty.
        """
        while True:
            client = self._round[0]
            cost, item = client.items[0]
            if cost <= client.deficit:
                client.deficit -= cost
                client.items.popleft()
                self._count -= 1
                if not client.items:
                    self._round.popleft()
                    del self._clients[client.client_id]
                return item
            self._round.rotate(-1)
            client.deficit += _QUANTUM * client.weight

    def clear(self) -> Iterator[T]:
        """Take all items out, client by client."""
        clients, self._round, self._clients, self._count = self._round, deque(), {}, 0
        for client in clients:
            for _, item in client.items:
                yield item


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

    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        self.tracker.acknowledged_many(self._offset + first_index, count, attempts)
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
        gone = SinkError.of("GATEWAY_DRAINING", destination=self._writer.destination)
        if self.failure is None:
            self._fail(self._writer.failure or gone)
        # Streams that were opened before may go on: the destination of their next batch may have been opened anew.
        self.failure = gone
