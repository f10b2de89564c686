"""Strategies follow their written formulas under any sequence of requests and answers, alone and together."""

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.async_sink import (
    AIMDScalingStrategy,
    All,
    CongestionControlRateLimitingStrategy,
    GradientRateLimitingStrategy,
    NoOpScalingStrategy,
    ProportionalScalingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    ScalingTarget,
    TokenBucketRateLimitingStrategy,
)
from penstock.async_sink._rate.strategy import AsksAgain

# What happens next: seconds that pass, entries and bytes offered, which request is answered, what failed of it.
_steps = st.lists(
    st.tuples(
        st.floats(0.0, 1.5),
        st.integers(1, 8) | st.integers(1, 60),
        st.integers(0, 3_000),
        st.none() | st.integers(0, 9),
        # Whole successes are as frequent as failures: else limits would hardly ever grow.
        st.just(0) | st.integers(0, 60),
        st.just(0) | st.integers(0, 60),
    ),
    min_size=1,
    max_size=60,
)
Step = tuple[float, int, int, int | None, int, int]


@dataclass
class Run:
    """Drives a strategy, as a writer does: asks, registers what may leave, and completes in any order."""

    strategy: RateLimitingStrategy
    now: float = 50.0
    in_flight: list[RequestInfo] = field(default_factory=list)

    def offer(self, size: int, size_in_bytes: int) -> RequestInfo | None:
        request = RequestInfo(min(size, self.strategy.get_max_batch_size()), size_in_bytes, self.now)
        if self.strategy.should_block(request):
            return None
        self.strategy.register_in_flight_request(request)
        self.in_flight.append(request)
        return request

    def answer(self, which: int, failed: int, throttled: int) -> ResultInfo:
        request = self.in_flight.pop(which % len(self.in_flight))
        failed = min(failed, request.batch_size)
        result = ResultInfo(
            failed, request.batch_size, min(throttled, failed), request.size_in_bytes, request.now, self.now
        )
        self.strategy.register_completed_request(result)
        return result


@pytest.mark.parametrize(("current", "expected"), [(1, 1), (2, 1), (3, 2), (5, 3), (7, 4), (9, 5), (10, 5)])
def test_half_a_message_is_rounded_up(current: int, expected: int) -> None:
    """round(x) is that of the reference, floor(x + 1/2), not to the nearest even number."""
    assert AIMDScalingStrategy(decrease_factor=0.5, rate_threshold=100).scale_down(current) == expected
    assert ProportionalScalingStrategy(rate_threshold=100).scale_down_by(current, 0.5) == expected


def test_a_decrease_by_one_hundredth_comes_down_from_anywhere() -> None:
    """x0.99 rests where a half is rounded up to what it was: at 50, and not at a limit that means nothing."""
    scaling, limit = AIMDScalingStrategy(decrease_factor=0.99, rate_threshold=25_000), 25_000
    for _ in range(2_000):
        limit = scaling.scale_down(limit)
    assert limit == 50


_scalings: dict[str, Any] = {
    "aimd": AIMDScalingStrategy(increase_rate=7, decrease_factor=0.5, rate_threshold=300),
    "gentle aimd": AIMDScalingStrategy(increase_rate=1, decrease_factor=0.9, rate_threshold=120),
    "proportional": ProportionalScalingStrategy(increase_rate=7, rate_threshold=300, floor=3),
    "none": NoOpScalingStrategy(),
}


def _scaled(name: str, limit: int, share: Fraction | None) -> int:
    """By the formulas as they are written; up without a share."""
    increase, threshold, floor_ = {
        "aimd": (7, 300, 1), "gentle aimd": (1, 120, 1), "proportional": (7, 300, 3), "none": (0, limit, limit),
    }[name]  # fmt: skip
    if share is None:
        return min(limit + increase, threshold)
    factor = {"aimd": Fraction(1, 2), "gentle aimd": Fraction(9, 10), "proportional": 1 - share, "none": Fraction(1)}
    return max(floor_, floor(limit * factor[name] + Fraction(1, 2)))


