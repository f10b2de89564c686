"""The configuration of FLIP-242's first draft: what to scale, when, and by how much."""

from copy import deepcopy
from dataclasses import dataclass, field

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._rate.congestion import CongestionControlRateLimitingStrategy, ScalingTarget
from penstock.async_sink._rate.congestion_decision import CongestionControlStrategy, ThresholdCongestionControlStrategy
from penstock.async_sink._rate.scaling import ScalingStrategy
from penstock.async_sink.errors import SinkOptionError


@dataclass(frozen=True, kw_only=True)
class CongestionControlConfig:
    """What to scale, when, and by how much; a factory of strategies, so that it can be given to a sink.

    Raises:
        SinkOptionError: the initial limit is not more than 0.
    """

    scaling_strategy: ScalingStrategy
    """How much."""
    congestion_control_strategy: CongestionControlStrategy = field(default_factory=ThresholdCongestionControlStrategy)
    """When. Each writer gets a copy, as it may keep what it has seen."""
    target: ScalingTarget = ScalingTarget.IN_FLIGHT_MESSAGES
    """What."""
    initial_limit: int | None = None
    """Where to start, in what the target counts; None for all that the writer's limits allow."""

    def __post_init__(self) -> None:
        if self.initial_limit is not None and self.initial_limit <= 0:
            raise SinkOptionError("initial_limit", f"{self.initial_limit} must be more than 0")

    def __call__(self, config: AsyncSinkConfig) -> CongestionControlRateLimitingStrategy:
        """The strategy for a writer with these limits; it starts at the initial limit, or at the scaling strategy's
        threshold if that is lower."""
        by_messages = self.target is ScalingTarget.IN_FLIGHT_MESSAGES
        most = config.max_batch_size * config.max_in_flight_requests
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=self.initial_limit or most if by_messages else most,
            initial_max_in_flight_requests=None if by_messages else self.initial_limit,
            scaling_strategy=self.scaling_strategy,
            congestion_control=deepcopy(self.congestion_control_strategy),
            target=self.target,
        )
