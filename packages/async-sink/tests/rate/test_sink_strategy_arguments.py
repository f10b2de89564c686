"""What strategies are made with is checked."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import (
    GradientRateLimitingStrategy,
    PerShardRateLimitingStrategy,
    ProportionalScalingStrategy,
    ThresholdCongestionControlStrategy,
)
from penstock.async_sink.errors import SinkOptionError


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("increase_rate", {"increase_rate": 0}),
        ("floor", {"floor": 0}),
        ("rate_threshold", {"increase_rate": 10, "rate_threshold": 9}),
        ("rate_threshold", {"floor": 101}),
    ],
)
def test_a_wrong_argument_of_proportional_scaling_is_named(option: str, options: dict[str, int]) -> None:
    """Checked on construction; without a share, everything counts as failed."""
    with pytest.raises(SinkOptionError) as caught:
        ProportionalScalingStrategy(**{"rate_threshold": 100, **options})
    assert caught.value.option == option
    assert ProportionalScalingStrategy(rate_threshold=100, floor=7).scale_down(90) == 7


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("min_limit", {"min_limit": 0}),
        ("min_limit", {"min_limit": 501}),
        ("max_limit", {"max_limit": 499}),
        ("tolerance", {"tolerance": 0.99}),
        ("smoothing", {"smoothing": 0.0}),
        ("smoothing", {"smoothing": 1.01}),
        ("window", {"window": 0}),
    ],
)
def test_a_wrong_argument_of_the_gradient_is_named(option: str, options: dict[str, Any]) -> None:
    """Checked on construction."""
    with pytest.raises(SinkOptionError) as caught:
        GradientRateLimitingStrategy(**options)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("scale_down_failure_threshold", {"scale_down_failure_threshold": 1.0}),
        ("scale_down_failure_threshold", {"scale_down_failure_threshold": -0.1}),
        ("scale_up_after_successes", {"scale_up_after_successes": 0}),
        ("scale_up_within", {"scale_up_within": timedelta(0)}),
    ],
)
def test_a_wrong_threshold_is_named(option: str, options: dict[str, Any]) -> None:
    """Checked on construction; so are the rates of a shard."""
    with pytest.raises(SinkOptionError) as caught:
        ThresholdCongestionControlStrategy(**options)
    assert caught.value.option == option
    for rate in ("records_per_second", "bytes_per_second"):
        wrong: dict[str, Any] = {rate: 0.0}
        with pytest.raises(SinkOptionError, match=rate):
            PerShardRateLimitingStrategy(**wrong)
