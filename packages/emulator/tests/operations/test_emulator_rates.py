"""How often operations may be called, and how much an account may have: AWS's numbers, at AWS's scope."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.emulator._state.quotas import DAILY_LIMITS, OPERATION_LIMITS

LIMIT = "LimitExceededException"
ACCOUNT = "arn:aws:kinesis:us-east-1:000000000000"
SECOND = "shardId-000000000001"


def request(operation: str, *, stream: str = "one", shard: str = "shardId-000000000000") -> dict[str, Any]:
    """Parameters that pass validation; what they name need not be there, for calls count whatever comes of them."""
    arn = f"{ACCOUNT}:stream/{stream}"
    consumer = f"{arn}/consumer/reader:1750000000"
    match operation:
        case "ListStreams" | "DescribeLimits":
            return {}
        case "CreateStream":
            return {"StreamName": stream, "ShardCount": 1}
        case "AddTagsToStream":
            return {"StreamName": stream, "Tags": {"k": "v"}}
        case "RemoveTagsFromStream":
            return {"StreamName": stream, "TagKeys": ["k"]}
        case "IncreaseStreamRetentionPeriod" | "DecreaseStreamRetentionPeriod":
            return {"StreamName": stream, "RetentionPeriodHours": 24}
        case "RegisterStreamConsumer":
            return {"StreamARN": arn, "ConsumerName": "reader"}
        case "ListStreamConsumers":
            return {"StreamARN": arn}
        case "DescribeStreamConsumer" | "DeregisterStreamConsumer":
            return {"ConsumerARN": consumer}
        case "GetShardIterator":
            return {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "LATEST"}
        case "MergeShards":
            return {"StreamName": stream, "ShardToMerge": shard, "AdjacentShardToMerge": "shardId-000000000009"}
        case "SplitShard":
            return {"StreamName": stream, "ShardToSplit": shard, "NewStartingHashKey": "7"}
        case "UpdateShardCount":
            return {"StreamName": stream, "TargetShardCount": 1000, "ScalingType": "UNIFORM_SCALING"}
    return {"StreamName": stream}


def code_of(world: Any, operation: str, **which: Any) -> str:
    """The error code of a call; empty if it succeeds."""
    try:
        world.client._make_api_call(operation, request(operation, **which))
    except world.client.exceptions.ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


@pytest.mark.parametrize("operation", sorted(OPERATION_LIMITS.keys() - {"SubscribeToShard"}))
def test_an_operation_has_the_rate_of_the_documentation(world: Any, operation: str) -> None:
    """As many calls as there are in a second are let through; the next waits for its share of the next second."""
    limit = OPERATION_LIMITS[operation]
    refusal = limit.code
    rate = int(limit.per_second)
    assert refusal not in [code_of(world, operation) for _ in range(rate)]
    assert code_of(world, operation) == refusal
    # What shares the rate, and what has its own.
    assert (code_of(world, operation, stream="two") == refusal) == (limit.scope == "account")
    if limit.scope == "shard":
        assert code_of(world, operation, shard=SECOND) != refusal
    else:
        assert code_of(world, operation, shard=SECOND) == refusal
    world.clock.advance(1 / rate)
    assert code_of(world, operation) != refusal
    assert code_of(world, operation) == refusal
    world.clock.advance(1)
    assert refusal not in [code_of(world, operation) for _ in range(rate)]


def test_the_numbers_are_those_of_the_quotas_page() -> None:
    """The table itself: a slip of the pen in it would pass all other tests."""
    numbers = {name: (limit.per_second, limit.scope) for name, limit in OPERATION_LIMITS.items()}
    assert numbers["RegisterStreamConsumer"] == (5, "account")
    assert numbers["DeregisterStreamConsumer"] == numbers["ListStreamConsumers"] == (5, "stream")
    assert numbers["DescribeStreamConsumer"] == (20, "stream")
    assert numbers["SubscribeToShard"] == (1, "subscription")
    assert numbers["GetShardIterator"] == (5, "shard")
    assert numbers["ListShards"] == (1000, "stream")
    assert numbers["DescribeStreamSummary"] == (20, "account")
    assert numbers["DescribeStream"] == (10, "account")
    assert DAILY_LIMITS == {"StartStreamEncryption": 25, "UpdateShardCount": 10, "UpdateStreamMode": 2}


def test_subscriptions_are_asked_for_once_a_second(world: Any) -> None:
    """Per consumer and shard, where nothing forbids them anyway: here the consumer is not ACTIVE yet."""
    world.start(consumer_creation_delay=timedelta(seconds=30)).stream(shards=2)
    slow, other = world.register(), world.register()

    def code(consumer: str, shard: str = world.first) -> str:
        return str(world.refused(lambda: world.subscribe(shard, consumer=consumer))[0])

    assert [code(slow), code(slow), code(slow, SECOND), code(other)] == [
        "ResourceInUseException",
        LIMIT,
        "ResourceInUseException",
        "ResourceInUseException",
    ]
    world.clock.advance(1)
    assert code(slow) == "ResourceInUseException"


def test_within_five_seconds_of_a_success_the_subscription_is_in_use(world: Any) -> None:
    """That comes before the rate: such a call is ResourceInUseException, however soon it is."""
    world.stream()
    consumer = world.register()
    world.subscribe(consumer=consumer)
    codes = {world.refused(lambda: world.subscribe(consumer=consumer))[0] for _ in range(3)}
    assert codes == {"ResourceInUseException"}


def test_a_large_answer_silences_the_shard_for_up_to_five_seconds(world: Any) -> None:
    """GetRecords gives 10 MiB at once, and is refused until 2 MiB/s have paid for them."""
    world.start(shard_write_bytes_per_second=None).stream(shards=2)
    for _ in range(3):
        world.client.put_records(
            StreamName="stream",
            Records=[{"Data": b"x" * 1_000_000, "PartitionKey": "k", "ExplicitHashKey": "0"} for _ in range(5)],
        )
    iterator = world.iterator()
    answer = world.client.get_records(ShardIterator=iterator)
    assert len(answer["Records"]) == 10
    refusal = "ProvisionedThroughputExceededException"
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == refusal
    assert world.client.get_records(ShardIterator=world.iterator(SECOND))["Records"] == []
    world.clock.advance(3.5)
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == refusal
    world.clock.advance(1.5)
    assert len(world.client.get_records(ShardIterator=answer["NextShardIterator"])["Records"]) == 5


def test_the_shards_of_an_account_are_counted(world: Any) -> None:
    """Creating, splitting and scaling beyond the limit are refused; on-demand streams do not count."""
    world.start(shards_per_account=5).stream("one", shards=3)
    world.client.create_stream(StreamName="many", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    create = world.refused(lambda: world.client.create_stream(StreamName="two", ShardCount=3))
    assert create[0] == LIMIT
    assert "Limit: 5" in create[1]
    scale = world.refused(
        lambda: world.client.update_shard_count(StreamName="one", TargetShardCount=6, ScalingType="UNIFORM_SCALING")
    )
    assert scale[0] == LIMIT
    world.client.create_stream(StreamName="two", ShardCount=2)
    split = world.refused(
        lambda: world.client.split_shard(StreamName="two", ShardToSplit=world.first, NewStartingHashKey="9")
    )
    assert split[0] == LIMIT
    world.client.merge_shards(StreamName="two", ShardToMerge=world.first, AdjacentShardToMerge=SECOND)
    world.client.split_shard(StreamName="one", ShardToSplit=world.first, NewStartingHashKey="9")
    limits = world.client.describe_limits()
    assert (limits["ShardLimit"], limits["OpenShardCount"]) == (5, 5)
    assert (limits["OnDemandStreamCount"], limits["OnDemandStreamCountLimit"]) == (1, 50)


def test_five_streams_are_creating_at_once_at_most(world: Any) -> None:
    """The sixth is refused until one of them is ACTIVE."""
    world.start(stream_creation_delay=timedelta(seconds=10), operation_limits={"CreateStream": None})
    for number in range(5):
        world.client.create_stream(StreamName=f"stream-{number}", ShardCount=1)
    refusal = world.refused(lambda: world.client.create_stream(StreamName="late", ShardCount=1))
    assert refusal[0] == LIMIT
    world.clock.advance(10)
    world.client.create_stream(StreamName="late", ShardCount=1)


def test_records_are_as_large_as_their_stream_allows(world: Any) -> None:
    """1 MiB by default, up to 10 MiB from CreateStream or UpdateMaxRecordSize, the partition key included."""
    world.start(shard_write_bytes_per_second=None)
    world.client.create_stream(StreamName="large", ShardCount=1, MaxRecordSizeInKiB=10240)
    arn = world.stream("small")

    def put(stream: str, size: int) -> None:
        world.client.put_record(StreamName=stream, PartitionKey="k", Data=b"x" * (size - 1))

    put("large", 10 * 2**20)
    put("small", 2**20)
    assert world.refused(lambda: put("small", 2**20 + 1))[0] == "ValidationException"
    world.client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=2048)
    summary = world.client.describe_stream_summary(StreamARN=arn)["StreamDescriptionSummary"]
    assert summary["MaxRecordSizeInKiB"] == 2048
    put("small", 2 * 2**20)
    assert world.refused(lambda: put("small", 2 * 2**20 + 1))[0] == "ValidationException"
    too_large = world.refused(lambda: world.client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10241))
    assert too_large[0] == "ValidationException"
