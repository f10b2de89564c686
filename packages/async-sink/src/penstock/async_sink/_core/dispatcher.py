"""Decides what leaves when: the writer without its I/O."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from penstock.async_sink._config import AsyncSinkConfig, Ordering
from penstock.async_sink._core.buffer import Backlog, KeyOf
from penstock.async_sink._core.entries import EntryFailure, RequestEntryWrapper, total_size_in_bytes
from penstock.async_sink._core.guard import GuardedStrategy
from penstock.async_sink._core.runs import Batch, EntryRun, Part, fall_apart, rows_until
from penstock.async_sink._core.settlement import (
    EXPIRED,
    Settlement,
    Settler,
    TerminalReason,
    Termination,
    lane_observations,
)
from penstock.async_sink._rate.strategy import (
    DEFAULT_ASK_AGAIN_SECONDS,
    LaneLimiter,
    RequestInfo,
    ResultInfo,
)

R = TypeVar("R")
# Often enough for whoever watches the writer.
_SIGN_OF_LIFE_SECONDS = 0.05


class _Demand:
    """Callers who wait for room, the buffer's timer and flushes ask for batches; a flush of what is in flight asks for
    none at all."""

    def __init__(self) -> None:
        self.entries = 0
        """Entries that are to leave, full batches or not."""
        self.draining = 0
        """Flushes that empty the buffer."""
        self.suspended = 0
        """Flushes that let nothing leave."""
        self._reason = ""

    def one_batch(self) -> None:
        """Let a batch leave though it is not full: somebody waits for room."""
        if self.entries == 0:
            self.entries, self._reason = 1, "full"

    def all_of(self, entries: int) -> None:
        """Let that many entries leave: their time is up."""
        self.entries, self._reason = entries, "time"

    def follow(self, entries: int) -> None:
        """These were due before, and came to the head as those of their keys before them are settled."""
        if entries and self.entries == 0:
            self._reason = "order"
        self.entries += entries

    def stands_behind(self, entries: int) -> None:
        """These came to the head of the buffer; they leave by themselves and must not use up what was demanded."""
        if self.entries:
            self.entries += entries

    def met(self, entries: int) -> None:
        """That many have left the buffer's queue."""
        self.entries = max(0, self.entries - entries)

    @property
    def reason(self) -> str | None:
        """Why a batch leaves that is not full; None: it does not."""
        if self.entries > 0:
            return self._reason
        return "flush" if self.draining > 0 else None


