"""Lanes: parts of a destination that have a limit each, such as the shards of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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
