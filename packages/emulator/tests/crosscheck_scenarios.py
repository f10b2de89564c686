"""What is asked of every emulator: scenarios that take a client and return what came of it, in plain values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HASH_KEY = 2**128 - 1
FIRST = "shardId-000000000000"
# Some never get there.
PATIENCE_SECONDS = 3
SCENARIOS: dict[str, Callable[[Any], Any]] = {}


def scenario(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


class Stream:
    """A stream with short words for what is done with it."""

    def __init__(self, client: Any, name: str, shards: int) -> None:
        self.client = client
        self.name = name
        client.create_stream(StreamName=name, ShardCount=shards)
        self.settle()

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]
        return summary

    @property
    def arn(self) -> str:
        return str(self.summary["StreamARN"])

    def settle(self) -> None:
        """Wait until the stream is ACTIVE."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.summary["StreamStatus"] != "ACTIVE":
            assert time.monotonic() < deadline, f"{self.name} does not become ACTIVE"
            time.sleep(0.02)

    def put(self, *keys: str, **options: Any) -> list[dict[str, Any]]:
        records = [{"Data": key.encode(), "PartitionKey": key, **options} for key in keys]
        results: list[dict[str, Any]] = self.client.put_records(StreamName=self.name, Records=records)["Records"]
        return results

    def iterator(self, shard: str = FIRST, kind: str = "TRIM_HORIZON", **position: Any) -> str:
        answer = self.client.get_shard_iterator(StreamName=self.name, ShardId=shard, ShardIteratorType=kind, **position)
        return str(answer["ShardIterator"])

    def read(self, shard: str = FIRST, kind: str = "TRIM_HORIZON", **position: Any) -> list[str]:
        records = self.client.get_records(ShardIterator=self.iterator(shard, kind, **position))["Records"]
        return [record["Data"].decode() for record in records]

    def shards(self, **options: Any) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.client.list_shards(StreamName=self.name, **options)["Shards"]
        return shards

    def split(self, shard: str = FIRST, key: int = 2**127) -> None:
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(key))
        self.settle()

    def merge(self, first: str, second: str) -> None:
        self.client.merge_shards(StreamName=self.name, ShardToMerge=first, AdjacentShardToMerge=second)
        self.settle()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives (of an answer as such only that it came), or the code of its error."""
    try:
        result = call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return result if isinstance(result, list) else "an answer"


def ids(shards: list[dict[str, Any]]) -> list[int]:
    return [int(shard["ShardId"].rpartition("-")[2]) for shard in shards]


# Polling


@scenario
def put_and_get(client: Any) -> Any:
    stream = Stream(client, "put-and-get", 1)
    stream.put(*"abc")
    client.put_record(StreamName=stream.name, Data=b"d", PartitionKey="x")
    records = client.get_records(ShardIterator=stream.iterator())["Records"]
    return [(record["Data"], record["PartitionKey"]) for record in records]


@scenario
def sequence_numbers(client: Any) -> Any:
    stream = Stream(client, "sequence-numbers", 1)
    numbers = [result["SequenceNumber"] for result in stream.put(*"abcdef")]
    return [numbers == sorted(set(numbers)), {(len(number), number[:2]) for number in numbers}]


@scenario
def routing_by_md5(client: Any) -> Any:
    stream = Stream(client, "routing", 4)
    return [int(result["ShardId"][-1]) for result in stream.put(*map(str, range(20)))]


@scenario
def explicit_hash_keys(client: Any) -> Any:
    stream = Stream(client, "explicit", 2)
    keys = (0, 2**127 - 1, 2**127, MAX_HASH_KEY)
    return [int(stream.put("x", ExplicitHashKey=str(key))[0]["ShardId"][-1]) for key in keys]


@scenario
def explicit_hash_key_too_large(client: Any) -> Any:
    stream = Stream(client, "explicit-large", 1)
    return outcome(lambda: stream.put("x", ExplicitHashKey=str(MAX_HASH_KEY + 1)))


@scenario
def iterator_types(client: Any) -> Any:
    stream = Stream(client, "iterators", 1)
    results = stream.put(*"abc")
    second = results[1]["SequenceNumber"]
    return [
        stream.read(kind="TRIM_HORIZON"),
        stream.read(kind="LATEST"),
        stream.read(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=second),
        stream.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=second),
        stream.read(kind="AT_TIMESTAMP", Timestamp=time.time() - 3600),
    ]


@scenario
def latest_sees_what_comes(client: Any) -> Any:
    stream = Stream(client, "latest", 1)
    stream.put("before")
    iterator = stream.iterator(kind="LATEST")
    stream.put("after")
    return [record["Data"] for record in client.get_records(ShardIterator=iterator)["Records"]]


@scenario
def iterator_type_without_its_position(client: Any) -> Any:
    stream = Stream(client, "iterators-incomplete", 1)
    kinds = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP")
    return [outcome(lambda kind=kind: stream.iterator(kind=kind)) for kind in kinds]


@scenario
def iterator_type_that_is_none(client: Any) -> Any:
    stream = Stream(client, "iterators-none", 1)
    return outcome(lambda: stream.iterator(kind="NO_SUCH_TYPE"))


@scenario
def sequence_number_of_another_shard(client: Any) -> Any:
    stream = Stream(client, "iterators-elsewhere", 2)
    number = stream.put("x", ExplicitHashKey=str(MAX_HASH_KEY))[0]["SequenceNumber"]
    return outcome(lambda: stream.iterator(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=number))


@scenario
def timestamp_in_the_future(client: Any) -> Any:
    stream = Stream(client, "iterators-future", 1)
    return outcome(lambda: stream.iterator(kind="AT_TIMESTAMP", Timestamp=time.time() + 3600))


@scenario
def forged_iterator(client: Any) -> Any:
    return outcome(lambda: client.get_records(ShardIterator="AAAA"))


@scenario
def get_with_limit(client: Any) -> Any:
    stream = Stream(client, "limited", 1)
    stream.put(*"abcde")
    iterator, found = stream.iterator(), []
    for _ in range(3):
        answer = client.get_records(ShardIterator=iterator, Limit=2)
        found.append([record["Data"] for record in answer["Records"]])
        iterator = answer["NextShardIterator"]
    return [found, answer["MillisBehindLatest"]]


@scenario
def get_with_limits_out_of_range(client: Any) -> Any:
    stream = Stream(client, "limited-wrongly", 1)
    iterator = stream.iterator()
    return [
        outcome(lambda limit=limit: client.get_records(ShardIterator=iterator, Limit=limit)) for limit in (0, 10_001)
    ]


@scenario
def arn_instead_of_name(client: Any) -> Any:
    stream = Stream(client, "by-arn", 1)
    client.put_record(StreamARN=stream.arn, Data=b"a", PartitionKey="a")
    return [stream.read(), client.list_shards(StreamARN=stream.arn)["Shards"][0]["ShardId"]]


# Shard lineage


@scenario
def hash_key_ranges(client: Any) -> Any:
    stream = Stream(client, "ranges", 3)
    return [shard["HashKeyRange"] for shard in stream.shards()]


@scenario
def split(client: Any) -> Any:
    stream = Stream(client, "split", 1)
    stream.split()
    return [
        (
            shard["ShardId"],
            shard.get("ParentShardId"),
            shard["HashKeyRange"],
            "EndingSequenceNumber" in shard["SequenceNumberRange"],
        )
        for shard in stream.shards()
    ]


@scenario
def merge(client: Any) -> Any:
    stream = Stream(client, "merge", 2)
    stream.merge("shardId-000000000000", "shardId-000000000001")
    child = stream.shards()[-1]
    return [child["ShardId"], child.get("ParentShardId"), child.get("AdjacentParentShardId"), child["HashKeyRange"]]


@scenario
def closed_shard_to_its_end(client: Any) -> Any:
    stream = Stream(client, "closed", 1)
    stream.put("before")
    stream.split()
    stream.put("after")
    answer = client.get_records(ShardIterator=stream.iterator())
    children = [(child["ShardId"], child["ParentShards"]) for child in answer.get("ChildShards", [])]
    return [[record["Data"] for record in answer["Records"]], "NextShardIterator" in answer, children]


@scenario
def records_after_a_split(client: Any) -> Any:
    stream = Stream(client, "after-split", 1)
    stream.split()
    return [stream.put("x", ExplicitHashKey=str(key))[0]["ShardId"] for key in (0, MAX_HASH_KEY)]


@scenario
def split_where_it_cannot_be(client: Any) -> Any:
    stream = Stream(client, "split-wrongly", 2)
    return [
        outcome(lambda: stream.split(key=2**127)),
        outcome(lambda: stream.split(key=0)),
        outcome(lambda: stream.split(shard="shardId-000000000009")),
    ]


@scenario
def split_of_a_closed_shard(client: Any) -> Any:
    stream = Stream(client, "split-twice", 1)
    stream.split()
    return outcome(lambda: stream.split(key=2**126))


@scenario
def merge_of_distant_shards(client: Any) -> Any:
    stream = Stream(client, "merge-wrongly", 3)
    return outcome(lambda: stream.merge("shardId-000000000000", "shardId-000000000002"))


@scenario
def scaling(client: Any) -> Any:
    stream = Stream(client, "scaling", 2)
    client.update_shard_count(StreamName=stream.name, TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    stream.settle()
    shards = stream.shards()
    is_open = ["EndingSequenceNumber" not in shard["SequenceNumberRange"] for shard in shards]
    return [stream.summary["OpenShardCount"], is_open]


@scenario
def scaling_too_far(client: Any) -> Any:
    stream = Stream(client, "scaling-far", 2)
    return [
        outcome(
            lambda count=count: client.update_shard_count(
                StreamName=stream.name, TargetShardCount=count, ScalingType="UNIFORM_SCALING"
            )
        )
        for count in (5, 200)
    ]


@scenario
def shard_filters(client: Any) -> Any:
    stream = Stream(client, "filters", 1)
    stream.split()
    filters: list[dict[str, Any]] = [
        {"Type": "AT_LATEST"},
        {"Type": "AT_TRIM_HORIZON"},
        {"Type": "FROM_TRIM_HORIZON"},
        {"Type": "AFTER_SHARD_ID", "ShardId": "shardId-000000000001"},
    ]
    return [outcome(lambda wanted=wanted: ids(stream.shards(ShardFilter=wanted))) for wanted in filters]


@scenario
def pages_of_shards(client: Any) -> Any:
    stream = Stream(client, "pages", 5)
    answer = client.list_shards(StreamName=stream.name, MaxResults=2)
    pages = [ids(answer["Shards"])]
    while "NextToken" in answer:
        answer = client.list_shards(NextToken=answer["NextToken"], MaxResults=2)
        pages.append(ids(answer["Shards"]))
    return pages


@scenario
def token_beside_a_name(client: Any) -> Any:
    stream = Stream(client, "token-and-name", 3)
    token = client.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    return outcome(lambda: client.list_shards(StreamName=stream.name, NextToken=token))


@scenario
def described_in_pages(client: Any) -> Any:
    stream = Stream(client, "described", 3)
    first = client.describe_stream(StreamName=stream.name, Limit=2)["StreamDescription"]
    rest = client.describe_stream(StreamName=stream.name, ExclusiveStartShardId=first["Shards"][-1]["ShardId"])
    second = rest["StreamDescription"]
    return [ids(first["Shards"]), first["HasMoreShards"], ids(second["Shards"]), second["HasMoreShards"]]


# Limits


def put_outcome(stream: Stream, *records: dict[str, Any]) -> Any:
    return outcome(lambda: stream.client.put_records(StreamName=stream.name, Records=list(records)))


@scenario
def number_of_records_in_a_request(client: Any) -> Any:
    stream = Stream(client, "counts", 1)
    record = {"Data": b"x", "PartitionKey": "x"}
    return [put_outcome(stream, *[record] * count) for count in (0, 500, 501)]


@scenario
def length_of_a_partition_key(client: Any) -> Any:
    stream = Stream(client, "keys", 1)
    return [put_outcome(stream, {"Data": b"x", "PartitionKey": "k" * length}) for length in (0, 1, 256, 257)]


@scenario
def size_of_a_record(client: Any) -> Any:
    # The key counts too.
    sizes = (2**20 - 1, 2**20, 2**20 + 1)
    streams = [Stream(client, f"size-{size}", 1) for size in sizes]
    return [
        put_outcome(stream, {"Data": bytes(size), "PartitionKey": "k"})
        for stream, size in zip(streams, sizes, strict=True)
    ]


@scenario
def writes_beyond_the_throughput(client: Any) -> Any:
    stream = Stream(client, "throughput", 1)
    records = [{"Data": bytes(500_000), "PartitionKey": "k"}] * 4
    answer = client.put_records(StreamName=stream.name, Records=records)
    return [answer["FailedRecordCount"], [result.get("ErrorCode") for result in answer["Records"]]]


@scenario
def reads_beyond_the_throughput(client: Any) -> Any:
    stream = Stream(client, "read-throughput", 1)
    iterator = stream.iterator()
    return [outcome(lambda: client.get_records(ShardIterator=iterator)["Records"]) for _ in range(6)]


@scenario
def consumers_beyond_twenty(client: Any) -> Any:
    stream = Stream(client, "twenty", 1)
    for number in range(20):
        client.register_stream_consumer(StreamARN=stream.arn, ConsumerName=f"consumer-{number}")
        wait_for_consumers(client, stream.arn)
    return outcome(lambda: client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="one-more"))


def wait_for_consumers(client: Any, arn: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(c["ConsumerStatus"] != "ACTIVE" for c in client.list_stream_consumers(StreamARN=arn)["Consumers"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Consumers, streams, errors


@scenario
def consumer_by_name_and_by_arn(client: Any) -> Any:
    stream = Stream(client, "fan-out", 1)
    made = client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")["Consumer"]
    wait_for_consumers(client, stream.arn)
    by_arn = outcome(
        lambda: [
            client.describe_stream_consumer(ConsumerARN=made["ConsumerARN"])["ConsumerDescription"]["ConsumerName"]
        ]
    )
    by_name = client.describe_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")["ConsumerDescription"]
    return [by_arn, by_name["ConsumerARN"] == made["ConsumerARN"]]


@scenario
def consumer_arn_with_its_creation(client: Any) -> Any:
    stream = Stream(client, "fan-out-arn", 1)
    made = client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")["Consumer"]
    creation = int(made["ConsumerCreationTimestamp"].timestamp())
    return made["ConsumerARN"] == f"{stream.arn}/consumer/consumer:{creation}"


@scenario
def consumer_registered_twice(client: Any) -> Any:
    stream = Stream(client, "fan-out-twice", 1)
    client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")
    wait_for_consumers(client, stream.arn)
    return outcome(lambda: client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer"))


@scenario
def consumer_that_is_gone(client: Any) -> Any:
    stream = Stream(client, "fan-out-gone", 1)
    client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")
    wait_for_consumers(client, stream.arn)
    client.deregister_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.list_stream_consumers(StreamARN=stream.arn)["Consumers"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return outcome(lambda: client.describe_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer"))


@scenario
def stream_with_consumers_deleted(client: Any) -> Any:
    stream = Stream(client, "fan-out-deleted", 1)
    client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="consumer")
    wait_for_consumers(client, stream.arn)
    refused = outcome(lambda: client.delete_stream(StreamName=stream.name))
    enforced = outcome(lambda: client.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True))
    return [refused, enforced]


@scenario
def no_such_thing(client: Any) -> Any:
    stream = Stream(client, "there", 1)
    return [
        outcome(lambda: client.describe_stream_summary(StreamName="not-there")),
        outcome(lambda: client.put_record(StreamName="not-there", Data=b"x", PartitionKey="x")),
        outcome(lambda: client.list_shards(StreamName="not-there")),
        outcome(lambda: stream.iterator(shard="shardId-000000000007")),
        outcome(lambda: client.describe_stream_consumer(StreamARN=stream.arn, ConsumerName="not-there")),
        outcome(lambda: client.delete_stream(StreamName="not-there")),
    ]


@scenario
def name_that_is_taken(client: Any) -> Any:
    Stream(client, "taken", 1)
    return outcome(lambda: client.create_stream(StreamName="taken", ShardCount=1))


@scenario
def names_that_are_none(client: Any) -> Any:
    return [
        outcome(lambda name=name: client.create_stream(StreamName=name, ShardCount=1)) for name in ("a b", "n" * 129)
    ]


@scenario
def stream_without_shards(client: Any) -> Any:
    return outcome(lambda: client.create_stream(StreamName="none", ShardCount=0))


@scenario
def retention(client: Any) -> Any:
    stream = Stream(client, "retention", 1)
    client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=48)
    raised = stream.summary["RetentionPeriodHours"]
    return [
        raised,
        outcome(lambda: client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=24)),
        outcome(lambda: client.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=72)),
    ]
