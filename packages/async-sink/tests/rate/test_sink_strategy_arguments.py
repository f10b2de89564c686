"""Strategies check their arguments when they are made."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from penstock.async_sink import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    GradientRateLimitingStrategy,
    PerShardRateLimitingStrategy,
    ProportionalScalingStrategy,
    ThresholdCongestionControlStrategy,
)
from penstock.async_sink.errors import SinkOptionError

AIMD = AIMDScalingStrategy(rate_threshold=100)
WRONG: list[tuple[Callable[..., object], str, list[Any]]] = [
    (partial(AIMDScalingStrategy, rate_threshold=100), "increase_rate", [0]),
    (partial(AIMDScalingStrategy, rate_threshold=100), "decrease_factor", [0.0, 1.0]),
    (AIMDScalingStrategy, "rate_threshold", [9]),
    (partial(ProportionalScalingStrategy, rate_threshold=100), "increase_rate", [0]),
    (partial(ProportionalScalingStrategy, rate_threshold=100), "floor", [0]),
    (partial(ProportionalScalingStrategy, floor=101), "rate_threshold", [9, 100]),
    (GradientRateLimitingStrategy, "min_limit", [0, 501]),
    (GradientRateLimitingStrategy, "max_limit", [499]),
    (GradientRateLimitingStrategy, "tolerance", [0.99]),
    (GradientRateLimitingStrategy, "smoothing", [0.0, 1.01]),
    (GradientRateLimitingStrategy, "window", [0]),
    (ThresholdCongestionControlStrategy, "scale_down_failure_threshold", [1.0, -0.1]),
    (ThresholdCongestionControlStrategy, "scale_up_after_successes", [0]),
    (ThresholdCongestionControlStrategy, "scale_up_within", [timedelta(0)]),
    (PerShardRateLimitingStrategy, "records_per_second", [0.0]),
    (PerShardRateLimitingStrategy, "bytes_per_second", [0.0]),
    *(
        (
            lambda **wrong: CongestionControlRateLimitingStrategy(
                **{"max_in_flight_requests": 10, "initial_limit": 100, "scaling_strategy": AIMD, **wrong}
            ),
            option,
            [0],
        )
        for option in ("max_in_flight_requests", "initial_limit", "slow_start_threshold")
    ),
]


@pytest.mark.parametrize(("make", "option", "values"), WRONG)
def test_an_invalid_argument_raises_an_error_that_names_it(
    make: Callable[..., object], option: str, values: list[Any]
) -> None:
    """Each value is out of the range of the argument."""
    for value in values:
        with pytest.raises(SinkOptionError) as caught:
            make(**{option: value})
        assert caught.value.option == option
