"""Passes the clients' batches to the shared writer in turns."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
    """Queues of clients that are served in turns by weight (deficit round robin). The caller sets the cost of an item.

    In each round a client can spend its weight. If its next item costs more, it keeps the rest for its next turn. A
    client without items saves nothing. The items of a client keep their order.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        self._round: deque[_Client[T]] = deque()
        self._waiting: list[_Client[T]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, client_id: str, item: T, *, cost: float, weight: int = 1) -> None:
        """Queue an item; the latest weight counts. A weight of 1 pays for a cost of 1 in a round."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client(client_id)
            self._round.append(client)
        client.weight = weight
        client.items.append((cost, item))
        self._count += 1

    @property
    def is_ready(self) -> bool:
        """Whether a client that does not wait has an item."""
        return bool(self._round)

    def put_back(self, client_id: str, item: T) -> None:
        """Return an item that could not be served. It becomes the client's next item without further cost, and the
        client has no turn until `resume`."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client(client_id)
        else:
            self._round.remove(client)
        client.items.appendleft((0.0, item))
        self._waiting.append(client)
        self._count += 1

    def resume(self) -> None:
        """Give turns to the clients that wait."""
        waiting, self._waiting = self._waiting, []
        self._round.extend(waiting)

    def take(self) -> T:
        """The next item of a client that does not wait.

        Raises:
            IndexError: no such client has an item.
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
        clients, self._clients, self._count = list(self._clients.values()), {}, 0
        self._round, self._waiting = deque(), []
        for client in clients:
            for _, item in client.items:
                yield item


# A turn is worth a tenth of a request: clients share requests, and no client waits for another client's whole batch.
_TURNS_PER_REQUEST = 10


class _Slice:
    """Entries of a batch that are written in one turn; an entry listener."""

    def __init__(
        self,
        client_id: str,
        entries: Sequence[Any],
        offset: int,
        tracker: BatchTracker,
        settled: Callable[[], None],
    ) -> None:
        self.client_id = client_id
        self.entries = entries
        self.tracker = tracker
        self.context = otel_context.get_current()
        self.done = 0
        """Number of entries that the writer took or refused."""
        self._offset = offset
        self._settled = settled

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        self.tracker.acknowledged(self._offset + entry_index, attempts)
        self._settled()

    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        self.tracker.acknowledged_many(self._offset + first_index, count, attempts)
        self._settled()

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.tracker.rejected(self._offset + entry_index, attempts, failure)
        self._settled()

    def abandoned(self, error: BaseException) -> None:
        self.tracker.abandoned(error)
        self._settled()


class Feeder:
    """Keeps the writer's buffer short, so that entries wait in queues by client and turns decide their order.

    A client whose next entry has no room, because its shard uses its share of the buffer, waits while other clients
    have their turns.
    """

    def __init__(self, writer: AsyncSinkWriter[Any, Any]) -> None:
        config = writer.config
        self._writer = writer
        self._turns: FairTurns[_Slice] = FairTurns()
        self._slice_entries = max(1, config.max_batch_size // _TURNS_PER_REQUEST)
        self._request_entries = config.max_batch_size
        self._request_bytes = config.max_batch_size_in_bytes
        # Enough for the next requests while answers arrive.
        self._enough_entries = max(2 * config.max_batch_size, config.max_buffered_requests // 4)
        self._changed = Signal()
        self._has_settled = False
        self._task: asyncio.Task[None] | None = None
        self.queued_entries = 0
        self.failure: BaseException | None = None

    def open(self) -> None:
        """Start to pass entries to the writer."""
        self._task = asyncio.create_task(self._feed(), name=f"gateway feeder {self._writer.destination}")

    def add(
        self, client_id: str, entries: Sequence[Any], size_in_bytes: int, tracker: BatchTracker, *, weight: int
    ) -> None:
        """Queue an accepted batch. Never waits: the client's credits limit the queue."""
        if self.failure is not None:
            tracker.abandoned(self.failure)
            return
        for offset in range(0, len(entries), self._slice_entries):
            part = entries[offset : offset + self._slice_entries]
            share = len(part) / len(entries)
            request_share = max(len(part) / self._request_entries, share * size_in_bytes / self._request_bytes)
            cost = _TURNS_PER_REQUEST * request_share
            one = _Slice(client_id, part, offset, tracker, self._settled)
            self._turns.add(client_id, one, cost=cost, weight=weight)
        self.queued_entries += len(entries)
        self._changed.notify()

    async def wait_until_empty(self) -> None:
        """Wait until the writer has all entries.

        Raises:
            SinkError: the writer has failed.
        """
        while self.queued_entries:
            await self._changed.wait()
            if self.failure is not None:
                raise self.failure

    def _settled(self) -> None:
        self._has_settled = True
        self._changed.notify()

    @property
    def _may_hand_over(self) -> bool:
        """Whether a client has a turn. Entries that wait for their shard or key do not count as buffered."""
        writer = self._writer
        is_short = writer.buffered_entries - writer.held_back_entries < self._enough_entries
        return self._turns.is_ready and (is_short or writer.failure is not None)

    async def _feed(self) -> None:
        while True:
            if self._has_settled:
                self._has_settled = False
                self._turns.resume()
            if not self._may_hand_over:
                await self._changed.wait()
                continue
            taken, requests = self._turns.take(), self._writer.in_flight_requests
            # The spans of requests belong to the trace of the client that wrote them.
            token = otel_context.attach(taken.context)
            try:
                if not self._hand_over(taken):
                    self._turns.put_back(taken.client_id, taken)
            except Exception as error:
                self._fail(error, taken)
                # Entries that it already has would be lost when the destination is opened again.
                self._writer.fail(error)
                return
            finally:
                otel_context.detach(token)
            if not self.queued_entries:
                self._changed.notify()
            if self._writer.in_flight_requests > requests:
                # The requests start when this waits.
                await asyncio.sleep(0)

    def _hand_over(self, taken: _Slice) -> bool:
        """Write the entries that have room. Returns whether all are written."""
        while taken.done < len(taken.entries):
            first, refused = self._writer.records_written, None
            try:
                self._writer.write_nowait(taken.entries[taken.done :], listener=taken, first_index=taken.done)
            except RecordError as error:
                # The writer checks more than the contract. One entry must not end the streams of all clients.
                if self._writer.failure is not None:
                    raise
                refused = EntryFailure(0, type(error).__name__, error.reason, throttled=False, final=True)
            finally:
                written = self._writer.records_written - first
                taken.done += written
                self.queued_entries -= written
            if refused is None:
                break
            taken.done += 1
            self.queued_entries -= 1
            taken.rejected(taken.done - 1, 1, refused)
        return taken.done == len(taken.entries)

    def _fail(self, error: BaseException, *taken: _Slice) -> None:
        self.failure = error
        for tracker in dict.fromkeys(each.tracker for each in (*taken, *self._turns.clear())):
            tracker.abandoned(error)
        self._changed.notify()

    async def close(self) -> None:
        """Stop without writing the queued entries. Batches that are added later are refused as draining."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        gone = SinkError.of("GATEWAY_DRAINING", destination=self._writer.destination)
        if self.failure is None:
            self._fail(self._writer.failure or gone)
        # Open streams may continue: the destination of their next batch may have been opened again.
        self.failure = gone
