"""Scenarios of limits, consumers and errors."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from crosscheck_tools import PATIENCE_SECONDS, Stream, outcome, scenario, wait_for_consumers


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
    # At the same time: one after the other, they may take more than a second on a busy machine.
    with ThreadPoolExecutor(10) as threads:
        calls = [threads.submit(outcome, partial(client.get_records, ShardIterator=iterator)) for _ in range(50)]
    return sorted({call.result() for call in calls})


@scenario
def consumers_beyond_twenty(client: Any) -> Any:
    stream = Stream(client, "twenty", 1)
    for number in range(20):
        client.register_stream_consumer(StreamARN=stream.arn, ConsumerName=f"consumer-{number}")
        wait_for_consumers(client, stream.arn)
    return outcome(lambda: client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="one-more"))


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
    return [outcome(partial(client.create_stream, StreamName=name, ShardCount=1)) for name in ("a b", "n" * 129)]


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
