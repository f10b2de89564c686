"""When a reader stops reading, and what it leaves behind: bounds of buffers, callers that take nothing, closing."""

from __future__ import annotations

import asyncio

from reader_homes import read, request, until

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    ReaderConfig,
    RecordPublisherType,
    ShardPosition,
    ShardState,
    StreamPositions,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.emulator.testing import running_emulator


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
        position = start
        rows: list[int] = []
        while len(rows) < len(written):
            snapshot = await reader.positions("q", epoch, position, wait_seconds=5)
            rows += await read(reader, position, snapshot.positions)
            position = snapshot.positions
            assert reader.buffered_bytes <= 40_000
        assert rows == written
        assert kinesis.polls == 0
        (stats,) = await reader.stats("q")
        assert (stats.records, stats.subscriptions, stats.replays) == (50, 1, 0)


async def test_a_session_that_nobody_asks_does_not_stop_the_others() -> None:
    """Records that an abandoned session was never asked for keep their memory, and other sessions continue."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 20, size=5000)
    config = ReaderConfig(buffer_bytes_per_shard=20_000, buffer_bytes=20_000)
    async with LocalShardReader(kinesis, config) as reader:
        await reader.open(request(start, "abandoned"))
        await until(lambda: reader.buffered_bytes >= 20_000)
        epoch = await reader.open(request(start))
        position = start
        rows: list[int] = []
        while len(rows) < len(written):
            snapshot = await reader.positions("q", epoch, position, wait_seconds=5)
            rows += await read(reader, position, snapshot.positions)
            position = snapshot.positions
        assert rows == written
        assert reader.buffered_bytes <= 20_000 + 3 * 10_000


async def test_polled_shards_that_are_all_behind_stay_within_the_buffers_and_all_come_on() -> None:
    """Each asks for no more than its share of the room, or than what it may have however short room is."""
    count, size, total = 16, 50_000, 2 << 20
    bound = total + count * 2 * size
    with running_emulator(tls=False, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=count)
        for index in range(count):
            key = str(index * (2**128 // count) + 1)
            record = {"Data": bytes(size), "PartitionKey": "k", "ExplicitHashKey": key}
            client.put_records(StreamName="s", Records=[record] * 20)
        start = StreamPositions({"s": {f"shardId-{n:012d}": ShardPosition.trim_horizon() for n in range(count)}})
        config = ReaderConfig(buffer_bytes_per_shard=1 << 20, buffer_bytes=total)
        backend = KinesisBackend(AwsSession(emulator_options(emulator.endpoint_url)), config.publisher)
        async with LocalShardReader(backend, config) as reader:
            epoch = await reader.open(request(start, record_publisher=RecordPublisherType.POLLING))
            async with asyncio.timeout(60):
                # What is awaited is in the reader's inner state.
                while any(one.condition.state is not ShardState.STARVED for one in await reader.stats("q")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert total <= reader.buffered_bytes <= bound
            position, rows = start, 0
            async with asyncio.timeout(120):
                while rows < 20 * count:
                    snapshot = await reader.positions("q", epoch, position, wait_seconds=5)
                    rows += len(await read(reader, position, snapshot.positions))
                    position = snapshot.positions
                    await reader.commit("q", epoch, position)
                    assert reader.buffered_bytes <= bound
            assert rows == 20 * count
            assert sum(stats.replays for stats in await reader.stats("q")) == 0
