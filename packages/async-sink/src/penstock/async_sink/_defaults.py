"""The strategy that a writer gets when none is given."""

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._congestion import CongestionControlRateLimitingStrategy
from penstock.async_sink._scaling import AIMDScalingStrategy


def aimd_strategy(
    config: AsyncSinkConfig, *, increase_rate: int = 10, decrease_factor: float = 0.5
) -> CongestionControlRateLimitingStrategy:
    """FLIP-171's congestion control: starts at the most that the limits allow, and follows the answers by AIMD."""
    most = config.max_batch_size * config.max_in_flight_requests
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=config.max_in_flight_requests,
        initial_max_in_flight_messages=most,
        scaling_strategy=AIMDScalingStrategy(
            increase_rate=min(increase_rate, most), decrease_factor=decrease_factor, rate_threshold=most
        ),
    )
