"""How far a session leads: limits, long polls, idle shards, parents and children."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from reader_homes import END, HOMES, read, reader_at, request, until

from penstock.efo_consumer import (
    LocalShardReader,
    ReaderConfig,
    ShardEvent,
    ShardPosition,
    ShardReader,
    ShardState,
    StreamPositions,
)
from penstock.efo_consumer.testing import FakeKinesis


@HOMES
async def test_limits_cut_all_shards_at_the_same_arrival_time(home: str) -> None:
    """What arrived first is given first, whatever shard it is in: no shard gets ahead of another."""
    kinesis = FakeKinesis()
    shards = kinesis.create_stream("s", 3)
    start = kinesis.trim_horizon("s")
    written = []
    for shard in shards:
        written += kinesis.put("s", shard, 20)
    for _ in range(20):
        for shard in shards[:2]:
            written += kinesis.put("s", shard)
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken >= 25)
        position, rows = start, list[int]()
        for limit in (33, 5, 40):
            snapshot = await reader.positions("q", epoch, position, max_records=limit)
            assert snapshot.records == limit
            rows += await read(reader, position, snapshot.positions)
            assert sorted(rows) == written[: len(rows)]
            position = snapshot.positions


@HOMES
async def test_bytes_bound_the_answer_but_one_record_comes_through(home: str) -> None:
    """A limit smaller than a record does not stop the reader."""
    kinesis = FakeKinesis(event_records=2)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 10, size=1000)
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken >= 5)
        assert (await reader.positions("q", epoch, start, max_bytes=10)).records == 1
        assert (await reader.positions("q", epoch, start, max_bytes=5000)).records == 4


class SlowKinesis(FakeKinesis):
    """One of its shards brings nothing until it is released."""

    def __init__(self) -> None:
        super().__init__(event_records=1)
        self.slow = ""
        self.may_go = asyncio.Event()

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        if shard_id == self.slow:
            await self.may_go.wait()
        async for event in super().follow(stream, shard_id, position):
            yield event


@HOMES
async def test_shards_that_are_ahead_wait_for_a_slower_one(home: str) -> None:
    """Their buffers fill up, their condition says so, and their records come when the slower shard has come on."""
    kinesis = SlowKinesis()
    fast, kinesis.slow = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", fast, 2, size=1000)
    kinesis.tip += 30_000  # five minutes
    written += kinesis.put("s", kinesis.slow, 2)
    written += kinesis.put("s", fast, 20, size=1000)
    config = ReaderConfig(buffer_bytes_per_shard=30_000)
    async with reader_at(home, kinesis, config=config) as reader:
        epoch = await reader.open(request(start))
        found = await reader.positions("q", epoch, start, max_shard_skew_seconds=60, wait_seconds=0.05)
        assert found.positions == start
        assert found.skew is not None
        assert (found.skew.slowest_shard, found.skew.slowest_millis) == (kinesis.slow, None)
        assert found.skew.holds_back
        await until_state(reader, fast, ShardState.HELD_BACK)
        kinesis.may_go.set()
        rows, position = list[int](), start
        async with asyncio.timeout(60):
            while len(rows) < len(written):
                found = await reader.positions("q", epoch, position, max_shard_skew_seconds=60, wait_seconds=5)
                rows += await read(reader, position, found.positions)
                position = found.positions
                await reader.commit("q", epoch, position)
        assert sorted(rows) == written
        assert found.skew is not None
        assert found.skew.latest_millis == kinesis.service_millis()
        assert not found.skew.holds_back


async def until_state(reader: ShardReader, shard_id: str, state: ShardState) -> None:
    """Wait until a shard is in a state."""
    async with asyncio.timeout(60):
        while all((one.shard_id, one.condition.state) != (shard_id, state) for one in await reader.stats("q")):  # noqa: ASYNC110  # nothing reports a change of state
            await asyncio.sleep(0.01)


@HOMES
async def test_a_long_poll_ends_with_the_first_record(home: str) -> None:
    """Waiting ends when something is there; without news the start comes back unchanged."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        assert (await reader.positions("q", epoch, start, wait_seconds=0.05)).positions == start
        polling = asyncio.create_task(reader.positions("q", epoch, start, wait_seconds=120))
        await reader.stats("q")
        assert not polling.done()
        written = kinesis.put("s", shard, 3)
        snapshot = await asyncio.wait_for(polling, 60)
        assert await read(reader, start, snapshot.positions) == written