@settings(max_examples=200)
@given(
    steps=_steps,
    scaling=st.sampled_from(sorted(_scalings)),
    target=st.sampled_from(ScalingTarget),
    slow_start=st.none() | st.integers(20, 200),
    decrease_once=st.booleans(),
    when_used=st.booleans(),
)
def test_congestion_control_follows_its_formula(
    steps: list[Step], scaling: str, target: ScalingTarget, slow_start: int | None, decrease_once: bool, when_used: bool
) -> None:
    """Limit, blocking and the largest batch are those of the description, whatever is switched on."""
    most_requests, initial = 6, 40
    strategy = CongestionControlRateLimitingStrategy(
        max_in_flight_requests=most_requests,
        initial_max_in_flight_messages=initial,
        scaling_strategy=_scalings[scaling],
        target=target,
        slow_start_threshold=slow_start,
        decrease_once_per_round_trip=decrease_once,
        grow_only_when_used=when_used,
    )
    by_messages = target is ScalingTarget.IN_FLIGHT_MESSAGES
    limit = initial if by_messages else most_requests
    # Nothing grows beyond what the scaling strategy allows.
    threshold = getattr(_scalings[scaling], "rate_threshold", None)
    if slow_start is not None and threshold is not None:
        slow_start = min(slow_start, threshold)
    decreased_at, run = float("-inf"), Run(strategy)
    for wait, size, size_in_bytes, which, failed, throttled in steps:
        run.now += wait
        messages, requests = sum(each.batch_size for each in run.in_flight), len(run.in_flight)
        assert strategy.get_max_batch_size() == (limit if by_messages else initial)
        offered = min(size, strategy.get_max_batch_size())
        full = messages + offered > limit if by_messages else requests >= limit
        assert (run.offer(size, size_in_bytes) is None) == (full or requests >= most_requests)
        if which is not None and run.in_flight:
            in_use = sum(each.batch_size for each in run.in_flight) if by_messages else len(run.in_flight)
            result = run.answer(which, failed, throttled)
            if result.throttled:
                slow_start = None
                if not decrease_once or result.submitted_at >= decreased_at:
                    decreased_at = run.now
                    limit = _scaled(scaling, limit, Fraction(result.throttled, result.batch_size))
            elif not result.failed_messages and (not when_used or 2 * in_use >= limit):
                if slow_start is not None and limit < slow_start:
                    limit = min(slow_start, limit + (result.batch_size if by_messages else 1))
                else:
                    limit = _scaled(scaling, limit, None)
                if not by_messages:
                    limit = min(limit, most_requests)
        assert strategy.limit == limit


@settings(max_examples=200)
@given(
    steps=_steps,
    records=st.none() | st.floats(1.0, 100.0),
    size_in_bytes=st.none() | st.floats(100.0, 5_000.0),
    requests=st.floats(0.5, 20.0),
    burst=st.floats(0.1, 3.0),
)
def test_token_buckets_follow_their_formula(
    steps: list[Step], records: float | None, size_in_bytes: float | None, requests: float, burst: float
) -> None:
    """tokens(t) = min(capacity, tokens(s) + rate x (t - s)) in each; a request needs min(need, capacity) of each."""
    strategy = TokenBucketRateLimitingStrategy(
        records_per_second=records, bytes_per_second=size_in_bytes, requests_per_second=requests, burst_seconds=burst
    )
    rates = [records, size_in_bytes, requests]
    capacities = [max(1.0, (rate or 0.0) * burst) for rate in rates]
    tokens, run = list(capacities), Run(strategy)
    assert strategy.get_max_batch_size() == (1 << 30 if records is None else int(capacities[0]))
    for number, (wait, size, offered_bytes, which, failed, throttled) in enumerate(steps):
        run.now += wait
        passed = wait if number else 0.0
        tokens = [
            min(capacity, held + (rate or 0.0) * passed)
            for capacity, held, rate in zip(capacities, tokens, rates, strict=True)
        ]
        needs = [float(min(size, strategy.get_max_batch_size())), float(offered_bytes), 1.0]
        missing = max(
            (min(need, capacity) - held) / rate
            for need, capacity, held, rate in zip(needs, capacities, tokens, rates, strict=True)
            if rate is not None
        )
        asked = strategy.ask_again_after(RequestInfo(int(needs[0]), offered_bytes, run.now))
        assert asked == pytest.approx(max(0.0, missing), abs=1e-6)
        left = run.offer(size, offered_bytes) is not None
        # At the very edge rounding decides.
        assert left == (missing <= 0.0) or abs(missing) < 1e-6
        if left:
            tokens = [held - need for held, need in zip(tokens, needs, strict=True)]
        if which is not None and run.in_flight:
            run.answer(which, failed, throttled)


