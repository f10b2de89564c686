"""Shards that ended are let go: a reader keeps what it reads, however often its stream was resharded."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ShardPosition,
    StreamPositions,
    ranges_between,
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
            async for batch in reader.read_range("q", ranges_between(position, found.positions)):
                rows += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
            position = found.positions
            await reader.commit("q", epoch, position)
        while rows != written:
            found = await reader.positions("q", epoch, position, wait_seconds=1)
            async for batch in reader.read_range("q", ranges_between(position, found.positions)):
                rows += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
            position = found.positions
            await reader.commit("q", epoch, position)
        assert len(kinesis.shards) > RESHARDS
        assert len(await reader.stats("q")) < 20
        assert len(position.streams["s"]) < 20


async def test_a_shard_that_expired_with_its_children_leaves_the_positions() -> None:
    """After a restart nobody knows its children: the shards that are left follow it, and nothing is read twice."""
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
