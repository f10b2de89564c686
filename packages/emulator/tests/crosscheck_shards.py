"""Scenarios of shards and their lineage."""

from __future__ import annotations

from functools import partial
from typing import Any

from crosscheck_tools import MAX_HASH_KEY, Stream, ids, outcome, scenario


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
            partial(
                client.update_shard_count,
                StreamName=stream.name,
                TargetShardCount=count,
                ScalingType="UNIFORM_SCALING",
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

    def found(wanted: dict[str, Any]) -> Any:
        return ids(stream.shards(ShardFilter=wanted))

    return [outcome(partial(found, wanted)) for wanted in filters]


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
