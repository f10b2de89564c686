"""A reader's sessions over streams in memory: what it answers, whom it refuses, when it stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from penstock.efo_consumer import (
    READ_SCHEMA,
    SERVICE_NAME,
    FencedConsumerError,
    LocalShardReader,
    OpenRequest,
    PositionsError,
    ReaderConfig,
    RecordPublisherType,
    RemoteShardReader,
    SessionNotFoundError,
    ShardFailedError,
    ShardPosition,
    ShardReader,
    ShardReaderServicer,
    StaleEpochError,
    StreamConsumer,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings

HOMES = pytest.mark.parametrize("home", ["local", "remote"])
END = ShardPosition.shard_end()


@asynccontextmanager
async def reader_at(home: str, kinesis: FakeKinesis, **options: Any) -> AsyncIterator[ShardReader]:
    """A reader over streams in memory, in this process or behind a socket."""
    async with LocalShardReader(kinesis, **options) as local:
        if home == "local":
            yield local
            return
        register = [ShardReaderServicer(local).add_to]
        settings = ServerSettings(drain_seconds=0)
        async with GrpcServer(settings, register=register, service_names=[SERVICE_NAME]) as server:
            remote = RemoteShardReader(server.address)
            try:
                yield remote
            finally:
                await remote.aclose()


def request(positions: StreamPositions, session_id: str = "q", **options: Any) -> OpenRequest:
    return OpenRequest(session_id=session_id, positions=positions, **options)


async def until(condition: Callable[[], bool]) -> None:
    """Let the reader's tasks run until the condition holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # what is awaited is in the reader's inner state
            await asyncio.sleep(0.001)


async def read(reader: ShardReader, start: StreamPositions, end: StreamPositions) -> list[int]:
    rows: list[int] = []
    async for batch in reader.read_range("q", ranges_between(start, end)):
        assert batch.schema == READ_SCHEMA
        rows += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
    return rows


@HOMES
async def test_limits_are_shared_fairly_over_shards_and_cut_events(home: str) -> None:
    """Each shard gets an equal share; what a small one leaves, the large ones use."""
    kinesis = FakeKinesis()
    one, two, three = kinesis.create_stream("s", 3)
    start = kinesis.trim_horizon("s")
    kinesis.put("s", one, 100)
    kinesis.put("s", two, 100)
    kinesis.put("s", three, 3)
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken >= 51)
        snapshot = await reader.positions("q", epoch, start, max_records=33)
        assert snapshot.records == 33
        rows = await read(reader, start, snapshot.positions)
        assert len(rows) == 33
        shards = [kinesis.shards["s", shard] for shard in (one, two, three)]
        assert [sum(number in rows for number in shard.sequence_numbers) for shard in shards] == [15, 15, 3]


@HOMES
async def test_bytes_bound_the_answer_but_one_event_comes_through(home: str) -> None:
    """A limit smaller than an event does not stop the reader for good."""
    kinesis = FakeKinesis(event_records=2)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 10, size=1000)
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken >= 5)
        assert (await reader.positions("q", epoch, start, max_bytes=10)).records == 2
        assert (await reader.positions("q", epoch, start, max_bytes=5000)).records == 4


@HOMES
async def test_a_long_poll_ends_with_the_first_record(home: str) -> None:
    """Waiting ends when something is there; without news the start comes back unchanged."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        assert (await reader.positions("q", epoch, start, wait_seconds=0.05)).positions == start
        polling = asyncio.create_task(reader.positions("q", epoch, start, wait_seconds=30))
        await reader.stats("q")
        assert not polling.done()
        written = kinesis.put("s", shard, 3)
        snapshot = await asyncio.wait_for(polling, 5)
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


@HOMES
async def test_parents_are_drained_first_and_leave_the_positions(home: str) -> None:
    """Children appear with their parents' ends, are read afterwards, and the parents are left out one step later."""
    kinesis = FakeKinesis(event_records=1)
    one, two = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    kinesis.put("s", one, 2)
    kinesis.put("s", two, 2)
    (child,) = kinesis.reshard("s", [one, two], 1)
    kinesis.put("s", child, 2)
    async with reader_at(home, kinesis) as reader:
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
        assert (await reader.positions("q", epoch, start)).records == len(rows)


@HOMES
async def test_a_session_that_begins_at_the_ends_of_parents_finds_the_children(home: str) -> None:
    """After a restart nobody has seen the end go by: ListShards names the children, expired parents hold up nobody."""
    kinesis = FakeKinesis()
    one, two = kinesis.create_stream("s", 2)
    (child,) = kinesis.reshard("s", [one, two], 1)
    written = kinesis.put("s", child, 3)
    kinesis.expire("s", two)
    start = StreamPositions({"s": {one: END}})
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        snapshot = await reader.positions("q", epoch, start, wait_seconds=5)
        assert await read(reader, start, snapshot.positions) == written


