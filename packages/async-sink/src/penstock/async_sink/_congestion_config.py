"""The configuration of FLIP-242's first draft: what to scale, when, and by how much."""

from copy import deepcopy
from dataclasses import dataclass, field

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._congestion import CongestionControlRateLimitingStrategy, ScalingTarget
from penstock.async_sink._congestion_decision import CongestionControlStrategy, ThresholdCongestionControlStrategy
from penstock.async_sink._scaling import ScalingStrategy


@dataclass(frozen=True, kw_only=True)
class CongestionControlConfig:
    """What to scale, when, and by how much; a factory of strategies, so that it can be given to a sink."""

    scaling_strategy: ScalingStrategy
    """How much."""
    congestion_control_strategy: CongestionControlStrategy = field(default_factory=ThresholdCongestionControlStrategy)
    """When. Each writer gets a copy, as it may keep what it has seen."""
    target: ScalingTarget = ScalingTarget.IN_FLIGHT_MESSAGES
    """What."""

    def __call__(self, config: AsyncSinkConfig) -> CongestionControlRateLimitingStrategy:
        """The strategy for a writer with these limits; it starts at the most that they allow."""
        return CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=config.max_batch_size * config.max_in_flight_requests,
            scaling_strategy=self.scaling_strategy,
            congestion_control=deepcopy(self.congestion_control_strategy),
            target=self.target,
        )
