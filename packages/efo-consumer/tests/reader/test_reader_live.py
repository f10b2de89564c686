"""Live consumers and abandoned sessions, in both homes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from penstock.efo_consumer import (
    SERVICE_NAME,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RemoteShardReader,
    SessionNotFoundError,
    ShardReaderServicer,
    StaleEpochError,
    StreamPositions,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings

pytestmark = pytest.mark.parametrize("home", ["local", "remote"])


class Home:
    """A reader in this process or behind a socket, and the one that does the work."""

    def __init__(self, home: str, kinesis: FakeKinesis, **options: Any) -> None:
        self.local = LocalShardReader(kinesis, ReaderConfig(**options))
        self.reader: Any = self.local
        self._is_remote = home == "remote"
        settings = ServerSettings(drain_seconds=0)
        self._server = GrpcServer(
            settings, register=[ShardReaderServicer(self.local).add_to], service_names=[SERVICE_NAME]
        )

    async def __aenter__(self) -> Home:
        if self._is_remote:
            await self._server.__aenter__()
            self.reader = RemoteShardReader(self._server.address)
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._is_remote:
            await self.reader.aclose()
            await self._server.__aexit__(*error)
        await self.local.aclose()


async def test_a_live_consumer_gets_batches_with_the_positions_that_they_lead_to(home: str) -> None:
    """Whoever begins again at any of these positions misses nothing and repeats nothing."""
    kinesis = FakeKinesis(event_records=3)
    shards = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    rows: list[int] = []
    async with Home(home, kinesis) as at:
        reached, fresh = start, 0
        for _ in range(4):
            for shard in shards:
                kinesis.put("s", shard, 5)
            fresh += 10
            epoch = await at.reader.open(OpenRequest(session_id="q", positions=reached))
            async with aclosing(at.reader.follow("q", epoch, reached, max_records=4)) as batches:
                async for batch in batches:
                    if batch.records is not None:
                        rows += [int(number) for number in batch.records.column("sequenceNumber").to_pylist()]
                    if batch.reached is not None:
                        assert batch.reached.records <= 4
                        reached = batch.reached.positions
                        await at.reader.commit("q", epoch, reached)
                        if len(rows) >= fresh:
                            break
    assert sorted(rows) == sorted(n for shard in kinesis.shards.values() for n in shard.sequence_numbers)


async def test_a_slow_live_consumer_stops_the_reader(home: str) -> None:
    """What a consumer does not take stays at Kinesis, but for what the buffer and the connection hold."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 400, size=100_000)
    async with Home(home, kinesis, buffer_bytes_per_shard=1_000_000, buffer_bytes=1_000_000) as at:
        epoch = await at.reader.open(OpenRequest(session_id="q", positions=start))
        async with aclosing(at.reader.follow("q", epoch, start, max_bytes=300_000)) as batches:
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


async def test_a_predecessor_stops_following(home: str) -> None:
    """The stream of the old caller ends with the error that tells it to stop."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    request = OpenRequest(session_id="q", positions=kinesis.trim_horizon("s"))
    async with Home(home, kinesis) as at:
        epoch = await at.reader.open(request)
        batches = at.reader.follow("q", epoch, request.positions)
        waiting = asyncio.ensure_future(anext(batches))
        # Answered after the call began: both go over one connection.
        await at.reader.stats("q")
        await at.reader.open(request)
        with pytest.raises(StaleEpochError):
            await waiting


async def test_draining_ends_live_consumers(home: str) -> None:
    """A reader that is about to close ends their streams between two steps, without an error."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    request = OpenRequest(session_id="q", positions=kinesis.trim_horizon("s"))
    async with Home(home, kinesis) as at:
        batches = at.reader.follow("q", await at.reader.open(request), request.positions)
        waiting = asyncio.ensure_future(anext(batches, None))
        await at.reader.stats("q")
        at.local.drain()
        async with asyncio.timeout(5):
            assert await waiting is None


async def test_a_session_that_nobody_calls_is_ended(home: str) -> None:
    """Its subscriptions and buffers go; a session with a long poll stays."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.put("s", shard, 3)
    start = kinesis.trim_horizon("s")
    async with Home(home, kinesis, session_timeout=timedelta(seconds=0.3)) as at:
        epoch = await at.reader.open(OpenRequest(session_id="used", positions=start))
        end = (await at.reader.positions("used", epoch, start, wait_seconds=5)).positions
        polling = asyncio.ensure_future(at.reader.positions("used", epoch, end, wait_seconds=1.5))
        forgotten = await at.reader.open(OpenRequest(session_id="forgotten", positions=start))
        async with asyncio.timeout(10):
            while "forgotten" in at.local._sessions:  # noqa: ASYNC110  # what is awaited is in the reader's state
                await asyncio.sleep(0.05)
        with pytest.raises(SessionNotFoundError):
            await at.reader.positions("forgotten", forgotten, start)
        assert (await polling).positions == end
        assert StreamPositions.from_json(end.to_json()) == end
