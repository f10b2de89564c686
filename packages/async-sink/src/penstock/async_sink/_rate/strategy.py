"""What a rate limiting strategy is given, and what it decides (FLIP-242); and the strategy of fixed rates."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.async_sink._config import check_positive
from penstock.async_sink.errors import SinkOptionError


@dataclass(frozen=True)
class LaneObservation:
    """What an answer said of one entry."""

    entry: Any
    """What was sent."""
    size_in_bytes: int
    """By the writer's measure."""
    lane: str | None
    """Where the destination put it, or refused it; None when the answer does not say."""
    throttled: bool
    """Whether it was refused because the lane is full."""
    expected: str | None = None
    """The lane that was known before the entry left; None when there was none, or only a guess."""


class LaneLimiter(Protocol):
    """Decides, entry by entry, whether its lane has room.

    A rate limiting strategy that has one offers it as its attribute `lane_limiter` (`HasLanes`). The writer then keeps
    a queue for each lane that has no room, so that entries of other lanes pass by. Pure: it takes `now`, in monotonic
    seconds.
    """

    @property
    def active(self) -> bool:
        """Whether lanes matter yet; until then entries leave without a question."""

    def lane_of(self, entry: Any) -> str | None:
        """The entry's lane; None when it is not known: then the entry leaves without a question."""

    def take(self, lane: str, size_in_bytes: int, now: float) -> bool:
        """Take room for one entry, if there is any."""

    def give_back(self, lane: str, size_in_bytes: int) -> None:
        """The entry does not leave after all."""

    def ready_at(self, lane: str, now: float) -> float:
        """When a lane without room is to be asked again, after `now`."""

    def observe(self, observations: Sequence[LaneObservation], submitted_at: float, now: float) -> None:
        """An answer has come."""


@runtime_checkable
class GuessesLanes(Protocol):
    """A lane limiter whose `lane_of` may be a guess. An entry is paced by the guess, but does not wait for the share of
    the buffer that the guessed lane has."""

    def known_lane_of(self, entry: Any) -> str | None:
        """The entry's lane; None when it is not known."""


@dataclass(frozen=True)
class RequestInfo:
    """A request that is about to be sent: the batch as it was cut, by count and by bytes."""

    batch_size: int
    """Entries."""
    size_in_bytes: int = 0
    """Bytes by the writer's measure."""
    now: float = 0.0
    """Monotonic seconds."""


@dataclass(frozen=True)
class ResultInfo:
    """A request that was answered, or whose time ran out."""

    failed_messages: int
    """Entries that were not accepted, throttled ones included."""
    batch_size: int
    """Entries, as they were registered in flight."""
    throttled_messages: int | None = None
    """Entries refused because the destination is full; None: all that failed, as it is not known."""
    size_in_bytes: int = 0
    """Bytes, as they were registered in flight."""
    submitted_at: float = 0.0
    """Monotonic seconds."""
    now: float = 0.0
    """Monotonic seconds."""

    @property
    def throttled(self) -> int:
        """Entries refused because the destination is full."""
        return self.failed_messages if self.throttled_messages is None else self.throttled_messages


class RateLimitingStrategy(Protocol):
    """Decides how large a batch may be and whether it may leave now: FLIP-242's four methods, which are enough.

    Pure: it does no I/O, reads no clock, and serves one writer, which calls it from one thread. It may also say when to
    ask it again (`AsksAgain`), limit parts of the destination (`HasLanes`), show its limit (`HasLimit`) and keep to a
    rate that is known (`HasPace`).
    """

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """A request is being sent."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """A request was answered. Called once for each that was registered in flight."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request has to wait."""

    def get_max_batch_size(self) -> int:
        """Entries that a batch may hold at present, at least 1."""


@runtime_checkable
class AsksAgain(Protocol):
    """A strategy that knows when a blocked request may leave. Others are asked ten times a second, and at answers."""

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """Seconds after which a blocked request may be asked about again.

        None: when the next request completes. A strategy that blocks by time needs this: with nothing in flight no
        completion would ever come.
        """


