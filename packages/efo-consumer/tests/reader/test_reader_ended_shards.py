"""Shards that ended are dropped: a reader keeps what it reads, however often its stream was resharded."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from fleet_in_memory import in_skipped_time
from reader_homes import END, read

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ShardPosition,
    StreamPositions,
)
from penstock.efo_consumer.testing import FakeKinesis

RESHARDS = 300


async def test_shards_that_ended_and_were_committed_are_let_go() -> None:
    """After hundreds of splits and merges only the shards that are read, and the last ones before them, are kept."""
    kinesis = FakeKinesis()
    live = kinesis.create_stream("s", 2)
    position = kinesis.trim_horizon("s")
    rows: list[int] = []
    written: list[int] = []
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=position))
        for _ in range(RESHARDS):
            written += kinesis.put("s", live[0], 1)
            live = kinesis.reshard("s", live[:1], 2) + live[1:] if len(live) < 3 else kinesis.reshard("s", live, 1)
            found = await reader.positions("q", epoch, position, wait_seconds=5)
            rows += await read(reader, position, found.positions)
            position = found.positions
            await reader.commit("q", epoch, position)
        while rows != written:
            found = await reader.positions("q", epoch, position, wait_seconds=1)
            rows += await read(reader, position, found.positions)
            position = found.positions
            await reader.commit("q", epoch, position)
        assert len(kinesis.shards) > RESHARDS
        assert len(await reader.stats("q")) < 20
        assert len(position.streams["s"]) < 20


async def test_a_shard_that_expired_with_its_children_leaves_the_positions() -> None:
    """After a restart its children are unknown: the shards that are left follow it, and nothing is read twice."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    (child,) = kinesis.reshard("s", [shard], 1)
    (last,) = kinesis.reshard("s", [child], 1)
    kinesis.put("s", last, 1)
    kinesis.expire("s", shard)
    kinesis.expire("s", child)
    position = StreamPositions({"s": {shard: ShardPosition.shard_end(), last: ShardPosition.after(str(kinesis.tip))}})
    kinesis.put("s", last, 1)
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=False)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=position))
        for _ in range(3):
            found = await reader.positions("q", epoch, position, wait_seconds=1)
            position = found.positions
            await reader.commit("q", epoch, position)
            kinesis.put("s", last, 1)
    assert set(position.streams["s"]) == {last}


async def test_after_a_restart_the_children_of_a_shard_that_is_not_listed_yet_are_waited_for() -> None:
    """ListShards is late after a reshard: that it does not show a shard does not mean that others follow it."""
    kinesis = FakeKinesis()
    root, other = kinesis.create_stream("s", 2)
    (shard,) = kinesis.reshard("s", [root], 1)
    written = kinesis.put("s", shard, 1)
    (child,) = kinesis.reshard("s", [shard], 1)
    written += kinesis.put("s", child, 1)
    for late in (shard, child):
        kinesis.shards["s", late].unlisted = True
    position = StreamPositions({"s": {shard: ShardPosition.shard_end(), other: ShardPosition.trim_horizon()}})
    config = ReaderConfig(discovery_interval=timedelta(milliseconds=20))
    async with LocalShardReader(kinesis, config) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=position))
        found = await reader.positions("q", epoch, position, wait_seconds=0.5)
        assert found.positions.streams["s"].keys() == {shard, other}
        for late in (shard, child):
            kinesis.shards["s", late].unlisted = False
        async with asyncio.timeout(60):
            while child not in position.streams["s"] or position.streams["s"][child] == ShardPosition.trim_horizon():
                found = await reader.positions("q", epoch, position, wait_seconds=1)
                position = found.positions
                await reader.commit("q", epoch, position)
    assert {child, other} <= position.streams["s"].keys()


def test_what_follows_an_empty_shard_that_is_not_listed_yet_is_read() -> None:
    """Where it has no record it is not gone: its end names its children, and what came before it is behind it."""

    async def scenario() -> None:
        kinesis = FakeKinesis()
        (root,) = kinesis.create_stream("s")
        kinesis.put("s", root, 3)
        busy, empty = kinesis.reshard("s", [root], 2)
        children = kinesis.reshard("s", [empty], 2)
        written = [number for shard in (busy, *children) for number in kinesis.put("s", shard, 3)]
        for shard in (busy, empty, *children):
            kinesis.shards["s", shard].unlisted = True
        position = StreamPositions({"s": {busy: ShardPosition.trim_horizon(), empty: END}})
        async with LocalShardReader(kinesis, clock=asyncio.get_running_loop().time) as reader:
            epoch = await reader.open(OpenRequest(session_id="q", positions=position))
            rows: list[int] = []
            for _ in range(6):
                found = await reader.positions("q", epoch, position, wait_seconds=5)
                rows += await read(reader, position, found.positions)
                position = found.positions
                await reader.commit("q", epoch, position)
            assert sorted(rows) == written
            assert {busy, *children} <= position.streams["s"].keys()

    in_skipped_time(scenario)


