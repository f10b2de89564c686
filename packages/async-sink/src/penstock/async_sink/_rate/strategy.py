"""Rate limiting strategies (FLIP-242): their interface, combinations of them, and fixed rates."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.async_sink._config import check_positive
from penstock.async_sink.errors import SinkOptionError


@dataclass(frozen=True)
class LaneObservation:
    """An answer's information about one entry."""

    entry: Any
    """What was sent."""
    size_in_bytes: int
    """By the writer's measure."""
    lane: str | None
    """The lane that accepted or refused it; None if the answer does not name it."""
    throttled: bool
    """Whether it was refused because the lane is full."""
    expected: str | None = None
    """The lane that was known before the entry was sent; None if it was unknown or a guess."""


class LaneLimiter(Protocol):
    """Decides for each entry whether its lane has room.

    A rate limiting strategy provides it as the attribute `lane_limiter` (`HasLanes`). The writer then has a queue for
    each lane without room, so that entries of other lanes can pass. Pure: it takes `now` in monotonic seconds.
    """

    @property
    def active(self) -> bool:
        """Whether lanes are limited. Until then entries are sent without a call of `take`."""

    def lane_of(self, entry: Any) -> str | None:
        """The entry's lane. An entry with an unknown lane (None) is sent without a call of `take`."""

    def take(self, lane: str, size_in_bytes: int, now: float) -> bool:
        """Reserve room for one entry; False if there is none."""

    def give_back(self, lane: str, size_in_bytes: int) -> None:
        """Return the room of an entry that is not sent."""

    def ready_at(self, lane: str, now: float) -> float:
        """When to ask about a lane without room again, after `now`."""

    def observe(self, observations: Sequence[LaneObservation], submitted_at: float, now: float) -> None:
        """Process an answer."""


@runtime_checkable
class GuessesLanes(Protocol):
    """A lane limiter whose `lane_of` may be a guess. The guess paces an entry, but the entry does not wait for the
    guessed lane's share of the buffer."""

    def known_lane_of(self, entry: Any) -> str | None:
        """The entry's lane; None if it is unknown."""


@dataclass(frozen=True)
class RequestInfo:
    """A request that is about to be sent."""

    batch_size: int
    """Entries."""
    size_in_bytes: int = 0
    """Bytes by the writer's measure."""
    now: float = 0.0
    """Monotonic seconds."""


@dataclass(frozen=True)
class ResultInfo:
    """A request that was answered or timed out."""

    failed_messages: int
    """Entries that were not accepted, throttled ones included."""
    batch_size: int
    """Entries, as they were registered in flight."""
    throttled_messages: int | None = None
    """Entries refused because the destination is full; None if unknown: then all failed entries count."""
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
    """Decides how large a batch may be and whether it may be sent now, with FLIP-242's four methods.

    Pure: it does no I/O, reads no clock, and belongs to one writer, which calls it from one thread. A strategy can also
    say when to ask it again (`AsksAgain`), limit parts of the destination (`HasLanes`), show its limit (`HasLimit`) and
    keep to a known rate (`HasPace`).
    """

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """A request is being sent."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """A request was answered. Called once for each that was registered in flight."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request has to wait."""

    def get_max_batch_size(self) -> int:
        """Entries that a batch may currently have, at least 1."""


@runtime_checkable
class AsksAgain(Protocol):
    """A strategy that knows when a blocked request may be sent. Others are asked every 0.1 s and at each answer."""

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """Seconds after which a blocked request may be asked about again.

        None: when the next request completes. A strategy that blocks by time needs this: with nothing in flight no
        completion would ever come.
        """


@runtime_checkable
class HasLanes(Protocol):
    """A strategy that also decides for single entries, by the part of the destination that an entry goes to."""

    @property
    def lane_limiter(self) -> LaneLimiter | None:
        """The limiter or None. Read once, when the writer is created."""


@runtime_checkable
class HasLimit(Protocol):
    """A strategy whose limit is shown in gauges, in metrics and by a gateway."""

    @property
    def limit(self) -> int | None:
        """The current limit in messages or requests; None for no limit."""


