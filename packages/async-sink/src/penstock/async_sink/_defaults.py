"""The strategies that writers get when none is given."""

from penstock.async_sink._all import All
from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._congestion import CongestionControlRateLimitingStrategy
from penstock.async_sink._per_shard import PerShardRateLimitingStrategy
from penstock.async_sink._scaling import AIMDScalingStrategy, ProportionalScalingStrategy


def aimd_strategy(
    config: AsyncSinkConfig, *, increase_rate: int = 10, decrease_factor: float = 0.5, slow_start: bool = False
) -> CongestionControlRateLimitingStrategy:
    """FLIP-171's congestion control: starts at the most that the limits allow, and follows the answers by AIMD.

    With `slow_start` it starts at one full batch instead, doubles per round trip until the first throttle, and grows
    only while the limit is in use.
    """
    most = config.max_batch_size * config.max_in_flight_requests
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=config.max_in_flight_requests,
        initial_max_in_flight_messages=config.max_batch_size if slow_start else most,
        scaling_strategy=AIMDScalingStrategy(
            increase_rate=min(increase_rate, most), decrease_factor=decrease_factor, rate_threshold=most
        ),
        slow_start_threshold=most if slow_start else None,
        grow_only_when_used=slow_start,
    )


def paced_strategy(config: AsyncSinkConfig) -> All:
    """For a stream: each shard at its own pace, and congestion control for what is in flight.

    Until a shard throttles, requests double per round trip. From then on `PerShardRateLimitingStrategy` paces the
    shards. Congestion control is left with what pacing does not see: it grows by 10 per success while it is in use, and
    shrinks by the share of a request that failed, once per round trip.
    """
    most = config.max_batch_size * config.max_in_flight_requests
    return All(
        CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_max_in_flight_messages=config.max_batch_size,
            scaling_strategy=ProportionalScalingStrategy(
                increase_rate=min(10, most), rate_threshold=most, floor=config.max_batch_size
            ),
            slow_start_threshold=most,
            decrease_once_per_round_trip=True,
            grow_only_when_used=True,
        ),
        PerShardRateLimitingStrategy(),
    )
