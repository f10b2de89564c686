"""What a rate limiting strategy is told, and what it decides (FLIP-242)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.async_sink._rate.lanes import LaneLimiter


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
    """Entries refused because the destination is full; None: all that failed, as nobody can tell."""
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
    ask it again (`AsksAgain`), limit parts of the destination (`HasLanes`) and show its limit (`HasLimit`).
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


# For a strategy that blocks and does not say when to ask it again.
DEFAULT_ASK_AGAIN_SECONDS = 0.1


def _soon(request: RequestInfo) -> float | None:
    return DEFAULT_ASK_AGAIN_SECONDS


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

    @property
    def limit(self) -> int | None:
        """The present limit; None if there is none."""
        return None if self._limit is None else self._limit.limit