@runtime_checkable
class HasPace(Protocol):
    """A strategy with a known rate: held entries are sent in time, whatever the destination does."""

    @property
    def max_batch_bytes(self) -> int:
        """Bytes that a batch may currently have, unless it has a single entry. Read for each batch."""

    def paces(self, request: RequestInfo) -> bool:
        """Whether this request waits for the rate. Each second of waiting is a sign of life in the writer's metrics."""


# For a strategy that blocks and does not say when to ask it again.
DEFAULT_ASK_AGAIN_SECONDS = 0.1


def _soon(request: RequestInfo) -> float | None:
    return DEFAULT_ASK_AGAIN_SECONDS


def _never(request: RequestInfo) -> bool:
    return False


class CompleteStrategy:
    """A strategy with defaults for all optional members."""

    def __init__(self, strategy: RateLimitingStrategy) -> None:
        self._limit = strategy if isinstance(strategy, HasLimit) else None
        self._pace = strategy if isinstance(strategy, HasPace) else None
        # The strategy's own methods, so that requests need no extra call.
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
        """Bytes that a batch may currently have."""
        return sys.maxsize if self._pace is None else self._pace.max_batch_bytes

    @property
    def limit(self) -> int | None:
        """The current limit; None for no limit."""
        return None if self._limit is None else self._limit.limit


class All:
    """Combines strategies: a request is sent when no strategy blocks it, and the smallest batch size applies.

    The combination asks again after the longest wait of the strategies that block, or at the next answer if one of
    them waits for an answer. At most one of the strategies may have lanes.

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
        """The lane limiter of the strategy that has one."""
        return self._lane_limiter

    @property
    def limit(self) -> int | None:
        """The smallest limit among those that have one; None if none has."""
        limits = [limit for each in self._parts if (limit := each.limit) is not None]
        return min(limits, default=None)

    @property
    def max_batch_bytes(self) -> int:
        """The smallest limit."""
        return min(each.max_batch_bytes for each in self._parts)

    def paces(self, request: RequestInfo) -> bool:
        """Whether it waits for the rate of a strategy."""
        return any(each.paces(request) for each in self._parts)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Pass the request to each strategy."""
        for each in self._parts:
            each.register_in_flight_request(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        """Pass the request to each strategy."""
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
        # A request larger than the bucket is sent when the bucket is full, and leaves a debt.
        return max(0.0, (min(amount, self.capacity) - self.tokens) / self.rate)


class TokenBucketRateLimitingStrategy:
    """Keeps to known rates: records, bytes and requests per second. A rate that is None is not limited.

    A bucket holds capacity = max(1, rate x burst_seconds) tokens, is full at first, and fills by rate per second:

        tokens(t) = min(capacity, tokens(s) + rate x (t - s))

    A request is sent when each bucket has min(need, capacity), and takes its need. In t seconds at most capacity +
    rate x t is sent, plus the excess of one request that is larger than the capacity (a single entry, or a part of a
    refused request). Answers have no effect.

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
        """Does nothing: the rates are known."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether a bucket has too few tokens (tolerance: one nanosecond)."""
        return self._wait(request) > 1e-9

    def _wait(self, request: RequestInfo) -> float:
        return max(bucket.missing_seconds(amount) for bucket, amount in self._needs(request))

    def get_max_batch_size(self) -> int:
        """Capacity of the bucket of records; a larger batch would leave a debt."""
        return 1 << 30 if self._records is None else int(self._records.capacity)

    @property
    def max_batch_bytes(self) -> int:
        """Capacity of the bucket of bytes; a larger batch would leave a debt."""
        return sys.maxsize if self._bytes is None else int(self._bytes.capacity)

    def paces(self, request: RequestInfo) -> bool:
        """Whether a bucket has too few tokens."""
        return self.should_block(request)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """Seconds until each bucket has enough tokens."""
        return self._wait(request)
