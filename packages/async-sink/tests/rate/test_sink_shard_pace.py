"""The pace of a shard by its formula, tick by tick, and of a stream's default strategy."""

from math import floor

import pytest

from penstock.async_sink import (
    All,
    AsyncSinkConfig,
    LaneObservation,
    PerShardRateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    kinesis_strategy,
)
from penstock.async_sink._rate.per_shard import ShardBucket


def _taken(bucket: ShardBucket, now: float) -> int:
    taken = 0
    while bucket.take(1, now):
        taken += 1
    return taken


def test_a_throttled_shard_pauses_for_about_a_tick_and_resumes_at_its_new_pace() -> None:
    """The bucket is emptied and owes a tick at its new scale; each tick adds rate x tick x scale at once."""
    bucket = ShardBucket(1_000.0, 1e9, now=0.0)
    assert bucket.take(1, 10.0), "it is full by now"
    bucket.answered(50, 50, 10.0, 10.0)
    assert bucket.scale(10.0) == pytest.approx(0.5)
    held = -1_000.0 * bucket.TICK_SECONDS * bucket.scale(10.0)
    assert _taken(bucket, 10.0) == 0
    for tick in (10.05, 10.1, 10.15, 10.2):
        assert _taken(bucket, tick - 0.001) == 0
        assert bucket.next_tick(tick - 0.001) == pytest.approx(tick)
        held += 1_000.0 * bucket.TICK_SECONDS * bucket.scale(tick)
        taken = _taken(bucket, tick)
        assert taken == floor(held)
        held -= taken


def test_a_record_larger_than_what_a_shard_keeps_leaves_and_is_paid_for_afterwards() -> None:
    """Half a second of bytes is kept; a larger record is sent at that level, and the next one waits longer."""
    bucket = ShardBucket(1e9, 1_000.0, now=0.0)
    assert bucket.take(800, 10.0)
    assert not bucket.take(1, 10.3), "300 bytes are owed"
    assert bucket.take(1, 10.35)


def test_the_slowest_shard_still_lets_a_record_through() -> None:
    """A whole record fits, however little fits into half a second."""
    bucket = ShardBucket(1.0, 1e9, now=0.0)
    for now in (10.0, 11.0, 12.0):
        bucket.answered(0, 100, now, now)
    assert any(bucket.take(1, 12.0 + tick * bucket.TICK_SECONDS) for tick in range(400))


def test_an_answer_with_a_throttle_teaches_where_each_record_went() -> None:
    """Only answers without a throttle are sampled: a shard that was seen once is known."""
    strategy = PerShardRateLimitingStrategy(hash_key=int)
    lanes = ["full" if number == 40 else f"shard-{number}" for number in range(64)]
    strategy.observe(
        [LaneObservation(str(number), 1, lane, throttled=lane == "full") for number, lane in enumerate(lanes)], 0.0, 1.0
    )
    assert [strategy.lane_of(str(number)) for number in range(64)] == lanes


def test_the_strategy_of_a_stream_shrinks_once_per_round_trip_and_never_below_a_batch() -> None:
    """`kinesis_strategy`, as its description says; what one shard refuses must not stop the others."""
    config = AsyncSinkConfig(max_batch_size=100, max_in_flight_requests=10)
    strategy = kinesis_strategy(config)
    assert isinstance(strategy, All)
    assert strategy.limit == 100
    for expected in (200, 400, 800):
        answered = strategy.limit
        strategy.register_in_flight_request(RequestInfo(answered or 0))
        strategy.register_completed_request(ResultInfo(0, answered or 0, submitted_at=1.0, now=2.0))
        assert strategy.limit == expected
    for _ in range(3):
        strategy.register_in_flight_request(RequestInfo(100))
    for _ in range(3):
        strategy.register_completed_request(ResultInfo(50, 100, submitted_at=3.0, now=4.0))
    assert strategy.limit == 400
    for now in (5.0, 6.0, 7.0):
        strategy.register_in_flight_request(RequestInfo(100))
        strategy.register_completed_request(ResultInfo(100, 100, submitted_at=now, now=now))
    assert strategy.limit == 100
