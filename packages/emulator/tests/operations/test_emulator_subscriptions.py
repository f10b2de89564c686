from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

from penstock.emulator.testing import running_emulator

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


def test_several_consumers_get_every_record(world: Any) -> None:
    """Fan-out: subscriptions of different consumers do not share records, nor the five-second rule."""
    world.stream()
    subscribers = [world.subscribe() for _ in range(3)]
    world.put("a")
    assert [subscriber.data(1) for subscriber in subscribers] == [[b"a"]] * 3


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


def test_real_time_passes_by_itself(world: Any) -> None:
    """With the default clock idle events come, and the subscription ends, without anybody moving anything."""
    with running_emulator(
        consumer_creation_delay=timedelta(0),
        idle_event_interval=timedelta(milliseconds=50),
        subscription_lifetime=timedelta(milliseconds=300),
    ) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="stream", ShardCount=1)
        arn = client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]["ConsumerARN"]
        response = client.subscribe_to_shard(
            ConsumerARN=consumer, ShardId=world.first, StartingPosition={"Type": "LATEST"}
        )
        events = [event["SubscribeToShardEvent"] for event in response["EventStream"]]
    assert 1 <= len(events) <= 6
    assert not any(event["Records"] for event in events)


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


def test_the_five_seconds_count_from_the_last_success_also_when_it_ended(world: Any) -> None:
    """A subscription that ended early still blocks its successor; a refused call does not prolong the wait."""
    world.start(subscription_lifetime=timedelta(seconds=1)).stream()
    arn = world.register()
    first = world.subscribe(consumer=arn)
    world.clock.advance(1)
    assert first.next() == first.END
    world.clock.advance(3)
    assert world.refused(lambda: world.subscribe(consumer=arn))[0] == "ResourceInUseException"
    world.clock.advance(1)
    world.subscribe(consumer=arn)


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


def test_unknown_shards_and_consumers_are_not_found(world: Any) -> None:
    """A shard or a consumer that is not there is refused before the stream begins."""
    world.stream()
    arn = world.register()
    assert world.refused(lambda: world.subscribe("shardId-000000000007", consumer=arn)) == (
        "ResourceNotFoundException",
        "Could not find shard shardId-000000000007 in stream stream under account 000000000000.",
    )
    assert world.refused(lambda: world.subscribe(consumer=arn + "0"))[0] == "ResourceNotFoundException"


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


def test_deregistering_ends_the_subscriptions_of_a_consumer(world: Any) -> None:
    """The stream of a consumer that was deregistered ends with ResourceNotFoundException inside it."""
    world.stream()
    arn = world.register()
    subscriber, other = world.subscribe(consumer=arn), world.subscribe()
    world.client.deregister_stream_consumer(ConsumerARN=arn)
    with pytest.raises(EventStreamError) as caught:
        subscriber.next()
    assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"
    world.put("a")
    assert other.data(1) == [b"a"]


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


def test_an_event_carries_a_thousand_records_or_a_mebibyte_at_most(world: Any) -> None:
    """Large backlogs are cut into events by count and by size; the lag shows that there is more."""
    world.start(enforce_limits=False).stream()
    for _ in range(5):
        world.put(*["k"] * 500)
    for _ in range(3):
        world.put("k", data=b"x" * (MIB * 2 // 3))
    world.clock.advance(1)
    subscriber = world.subscribe()
    events = [subscriber.next() for _ in range(5)]
    assert [len(event["Records"]) for event in events] == [1000, 1000, 501, 1, 1]
    assert [event["MillisBehindLatest"] for event in events] == [1000, 1000, 1000, 1000, 0]


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