@runtime_checkable
class HasLanes(Protocol):
    """A strategy that decides entry by entry too, by the part of the destination that an entry goes to."""

    @property
    def lane_limiter(self) -> LaneLimiter | None:
        """What decides; None if nothing does. It is asked for once, when the writer is made."""


@runtime_checkable
class HasLimit(Protocol):
    """A strategy whose limit is shown: in gauges, in metrics and by a gateway."""

    @property
    def limit(self) -> int | None:
        """The present limit, in messages or requests; None if there is none."""


@runtime_checkable
class HasPace(Protocol):
    """A strategy with a rate that is known: what it holds back leaves in time, whatever the destination does."""

    @property
    def max_batch_bytes(self) -> int:
        """Bytes that a batch may hold at present, except for one of a single entry. It is asked for each batch."""

    def paces(self, request: RequestInfo) -> bool:
        """Whether this request waits for that rate. Each second of it is a sign of life in the writer's metrics."""


# For a strategy that blocks and does not say when to ask it again.
DEFAULT_ASK_AGAIN_SECONDS = 0.1


def _soon(request: RequestInfo) -> float | None:
    return DEFAULT_ASK_AGAIN_SECONDS


def _never(request: RequestInfo) -> bool:
    return False


class CompleteStrategy:
    """A strategy with all that one may have. What it leaves out is filled in here, once, at the writer's door."""

    def __init__(self, strategy: RateLimitingStrategy) -> None:
        self._limit = strategy if isinstance(strategy, HasLimit) else None
        self._pace = strategy if isinstance(strategy, HasPace) else None
        # Its own methods: a request makes no detour through this object.
        self.register_in_flight_request = strategy.register_in_flight_request
        self.register_completed_request = strategy.register_completed_request
        self.should_block = strategy.should_block
        self.get_max_batch_size = strategy.get_max_batch_size
        self.ask_again_after: Callable[[RequestInfo], float | None] = (
            strategy.ask_again_after if isinstance(strategy, AsksAgain) else _soon
        )
        self.lane_limiter: LaneLimiter | None = strategy.lane_limiter if isinstance(strategy, HasLanes) else None
        self.paces: Callable[[RequestInfo], bool] = _never if self._pace is None else self._pace.paces

    @property
    def max_batch_bytes(self) -> int:
        """Bytes that a batch may hold at present."""
        return sys.maxsize if self._pace is None else self._pace.max_batch_bytes

    @property
    def limit(self) -> int | None:
        """The present limit; None if there is none."""
        return None if self._limit is None else self._limit.limit


