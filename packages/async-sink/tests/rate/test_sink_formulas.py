"""Each strategy follows its written formula."""

from datetime import timedelta
from math import cbrt, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import (
    All,
    CongestionControlInfo,
    GradientRateLimitingStrategy,
    ProportionalScalingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    ScalingDecision,
    ThresholdCongestionControlStrategy,
    TokenBucketRateLimitingStrategy,
)
from penstock.async_sink._rate.per_shard import ShardBucket
from penstock.async_sink.errors import SinkOptionError


def answered(strategy: RateLimitingStrategy, size: int, seconds: float = 0.1, **result: Any) -> None:
    strategy.register_in_flight_request(RequestInfo(size))
    given = {"failed_messages": 0, "submitted_at": 10.0, "now": 10.0 + seconds, **result}
    strategy.register_completed_request(ResultInfo(batch_size=size, **given))


@given(
    rate=st.floats(1.0, 5_000.0),
    burst=st.floats(0.05, 3.0),
    steps=st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 500)), min_size=1, max_size=60),
)
def test_a_token_bucket_lets_no_more_through_than_its_rate_and_its_burst(
    rate: float, burst: float, steps: list[tuple[float, int]]
) -> None:
    """In any period at most capacity + rate x seconds is sent."""
    strategy = TokenBucketRateLimitingStrategy(records_per_second=rate, burst_seconds=burst)
    capacity = max(1.0, rate * burst)
    now, sent = 100.0, 0
    for wait, size in steps:
        now += wait
        request = RequestInfo(min(size, strategy.get_max_batch_size()), now=now)
        if not strategy.should_block(request):
            strategy.register_in_flight_request(request)
            sent += request.batch_size
        assert sent <= capacity + rate * (now - 100.0) + 1e-6 * (1 + rate)


@pytest.mark.parametrize(
    "options",
    [{}, {"records_per_second": 0.0}, {"bytes_per_second": -1.0}, {"requests_per_second": 1, "burst_seconds": 0}],
)
def test_a_wrong_argument_of_the_token_bucket_is_an_error(options: dict[str, float]) -> None:
    """Rates and burst are more than 0, and there is at least one rate."""
    with pytest.raises(SinkOptionError):
        TokenBucketRateLimitingStrategy(**options)


@given(
    trips=st.lists(st.floats(0.001, 10.0), min_size=1, max_size=50),
    tolerance=st.floats(1.0, 3.0),
    smoothing=st.floats(0.05, 1.0),
    window=st.integers(1, 600),
)
def test_the_gradient_follows_its_formula(trips: list[float], tolerance: float, smoothing: float, window: int) -> None:
    """Whatever the round trips are, the limit is the one that the formula gives."""
    strategy = GradientRateLimitingStrategy(
        initial_limit=100, max_limit=1_000, tolerance=tolerance, smoothing=smoothing, window=window
    )
    limit, usual = 100.0, None
    for trip in trips:
        answered(strategy, strategy.limit, trip)
        trip = (10.0 + trip) - 10.0
        usual = trip if usual is None else usual + (trip - usual) / window
        if usual > 2 * trip:
            usual *= 0.95
        gradient = max(0.5, min(1.0, tolerance * usual / trip))
        limit = max(1.0, min(1_000.0, limit + smoothing * (limit * gradient + sqrt(limit) - limit)))
        assert strategy.limit == pytest.approx(limit, abs=1.0)


def test_the_gradient_comes_down_when_answers_slow_down_and_up_again_when_they_do_not() -> None:
    """Five times the round trip shrinks the limit, the old one lets it grow."""
    strategy = GradientRateLimitingStrategy(initial_limit=400)
    for _ in range(20):
        answered(strategy, strategy.limit, 0.1)
    high = strategy.limit
    for _ in range(20):
        answered(strategy, strategy.limit, 0.5)
    low = strategy.limit
    for _ in range(200):
        answered(strategy, strategy.limit, 0.1)
    assert low < high / 2
    assert strategy.limit > high


def test_a_throttle_shrinks_the_gradients_limit_once_per_round_trip() -> None:
    """Requests that were sent before the decrease do not decrease the limit again."""
    strategy = GradientRateLimitingStrategy(initial_limit=100)
    for _ in range(3):
        answered(strategy, 10, failed_messages=1)
    assert strategy.limit == 90


