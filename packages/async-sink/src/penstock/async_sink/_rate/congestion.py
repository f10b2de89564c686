"""Limits on what is in flight that follow the destination's answers (FLIP-242) or its latency."""

import sys
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from math import sqrt
from typing import Protocol, runtime_checkable

from penstock.async_sink._config import AsyncSinkConfig, check_positive
from penstock.async_sink._rate.strategy import RequestInfo, ResultInfo
from penstock.async_sink.errors import SinkOptionError


class ScalingStrategy(Protocol):
    """How much a limit grows and shrinks."""

    def scale_up(self, current: int) -> int:
        """The limit after a success."""

    def scale_down(self, current: int) -> int:
        """The limit after a throttle."""


@runtime_checkable
class ShareScalingStrategy(ScalingStrategy, Protocol):
    """A scaling strategy that uses the refused share of a request."""

    def scale_down_by(self, current: int, failed_share: float) -> int:
        """The limit after this share of a request's entries (more than 0, at most 1) was refused."""


@dataclass(frozen=True, kw_only=True)
class AIMDScalingStrategy:
    """Additive increase, multiplicative decrease.

    Up: min(current + increase_rate, rate_threshold). Down: max(1, round(current x decrease_factor)).

    Raises:
        SinkOptionError: an argument is out of range.
    """

    increase_rate: int = 10
    """Added after a success; positive."""
    decrease_factor: float = 0.5
    """Factor after a throttle; more than 0 and less than 1."""
    rate_threshold: int
    """The limit never grows past it; at least increase_rate."""

    def __post_init__(self) -> None:
        check_positive(increase_rate=self.increase_rate)
        if not 0.0 < self.decrease_factor < 1.0:
            raise SinkOptionError("decrease_factor", f"{self.decrease_factor} must be more than 0 and less than 1")
        if self.rate_threshold < self.increase_rate:
            raise SinkOptionError(
                "rate_threshold", f"{self.rate_threshold} must be at least increase_rate, {self.increase_rate}"
            )

    def scale_up(self, current: int) -> int:
        """Add the increase, up to the threshold."""
        return min(current + self.increase_rate, self.rate_threshold)

    def scale_down(self, current: int) -> int:
        """Multiply by the factor, rounded half up, down to 1."""
        return max(1, int(current * self.decrease_factor + 0.5))


@dataclass(frozen=True, kw_only=True)
class ProportionalScalingStrategy:
    """Additive increase, decrease by the share that failed.

    Up: min(current + increase_rate, rate_threshold). Down, when a share f of a request's entries was refused:
    max(floor, round(current x (1 - f))). A destination that refuses one entry of 500 is only slightly overloaded.

    Raises:
        SinkOptionError: an argument is out of range.
    """

    increase_rate: int = 10
    """Added after a success; positive."""
    rate_threshold: int
    """The limit never grows past it; at least increase_rate and floor."""
    floor: int = 1
    """The limit never shrinks below it; at least 1."""

    def __post_init__(self) -> None:
        check_positive(increase_rate=self.increase_rate, floor=self.floor)
        if self.rate_threshold < max(self.increase_rate, self.floor):
            raise SinkOptionError("rate_threshold", f"{self.rate_threshold} must be at least increase_rate and floor")

    def scale_up(self, current: int) -> int:
        """Add the increase, up to the threshold."""
        return min(current + self.increase_rate, self.rate_threshold)

    def scale_down(self, current: int) -> int:
        """Shrink as if all entries had failed."""
        return self.scale_down_by(current, 1.0)

    def scale_down_by(self, current: int, failed_share: float) -> int:
        """Shrink by the share, rounded half up, down to the floor."""
        return max(self.floor, int(current * (1.0 - failed_share) + 0.5))


@dataclass(frozen=True)
class NoOpScalingStrategy:
    """A limit that never changes."""

    def scale_up(self, current: int) -> int:
        """The same."""
        return current

    def scale_down(self, current: int) -> int:
        """The same."""
        return current


class ScalingDecision(Enum):
    """How the limit changes after an answer."""

    SCALE_UP = "up"
    SCALE_DOWN = "down"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class CongestionControlInfo:
    """The facts about an answer that a decision uses."""

    failed_messages: int
    """Entries refused because the destination is full."""
    batch_size: int
    """Entries of the request."""
    succeeded: bool
    """Whether every entry was accepted."""
    now: float = 0.0
    """Monotonic seconds."""


