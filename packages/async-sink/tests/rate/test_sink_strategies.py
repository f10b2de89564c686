from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    ScalingTarget,
)


def congestion(**options: Any) -> CongestionControlRateLimitingStrategy:
    given: dict[str, Any] = {
        "max_in_flight_requests": 10,
        "initial_limit": 100,
        "scaling_strategy": AIMDScalingStrategy(increase_rate=10, decrease_factor=0.5, rate_threshold=200),
    }
    return CongestionControlRateLimitingStrategy(**{**given, **options})


def answer(strategy: CongestionControlRateLimitingStrategy, size: int, **result: Any) -> None:
    strategy.register_in_flight_request(RequestInfo(size))
    strategy.register_completed_request(ResultInfo(batch_size=size, **{"failed_messages": 0, **result}))


@given(st.integers(1, 10_000), st.integers(1, 500), st.floats(0.01, 0.99), st.integers(500, 20_000))
def test_aimd_follows_its_formula(current: int, increase: int, factor: float, threshold: int) -> None:
    """Up is min(current + increase, threshold); down is max(1, round(current x factor))."""
    scaling = AIMDScalingStrategy(increase_rate=increase, decrease_factor=factor, rate_threshold=threshold)
    assert scaling.scale_up(current) == min(current + increase, threshold)
    down = scaling.scale_down(current)
    assert down >= 1
    assert down == 1 or abs(down - current * factor) <= 0.5 + 1e-6


def test_a_success_raises_the_limit_and_a_throttle_lowers_it() -> None:
    """A whole success adds the increase; a request with a throttled entry multiplies by the factor."""
    strategy = congestion()
    answer(strategy, 10)
    assert strategy.limit == 110
    answer(strategy, 10, failed_messages=1)
    assert strategy.limit == 55


def test_a_failure_without_throttle_does_not_change_the_limit() -> None:
    """Only throttling says that the destination is full."""
    strategy = congestion()
    answer(strategy, 10, failed_messages=10, throttled_messages=0)
    assert strategy.limit == 100


def test_it_blocks_when_messages_would_pass_the_limit_and_not_before() -> None:
    """Messages in flight plus the batch may reach the limit, but not exceed it."""
    strategy = congestion()
    strategy.register_in_flight_request(RequestInfo(60))
    assert not strategy.should_block(RequestInfo(40))
    assert strategy.should_block(RequestInfo(41))


def test_it_blocks_at_the_maximum_of_requests_in_flight() -> None:
    """No more requests than the maximum are in flight, however small they are."""
    strategy = congestion(max_in_flight_requests=2)
    strategy.register_in_flight_request(RequestInfo(1))
    assert not strategy.should_block(RequestInfo(1))
    strategy.register_in_flight_request(RequestInfo(1))
    assert strategy.should_block(RequestInfo(1))


def test_the_limit_can_count_requests_instead() -> None:
    """With the target requests, throttles reduce the requests in flight, whatever their size."""
    scaling = AIMDScalingStrategy(increase_rate=1, decrease_factor=0.5, rate_threshold=10)
    strategy = congestion(scaling_strategy=scaling, target=ScalingTarget.IN_FLIGHT_REQUESTS)
    assert strategy.limit == 10
    answer(strategy, 1_000, failed_messages=1)
    assert strategy.limit == 5
    for _ in range(5):
        assert not strategy.should_block(RequestInfo(1_000))
        strategy.register_in_flight_request(RequestInfo(1_000))
    assert strategy.should_block(RequestInfo(1))


def test_slow_start_doubles_per_round_trip_until_the_first_throttle() -> None:
    """Each success adds its size; after a throttle the limit grows only by the increase."""
    strategy = congestion(initial_limit=10, slow_start_threshold=1_000)
    for expected in (20, 40, 80):
        answer(strategy, strategy.limit)
        assert strategy.limit == expected
    answer(strategy, 80, failed_messages=80)
    answer(strategy, 40)
    assert strategy.limit == 50


def test_answers_to_requests_from_before_a_decrease_do_not_decrease_again() -> None:
    """Throttled requests of one round trip halve the limit once, with that option."""
    strategy = congestion(decrease_once_per_round_trip=True)
    for _ in range(3):
        strategy.register_in_flight_request(RequestInfo(10))
    for now in (5.0, 5.1, 5.2):
        strategy.register_completed_request(ResultInfo(10, 10, submitted_at=1.0, now=now))
    assert strategy.limit == 50
    strategy.register_in_flight_request(RequestInfo(10))
    strategy.register_completed_request(ResultInfo(10, 10, submitted_at=5.3, now=6.0))
    assert strategy.limit == 25


def test_a_slow_caller_does_not_raise_the_limit() -> None:
    """A success with less than half of the limit in flight does not raise it."""
    strategy = congestion(grow_only_when_used=True)
    answer(strategy, 49)
    assert strategy.limit == 100
    answer(strategy, 50)
    assert strategy.limit == 110


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.booleans()), max_size=60))
def test_what_is_in_flight_never_passes_the_limits_and_comes_back_to_nothing(
    steps: list[tuple[int, int, bool]],
) -> None:
    """For any answers, an allowed request fits, and answers remove it completely."""
    strategy = congestion()
    in_flight: list[int] = []
    for size, failed, complete in steps:
        size = min(size, strategy.get_max_batch_size())
        if not strategy.should_block(RequestInfo(size)):
            assert sum(in_flight) + size <= strategy.limit
            strategy.register_in_flight_request(RequestInfo(size))
            in_flight.append(size)
        if complete and in_flight:
            done = in_flight.pop(0)
            strategy.register_completed_request(ResultInfo(min(failed, done), done))
        assert 1 <= strategy.limit <= 200
    for done in in_flight:
        strategy.register_completed_request(ResultInfo(0, done))
    assert not strategy.should_block(RequestInfo(strategy.limit))