@HOMES
async def test_opening_again_fences_the_predecessor_and_keeps_its_subscriptions(home: str) -> None:
    """The old epoch is refused, also in the middle of a long poll; shards that continue are not subscribed again."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 10)
    async with reader_at(home, kinesis) as reader:
        old = await reader.open(request(start))
        middle = (await reader.positions("q", old, start, max_records=4, wait_seconds=5)).positions
        tip = (await reader.positions("q", old, middle, wait_seconds=5)).positions
        polling = asyncio.create_task(reader.positions("q", old, tip, wait_seconds=30))
        await reader.stats("q")
        new = await reader.open(request(middle))
        assert new > old
        with pytest.raises(StaleEpochError) as raised:
            await asyncio.wait_for(polling, 5)
        assert (raised.value.epoch, raised.value.current_epoch) == (old, new)
        with pytest.raises(StaleEpochError):
            await reader.commit("q", old, tip)
        with pytest.raises(StaleEpochError):
            _ = [batch async for batch in reader.read_range("q", ranges_between(start, tip), epoch=old)]
        await reader.close_session("q", old)
        snapshot = await reader.positions("q", new, middle, wait_seconds=5)
        assert await read(reader, middle, snapshot.positions) == written[4:]
        assert len(kinesis.subscriptions) == 1


async def test_opening_at_what_is_no_longer_held_subscribes_again() -> None:
    """A successor that begins before the buffer gets every record from there."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 10)
    async with LocalShardReader(kinesis) as reader:
        old = await reader.open(request(start))
        tip = (await reader.positions("q", old, start, wait_seconds=5)).positions
        await reader.commit("q", old, tip)
        new = await reader.open(request(start))
        assert (await reader.positions("q", new, start, wait_seconds=5)).records > 0
        await until(lambda: reader.buffered_bytes > 10 * 10)
        assert len(kinesis.subscriptions) == 2
        assert await read(reader, start, tip) == written


@HOMES
async def test_an_older_lease_is_refused(home: str) -> None:
    """The reader remembers the newest token of a consumer, whatever the session or its creation time."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")

    def lease(token: int, created: int = 1) -> tuple[StreamConsumer, ...]:
        return (StreamConsumer("s", f"arn:aws:kinesis:us-east-1:1:stream/s/consumer/c:{created}", token),)

    async with reader_at(home, kinesis) as reader:
        await reader.open(request(start, consumers=lease(7)))
        with pytest.raises(FencedConsumerError) as raised:
            await reader.open(request(start, "other", consumers=lease(6, created=2)))
        assert (raised.value.stream, raised.value.fencing_token, raised.value.seen_fencing_token) == ("s", 6, 7)
        await reader.open(request(start, "other", consumers=lease(8)))


@HOMES
async def test_calls_for_a_session_that_is_not_open_are_refused(home: str) -> None:
    """No session, or a closed one, is an error that names it; an open without positions is one too."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with reader_at(home, kinesis) as reader:
        with pytest.raises(SessionNotFoundError, match="'q'"):
            await reader.stats("q")
        epoch = await reader.open(request(start))
        await reader.close_session("q", epoch)
        with pytest.raises(SessionNotFoundError):
            await reader.positions("q", epoch, start)
        with pytest.raises(PositionsError, match="needs a position"):
            await reader.open(request(StreamPositions({})))


@HOMES
async def test_a_shard_that_fails_is_told_after_what_was_read_and_opening_again_resumes(home: str) -> None:
    """Buffered records come first, then the error with its code; a new session goes on behind them."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    first = kinesis.put("s", shard, 4)
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken == 1)
        code = "AccessDeniedException"
        kinesis.fail("s", shard, RecordPublisherFatalError("no", stream="s", shard_id=shard, code=code))
        snapshot = await reader.positions("q", epoch, start, wait_seconds=5)
        with pytest.raises(ShardFailedError) as raised:
            await reader.positions("q", epoch, snapshot.positions, wait_seconds=5)
        assert (raised.value.stream, raised.value.shard_id, raised.value.code) == ("s", shard, code)
        second = kinesis.put("s", shard, 3)
        epoch = await reader.open(request(snapshot.positions))
        after = await reader.positions("q", epoch, snapshot.positions, wait_seconds=5)
        assert await read(reader, start, snapshot.positions) == first
        assert await read(reader, snapshot.positions, after.positions) == second


async def test_switching_the_publisher_goes_on_where_the_buffers_end() -> None:
    """Enhanced fan-out and polling can be exchanged between two opens; nothing is read twice."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 4)
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(request(start))
        tip = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        epoch = await reader.open(request(start, record_publisher=RecordPublisherType.POLLING))
        written += kinesis.put("s", shard, 4)
        await until(lambda: kinesis.events_taken >= 2)
        snapshot = await reader.positions("q", epoch, start)
        assert snapshot.records == 8
        assert await read(reader, start, snapshot.positions) == written
        assert kinesis.subscriptions[1][2] == tip.get("s", shard)


