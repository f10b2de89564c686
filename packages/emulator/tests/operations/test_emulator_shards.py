from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

MAX = 2**128 - 1


def ranges(shards: list[dict[str, Any]]) -> list[tuple[int, int]]:
    keys = [shard["HashKeyRange"] for shard in shards]
    return sorted((int(item["StartingHashKey"]), int(item["EndingHashKey"])) for item in keys)


def open_shards(world: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.client.list_shards(StreamName="stream", ShardFilter={"Type": "AT_LATEST"})[
        "Shards"
    ]
    return found


def covers_everything(spans: list[tuple[int, int]]) -> bool:
    ends = [-1, *(end for _, end in spans)]
    return all(start == end + 1 for (start, _), end in zip(spans, ends, strict=False)) and ends[-1] == MAX


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_new_shards_cut_the_key_space_without_gaps(world: Any, count: int) -> None:
    """The shards of a new stream cover all hash keys, each key once."""
    world.stream(shards=count)
    spans = ranges(open_shards(world))
    assert len(spans) == count
    assert covers_everything(spans)


def test_a_split_opens_two_children_that_meet_at_the_key(world: Any) -> None:
    """SplitShard closes the parent and opens two children; new records go to them."""
    world.stream()
    world.client.split_shard(StreamName="stream", ShardToSplit=world.first, NewStartingHashKey=str(2**127))
    parent, low, high = world.client.list_shards(StreamName="stream")["Shards"]
    assert "EndingSequenceNumber" in parent["SequenceNumberRange"]
    assert [low["ParentShardId"], high["ParentShardId"]] == [world.first, world.first]
    assert ranges([low, high]) == [(0, 2**127 - 1), (2**127, MAX)]
    assert {result["ShardId"] for result in world.put(*"abcdefgh")} == {low["ShardId"], high["ShardId"]}


def test_a_merge_opens_one_child_with_two_parents(world: Any) -> None:
    """MergeShards closes both parents and opens a child over the union of their ranges."""
    world.stream(shards=2)
    world.client.merge_shards(
        StreamName="stream", ShardToMerge=world.first, AdjacentShardToMerge="shardId-000000000001"
    )
    (child,) = open_shards(world)
    assert (child["ParentShardId"], child["AdjacentParentShardId"]) == (world.first, "shardId-000000000001")
    assert ranges([child]) == [(0, MAX)]


def test_a_closed_parent_is_read_to_its_end_and_names_its_children(world: Any) -> None:
    """Records put before a split stay in the parent; its last answer has a null iterator and the children."""
    world.stream()
    world.put("a", "b")
    world.client.split_shard(StreamName="stream", ShardToSplit=world.first, NewStartingHashKey=str(2**127))
    world.put("c")
    answer = world.client.get_records(ShardIterator=world.iterator(), Limit=1)
    assert "ChildShards" not in answer
    answer = world.client.get_records(ShardIterator=answer["NextShardIterator"])
    assert [record["Data"] for record in answer["Records"]] == [b"b"]
    assert answer.get("NextShardIterator") is None
    assert [child["ShardId"] for child in answer["ChildShards"]] == ["shardId-000000000001", "shardId-000000000002"]
    assert answer["ChildShards"][0]["ParentShards"] == [world.first]
    assert ranges(answer["ChildShards"]) == [(0, 2**127 - 1), (2**127, MAX)]


def test_a_split_key_has_to_lie_inside_the_shard(world: Any) -> None:
    """A key at the edge or outside of the range, and a shard that is closed, are refused."""
    world.start(operation_limits={"SplitShard": None}).stream(shards=2)

    def split(shard: str, key: int) -> Any:
        return world.client.split_shard(StreamName="stream", ShardToSplit=shard, NewStartingHashKey=str(key))

    for key in (0, 1, 2**127 - 1, 2**127):
        assert world.refused(lambda key=key: split(world.first, key))[0] == "InvalidArgumentException"
    assert world.refused(lambda: split("shardId-000000000009", 5))[0] == "ResourceNotFoundException"
    split(world.first, 2)
    assert "already been merged or split" in world.refused(lambda: split(world.first, 5))[1]


def test_only_neighbours_merge(world: Any) -> None:
    """Shards whose ranges do not meet are refused."""
    world.stream(shards=3)
    refusal = world.refused(
        lambda: world.client.merge_shards(
            StreamName="stream", ShardToMerge=world.first, AdjacentShardToMerge="shardId-000000000002"
        )
    )
    assert "not an adjacent pair" in refusal[1]
    world.client.merge_shards(
        StreamName="stream", ShardToMerge="shardId-000000000001", AdjacentShardToMerge=world.first
    )


@pytest.mark.parametrize(("current", "target"), [(1, 2), (2, 3), (3, 5), (4, 2), (5, 3), (6, 3), (3, 3), (3, 6)])
def test_update_shard_count_ends_with_equal_shards(world: Any, current: int, target: int) -> None:
    """UpdateShardCount splits and merges until the target is reached, in shards of equal size."""
    world.stream(shards=current)
    answer = world.client.update_shard_count(
        StreamName="stream", TargetShardCount=target, ScalingType="UNIFORM_SCALING"
    )
    assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (current, target)
    spans = ranges(open_shards(world))
    assert len(spans) == target
    assert covers_everything(spans)
    widths = [end - start for start, end in spans]
    assert max(widths) - min(widths) < 2**65


def test_a_stream_that_is_updating_refuses_the_next_reshard_but_takes_records(world: Any) -> None:
    """After a split the stream is UPDATING for a while: no second split, but puts and reads continue."""
    world.start(stream_update_delay=timedelta(seconds=10)).stream()

    def split(shard: str, key: int) -> Any:
        return world.client.split_shard(StreamName="stream", ShardToSplit=shard, NewStartingHashKey=str(key))

    split(world.first, 2**127)
    code, message = world.refused(lambda: split("shardId-000000000001", 2**126))
    assert (code, message) == (
        "ResourceInUseException",
        "Stream stream under account 000000000000 not ACTIVE, instead in state UPDATING",
    )
    world.put("a")
    world.clock.advance(10)
    split("shardId-000000000001", 2**126)


def test_listing_shards_goes_on_with_the_token_alone(world: Any) -> None:
    """Pages of MaxResults follow each other by NextToken, which names stream and filter and is sent alone."""
    world.stream(shards=5)
    page = world.client.list_shards(StreamName="stream", MaxResults=2)
    seen = list(page["Shards"])
    refusal = world.refused(lambda: world.client.list_shards(StreamName="stream", NextToken=page["NextToken"]))
    assert refusal == ("InvalidArgumentException", "NextToken and StreamName cannot be provided together.")
    while "NextToken" in page:
        page = world.client.list_shards(NextToken=page["NextToken"], MaxResults=2)
        seen += page["Shards"]
    assert [shard["ShardId"] for shard in seen] == [f"shardId-{number:012d}" for number in range(5)]


def test_filters_select_shards_by_time_and_state(world: Any) -> None:
    """Each ShardFilter type selects what its documentation says, across a split 60 s after the start."""
    world.stream()
    world.clock.advance(60)
    world.client.split_shard(StreamName="stream", ShardToSplit=world.first, NewStartingHashKey=str(2**127))
    world.clock.advance(60)
    now = world.clock.time()

    def listed(kind: str, **options: Any) -> list[int]:
        names = world.shards(ShardFilter={"Type": kind, **options})
        return [int(name[-3:]) for name in names]

    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(now - 120 + seconds, UTC)

    assert listed("AT_LATEST") == [1, 2]
    assert listed("AT_TRIM_HORIZON") == [0]
    assert listed("FROM_TRIM_HORIZON") == [0, 1, 2]
    assert listed("AFTER_SHARD_ID", ShardId="shardId-000000000001") == [2]
    assert listed("AT_TIMESTAMP", Timestamp=at(59)) == [0]
    assert listed("AT_TIMESTAMP", Timestamp=at(61)) == [1, 2]
    assert listed("FROM_TIMESTAMP", Timestamp=at(59)) == [0, 1, 2]
    assert listed("FROM_TIMESTAMP", Timestamp=at(61)) == [1, 2]
    assert listed("FROM_TIMESTAMP", Timestamp=at(-3600)) == [0, 1, 2]
    assert world.shards(ExclusiveStartShardId=world.first) == ["shardId-000000000001", "shardId-000000000002"]
    for kind in ("AFTER_SHARD_ID", "AT_TIMESTAMP", "FROM_TIMESTAMP"):
        assert world.refused(lambda kind=kind: listed(kind))[0] == "InvalidArgumentException"