@given(
    threshold=st.floats(0.0, 0.99),
    needed=st.integers(1, 5),
    within=st.none() | st.floats(0.5, 10.0),
    answers=st.lists(st.tuples(st.integers(0, 10), st.booleans(), st.floats(0.0, 3.0)), max_size=60),
)
def test_the_thresholds_are_kept(
    threshold: float, needed: int, within: float | None, answers: list[tuple[int, bool, float]]
) -> None:
    """Down only above the share of failures; up only after enough successes in a row within the time."""
    span = None if within is None else timedelta(seconds=within)
    strategy = ThresholdCongestionControlStrategy(
        scale_down_failure_threshold=threshold, scale_up_after_successes=needed, scale_up_within=span
    )
    seconds = None if span is None else span.total_seconds()
    row: list[float] = []
    now = 0.0
    for failed, other, wait in answers:
        now += wait
        info = CongestionControlInfo(failed_messages=failed, batch_size=10, succeeded=not failed and not other, now=now)
        decision = strategy.decide(info)
        if failed:
            row = []
            expected = ScalingDecision.SCALE_DOWN if failed > threshold * 10 else ScalingDecision.KEEP
        elif other:
            expected = ScalingDecision.KEEP
        else:
            row.append(now)
            recent = row[-needed:]
            up = len(recent) == needed and (seconds is None or now - recent[0] <= seconds)
            expected = ScalingDecision.SCALE_UP if up else ScalingDecision.KEEP
            row = [] if up else row
        assert decision is expected


@given(st.integers(1, 10_000), st.floats(0.001, 1.0), st.integers(1, 100))
def test_proportional_scaling_shrinks_by_the_share_that_failed(current: int, share: float, floor: int) -> None:
    """max(floor, round(current x (1 - share)))."""
    scaling = ProportionalScalingStrategy(increase_rate=10, rate_threshold=20_000, floor=floor)
    down = scaling.scale_down_by(current, share)
    assert down == floor or abs(down - current * (1 - share)) <= 0.5 + 1e-6
    assert down >= floor
    assert scaling.scale_up(current) == current + 10


@given(
    share=st.integers(1, 99),
    after=st.floats(0.0, 4.0),
    earlier=st.integers(0, 99),
)
def test_the_pace_of_a_shard_follows_its_curve(share: int, after: float, earlier: int) -> None:
    """scale(t) = clamp(S x (1 + c (t - K)^3), floor, 1) with K = cube root of (f / c), for the latest decrease."""
    bucket = ShardBucket(1_000.0, 1e6, now=0.0)
    before = 1.0
    if earlier:
        bucket.answered(100 - earlier, earlier, 1.0, 1.0)
        before = bucket.scale(2.0)
    bucket.answered(100 - share, share, 2.0, 2.0)
    rest = cbrt(share / 100 / bucket.GROWTH)
    expected = before * (1 + bucket.GROWTH * (2.0 + after - 2.0 - rest) ** 3)
    assert bucket.scale(2.0 + after) == pytest.approx(max(bucket.FLOOR, min(1.0, expected)), abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.0, 0.7), st.integers(1, 100_000)), min_size=1, max_size=100))
def test_a_shard_gets_no_more_than_its_rates(steps: list[tuple[float, int]]) -> None:
    """In any period a shard gets at most half a second's burst plus its rates of records and bytes."""
    bucket = ShardBucket(1_000.0, 1e6, now=50.0)
    now, records, sent_bytes = 50.0, 0, 0
    for wait, size in steps:
        now += wait
        while bucket.take(size, now):
            records += 1
            sent_bytes += size
        assert records <= 500 + 1_000 * (now - 50.0 + 0.05)
        assert sent_bytes <= 500_000 + 1e6 * (now - 50.0 + 0.05) + 100_000


class _Says:
    def __init__(self, blocks: bool, wait: float | None, size: int) -> None:
        self.blocks, self.wait, self.size, self.seen = blocks, wait, size, 0

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.seen += request.batch_size

    def register_completed_request(self, result: ResultInfo) -> None:
        self.seen -= result.batch_size

    def should_block(self, request: RequestInfo) -> bool:
        return self.blocks

    def get_max_batch_size(self) -> int:
        return self.size

    def ask_again_after(self, request: RequestInfo) -> float | None:
        return self.wait


@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0.0, 9.0), st.integers(1, 500)), min_size=1, max_size=6))
def test_all_is_the_strictest_of_its_strategies(parts: list[tuple[bool, float | None, int]]) -> None:
    """Any blocks, the smallest batch counts, the longest wait of those that block; None if one waits for an answer."""
    strategies = [_Says(*part) for part in parts]
    every, request = All(*strategies), RequestInfo(7)
    every.register_in_flight_request(request)
    assert [each.seen for each in strategies] == [7] * len(parts)
    every.register_completed_request(ResultInfo(0, 7))
    assert [each.seen for each in strategies] == [0] * len(parts)
    assert every.should_block(request) == any(blocks for blocks, _, _ in parts)
    assert every.get_max_batch_size() == min(size for _, _, size in parts)
    waits = [wait for blocks, wait, _ in parts if blocks]
    if waits:
        assert every.ask_again_after(request) == (
            None if None in waits else max(wait for wait in waits if wait is not None)
        )