class CongestionControlStrategy(Protocol):
    """Decides when to scale. The scaling strategy decides by how much."""

    def decide(self, info: CongestionControlInfo) -> ScalingDecision:
        """Called once for each answer, in the order of the answers."""


class ThresholdCongestionControlStrategy:
    """Scales by thresholds.

    Down: failed_messages / batch_size > scale_down_failure_threshold. Up: this was the n-th success in a row since the
    last scaling, n = scale_up_after_successes, and the n of them came within `scale_up_within` (if that is given). An
    answer with a throttled entry ends the row; an answer that failed for another reason does not, and does not scale.
    With the defaults any throttled entry scales down and any success up.

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
        check_positive(scale_up_after_successes=scale_up_after_successes, scale_up_within=scale_up_within)
        self._threshold = scale_down_failure_threshold
        self._needed = scale_up_after_successes
        self._within = None if scale_up_within is None else scale_up_within.total_seconds()
        self._successes: deque[float] = deque(maxlen=scale_up_after_successes)

    def decide(self, info: CongestionControlInfo) -> ScalingDecision:
        """Apply the thresholds."""
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


class ScalingTarget(Enum):
    """What the limit counts."""

    IN_FLIGHT_MESSAGES = "messages"
    IN_FLIGHT_REQUESTS = "requests"
    IN_FLIGHT_BYTES = "bytes"


class CongestionControlRateLimitingStrategy:
    """Blocks when requests, messages or bytes in flight would exceed their limit. Answers change the limit.

    A request with a throttled entry scales down, and a complete success scales up. Other failures do not change the
    limit. A limit of requests never exceeds `max_in_flight_requests`.

    The limit starts at `initial_limit`, in the unit of the target, or at the scaling strategy's threshold if that is
    lower. A success never lowers it, and a throttle never raises it. With a target of bytes, batches are cut to the
    limit; a single larger entry is sent alone, when nothing is in flight.

    `congestion_control` decides when to scale, as in FLIP-242's first draft; by default any throttled entry scales down
    and any whole success up.

    Three refinements are off by default, which leaves FLIP-242's behaviour:

    - `slow_start_threshold`: until the first throttle, and below this limit, a success adds the size of its request,
      so that the limit doubles per round trip.
    - `decrease_once_per_round_trip`: a request that was sent before the last decrease saw the old limit, and does not
      decrease again.
    - `grow_only_when_used`: a success raises the limit only if at least half of it was in flight, so that a slow caller
      does not raise it indefinitely.

    Raises:
        SinkOptionError: an argument is out of range; while it is in use: the scaling strategy gave less than 1.
    """

    def __init__(
        self,
        *,
        max_in_flight_requests: int,
        initial_limit: int,
        scaling_strategy: ScalingStrategy,
        target: ScalingTarget = ScalingTarget.IN_FLIGHT_MESSAGES,
        slow_start_threshold: int | None = None,
        decrease_once_per_round_trip: bool = False,
        grow_only_when_used: bool = False,
        congestion_control: CongestionControlStrategy | None = None,
    ) -> None:
        check_positive(
            max_in_flight_requests=max_in_flight_requests,
            initial_limit=initial_limit,
            slow_start_threshold=slow_start_threshold,
        )
        self._max_in_flight_requests = max_in_flight_requests
        self._scaling = scaling_strategy
        self._control = congestion_control or ThresholdCongestionControlStrategy()
        self._target = target
        self._slow_start_threshold = slow_start_threshold
        self._decrease_once = decrease_once_per_round_trip
        self._grow_only_when_used = grow_only_when_used
        if target is ScalingTarget.IN_FLIGHT_REQUESTS:
            initial_limit = min(initial_limit, max_in_flight_requests)
        self._limit = self._capped(initial_limit)
        self._last_decrease_at = float("-inf")
        self._in_flight_requests = 0
        self._in_flight_messages = 0
        self._in_flight_bytes = 0

    @property
    def limit(self) -> int:
        """The present limit, in messages, in requests or in bytes by the target."""
        return self._limit

    def _in_target(self, requests: int, messages: int, size_in_bytes: int) -> int:
        if self._target is ScalingTarget.IN_FLIGHT_MESSAGES:
            return messages
        return requests if self._target is ScalingTarget.IN_FLIGHT_REQUESTS else size_in_bytes

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Count the request, its messages and its bytes."""
        self._in_flight_requests += 1
        self._in_flight_messages += request.batch_size
        self._in_flight_bytes += request.size_in_bytes

    def register_completed_request(self, result: ResultInfo) -> None:
        """Subtract the request, its messages and its bytes, and change the limit."""
        in_flight = self._in_flight_requests, self._in_flight_messages, self._in_flight_bytes
        self._in_flight_bytes = max(0, self._in_flight_bytes - result.size_in_bytes)
        self._in_flight_requests = max(0, self._in_flight_requests - 1)
        self._in_flight_messages = max(0, self._in_flight_messages - result.batch_size)
        decision = self._control.decide(
            CongestionControlInfo(
                failed_messages=result.throttled,
                batch_size=result.batch_size,
                succeeded=result.failed_messages == 0,
                now=result.now,
            )
        )
        if decision is ScalingDecision.SCALE_DOWN:
            self._shrink(result)
        elif decision is ScalingDecision.SCALE_UP:
            self._grow(result, *in_flight)

    def _shrink(self, result: ResultInfo) -> None:
        self._slow_start_threshold = None
        if self._decrease_once and result.submitted_at < self._last_decrease_at:
            return
        self._last_decrease_at = result.now
        scaling = self._scaling
        if isinstance(scaling, ShareScalingStrategy):
            shrunk = scaling.scale_down_by(self._limit, min(1.0, result.throttled / max(1, result.batch_size)))
        else:
            shrunk = scaling.scale_down(self._limit)
        if shrunk < 1:
            # No request could be sent, and so no answer would raise the limit.
            raise SinkOptionError("scaling_strategy", f"{shrunk} must be at least 1")
        # A floor may be above a limit that started below it.
        self._limit = min(self._limit, shrunk)

    def _capped(self, limit: int) -> int:
        # A limit that shrinks when it is scaled up is above the threshold of the scaling strategy.
        return min(limit, self._scaling.scale_up(limit))

    def _grow(self, result: ResultInfo, requests: int, messages: int, size_in_bytes: int) -> None:
        if self._grow_only_when_used and self._in_target(requests, messages, size_in_bytes) * 2 < self._limit:
            return
        threshold = self._slow_start_threshold
        if threshold is not None and self._limit < threshold:
            carried = self._in_target(1, result.batch_size, result.size_in_bytes)
            grown = self._capped(min(threshold, self._limit + carried))
        else:
            grown = self._scaling.scale_up(self._limit)
        if self._target is ScalingTarget.IN_FLIGHT_REQUESTS:
            grown = min(grown, self._max_in_flight_requests)
        self._limit = max(self._limit, grown)

    def should_block(self, request: RequestInfo) -> bool:
        """Whether a limit would be exceeded."""
        if self._in_flight_requests >= self._max_in_flight_requests:
            return True
        if self._target is ScalingTarget.IN_FLIGHT_REQUESTS:
            return self._in_flight_requests >= self._limit
        if self._target is ScalingTarget.IN_FLIGHT_BYTES:
            return self._in_flight_requests > 0 and self._in_flight_bytes + request.size_in_bytes > self._limit
        return self._in_flight_messages + request.batch_size > self._limit

    def get_max_batch_size(self) -> int:
        """The limit of messages: a larger batch could never leave."""
        return self._limit if self._target is ScalingTarget.IN_FLIGHT_MESSAGES else sys.maxsize

    @property
    def max_batch_bytes(self) -> int:
        """The bytes' limit."""
        return self._limit if self._target is ScalingTarget.IN_FLIGHT_BYTES else sys.maxsize

    def paces(self, request: RequestInfo) -> bool:
        """False: held requests are sent when an answer comes."""
        return False

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """None: whenever this strategy blocks, a request is in flight, and its answer is the time to ask."""
        return None