@pytest.mark.parametrize("late", [0, 1])
def test_children_enter_once_the_list_shows_all_of_them(late: int) -> None:
    """With one child the parent would leave the positions, and the other child would not be looked for."""

    async def scenario() -> None:
        kinesis = FakeKinesis()
        (parent,) = kinesis.create_stream("s")
        children = kinesis.reshard("s", [parent], 2)
        written = [number for child in children for number in kinesis.put("s", child, 3)]
        kinesis.shards["s", children[late]].unlisted = True
        position = StreamPositions({"s": {parent: END}})
        loop = asyncio.get_running_loop()
        async with LocalShardReader(kinesis, clock=loop.time) as reader:
            epoch = await reader.open(OpenRequest(session_id="q", positions=position))
            found = await reader.positions("q", epoch, position, wait_seconds=30)
            assert (found.positions, found.millis_behind_latest) == (position, -1)
            kinesis.shards["s", children[late]].unlisted = False
            rows: list[int] = []
            for _ in range(4):
                found = await reader.positions("q", epoch, position, wait_seconds=5)
                rows += await read(reader, position, found.positions)
                position = found.positions
                await reader.commit("q", epoch, position)
                written += kinesis.put("s", children[late])
            assert sorted(rows) == written[:-1]
            assert position.streams["s"].keys() == {*children}
            assert found.millis_behind_latest == 0

    in_skipped_time(scenario)


def test_the_child_of_a_merge_and_children_that_were_split_further_enter_at_once() -> None:
    """One child may take more keys than its parent had; and it is listed when it has ended itself."""

    async def scenario() -> None:
        kinesis = FakeKinesis()
        parents = kinesis.create_stream("s", 2)
        (merged,) = kinesis.reshard("s", parents, 1)
        lower, upper = kinesis.reshard("s", [merged], 2)
        last = [lower, *kinesis.reshard("s", [upper], 2)]
        written = [number for shard in last for number in kinesis.put("s", shard, 3)]
        loop = asyncio.get_running_loop()
        for ended in ([*parents], [merged], parents[:1]):
            position = StreamPositions({"s": dict.fromkeys(ended, END)})
            async with LocalShardReader(kinesis, clock=loop.time) as reader:
                epoch = await reader.open(OpenRequest(session_id="q", positions=position))
                began, rows = loop.time(), list[int]()
                while len(rows) < len(written):
                    found = await reader.positions("q", epoch, position, wait_seconds=5)
                    rows += await read(reader, position, found.positions)
                    position = found.positions
                assert sorted(rows) == written
                assert loop.time() - began < 10

    in_skipped_time(scenario)


def test_children_that_never_take_all_keys_enter_after_a_minute_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A list that stays as it is is believed: nothing waits for ever."""

    async def scenario() -> None:
        kinesis = FakeKinesis()
        (parent,) = kinesis.create_stream("s")
        kept, lost = kinesis.reshard("s", [parent], 2)
        written = kinesis.put("s", kept, 3)
        kinesis.expire("s", lost)
        position = StreamPositions({"s": {parent: END}})
        loop = asyncio.get_running_loop()
        async with LocalShardReader(kinesis, clock=loop.time) as reader:
            epoch = await reader.open(OpenRequest(session_id="q", positions=position))
            found = await reader.positions("q", epoch, position, wait_seconds=300)
            assert 60 <= loop.time() < 70
            assert await read(reader, position, found.positions) == written
            assert (await reader.positions("q", epoch, found.positions)).millis_behind_latest == 0
            # Nor is it looked for any more, and told again.
            await reader.positions("q", epoch, found.positions, wait_seconds=300)

    in_skipped_time(scenario)
    told = [record.message for record in caplog.records if "has shown" in record.message]
    assert len(told) == 1
    assert "s/shardId-000000000000: for 60 s ListShards has shown shardId-000000000001 as its children" in told[0]
