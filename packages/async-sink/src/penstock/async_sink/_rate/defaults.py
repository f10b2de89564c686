"""The strategies that writers get when none is given, and those that options name."""

from collections.abc import Callable

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._rate.congestion import (
    AIMDScalingStrategy,
    CongestionControlConfig,
    CongestionControlRateLimitingStrategy,
    NoOpScalingStrategy,
    ProportionalScalingStrategy,
    ScalingTarget,
)
from penstock.async_sink._rate.per_shard import PerShardRateLimitingStrategy
from penstock.async_sink._rate.strategy import All, RateLimitingStrategy, TokenBucketRateLimitingStrategy
from penstock.async_sink.errors import SinkOptionError

StrategyFactory = Callable[[AsyncSinkConfig], RateLimitingStrategy]


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


def slow_start_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +10, x0.5, after a slow start: the default for Firehose, DynamoDB and SQS."""
    return aimd_strategy(config, slow_start=True)


def aggregation_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +100, x0.9, after a slow start, in user records: an aggregate takes many of them along."""
    return aimd_strategy(config, increase_rate=100, decrease_factor=0.9, slow_start=True)


def kinesis_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """The default for a stream: each shard at its own pace, and congestion control for what is in flight.

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


def _aimd(
    max_in_flight_requests: int,
    max_batch_size: int,
    target: str | None,
    increase_rate: int | None,
    decrease_factor: float | None,
    rate_threshold: int | None,
    usual_decrease_factor: float,
) -> tuple[ScalingTarget, int, AIMDScalingStrategy]:
    """What it counts, how much of that may be in flight, and how its limit moves."""
    counted = ScalingTarget(target or "messages")
    if counted is ScalingTarget.IN_FLIGHT_BYTES:
        raise SinkOptionError("target", "must be messages or requests; for bytes use CongestionControlConfig")
    # x0.99 of 50 requests is 50.
    most, factor = max_in_flight_requests, 0.5
    if counted is ScalingTarget.IN_FLIGHT_MESSAGES:
        most, factor = most * max_batch_size, usual_decrease_factor
    threshold = rate_threshold or most
    scaling = AIMDScalingStrategy(
        # What goes beyond the threshold would be cut off anyway.
        increase_rate=min(increase_rate or 10, threshold),
        decrease_factor=factor if decrease_factor is None else decrease_factor,
        rate_threshold=threshold,
    )
    return counted, most, scaling


def check_aimd(
    *,
    max_in_flight_requests: int,
    max_batch_size: int,
    target: str | None = None,
    initial_rate: int | None = None,
    increase_rate: int | None = None,
    decrease_factor: float | None = None,
    rate_threshold: int | None = None,
    usual_decrease_factor: float = 0.5,
) -> None:
    """Refuse options of `rate_strategy`'s `aimd` that could not do what they say, in a writer with these two limits.

    Raises:
        SinkOptionError: a rate is more than the threshold or than all that may be in flight, or a throttle would lower
            nothing, as the limit times the factor is rounded up to the limit. The reason begins with the value, and
            has the other options by their names here.
    """
    for name, rate in (("initial_rate", initial_rate), ("increase_rate", increase_rate)):
        if rate is not None and rate_threshold is not None and rate > rate_threshold:
            raise SinkOptionError(name, f"{rate} must be at most rate_threshold, {rate_threshold}")
    counted, most, scaling = _aimd(
        max_in_flight_requests,
        max_batch_size,
        target,
        increase_rate,
        decrease_factor,
        rate_threshold,
        usual_decrease_factor,
    )
    by = "max_in_flight_requests allows"
    if counted is ScalingTarget.IN_FLIGHT_MESSAGES:
        by = "max_in_flight_requests and max_batch_size allow"
    for name, rate in (("initial_rate", initial_rate), ("rate_threshold", rate_threshold)):
        if rate is not None and rate > most:
            raise SinkOptionError(name, f"{rate} must be at most {most}, which is all that {by}")
    limit, factor = scaling.rate_threshold, f"{scaling.decrease_factor:g}"
    # A limit of 1 is as low as any.
    if 1 < limit <= scaling.scale_down(limit):
        why = f"{limit} times {factor} is rounded up to {limit}, so that a throttle would lower nothing"
        given = factor if decrease_factor is not None else f"{factor}, as none is given,"
        raise SinkOptionError("decrease_factor", f"{given} must be less: {why}")


def rate_strategy(
    usual: StrategyFactory,
    *,
    strategy: str | None = None,
    target: str | None = None,
    initial_rate: int | None = None,
    increase_rate: int | None = None,
    decrease_factor: float | None = None,
    rate_threshold: int | None = None,
    usual_decrease_factor: float = 0.5,
    records_per_second: float | None = None,
    bytes_per_second: float | None = None,
) -> StrategyFactory:
    """How writers find their rate, from options; what is None is left to the destination.

    `strategy` is `shards` or None for `usual`; `none` for no limit but that of requests in flight; `aimd` for
    FLIP-242's congestion control: its limit, in flight, counts `target` (`messages` or `requests`), starts at
    `initial_rate` or at `rate_threshold`, grows by `increase_rate` (10) with each success up to `rate_threshold` (all
    that may be in flight), and is multiplied by `decrease_factor` with each throttle. `usual_decrease_factor` is that
    for messages; for requests it is 0.5. What cannot act is cut to what can: `check_aimd` refuses it instead. The two
    rates per second come on top of any of these.

    Raises:
        SinkOptionError: when a writer is made: a number is out of range.
    """

    def aimd(config: AsyncSinkConfig) -> RateLimitingStrategy:
        counted, _, scaling = _aimd(
            config.max_in_flight_requests,
            config.max_batch_size,
            target,
            increase_rate,
            decrease_factor,
            rate_threshold,
            usual_decrease_factor,
        )
        return CongestionControlConfig(scaling_strategy=scaling, target=counted, initial_limit=initial_rate)(config)

    chosen = usual
    if strategy == "aimd":
        chosen = aimd
    elif strategy == "none":
        chosen = CongestionControlConfig(scaling_strategy=NoOpScalingStrategy())
    if records_per_second is None and bytes_per_second is None:
        return chosen

    def both(config: AsyncSinkConfig) -> RateLimitingStrategy:
        rates = TokenBucketRateLimitingStrategy(
            records_per_second=records_per_second, bytes_per_second=bytes_per_second
        )
        return All(rates, chosen(config))

    return both
