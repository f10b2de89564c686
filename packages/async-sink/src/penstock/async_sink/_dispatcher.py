"""Decides what leaves when: the writer without its I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.async_sink._backoff import full_jitter_seconds
from penstock.async_sink._batches import Batch, BatchCreator
from penstock.async_sink._buffer import RequestBuffer
from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._entries import EntryFailure, RequestEntryWrapper
from penstock.async_sink._strategy import RateLimitingStrategy, RequestInfo, ResultInfo

R = TypeVar("R")

# For a strategy that blocks with nothing in flight and does not say when to ask it again.
_DEFAULT_ASK_AGAIN_SECONDS = 0.1


@dataclass
class Settlement(Generic[R]):
    """What an answer meant for each entry of its request."""

    acknowledged: list[RequestEntryWrapper[R]] = field(default_factory=list)
    retried: list[RequestEntryWrapper[R]] = field(default_factory=list)
    rejected: list[tuple[RequestEntryWrapper[R], EntryFailure]] = field(default_factory=list)
    throttled: int = 0


class Dispatcher(Generic[R]):
    """Holds the buffer and what is in flight, and decides which batch leaves when. Takes `now`; does no I/O."""

    def __init__(self, config: AsyncSinkConfig, strategy: RateLimitingStrategy, random: Callable[[], float]) -> None:
        self._config = config
        self._strategy = strategy
        self._random = random
        self._creator = BatchCreator(config.max_batch_size, config.max_batch_size_in_bytes)
        self._backoff_base = config.retry_backoff_base.total_seconds()
        self._backoff_maximum = config.retry_backoff_maximum.total_seconds()
        self.buffer: RequestBuffer[R] = RequestBuffer()
        self.in_flight: dict[int, Batch[R]] = {}
        self._in_flight_messages = 0
        self._in_flight_bytes = 0
        self._demanded = 0
        self._draining = 0
        self._suspended = 0
        self._blocked = False
        self.ask_again_at: float | None = None
        """Monotonic seconds at which `next_batch` may say something else though nothing happened; None: never."""

    @property
    def in_flight_messages(self) -> int:
        """Entries that wait for an answer."""
        return self._in_flight_messages

    @property
    def held_entries(self) -> int:
        """Entries in the buffer and in flight."""
        return len(self.buffer) + self._in_flight_messages

    @property
    def held_bytes(self) -> int:
        """Bytes in the buffer and in flight."""
        return self.buffer.total_size_in_bytes + self._in_flight_bytes

    def has_room(self, size_in_bytes: int) -> bool:
        """Whether an entry of that size may be added."""
        config = self._config
        return (
            len(self.buffer) + self._in_flight_messages < config.max_buffered_requests
            and self.held_bytes + size_in_bytes <= config.max_buffered_bytes
        )

    def fitting(self, sizes: Sequence[int], start: int) -> tuple[int, int]:
        """How far entries from `start` on may be added at once, a batch's number at most: (end, their bytes)."""
        config = self._config
        room = min(config.max_buffered_requests - self.held_entries, config.max_batch_size)
        room_bytes = config.max_buffered_bytes - self.held_bytes
        end, added = start, 0
        for size in sizes[start : start + room]:
            if added + size > room_bytes:
                break
            added += size
            end += 1
        return end, added

    def demand_batch(self) -> None:
        """Let a batch leave though it is not full."""
        self._demanded = max(self._demanded, 1)

    def demand_all(self) -> None:
        """Let all that is in the buffer now leave, full batches or not."""
        self._demanded = len(self.buffer)

    def begin_drain(self) -> None:
        """Until `end_drain`, batches leave without being full."""
        self._draining += 1

    def end_drain(self) -> None:
        """Undo one `begin_drain`."""
        self._draining -= 1

    def suspend(self) -> None:
        """Until `resume`, nothing leaves."""
        self._suspended += 1

    def resume(self) -> None:
        """Undo one `suspend`."""
        self._suspended -= 1

    def unblock(self) -> None:
        """Ask the strategy again: something that it goes by has changed."""
        self._blocked = False

    def is_ready(self) -> bool:
        """Whether `next_batch` is worth a call. Cheap: asked after each write."""
        if self._blocked or self._suspended or not self.buffer:
            return False
        return self._is_due(min(self._config.max_batch_size, self._strategy.get_max_batch_size()))

    def _is_due(self, batch_size: int) -> bool:
        buffer = self.buffer
        return (
            len(buffer) >= batch_size
            or buffer.total_size_in_bytes >= self._config.max_batch_size_in_bytes
            or self._demanded > 0
            or self._draining > 0
            # What failed does not wait for newer entries to fill its batch up.
            or buffer.head.attempts > 0
        )

    def next_batch(self, now: float) -> Batch[R] | None:
        """The batch that leaves now, registered as in flight; None when nothing may leave."""
        if self.ask_again_at is not None and now >= self.ask_again_at:
            self.ask_again_at = None
            self._blocked = False
        if not self.is_ready():
            return None
        not_before = self.buffer.head.not_before
        if not_before > now:
            self._block(not_before)
            return None
        if len(self.in_flight) >= self._config.max_in_flight_requests:
            self._block(None)
            return None
        extent = self._creator.measure(self.buffer, self._strategy.get_max_batch_size(), now)
        request = RequestInfo(extent.batch_size, extent.size_in_bytes, now)
        if self._strategy.should_block(request):
            wait = self._strategy.ask_again_after(request)
            if wait is None and not self.in_flight:
                wait = _DEFAULT_ASK_AGAIN_SECONDS
            self._block(None if wait is None else now + wait)
            return None
        batch = self._creator.create(self.buffer, extent, now)
        self._demanded = max(0, self._demanded - extent.batch_size)
        self.in_flight[id(batch)] = batch
        self._in_flight_messages += extent.batch_size
        self._in_flight_bytes += extent.size_in_bytes
        self._strategy.register_in_flight_request(request)
        return batch

    def _block(self, until: float | None) -> None:
        self._blocked = True
        self.ask_again_at = until

    def settle(
        self, batch: Batch[R], failures: Sequence[EntryFailure], now: float, *, give_up: bool = False
    ) -> Settlement[R]:
        """Take a batch out of flight: what failed goes back to the buffer's head, or is rejected for good.

        With `give_up` every failed entry goes back to the head as it is, whatever its attempts: the writer has failed,
        and its snapshot is to hold them.
        """
        del self.in_flight[id(batch)]
        self._in_flight_messages -= len(batch.wrappers)
        self._in_flight_bytes -= batch.size_in_bytes
        self._blocked = False
        self.ask_again_at = None
        settlement = Settlement[R]()
        if not failures:
            settlement.acknowledged = batch.wrappers
        else:
            self._sort_out(batch, failures, now, settlement, give_up=give_up)
        self._strategy.register_completed_request(
            ResultInfo(
                failed_messages=len(failures),
                batch_size=len(batch.wrappers),
                throttled_messages=settlement.throttled,
                size_in_bytes=batch.size_in_bytes,
                submitted_at=batch.submitted_at,
                now=now,
            )
        )
        return settlement

    def _sort_out(
        self,
        batch: Batch[R],
        failures: Sequence[EntryFailure],
        now: float,
        settlement: Settlement[R],
        *,
        give_up: bool,
    ) -> None:
        config = self._config
        by_index = {failure.index: failure for failure in failures}
        max_attempts = 1 if config.fail_on_error else config.max_attempts
        for index, wrapper in enumerate(batch.wrappers):
            failure = by_index.get(index)
            if failure is None:
                settlement.acknowledged.append(wrapper)
                continue
            settlement.throttled += failure.throttled
            spent = failure.final or (max_attempts is not None and wrapper.attempts >= max_attempts)
            if spent and not give_up:
                settlement.rejected.append((wrapper, failure))
            else:
                settlement.retried.append(wrapper)
        if not settlement.retried:
            return
        # One wait for all of the request: they leave together again, and the batch is not cut between them.
        attempts = max(wrapper.attempts for wrapper in settlement.retried)
        delay = full_jitter_seconds(attempts, self._backoff_base, self._backoff_maximum, self._random)
        for wrapper in settlement.retried:
            wrapper.not_before = now + delay
        self.buffer.put_back(settlement.retried)
        if self._demanded:
            # What was demanded stands behind them now; they leave by themselves and must not use it up.
            self._demanded += len(settlement.retried)