@settings(max_examples=200)
@given(steps=_steps, smoothing=st.floats(0.05, 1.0), window=st.integers(1, 50), least=st.integers(1, 20))
def test_the_gradient_follows_its_formula_with_throttles_and_idle_callers(
    steps: list[Step], smoothing: float, window: int, least: int
) -> None:
    """Throttles decrease once per round trip, other failures do nothing, and an unused limit does not move."""
    strategy = GradientRateLimitingStrategy(
        initial_limit=60, min_limit=least, max_limit=90, smoothing=smoothing, window=window
    )
    limit, decreased_at, run = 60.0, float("-inf"), Run(strategy)
    usual: float | None = None
    for wait, size, size_in_bytes, which, failed, throttled in steps:
        run.now += wait
        in_flight = sum(each.batch_size for each in run.in_flight)
        offered = min(size, strategy.get_max_batch_size())
        left = run.offer(size, size_in_bytes) is not None
        assert left == (in_flight == 0 or in_flight + offered <= limit)
        if which is not None and run.in_flight:
            in_use = sum(each.batch_size for each in run.in_flight)
            result = run.answer(which, failed, throttled)
            trip = result.now - result.submitted_at
            if result.throttled:
                if result.submitted_at >= decreased_at:
                    decreased_at, limit = run.now, max(float(least), limit * 0.9)
            elif not result.failed_messages and trip > 0.0:
                usual = trip if usual is None else usual + (trip - usual) / window
                if usual > 2 * trip:
                    usual *= 0.95
                if 2 * in_use >= limit:
                    aim = limit * max(0.5, min(1.0, 1.5 * usual / trip)) + sqrt(limit)
                    limit = max(float(least), min(90.0, limit + smoothing * (aim - limit)))
        assert strategy.limit == int(limit)
        assert strategy.usual_round_trip_seconds == usual


def _parts() -> list[RateLimitingStrategy]:
    return [
        CongestionControlRateLimitingStrategy(
            max_in_flight_requests=5,
            initial_max_in_flight_messages=80,
            scaling_strategy=_scalings["aimd"],
            decrease_once_per_round_trip=True,
        ),
        TokenBucketRateLimitingStrategy(records_per_second=60.0, requests_per_second=4.0),
        GradientRateLimitingStrategy(initial_limit=50, max_limit=200),
        TokenBucketRateLimitingStrategy(bytes_per_second=2_000.0, burst_seconds=2.0),
    ]


@settings(max_examples=150)
@given(steps=_steps, chosen=st.sets(st.integers(0, 3), min_size=1))
def test_all_is_each_of_its_strategies_as_if_it_were_alone(steps: list[Step], chosen: set[int]) -> None:
    """Blocked by any, the smallest batch, the latest time to ask: of parts that each saw what really left."""
    every = All(*(_parts()[index] for index in sorted(chosen)))
    twins = [_parts()[index] for index in sorted(chosen)]
    run = Run(every)
    for wait, size, size_in_bytes, which, failed, throttled in steps:
        run.now += wait
        most = min(twin.get_max_batch_size() for twin in twins)
        assert every.get_max_batch_size() == most
        request = RequestInfo(min(size, most), size_in_bytes, run.now)
        blocking = [twin for twin in twins if twin.should_block(request)]
        waits = [twin.ask_again_after(request) for twin in blocking if isinstance(twin, AsksAgain)]
        assert len(waits) == len(blocking)
        if waits:
            assert every.ask_again_after(request) == (None if None in waits else max(w for w in waits if w is not None))
        left = run.offer(size, size_in_bytes)
        assert (left is None) == bool(blocking)
        if left is not None:
            for twin in twins:
                twin.register_in_flight_request(left)
        if which is not None and run.in_flight:
            result = run.answer(which, failed, throttled)
            for twin in twins:
                twin.register_completed_request(result)
        limits = [twin.limit for twin in twins if hasattr(twin, "limit")]
        assert every.limit == (min(limits) if limits else None)
