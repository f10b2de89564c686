from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

MIB = 1024 * 1024


def test_a_subscription_gives_what_is_there_and_what_comes(world: Any) -> None:
    """From TRIM_HORIZON on: stored records first, then each put as it happens, without any time passing."""
    world.stream()
    numbers = [result["SequenceNumber"] for result in world.put("a", "b")]
    subscriber = world.subscribe()
    event = subscriber.next()
    assert [record["Data"] for record in event["Records"]] == [b"a", b"b"]
    assert [record["SequenceNumber"] for record in event["Records"]] == numbers
    assert event["Records"][0]["PartitionKey"] == "a"
    assert event["ContinuationSequenceNumber"] == numbers[-1]
    assert event["MillisBehindLatest"] == 0
    for key in "cd":
        world.put(key)
        assert subscriber.data(1) == [key.encode()]


def test_each_starting_position_begins_where_it_says(world: Any) -> None:
    """AT and AFTER a sequence number, AT_TIMESTAMP and LATEST select the same records as an iterator would."""
    world.stream()
    numbers = []
    for key in "abc":
        numbers.append(world.put(key)[0]["SequenceNumber"])
        world.clock.advance(1)
    time = datetime.fromtimestamp(world.clock.time() - 1, UTC)
    cases = [
        ("AT_SEQUENCE_NUMBER", {"SequenceNumber": numbers[1]}, [b"b", b"c"]),
        ("AFTER_SEQUENCE_NUMBER", {"SequenceNumber": numbers[1]}, [b"c"]),
        ("AT_TIMESTAMP", {"Timestamp": time}, [b"c"]),
        ("LATEST", {}, []),
    ]
    subscribers = [(world.subscribe(kind=kind, **position), data) for kind, position, data in cases]
    world.put("d")
    for subscriber, data in subscribers:
        assert subscriber.data(len(data) + 1) == [*data, b"d"]


def test_an_idle_subscription_gets_events_whose_continuation_advances(world: Any) -> None:
    """Every five seconds without records there is an empty event, and its continuation can be resumed after."""
    world.stream()
    arn = world.register()
    subscriber = world.subscribe(consumer=arn)
    continuations = []
    for _ in range(3):
        assert subscriber.is_silent()
        world.clock.advance(5)
        event = subscriber.next()
        assert (event["Records"], event["MillisBehindLatest"]) == ([], 0)
        continuations.append(event["ContinuationSequenceNumber"])
    assert continuations == sorted(set(continuations))
    world.put("a")
    resumed = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", consumer=arn, SequenceNumber=continuations[-1])
    assert resumed.data(1) == [b"a"]


def test_a_subscription_ends_after_five_minutes(world: Any) -> None:
    """The stream simply ends at the end of its life, and the next one resumes after the last continuation."""
    world.stream()
    arn = world.register()
    subscriber = world.subscribe(consumer=arn)
    world.put("a")
    continuation = subscriber.next()["ContinuationSequenceNumber"]
    world.clock.advance(timedelta(minutes=5))
    assert subscriber.next() == subscriber.END
    world.put("b")
    resumed = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", consumer=arn, SequenceNumber=continuation)
    assert resumed.data(1) == [b"b"]


def test_a_second_subscription_within_five_seconds_is_refused(world: Any) -> None:
    """Within 5 s of a success the same consumer and shard are in use; another shard is not."""
    world.stream(shards=2)
    arn = world.register("reader")
    first = world.subscribe(consumer=arn)
    world.subscribe("shardId-000000000001", consumer=arn)
    world.clock.advance(4.9)
    code, message = world.refused(lambda: world.subscribe(consumer=arn))
    assert code == "ResourceInUseException"
    assert message.startswith("Another active subscription exists for this consumer: ")
    assert first.is_silent()