@dataclass(frozen=True, kw_only=True)
class CongestionControlConfig:
    """What to scale, when, and by how much. A factory of strategies that can be passed to a sink.

    Raises:
        SinkOptionError: the initial limit is not more than 0.
    """

    scaling_strategy: ScalingStrategy
    """How much."""
    congestion_control_strategy: CongestionControlStrategy = field(default_factory=ThresholdCongestionControlStrategy)
    """When. Each writer gets a copy, because the strategy may have state."""
    target: ScalingTarget = ScalingTarget.IN_FLIGHT_MESSAGES
    """What."""
    initial_limit: int | None = None
    """First limit, in the unit of the target; None for the maximum of the writer's limits."""

    def __post_init__(self) -> None:
        check_positive(initial_limit=self.initial_limit)

    def __call__(self, config: AsyncSinkConfig) -> CongestionControlRateLimitingStrategy:
        """Make the strategy of a writer with these limits."""
        most = {
            ScalingTarget.IN_FLIGHT_MESSAGES: config.max_batch_size * config.max_in_flight_requests,
            ScalingTarget.IN_FLIGHT_REQUESTS: config.max_in_flight_requests,
            ScalingTarget.IN_FLIGHT_BYTES: config.max_batch_size_in_bytes * config.max_in_flight_requests,
        }
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_limit=self.initial_limit or most[self.target],
            scaling_strategy=self.scaling_strategy,
            congestion_control=deepcopy(self.congestion_control_strategy),
            target=self.target,
        )