async def test_a_full_buffer_stops_the_publisher_until_something_is_told_and_fetched() -> None:
    """Nothing is fetched beyond the bounds; a fetched batch makes room without any commit."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 50, size=5000)
    config = ReaderConfig(buffer_bytes_per_shard=30_000, buffer_bytes=30_000)
    async with LocalShardReader(kinesis, config) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: reader.buffered_bytes >= 30_000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert kinesis.events_taken == 4
        rows, position = [], start
        while len(rows) < len(written):
            snapshot = await reader.positions("q", epoch, position, wait_seconds=5)
            rows += await read(reader, position, snapshot.positions)
            position = snapshot.positions
            assert reader.buffered_bytes <= 40_000
        assert rows == written
        assert kinesis.polls == 0
        (stats,) = await reader.stats("q")
        assert (stats.records, stats.subscriptions, stats.replays) == (50, 1, 0)


async def test_a_caller_that_plans_but_never_fetches_does_not_stop_the_reader() -> None:
    """Promised records give way after the grace time, and are read again when they are fetched at last."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 30, size=5000)
    config = ReaderConfig(buffer_bytes_per_shard=30_000, buffer_bytes=30_000, promise_grace=timedelta(0))
    async with LocalShardReader(kinesis, config) as reader:
        epoch = await reader.open(request(start))
        position, steps = start, [start]
        async with asyncio.timeout(10):
            while sum(stats.records for stats in await reader.stats("q")) < 30 or position == steps[-2]:
                position = (await reader.positions("q", epoch, position, wait_seconds=1)).positions
                steps.append(position)
        rows = [row for one, two in pairwise(steps) for row in await read(reader, one, two)]
        assert rows == written[: len(rows)]
        assert len(rows) > 20
        assert kinesis.polls > 0


async def test_a_session_that_nobody_asks_does_not_stop_the_others() -> None:
    """Records that an abandoned session was never asked for hold their memory, but everybody else goes on."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 20, size=5000)
    config = ReaderConfig(buffer_bytes_per_shard=20_000, buffer_bytes=20_000)
    async with LocalShardReader(kinesis, config) as reader:
        await reader.open(request(start, "abandoned"))
        await until(lambda: reader.buffered_bytes >= 20_000)
        epoch = await reader.open(request(start))
        rows, position = [], start
        while len(rows) < len(written):
            snapshot = await reader.positions("q", epoch, position, wait_seconds=5)
            rows += await read(reader, position, snapshot.positions)
            position = snapshot.positions
        assert rows == written
        assert reader.buffered_bytes <= 20_000 + 3 * 10_000


async def test_closing_ends_the_subscriptions_and_the_backend() -> None:
    """Nothing runs, and nothing is held, after the reader was closed."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s", 2)
    async with LocalShardReader(kinesis) as reader:
        await reader.open(request(kinesis.trim_horizon("s")))
        await until(lambda: len(kinesis.subscriptions) == 2)
        assert any("follow" in task.get_name() for task in asyncio.all_tasks())
    assert not any("follow" in task.get_name() for task in asyncio.all_tasks())
    assert (kinesis.closed, reader.buffered_bytes) == (True, 0)


@HOMES
async def test_leaving_a_range_early_ends_its_reading(home: str) -> None:
    """A task that is killed in the middle of a replay leaves no polling behind."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 3000, size=2000)
    end = StreamPositions({"s": {shard: ShardPosition.after(str(kinesis.tip))}})
    async with reader_at(home, kinesis) as reader:
        batches = reader.read_range("q", ranges_between(start, end), max_batch_bytes=1)
        assert (await anext(batches)).num_rows == 1
        await batches.aclose()
        polls = -1
        async with asyncio.timeout(5):
            while polls != kinesis.polls:
                polls = kinesis.polls
                await asyncio.sleep(0.02)
        assert polls < 3000
