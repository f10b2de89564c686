"""Scenarios of putting and polling."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from crosscheck_tools import MAX_HASH_KEY, Stream, outcome, scenario


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
    return [outcome(partial(stream.iterator, kind=kind)) for kind in kinds]


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
    return [outcome(partial(client.get_records, ShardIterator=iterator, Limit=limit)) for limit in (0, 10_001)]


@scenario
def arn_instead_of_name(client: Any) -> Any:
    stream = Stream(client, "by-arn", 1)
    client.put_record(StreamARN=stream.arn, Data=b"a", PartitionKey="a")
    return [stream.read(), client.list_shards(StreamARN=stream.arn)["Shards"][0]["ShardId"]]