class All:
    """A request leaves when every strategy lets it: blocked is the or, the batch size the smallest.

    A blocked request is asked about again when the last of those that block says so; at the next answer if one of them
    waits for an answer. At most one of the strategies may have lanes.

    Raises:
        SinkOptionError: no strategy is given, or more than one has lanes.
    """

    def __init__(self, *strategies: RateLimitingStrategy) -> None:
        if not strategies:
            raise SinkOptionError("strategies", "give at least one")
        self._strategies = strategies
        self._parts = [CompleteStrategy(each) for each in strategies]
        limiters = [each.lane_limiter for each in self._parts if each.lane_limiter is not None]
        if len(limiters) > 1:
            raise SinkOptionError("strategies", "only one may limit lanes")
        self._lane_limiter: LaneLimiter | None = limiters[0] if limiters else None

    @property
    def strategies(self) -> tuple[RateLimitingStrategy, ...]:
        """Its parts."""
        return self._strategies

    @property
    def lane_limiter(self) -> LaneLimiter | None:
        """That of the strategy that has one."""
        return self._lane_limiter

    @property
    def limit(self) -> int | None:
        """The smallest limit among those that have one; None if none has."""
        limits = [limit for each in self._parts if (limit := each.limit) is not None]
        return min(limits, default=None)

    @property
    def max_batch_bytes(self) -> int:
        """The fewest."""
        return min(each.max_batch_bytes for each in self._parts)

    def paces(self, request: RequestInfo) -> bool:
        """Whether it waits for the rate of any."""
        return any(each.paces(request) for each in self._parts)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Tell each."""
        for each in self._parts:
            each.register_in_flight_request(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        """Tell each."""
        for each in self._parts:
            each.register_completed_request(result)

    def should_block(self, request: RequestInfo) -> bool:
        """Whether any blocks."""
        return any(each.should_block(request) for each in self._parts)

    def get_max_batch_size(self) -> int:
        """The smallest."""
        return min(each.get_max_batch_size() for each in self._parts)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """The longest wait among those that block; None if one of them waits for an answer."""
        longest = 0.0
        for each in self._parts:
            if each.should_block(request):
                wait = each.ask_again_after(request)
                if wait is None:
                    return None
                longest = max(longest, wait)
        return longest


class _Bucket:
    def __init__(self, rate: float, burst_seconds: float) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate * burst_seconds)
        self.tokens = self.capacity

    def refill(self, seconds: float) -> None:
        self.tokens = min(self.capacity, self.tokens + seconds * self.rate)

    def missing_seconds(self, amount: float) -> float:
        # What is larger than the bucket leaves when it is full, and leaves a debt: else it could never leave.
        return max(0.0, (min(amount, self.capacity) - self.tokens) / self.rate)


class TokenBucketRateLimitingStrategy:
    """Keeps to rates that are known: records, bytes and requests per second, each as far as it is given.

    A bucket holds capacity = max(1, rate x burst_seconds) tokens, is full at first, and fills by rate per second:

        tokens(t) = min(capacity, tokens(s) + rate x (t - s))

    A request leaves when each bucket holds min(need, capacity), and takes its need. Over any t seconds no more than
    capacity + rate x t leaves, plus what one request is larger than the capacity: one of a single entry, or one that
    was refused whole and is bisected. Answers change nothing.

    Raises:
        SinkOptionError: no rate is given, or an argument is not more than 0.
    """

    def __init__(
        self,
        *,
        records_per_second: float | None = None,
        bytes_per_second: float | None = None,
        requests_per_second: float | None = None,
        burst_seconds: float = 1.0,
    ) -> None:
        rates = {
            "records_per_second": records_per_second,
            "bytes_per_second": bytes_per_second,
            "requests_per_second": requests_per_second,
        }
        check_positive(**rates, burst_seconds=burst_seconds)
        if all(rate is None for rate in rates.values()):
            raise SinkOptionError("records_per_second", "give at least one rate")
        self._records, self._bytes, self._requests = (
            None if rate is None else _Bucket(rate, burst_seconds) for rate in rates.values()
        )
        self._updated: float | None = None

    def _needs(self, request: RequestInfo) -> list[tuple[_Bucket, float]]:
        self._refill(request.now)
        needs = ((self._records, request.batch_size), (self._bytes, request.size_in_bytes), (self._requests, 1))
        return [(bucket, amount) for bucket, amount in needs if bucket is not None]

    def _refill(self, now: float) -> None:
        if self._updated is not None and now > self._updated:
            for bucket in (self._records, self._bytes, self._requests):
                if bucket is not None:
                    bucket.refill(now - self._updated)
        self._updated = now if self._updated is None else max(now, self._updated)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Take the request's tokens."""
        for bucket, amount in self._needs(request):
            bucket.tokens -= amount

    def register_completed_request(self, result: ResultInfo) -> None:
        """Nothing: the rates are known."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether a bucket holds too little, a nanosecond's worth aside."""
        return self._wait(request) > 1e-9

    def _wait(self, request: RequestInfo) -> float:
        return max(bucket.missing_seconds(amount) for bucket, amount in self._needs(request))

    def get_max_batch_size(self) -> int:
        """What the records' bucket holds when it is full; a larger batch would leave a debt."""
        return 1 << 30 if self._records is None else int(self._records.capacity)

    @property
    def max_batch_bytes(self) -> int:
        """What the bytes' bucket holds when it is full; a larger batch would leave a debt."""
        return sys.maxsize if self._bytes is None else int(self._bytes.capacity)

    def paces(self, request: RequestInfo) -> bool:
        """Whether a bucket holds too little."""
        return self.should_block(request)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """Seconds until each bucket holds enough: the answer never depends on a completion."""
        return self._wait(request)
