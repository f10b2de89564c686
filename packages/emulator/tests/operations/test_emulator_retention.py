"""What time takes away: records, shards, iterators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

DAY = timedelta(hours=24)
SECOND = timedelta(seconds=1)


def split(world: Any, shard: str = "shardId-000000000000", key: int = 2**127) -> None:
    world.client.split_shard(StreamName="stream", ShardToSplit=shard, NewStartingHashKey=str(key))


def test_records_older_than_the_retention_are_gone(world: Any) -> None:
    """24 hours by default: TRIM_HORIZON and older timestamps begin with what is left."""
    world.stream()
    world.put("old")
    world.clock.advance(timedelta(hours=12))
    world.put("young")
    world.clock.advance(timedelta(hours=12) + 2 * SECOND)
    assert [record["Data"] for record in world.read()["Records"]] == [b"young"]
    at = world.clock.time() - 7 * 86_400
    assert [record["Data"] for record in world.read(kind="AT_TIMESTAMP", Timestamp=at)["Records"]] == [b"young"]
    assert world.subscribe().data(1) == [b"young"]
    world.clock.advance(timedelta(hours=12))
    answer = world.read()
    assert (answer["Records"], answer["MillisBehindLatest"]) == ([], 0)
    world.put("new")
    assert [record["Data"] for record in world.read()["Records"]] == [b"new"]


def test_a_sequence_number_from_before_the_horizon_is_refused(world: Any) -> None:
    """InvalidArgumentException, for iterators and subscriptions: who continues there may have lost records."""
    world.stream()
    (old,) = world.put("old")
    world.clock.advance(DAY + 2 * SECOND)
    (new,) = world.put("new")
    consumer = world.register()
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        refusal = world.refused(
            lambda kind=kind: world.iterator(kind=kind, StartingSequenceNumber=old["SequenceNumber"])
        )
        assert refusal[0] == "InvalidArgumentException"
        assert "retention" in refusal[1]
        refusal = world.refused(
            lambda kind=kind: world.subscribe(kind=kind, SequenceNumber=old["SequenceNumber"], consumer=consumer)
        )
        assert refusal[0] == "InvalidArgumentException"
    answer = world.read(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=new["SequenceNumber"])
    assert [record["Data"] for record in answer["Records"]] == [b"new"]


def test_a_continuation_of_an_idle_shard_grows_old_too(world: Any) -> None:
    """A reader that resumes an idle shard within the retention may continue; a later one may not."""
    world.stream()
    subscriber = world.subscribe()
    world.clock.advance(5)
    continuation = subscriber.next()["ContinuationSequenceNumber"]
    world.clock.advance(DAY - 10 * SECOND)
    again = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=continuation)
    world.put("new")
    assert again.data(1) == [b"new"]
    world.clock.advance(20)
    refusal = world.refused(lambda: world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=continuation))
    assert refusal[0] == "InvalidArgumentException"


def test_a_closed_shard_expires_with_its_last_record(world: Any) -> None:
    """It leaves ListShards and DescribeStream, and is not found any more; its children still name it."""
    world.stream()
    world.put("old")
    iterator = world.iterator()
    consumer = world.register()
    world.clock.advance(60)
    split(world)
    world.clock.advance(DAY - SECOND)
    assert len(world.shards()) == 3
    live = world.client.get_shard_iterator(StreamName="stream", ShardId=world.first, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    world.clock.advance(3)
    listed = world.client.list_shards(StreamName="stream")["Shards"]
    assert [shard["ShardId"][-1] for shard in listed] == ["1", "2"]
    assert {shard["ParentShardId"] for shard in listed} == {world.first}
    described = world.client.describe_stream(StreamName="stream")["StreamDescription"]["Shards"]
    assert [shard["ShardId"] for shard in described] == [shard["ShardId"] for shard in listed]
    for call in (
        world.iterator,
        lambda: world.client.get_records(ShardIterator=live),
        lambda: world.subscribe(consumer=consumer),
    ):
        assert world.refused(call)[0] == "ResourceNotFoundException"
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == "ExpiredIteratorException"
    split(world, "shardId-000000000001", 2**126)
    assert [name[-1] for name in world.shards()] == ["1", "2", "3", "4"]


def hours(world: Any) -> int:
    return int(
        world.client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]["RetentionPeriodHours"]
    )


def test_a_longer_retention_keeps_records_longer(world: Any) -> None:
    """What is there stays until the new retention is over; what was trimmed does not come back."""
    world.stream()
    world.put("first")
    world.clock.advance(timedelta(hours=20))
    world.put("second")
    world.clock.advance(timedelta(hours=5))
    world.client.increase_stream_retention_period(StreamName="stream", RetentionPeriodHours=48)
    assert hours(world) == 48
    assert [record["Data"] for record in world.read()["Records"]] == [b"second"]
    world.clock.advance(timedelta(hours=42))
    assert [record["Data"] for record in world.read()["Records"]] == [b"second"]
    world.clock.advance(timedelta(hours=1, seconds=2))
    assert world.read()["Records"] == []


def test_a_shorter_retention_trims_at_once(world: Any) -> None:
    """Records, and closed shards, that are older now are gone with the answer."""
    world.start(retention=timedelta(hours=72)).stream()
    assert hours(world) == 72
    world.put("old")
    split(world)
    world.clock.advance(timedelta(hours=30))
    world.put("young")
    assert len(world.shards()) == 3
    world.client.decrease_stream_retention_period(StreamName="stream", RetentionPeriodHours=24)
    assert [name[-1] for name in world.shards()] == ["1", "2"]
    records = [record["Data"] for shard in world.shards() for record in world.read(shard)["Records"]]
    assert records == [b"young"]


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [("increase", 23), ("increase", 47), ("increase", 8761), ("decrease", 23), ("decrease", 49)],
)
def test_a_retention_has_bounds_and_a_direction(world: Any, operation: str, wanted: int) -> None:
    """24 to 8,760 hours; Increase does not decrease, and Decrease does not increase."""
    world.start(retention=timedelta(hours=48)).stream()
    change = getattr(world.client, f"{operation}_stream_retention_period")
    refusal = world.refused(lambda: change(StreamName="stream", RetentionPeriodHours=wanted))
    assert refusal[0] == "InvalidArgumentException"
    assert hours(world) == 48
