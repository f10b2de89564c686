"""What a rate limiting strategy is told, and what it decides (FLIP-242)."""

from dataclasses import dataclass
from typing import Protocol


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
    """Decides how large a batch may be and whether it may leave now.

    Pure: it does no I/O, reads no clock, and serves one writer, which calls it from one thread.
    """

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """A request is being sent."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """A request was answered. Called once for each that was registered in flight."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request has to wait."""

    def get_max_batch_size(self) -> int:
        """Entries that a batch may hold at present, at least 1."""

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """Seconds after which a blocked request may be asked about again.

        None: when the next request completes. A strategy that blocks by time needs this: with nothing in flight no
        completion would ever come.
        """