class GradientRateLimitingStrategy:
    """Limits messages in flight by the gradient of the round trip, for destinations that slow down before refusing.

    With each answer whose round trip is r:

        usual    += (r - usual) / window                        the round trip as it usually is; the first r at first
        gradient  = clamp(tolerance x usual / r, 0.5, 1)
        target    = limit x gradient + sqrt(limit)              sqrt(limit): the queue that is allowed to form
        limit    := clamp(limit + smoothing x (target - limit), min_limit, max_limit)

    A throttle multiplies the limit by 0.9 instead, once per round trip. The limit does not change while less than half
    of it is in flight. `usual` shrinks by 5 % at an answer for which it is more than twice r, so that it recovers soon
    after a slow period.

    Raises:
        SinkOptionError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        initial_limit: int = 500,
        min_limit: int = 1,
        max_limit: int = 25_000,
        tolerance: float = 1.5,
        smoothing: float = 0.2,
        window: int = 600,
    ) -> None:
        if not 1 <= min_limit <= initial_limit:
            raise SinkOptionError("min_limit", f"{min_limit} must be at least 1 and at most initial_limit")
        if max_limit < initial_limit:
            raise SinkOptionError("max_limit", f"{max_limit} must be at least initial_limit, {initial_limit}")
        if tolerance < 1.0:
            raise SinkOptionError("tolerance", f"{tolerance} must be at least 1")
        if not 0.0 < smoothing <= 1.0:
            raise SinkOptionError("smoothing", f"{smoothing} must be more than 0 and at most 1")
        check_positive(window=window)
        self._limit = float(initial_limit)
        self._min, self._max = float(min_limit), float(max_limit)
        self._tolerance, self._smoothing, self._window = tolerance, smoothing, window
        self._usual: float | None = None
        self._in_flight = 0
        self._last_decrease_at = float("-inf")

    @property
    def limit(self) -> int:
        """The present limit, in messages."""
        return int(self._limit)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Count the messages."""
        self._in_flight += request.batch_size

    def register_completed_request(self, result: ResultInfo) -> None:
        """Subtract the messages and change the limit."""
        in_use = self._in_flight
        self._in_flight = max(0, self._in_flight - result.batch_size)
        if result.throttled > 0:
            if result.submitted_at >= self._last_decrease_at:
                self._last_decrease_at = result.now
                self._limit = max(self._min, self._limit * 0.9)
            return
        round_trip = result.now - result.submitted_at
        if result.failed_messages > 0 or round_trip <= 0.0:
            return
        usual = round_trip if self._usual is None else self._usual + (round_trip - self._usual) / self._window
        self._usual = usual * 0.95 if usual > 2.0 * round_trip else usual
        if in_use * 2 < self._limit:
            return
        gradient = max(0.5, min(1.0, self._tolerance * usual / round_trip))
        target = self._limit * gradient + sqrt(self._limit)
        moved = self._limit + self._smoothing * (target - self._limit)
        self._limit = max(self._min, min(self._max, moved))

    def should_block(self, request: RequestInfo) -> bool:
        """Whether the limit would be exceeded."""
        return self._in_flight > 0 and self._in_flight + request.batch_size > self._limit

    def get_max_batch_size(self) -> int:
        """The limit."""
        return max(1, int(self._limit))

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """None: whenever this strategy blocks, a request is in flight."""
        return None
