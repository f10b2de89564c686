"""Live consumers and abandoned sessions, in both homes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest
from reader_homes import HOMES, reader_at

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    SessionNotFoundError,
    StreamPositions,
)
from penstock.efo_consumer.testing import FakeKinesis


@HOMES
async def test_a_live_consumer_gets_batches_with_the_positions_that_they_lead_to(home: str) -> None:
    """A consumer that begins again at any of these positions misses nothing and repeats nothing."""
    kinesis = FakeKinesis(event_records=3)
    shards = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    rows: list[int] = []
    async with reader_at(home, kinesis) as reader:
        reached, fresh = start, 0
        for _ in range(4):
            for shard in shards:
                kinesis.put("s", shard, 5)
            fresh += 10
            epoch = await reader.open(OpenRequest(session_id="q", positions=reached))
            async with aclosing(reader.follow("q", epoch, reached, max_records=4)) as batches:
                async for batch in batches:
                    if batch.records is not None:
                        rows += [int(number) for number in batch.records.column("sequenceNumber").to_pylist()]
                    if batch.reached is not None:
                        assert batch.reached.records <= 4
                        reached = batch.reached.positions
                        await reader.commit("q", epoch, reached)
                        if len(rows) >= fresh:
                            break
    assert sorted(rows) == sorted(n for shard in kinesis.shards.values() for n in shard.sequence_numbers)


@HOMES
async def test_a_slow_live_consumer_stops_the_reader(home: str) -> None:
    """What a consumer does not take stays at Kinesis, but for what the buffer and the connection hold."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 400, size=100_000)
    config = ReaderConfig(buffer_bytes_per_shard=1_000_000, buffer_bytes=1_000_000)
    async with reader_at(home, kinesis, config=config) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        async with aclosing(reader.follow("q", epoch, start, max_bytes=300_000)) as batches:
            await anext(batches)
            taken = -1
            async with asyncio.timeout(120):
                while taken != kinesis.events_taken:
                    taken = kinesis.events_taken
                    await asyncio.sleep(0.3)
            assert taken < 200
            rows = 0
            async for batch in batches:
                rows += batch.records.num_rows
                if rows >= 300:
                    break


async def test_a_session_that_nobody_calls_is_ended() -> None:
    """Its subscriptions and buffers go; a session with a long poll stays."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.put("s", shard, 3)
    start = kinesis.trim_horizon("s")
    async with LocalShardReader(kinesis, ReaderConfig(session_timeout=timedelta(seconds=0.3))) as reader:
        epoch = await reader.open(OpenRequest(session_id="used", positions=start))
        end = (await reader.positions("used", epoch, start, wait_seconds=5)).positions
        polling = asyncio.ensure_future(reader.positions("used", epoch, end, wait_seconds=1.5))
        forgotten = await reader.open(OpenRequest(session_id="forgotten", positions=start))
        async with asyncio.timeout(10):
            while "forgotten" in reader._sessions:  # noqa: ASYNC110  # what is awaited is in the reader's state
                await asyncio.sleep(0.05)
        with pytest.raises(SessionNotFoundError):
            await reader.positions("forgotten", forgotten, start)
        assert (await polling).positions == end
        assert StreamPositions.from_json(end.to_json()) == end
