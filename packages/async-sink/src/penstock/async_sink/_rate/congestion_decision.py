"""When a limit is scaled (FLIP-242, first draft)."""

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol

from penstock.async_sink.errors import SinkOptionError


class ScalingDecision(Enum):
    """What is done about the limit after an answer."""

    SCALE_UP = "up"
    SCALE_DOWN = "down"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class CongestionControlInfo:
    """An answer, as the decision sees it."""

    failed_messages: int
    """Entries refused because the destination is full."""
    batch_size: int
    """Entries of the request."""
    succeeded: bool
    """Whether every entry was accepted."""
    now: float = 0.0
    """Monotonic seconds."""


class CongestionControlStrategy(Protocol):
    """Decides when to scale; how much is the scaling strategy's business."""

    def decide(self, info: CongestionControlInfo) -> ScalingDecision:
        """Called once for each answer, in the order of the answers."""


class ThresholdCongestionControlStrategy:
    """Scales by thresholds.

    Down: failed_messages / batch_size > scale_down_failure_threshold. Up: this was the n-th success in a row since the
    last scaling, n = scale_up_after_successes, and the n of them came within `scale_up_within` (if that is given). An
    answer with a throttled entry breaks the row; one that failed for another reason does not, and scales nothing. The
    defaults are the first behaviour of Flink's sink: any failure scales down, any success up.

    Raises:
        SinkOptionError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        scale_down_failure_threshold: float = 0.0,
        scale_up_after_successes: int = 1,
        scale_up_within: timedelta | None = None,
    ) -> None:
        if not 0.0 <= scale_down_failure_threshold < 1.0:
            raise SinkOptionError(
                "scale_down_failure_threshold", f"{scale_down_failure_threshold} must be at least 0 and less than 1"
            )
        if scale_up_after_successes < 1:
            raise SinkOptionError("scale_up_after_successes", f"{scale_up_after_successes} must be at least 1")
        if scale_up_within is not None and scale_up_within <= timedelta(0):
            raise SinkOptionError("scale_up_within", f"{scale_up_within} must be more than 0")
        self._threshold = scale_down_failure_threshold
        self._needed = scale_up_after_successes
        self._within = None if scale_up_within is None else scale_up_within.total_seconds()
        self._successes: deque[float] = deque(maxlen=scale_up_after_successes)

    def decide(self, info: CongestionControlInfo) -> ScalingDecision:
        """Go by the thresholds."""
        if info.failed_messages > 0:
            self._successes.clear()
            above = info.failed_messages > self._threshold * info.batch_size
            return ScalingDecision.SCALE_DOWN if above else ScalingDecision.KEEP
        if not info.succeeded:
            return ScalingDecision.KEEP
        successes = self._successes
        successes.append(info.now)
        if len(successes) < self._needed:
            return ScalingDecision.KEEP
        if self._within is not None and info.now - successes[0] > self._within:
            return ScalingDecision.KEEP
        successes.clear()
        return ScalingDecision.SCALE_UP
