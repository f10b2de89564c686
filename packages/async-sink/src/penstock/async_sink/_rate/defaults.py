"""Default strategies, and strategies that options select."""

from collections.abc import Callable
from typing import TypedDict, Unpack

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
    """FLIP-171's congestion control: AIMD that starts at the maximum of the writer's limits.

    With `slow_start` it starts at one full batch instead, doubles per round trip until the first throttle, and grows
    only while the limit is in use.
    """
    most = config.max_batch_size * config.max_in_flight_requests
    return CongestionControlRateLimitingStrategy(
        max_in_flight_requests=config.max_in_flight_requests,
        initial_limit=config.max_batch_size if slow_start else most,
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
    """AIMD +100, x0.9, after a slow start, in user records, because an aggregate contains many of them."""
    return aimd_strategy(config, increase_rate=100, decrease_factor=0.9, slow_start=True)


def kinesis_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """The default for a stream: a separate pace for each shard, and congestion control for messages in flight.

    Until a shard throttles, requests double per round trip. From then on `PerShardRateLimitingStrategy` paces the
    shards. The limit of congestion control grows by 10 per success while it is in use, and shrinks by the failed share
    of a request, once per round trip.
    """
    most = config.max_batch_size * config.max_in_flight_requests
    return All(
        CongestionControlRateLimitingStrategy(
            max_in_flight_requests=config.max_in_flight_requests,
            initial_limit=config.max_batch_size,
            scaling_strategy=ProportionalScalingStrategy(
                increase_rate=min(10, most), rate_threshold=most, floor=config.max_batch_size
            ),
            slow_start_threshold=most,
            decrease_once_per_round_trip=True,
            grow_only_when_used=True,
        ),
        PerShardRateLimitingStrategy(),
    )


class AimdOptions(TypedDict, total=False):
    """Options of the rate strategy `aimd`; None means the default."""

    target: str | None
    """`messages` (the default) or `requests`."""
    increase_rate: int | None
    """Added to the limit by a success. Default: 10."""
    decrease_factor: float | None
    """Multiplies the limit when a request is throttled. Default: 0.5 for requests, `usual_decrease_factor` else."""
    rate_threshold: int | None
    """The largest limit. Default: all that may be in flight."""
    usual_decrease_factor: float
    """Default of `decrease_factor` for messages. Default: 0.5."""


def _aimd(
    max_in_flight_requests: int,
    max_batch_size: int,
    *,
    target: str | None = None,
    increase_rate: int | None = None,
    decrease_factor: float | None = None,
    rate_threshold: int | None = None,
    usual_decrease_factor: float = 0.5,
) -> tuple[ScalingTarget, int, AIMDScalingStrategy]:
    """The target, the largest number of it that may be in flight, and how the limit moves."""
    counted = ScalingTarget(target or "messages")
    if counted is ScalingTarget.IN_FLIGHT_BYTES:
        raise SinkOptionError("target", "must be messages or requests; for bytes use CongestionControlConfig")
    # x0.99 of 50 requests is 50.
    most, factor = max_in_flight_requests, 0.5
    if counted is ScalingTarget.IN_FLIGHT_MESSAGES:
        most, factor = most * max_batch_size, usual_decrease_factor
    threshold = rate_threshold or most
    scaling = AIMDScalingStrategy(
        # A larger increase would be cut to the threshold anyway.
        increase_rate=min(increase_rate or 10, threshold),
        decrease_factor=factor if decrease_factor is None else decrease_factor,
        rate_threshold=threshold,
    )
    return counted, most, scaling


def check_aimd(
    *,
    max_in_flight_requests: int,
    max_batch_size: int,
    initial_rate: int | None = None,
    **aimd: Unpack[AimdOptions],
) -> None:
    """Check options of `rate_strategy`'s `aimd` for a writer with these two limits.

    Raises:
        SinkOptionError: a rate is larger than the threshold or than all that may be in flight, or a throttle would not
            lower the limit because of rounding. The reason starts with the value and names the other options.
    """
    rate_threshold = aimd.get("rate_threshold")
    for name, rate in (("initial_rate", initial_rate), ("increase_rate", aimd.get("increase_rate"))):
        if rate is not None and rate_threshold is not None and rate > rate_threshold:
            raise SinkOptionError(name, f"{rate} must be at most rate_threshold, {rate_threshold}")
    counted, most, scaling = _aimd(max_in_flight_requests, max_batch_size, **aimd)
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
        given = factor if aimd.get("decrease_factor") is not None else f"{factor}, as none is given,"
        raise SinkOptionError("decrease_factor", f"{given} must be less: {why}")


def rate_strategy(
    usual: StrategyFactory,
    *,
    strategy: str | None = None,
    initial_rate: int | None = None,
    records_per_second: float | None = None,
    bytes_per_second: float | None = None,
    **aimd: Unpack[AimdOptions],
) -> StrategyFactory:
    """Make the strategy of a writer from options; None means the destination's default.

    `strategy` is `shards` or None (`usual`), `none` (only the limit of requests in flight) or `aimd`: FLIP-242's
    congestion control, which starts at `initial_rate` or at `rate_threshold`. Values that are too large for the writer
    are reduced; `check_aimd` refuses them instead. The two rates per second apply in addition.

    Raises:
        SinkOptionError: when a writer is made: a number is out of range.
    """

    def make_aimd(config: AsyncSinkConfig) -> RateLimitingStrategy:
        counted, _, scaling = _aimd(config.max_in_flight_requests, config.max_batch_size, **aimd)
        return CongestionControlConfig(scaling_strategy=scaling, target=counted, initial_limit=initial_rate)(config)

    chosen = usual
    if strategy == "aimd":
        chosen = make_aimd
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