def test_after_five_seconds_the_new_subscription_takes_over(world: Any) -> None:
    """The new call succeeds and gets the records; the old stream ends with ResourceInUseException inside it."""
    world.stream()
    arn = world.register()
    old = world.subscribe(consumer=arn)
    world.clock.advance(5)
    assert old.next()["Records"] == []
    new = world.subscribe(consumer=arn)
    with pytest.raises(EventStreamError, match="Another active subscription exists") as caught:
        old.next()
    assert caught.value.response["Error"]["Code"] == "ResourceInUseException"
    world.put("a")
    assert new.data(1) == [b"a"]
    assert old.is_silent()


def test_a_consumer_that_is_not_active_cannot_subscribe(world: Any) -> None:
    """Before ACTIVE the answer is ResourceInUseException, with a message of its own."""
    world.start(consumer_creation_delay=timedelta(seconds=3)).stream()
    arn = world.register("reader")
    code, message = world.refused(lambda: world.subscribe(consumer=arn))
    assert (code, message.endswith("is not in ACTIVE status.")) == ("ResourceInUseException", True)
    world.clock.advance(3)
    world.subscribe(consumer=arn)


def test_the_end_of_a_shard_names_the_children_and_no_continuation(world: Any) -> None:
    """A split under a subscription: the rest of the records, then children without continuation, then the end."""
    world.stream()
    subscriber = world.subscribe()
    world.put("a")
    assert subscriber.data(1) == [b"a"]
    world.client.split_shard(StreamName="stream", ShardToSplit=world.first, NewStartingHashKey=str(2**127))
    last = subscriber.next()
    assert "ContinuationSequenceNumber" not in last
    assert (last["Records"], last["MillisBehindLatest"]) == ([], 0)
    assert [child["ShardId"] for child in last["ChildShards"]] == ["shardId-000000000001", "shardId-000000000002"]
    assert all(child["ParentShards"] == [world.first] for child in last["ChildShards"])
    assert subscriber.next() == subscriber.END


def test_a_closed_shard_is_drained_before_its_end(world: Any) -> None:
    """Subscribing to a closed parent gives all of its records, then a merged child with both parents."""
    world.stream(shards=2)
    for key in ("0", str(2**128 - 1)):
        world.client.put_record(StreamName="stream", Data=key.encode(), PartitionKey="k", ExplicitHashKey=key)
    world.client.merge_shards(
        StreamName="stream", ShardToMerge=world.first, AdjacentShardToMerge="shardId-000000000001"
    )
    subscriber = world.subscribe()
    assert subscriber.data(1) == [b"0"]
    (child,) = subscriber.next()["ChildShards"]
    assert child["ParentShards"] == [world.first, "shardId-000000000001"]


def test_a_backlog_is_pushed_at_two_mebibytes_a_second(world: Any) -> None:
    """Beyond the first burst a subscription gets 2 MiB/s; what it has not got yet counts as lag."""
    world.start(shard_write_bytes_per_second=100 * MIB).stream()
    for key in "abcdefgh":
        world.put(key, data=b"x" * (MIB // 2 - 1))
    subscriber = world.subscribe()
    assert [len(subscriber.next()["Records"]) for _ in range(2)] == [2, 2]
    for _ in range(2):
        assert subscriber.is_silent()
        # Half a second is one event's worth; the clock may stop a hair before it.
        world.clock.advance(0.501)
        event = subscriber.next()
        assert len(event["Records"]) == 2
    assert event["MillisBehindLatest"] == 0


def test_a_client_that_goes_away_leaves_nothing_behind(world: Any) -> None:
    """When the connection closes, the shard has no listener any more."""
    world.stream()
    response = world.client.subscribe_to_shard(
        ConsumerARN=world.register(), ShardId=world.first, StartingPosition={"Type": "LATEST"}
    )
    shard = world.core.streams["stream"].shards[0]
    assert len(shard.listeners) == 1
    gone = threading.Event()
    world.emulator.call(lambda: _when_discarded(shard, gone))
    response["EventStream"].close()
    assert gone.wait(10)


def _when_discarded(shard: Any, gone: threading.Event) -> None:
    class Listeners(set[Any]):
        def discard(self, listener: Any) -> None:
            super().discard(listener)
            gone.set()

    shard.listeners = Listeners(shard.listeners)