async def test_idle_continuations_wait_for_records_or_for_the_interval() -> None:
    """An idle stream makes no answers of its own but one per interval; with records all shards move along."""
    kinesis, now = FakeKinesis(), [0.0]
    one, two = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    config = ReaderConfig(idle_offset_interval=timedelta(minutes=5))
    async with LocalShardReader(kinesis, config, clock=lambda: now[0]) as reader:
        epoch = await reader.open(request(start))
        kinesis.idle()
        await until(lambda: kinesis.events_taken >= 2)
        now[0] = 299
        assert (await reader.positions("q", epoch, start)).positions == start
        now[0] = 300
        alone = await reader.positions("q", epoch, start)
        assert (alone.records, set(alone.positions.streams["s"])) == (0, {one, two})
        assert alone.positions != start
        kinesis.put("s", one)
        kinesis.idle()
        await until(lambda: kinesis.events_taken >= 4)
        along = await reader.positions("q", epoch, alone.positions)
        assert along.records == 1
        assert along.positions.get("s", two) != alone.positions.get("s", two)


async def test_parents_are_drained_first_and_leave_the_positions() -> None:
    """Children appear with their parents' ends, are read afterwards, and the parents are left out one step later."""
    kinesis = FakeKinesis(event_records=1)
    one, two = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    kinesis.put("s", one, 2)
    kinesis.put("s", two, 2)
    (child,) = kinesis.reshard("s", [one, two], 1)
    kinesis.put("s", child, 2)
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken >= 6)
        first = (await reader.positions("q", epoch, start, max_records=3)).positions
        assert child not in first.streams["s"]
        second = (await reader.positions("q", epoch, first, max_records=2)).positions
        assert {one: END, two: END}.items() <= second.streams["s"].items()
        assert child in second.streams["s"]
        third = (await reader.positions("q", epoch, second)).positions
        assert set(third.streams["s"]) == {child}
        rows = await read(reader, start, first) + await read(reader, first, second) + await read(reader, second, third)
        assert sorted(rows) == sorted(n for shard in kinesis.shards.values() for n in shard.sequence_numbers)


async def test_no_answer_has_records_of_a_shard_and_of_what_came_of_it() -> None:
    """Tasks read the shards of an answer side by side: a key's records would come before the parent's records."""
    kinesis = FakeKinesis(event_records=1)
    (parent,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    generations = [kinesis.put("s", parent, 2)]
    empty, child = kinesis.reshard("s", [parent], 2)
    generations.append(kinesis.put("s", child, 2))
    (merged,) = kinesis.reshard("s", [empty, child], 1)
    generations.append(kinesis.put("s", merged, 2))
    async with LocalShardReader(kinesis) as reader:
        epoch, position = await reader.open(request(start)), start
        await until(lambda: kinesis.events_taken >= 6)
        for generation in generations:
            found = await reader.positions("q", epoch, position, wait_seconds=5)
            assert await read(reader, position, found.positions) == generation
            position = found.positions


async def test_a_session_that_begins_at_the_ends_of_parents_finds_the_children() -> None:
    """A restarted reader did not see the end: ListShards names the children, and expired parents hold up no child."""
    kinesis = FakeKinesis()
    one, two = kinesis.create_stream("s", 2)
    (child,) = kinesis.reshard("s", [one, two], 1)
    written = kinesis.put("s", child, 3)
    kinesis.expire("s", two)
    start = StreamPositions({"s": {one: END}})
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(request(start))
        snapshot = await reader.positions("q", epoch, start, wait_seconds=5)
        assert await read(reader, start, snapshot.positions) == written