class Dispatcher(Generic[R]):
    """Holds the buffer and what is in flight, and decides which batch leaves when. Takes `now`; does no I/O.

    What waits is in the buffer or on its way to the terminal record handler; the writer's room is what is left of it.
    What is in flight is bounded by the requests in flight. An entry that comes back waits again even if there is no
    room, and writes wait until there is: no more is held than fits into the buffer and the requests together.
    """

    def __init__(
        self,
        config: AsyncSinkConfig,
        strategy: GuardedStrategy,
        random: Callable[[], float],
        *,
        key_of: KeyOf[R] | None = None,
    ) -> None:
        """`key_of` gives the key for an order per key."""
        self._config = config
        self._strategy = strategy
        self._settler: Settler[R] = Settler(config, random)
        self._strict = config.ordering is Ordering.STRICT
        self._max_in_flight = 1 if self._strict else config.max_in_flight_requests
        # Lanes let entries overtake each other.
        self.lane_limiter: LaneLimiter | None = None if self._strict else strategy.lane_limiter
        """The strategy's lanes, if it has some and the order allows them."""
        by_key = config.ordering is Ordering.PER_KEY
        self.buffer: Backlog[R] = Backlog(self.lane_limiter, key_of if by_key else None)
        self._fresh = self.buffer.fresh
        self.has_shares = self.buffer.has_shares
        """Whether a lane or a key may hold only its share of the buffer."""
        self.in_flight: dict[int, Batch[R]] = {}
        self.in_flight_messages = 0
        """Entries that wait for an answer."""
        self.waiting = 0
        """Entries in the buffer or on their way to the terminal record handler."""
        self.waiting_bytes = 0
        """Their bytes."""
        self._most_waiting = config.max_buffered_requests
        self._most_waiting_bytes = config.max_buffered_bytes
        self._terminal: dict[int, RequestEntryWrapper[R]] = {}
        self._threshold, self._most_batch_bytes = strategy.batch_limits()
        self._expired: list[Termination[R]] = []
        self._demand = _Demand()
        self._blocked = False
        self.blocked_by: str | None = None
        """What keeps a batch that is due: `rate` or `requests_in_flight`."""
        self.is_paced = False
        """Whether what is blocked waits for nothing but the strategy's own rate."""
        self.ask_again_at: float | None = None
        """Monotonic seconds at which `next_batch` may say something else though nothing happened; None: never."""

    @property
    def unsettled(self) -> int:
        """Entries that are held, waiting or in flight."""
        return self.waiting + self.in_flight_messages

    @property
    def is_flushing(self) -> bool:
        """Whether a flush waits."""
        return self._demand.draining > 0 or self._demand.suspended > 0

    @property
    def terminal(self) -> Iterable[RequestEntryWrapper[R]]:
        """Entries on their way to the terminal record handler."""
        return self._terminal.values()

    def full(self, size_in_bytes: int, entry: R | None = None, lane: str | None = None) -> str | None:
        """Which limit keeps an entry out of the buffer: `records`, `bytes`, `lane` or `key`; None if it has room.

        Without the entry, only the limits of the whole buffer count.
        """
        if self.waiting >= self._most_waiting:
            return "records"
        if self.waiting_bytes + size_in_bytes > self._most_waiting_bytes:
            return "bytes"
        if not self.has_shares or entry is None:
            return None
        free, free_bytes = self._most_waiting - self.waiting, self._most_waiting_bytes - self.waiting_bytes
        return self.buffer.full(entry, lane, free, free_bytes)

    def make_room(self, limit: str, lane: str | None = None) -> None:
        """A caller waits because of that limit: let a batch leave though it is not full."""
        # A lane that waits for its own pace gets no room by batches of others.
        if limit != "lane" or not self.buffer.is_paced(lane):
            self._demand.one_batch()

    def time_is_up(self) -> None:
        """What is in the buffer has waited long enough: let all of it leave, in batches that are full or not."""
        self._demand.all_of(len(self._fresh))

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Let everything leave, full batches or not, until the block ends."""
        self._demand.draining += 1
        try:
            yield
        finally:
            self._demand.draining -= 1

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let nothing leave until the block ends."""
        self._demand.suspended += 1
        try:
            yield
        finally:
            self._demand.suspended -= 1

    def take_expired(self) -> list[Termination[R]]:
        """Entries whose time was over before they could leave, since the last call; held until `release_terminal`."""
        if not self._expired:
            return []
        expired, self._expired = self._expired, []
        return expired

    def add(self, wrapper: RequestEntryWrapper[R]) -> bool:
        """Add an entry. Returns whether `next_batch` is worth a call."""
        self.waiting += 1
        self.waiting_bytes += wrapper.size_in_bytes
        if self.has_shares:
            self.buffer.hold(wrapper)
        return self._is_worth_a_call(self._fresh.add(wrapper))

    def add_run(self, run: EntryRun[R]) -> bool:
        """Add entries. Returns whether `next_batch` is worth a call."""
        self.waiting += run.count
        self.waiting_bytes += run.size_in_bytes
        self._fresh.add_run(run)
        return self._is_worth_a_call(len(self._fresh))

    def _is_worth_a_call(self, fresh: int) -> bool:
        # What else makes a batch due happened before the latest `next_batch`.
        demand = self._demand
        return (
            fresh >= self._threshold
            or self._fresh.total_size_in_bytes >= self._most_batch_bytes
            or demand.draining > 0
            or demand.entries > 0
        ) and not (self._blocked or demand.suspended)

    def add_shared(self, run: EntryRun[R]) -> tuple[int, bool]:
        """Add entries one by one, up to the first whose lane or key has its share. Returns how many, and whether
        `next_batch` is worth a call."""
        added, due = 0, False
        for wrapper in run.wrappers():
            wrapper.lane = self.buffer.lane_of(wrapper.entry)
            if self.full(wrapper.size_in_bytes, wrapper.entry, wrapper.lane) is not None:
                break
            due = self.add(wrapper)
            added += 1
        return added, due

    def rows_until(self, ends: Sequence[int], start: int) -> int:
        """How far rows from `start` on, of which the first has room, may be added at once: no further than where a
        batch is due, as if they came one by one."""
        config, fresh = self._config, self._fresh
        missing = self._threshold - len(fresh)
        return rows_until(
            ends,
            start,
            min(
                len(ends) - 1 - start,
                self._most_waiting - self.waiting,
                # Past the number of a batch something holds batches back, and nothing leaves before it is asked again.
                missing if missing > 0 else config.max_batch_size,
            ),
            room=self._most_waiting_bytes - self.waiting_bytes,
            enough=self._most_batch_bytes - fresh.total_size_in_bytes,
        )

    def unblock(self) -> None:
        """Ask the strategy again: something that it goes by has changed."""
        self._blocked = False

    def _due(self) -> str | None:
        """Why a batch leaves now; None when none is due."""
        buffer = self.buffer
        if buffer.halves:
            return "bisected"
        fresh = buffer.fresh
        # Of an empty buffer too: `add` goes by it.
        self._threshold, self._most_batch_bytes = self._strategy.batch_limits()
        if not fresh:
            return None
        if len(fresh) >= self._threshold:
            return "size"
        if fresh.total_size_in_bytes >= self._most_batch_bytes:
            return "bytes"
        if fresh.first.attempts > 0:
            # What failed does not wait for newer entries to fill its batch up.
            return "retry"
        return self._demand.reason

    def next_batch(self, now: float) -> Batch[R] | None:
        """The batch that leaves now, registered as in flight; None when nothing may leave."""
        if self.ask_again_at is not None and now >= self.ask_again_at:
            self.ask_again_at = None
            self._blocked = False
        if self._blocked or self._demand.suspended:
            return None
        self.blocked_by = None
        self.is_paced = False
        self._demand.stands_behind(self.buffer.rouse(now))
        while True:
            reason = self._due() or ("pace" if self.buffer.lanes_are_due(now) else None)
            if reason is None:
                self.ask_again_at = self.buffer.wakes_at()
                return None
            if len(self.in_flight) >= self._max_in_flight:
                self._block(None, "requests_in_flight")
                return None
            batch = self._half(now) if self.buffer.halves else self._cut(reason, now)
            if batch is not None or self._blocked:
                return batch

    def _half(self, now: float) -> Batch[R] | None:
        # A part larger than the strategy ever lets through would wait for ever. Its lanes are not asked: a request that
        # was refused whole took nothing of what it had paid for there.
        limit, _ = self._strategy.batch_limits()
        part = self.buffer.halves[0][:limit]
        if not self._admits(RequestInfo(len(part), total_size_in_bytes(part), now)):
            return None
        part = [wrapper for wrapper in self.buffer.take_half(limit) if not self._expire(wrapper, now)]
        return self._launch(part, len(part), total_size_in_bytes(part), "bisected", now) if part else None

    def _cut(self, reason: str, now: float) -> Batch[R] | None:
        fresh = self.buffer.fresh
        if self._config.time_to_live is not None:
            self._expire_head(now)
        limit = self._threshold
        if self.buffer.is_plain:
            if not fresh:
                return None
            if fresh.first.not_before > now:
                self._block(fresh.first.not_before, "back_off")
                return None
            count, size = fresh.measure(limit, self._most_batch_bytes, now)
            if not self._admits(RequestInfo(count, size, now)):
                return None
            self._demand.met(count)
            has_runs = fresh.has_runs
            return self._launch(fresh.take_parts(count, size), count, size, reason, now, has_runs=has_runs)
        wrappers, looked_at = self.buffer.take(limit, self._most_batch_bytes, now)
        if self._config.time_to_live is not None:
            wrappers = [wrapper for wrapper in wrappers if not self._expire(wrapper, now)]
        size = total_size_in_bytes(wrappers)
        if wrappers and not self._admits(RequestInfo(len(wrappers), size, now)):
            self.buffer.give_back(wrappers)
            return None
        self._demand.met(looked_at)
        if not wrappers:
            return None
        return self._launch(wrappers, len(wrappers), size, reason, now)

    def _expire_head(self, now: float) -> None:
        fresh = self.buffer.fresh
        while fresh and self._settler.is_expired(fresh.first, now):
            expired = fresh.take(fresh.first.count)
            self._demand.met(len(expired))
            for wrapper in expired:
                self.buffer.release(wrapper)
                self._expire(wrapper, now)

    def _expire(self, wrapper: RequestEntryWrapper[R], now: float) -> bool:
        if not self._settler.is_expired(wrapper, now):
            return False
        self._terminal[wrapper.number] = wrapper
        self._demand.follow(self.buffer.release_keys([wrapper]))
        self._expired.append(Termination(wrapper, EXPIRED, TerminalReason.EXPIRED))
        return True

    def _admits(self, request: RequestInfo) -> bool:
        if not self._strategy.should_block(request):
            return True
        wait = self._strategy.ask_again_after(request)
        if wait is None and not self.in_flight:
            wait = DEFAULT_ASK_AGAIN_SECONDS
        self._block(None if wait is None else request.now + wait, "rate")
        if wait is not None and self._strategy.paces(request):
            self.is_paced, self.ask_again_at = True, request.now + min(wait, _SIGN_OF_LIFE_SECONDS)
        return False

    def _launch(
        self, parts: Sequence[Part[R]], count: int, size: int, reason: str, now: float, *, has_runs: bool = False
    ) -> Batch[R]:
        for part in parts:
            part.attempts += 1
        batch = Batch(parts, count, size, now, reason, has_runs)
        self.in_flight[id(batch)] = batch
        self._forget(count, size)
        self.in_flight_messages += count
        self._strategy.register_in_flight_request(RequestInfo(count, size, now))
        return batch

    def _forget(self, entries: int, size_in_bytes: int) -> None:
        self.waiting -= entries
        self.waiting_bytes -= size_in_bytes

    def _block(self, until: float | None, reason: str) -> None:
        self._blocked = True
        self.is_paced = False
        self.blocked_by = reason
        self.ask_again_at = until

    def settle(
        self,
        batch: Batch[R],
        failures: Sequence[EntryFailure],
        now: float,
        *,
        give_up: bool = False,
        lanes: Sequence[str | None] = (),
    ) -> Settlement[R]:
        """Take a batch out of flight: what failed goes back to the buffer, or is given up.

        With `give_up` every failed entry goes back as it is, whatever its attempts: the writer has failed, and its
        snapshot is to hold them. `lanes` names the lane of each entry, where the answer says it. Entries that were
        given up are held until `release_terminal`.
        """
        del self.in_flight[id(batch)]
        # Each of them waits until it is settled.
        self.waiting += batch.size
        self.waiting_bytes += batch.size_in_bytes
        self.in_flight_messages -= batch.size
        self._blocked = False
        self.ask_again_at = None
        terminated: list[RequestEntryWrapper[R]] = []
        if failures:
            settlement = self._settler.sort_out(batch, failures, now, give_up=give_up)
            self._put_back(settlement, now, give_up=give_up)
            terminated = [each.wrapper for each in settlement.terminated]
            self._terminal.update((wrapper.number, wrapper) for wrapper in terminated)
        else:
            settlement = Settlement(batch.parts, batch.size, batch.size_in_bytes)
        self._forget(settlement.accepted, settlement.accepted_bytes)
        if self.buffer.keeps_keys:
            self._demand.follow(self.buffer.release_keys([*fall_apart(settlement.acknowledged), *terminated]))
        self._strategy.register_completed_request(
            ResultInfo(
                failed_messages=len(failures),
                batch_size=batch.size,
                throttled_messages=settlement.throttled,
                size_in_bytes=batch.size_in_bytes,
                submitted_at=batch.submitted_at,
                now=now,
            )
        )
        if self.lane_limiter is not None and lanes:
            self.lane_limiter.observe(lane_observations(batch, failures, lanes), batch.submitted_at, now)
            self.has_shares = self.buffer.has_shares
        return settlement

    def _put_back(self, settlement: Settlement[R], now: float, *, give_up: bool) -> None:
        if settlement.spoilt:
            self.buffer.split(settlement.spoilt)
        if not settlement.retried:
            return
        if not self._strict and not give_up:
            self.buffer.rest(settlement.retried, now + settlement.delay)
            return
        for wrapper in settlement.retried:
            wrapper.not_before = now + settlement.delay
        self.buffer.put_back(settlement.retried)
        # The other half of a request that was cut must not overtake them.
        self.buffer.join_halves()

    def release_terminal(self, wrappers: Sequence[RequestEntryWrapper[R]], *, keep: bool = False) -> None:
        """The handler has taken entries that were given up; with `keep` it has not, and they go back to the buffer."""
        for wrapper in wrappers:
            self._terminal.pop(wrapper.number, None)
        if keep:
            self.buffer.put_back(sorted(wrappers, key=lambda wrapper: wrapper.number))
        else:
            self._forget(len(wrappers), total_size_in_bytes(wrappers))
