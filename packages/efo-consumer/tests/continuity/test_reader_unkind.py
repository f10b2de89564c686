"""Reading from a service that is unkind, over sockets: nothing is lost, and what cannot be read is named."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from reader_world import BEHAVIOURS, PUBLISHERS, READINGS, SHARD, World, horizon

from penstock.efo_consumer import (
    DataLossError,
    RecordPublisherType,
    ShardPosition,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer.errors import StreamRecreatedError
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, running_emulator


@PUBLISHERS
@BEHAVIOURS
async def test_a_shard_is_read_to_its_end_and_its_children_after_it(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """Also where its subscriptions never bring the end, and where its children are listed late."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        written = world.put(3)
        async with world.reader() as reader:
            epoch = await world.open(reader, horizon())
            position, found = await world.read(reader, epoch, horizon(), 3)
            emulator.client().split_shard(
                StreamName="s", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
            )
            written += world.put(4)
            position, more = await world.read(reader, epoch, position, 4)
            assert sorted(found + more) == sorted(written)
            assert {stats.losses for stats in await reader.stats("q")} == {0}


@PUBLISHERS
@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(late_children=timedelta(seconds=5), seed=3), Behaviour.hostile(seed=3)],
    ids=["late", "hostile"],
)
async def test_a_merged_shard_waits_for_a_parent_that_is_not_listed_yet(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """One parent of it ended, the other came of a shard that is read more slowly, and ListShards shows neither yet."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher, shards=2)
        for operation in ("GetRecords", "SubscribeToShard"):
            emulator.faults.add("throttle", operation=operation, shard=SHARD)
        client, slow, other = world.client, SHARD, "shardId-000000000001"
        client.split_shard(StreamName="s", ShardToSplit=slow, NewStartingHashKey=str(2**126))
        keys = {str(key): str(key * 2**125 + 1) for key in range(8)}
        entries = [{"Data": key.encode(), "PartitionKey": "k", "ExplicitHashKey": at} for key, at in keys.items()]
        client.put_records(StreamName="s", Records=entries)
        client.merge_shards(StreamName="s", ShardToMerge="shardId-000000000003", AdjacentShardToMerge=other)
        client.put_records(
            StreamName="s", Records=[{"Data": b"last", "PartitionKey": "k", "ExplicitHashKey": keys["7"]}]
        )
        position = StreamPositions({"s": {shard: ShardPosition.trim_horizon() for shard in (slow, other)}})
        async with world.reader(discovery_interval=timedelta(milliseconds=20)) as reader:
            epoch = await world.open(reader, position)
            position, found = await world.read(reader, epoch, position, 4)
            # Time enough to ask ListShards, which still shows the stream as it was: its clock does not move.
            for _ in range(5):
                snapshot = await reader.positions("q", epoch, position, wait_seconds=0.1)
                assert snapshot.records == 0
                assert not {"shardId-000000000003", "shardId-000000000004"} & snapshot.positions.streams["s"].keys()
            emulator.faults.clear()
            position, more = await world.read(reader, epoch, position, 5)
            assert sorted(found + more) == sorted([*map(str.encode, keys), b"last"])
            assert {stats.losses for stats in await reader.stats("q")} == {0}


@READINGS
async def test_the_end_of_a_shard_that_is_read_long_after_it_was_closed_proves_nothing_of_its_children(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """They hold records since it was closed: that it was complete a moment ago does not say that they were."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(1)
        async with world.reader() as reader:
            epoch = await world.open(reader, horizon())
            start, _ = await world.read(reader, epoch, horizon(), 1)
        world.put(1)
        closed_millis = clock.time() * 1000
        world.client.split_shard(StreamName="s", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
        clock.advance(20 * 3600)
        async with world.reader() as reader:
            epoch = await world.open(reader, start, named_shards_only=True)
            position = start.get("s", SHARD)
            async with asyncio.timeout(120):
                while position is not None and not position.is_shard_end:
                    clock.advance(0.5)
                    start = (await reader.positions("q", epoch, start, wait_seconds=0.5)).positions
                    position = start.get("s", SHARD)
        assert position is not None
        assert position.known_millis is not None
        assert position.known_millis <= closed_millis


@READINGS
@pytest.mark.parametrize("fail", [True, False])
async def test_a_reader_slower_than_its_stream_at_the_edge_of_the_retention_is_told(
    publisher: RecordPublisherType, behaviour: Behaviour, fail: bool
) -> None:
    """Each position stays valid, and Kinesis steps over what expires ahead of it without a word."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        first = world.put(2)
        async with world.reader(fail_on_data_loss=fail) as reader:
            epoch = await world.open(reader, horizon())
            position, found = await world.read(reader, epoch, horizon(), 2)
            assert found == first
            await reader.close_session("q", epoch)
            clock.advance(3600)
            lost = world.put(3)
            clock.advance(24 * 3600 - 1)
            left = world.put(2)
            if fail:
                with pytest.raises(DataLossError, match="s/shardId-000000000000"):
                    await world.open_and_read(reader, position, 2)
                return
            epoch = await world.open(reader, position)
            _, found = await world.read(reader, epoch, position, 2)
            assert set(found) <= {*lost, *left}
            assert set(left) <= set(found)
            assert [stats.losses for stats in await reader.stats("q")] == [1]


@READINGS
@pytest.mark.parametrize("fail", [True, False])
async def test_what_expires_before_the_first_answer_of_a_start_at_the_horizon_is_told(
    publisher: RecordPublisherType, behaviour: Behaviour, fail: bool
) -> None:
    """A caller that begins there wants what there is, and everything that is put from then on."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        for operation in ("GetRecords", "SubscribeToShard"):
            emulator.faults.add("throttle", operation=operation, shard=SHARD)
        async with world.reader(fail_on_data_loss=fail) as reader:
            epoch = await world.open(reader, horizon())
            lost = world.put(3)
            clock.advance(25 * 3600)
            left = world.put(2)
            emulator.faults.clear()
            if fail:
                with pytest.raises(DataLossError, match="s/shardId-000000000000"):
                    await world.read(reader, epoch, horizon(), 2)
                return
            _, found = await world.read(reader, epoch, horizon(), 2)
            assert set(found) <= {*lost, *left}
            assert set(left) <= set(found)
            assert [stats.losses for stats in await reader.stats("q")] == [1]


@READINGS
async def test_a_stream_that_was_made_again_is_another_one(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """A session that is opened at positions of the old stream says so, and when each was created."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(2)
        async with world.reader(fail_on_data_loss=False) as reader:
            epoch = await world.open(reader, horizon())
            position, _ = await world.read(reader, epoch, horizon(), 2)
        assert position.created.keys() == {"s"}
        world.client.delete_stream(StreamName="s", EnforceConsumerDeletion=True)
        clock.advance(5)
        world.create()
        world.put(2)
        async with world.reader(fail_on_data_loss=False) as reader:
            with pytest.raises(StreamRecreatedError) as raised:
                await world.open(reader, position)
        assert raised.value.created_millis == position.created["s"]
        assert raised.value.current_millis > raised.value.created_millis


@READINGS
async def test_a_running_query_is_told_that_its_stream_was_made_again(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """The refusal of its iterator, or of its consumer, is not taken for a loss or for a stream that is missing.

    Nor is that its records are gone, to a query that stood still for longer than they are kept.
    """
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(2)
        async with world.reader(fail_on_data_loss=False) as reader:
            epoch = await world.open(reader, horizon())
            position, _ = await world.read(reader, epoch, horizon(), 2)
            world.client.delete_stream(StreamName="s", EnforceConsumerDeletion=True)
            clock.advance(5)
            world.create()
            clock.advance(30 * 3600)
            world.put(1)
            with pytest.raises(StreamRecreatedError):
                async with asyncio.timeout(120):
                    await world.read(reader, epoch, position, 1)


@BEHAVIOURS
async def test_a_logged_range_is_read_again_exactly_or_called_lost(behaviour: Behaviour) -> None:
    """Batch 0 began at a time: it is compared with its first and last record, on both sides of the retention."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, RecordPublisherType.POLLING)
        start = StreamPositions(
            {"s": {"shardId-000000000000": ShardPosition.at_timestamp(int(clock.time() * 1000) - 2000)}}
        )
        began = clock.time()
        written = []
        for _ in range(4):
            written += world.put(1)
            clock.advance(2)
        async with world.reader() as reader:
            epoch = await world.open(reader, start)
            position, found = await world.read(reader, epoch, start, 4)
        assert found == written
        ranges = ranges_between(start, position)

        async def again(**options: Any) -> list[bytes]:
            async with world.reader(**options) as other:
                return [
                    row async for batch in other.read_range("x", ranges) for row in batch.column("data").to_pylist()
                ]

        assert await again() == written
        # The first two of the four expire.
        clock.advance(began + 24 * 3600 + 4 - clock.time())
        world.put(1)
        with pytest.raises(DataLossError):
            await again()
        assert await again(fail_on_data_loss=False) == written[2:]
