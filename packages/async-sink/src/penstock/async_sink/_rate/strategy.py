"""What a rate limiting strategy is given, and what it decides (FLIP-242)."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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
        """Bytes that a batch may hold, except for one of a single entry. It is asked for once."""

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
        # Its own methods: a request makes no detour through this object.
        self.register_in_flight_request = strategy.register_in_flight_request
        self.register_completed_request = strategy.register_completed_request
        self.should_block = strategy.should_block
        self.get_max_batch_size = strategy.get_max_batch_size
        self.ask_again_after: Callable[[RequestInfo], float | None] = (
            strategy.ask_again_after if isinstance(strategy, AsksAgain) else _soon
        )
        self.lane_limiter: LaneLimiter | None = strategy.lane_limiter if isinstance(strategy, HasLanes) else None
        self.max_batch_bytes: int = strategy.max_batch_bytes if isinstance(strategy, HasPace) else sys.maxsize
        self.paces: Callable[[RequestInfo], bool] = strategy.paces if isinstance(strategy, HasPace) else _never

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
