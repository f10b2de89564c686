"""The sessions of a reader, as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from penstock.efo_consumer import (
    SERVICE_NAME,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherType,
    RemoteShardReader,
    ShardReaderServicer,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def listing_at(home: str, local: LocalShardReader) -> AsyncIterator[LocalShardReader | RemoteShardReader]:
    if home == "local":
        yield local
        return
    settings = ServerSettings(drain_seconds=0)
    register = [ShardReaderServicer(local).add_to]
    async with GrpcServer(settings, register=register, service_names=[SERVICE_NAME]) as server:
        remote = RemoteShardReader(server.address)
        try:
            yield remote
        finally:
            await remote.aclose()


@pytest.mark.parametrize("home", ["local", "remote"])
async def test_sessions_are_listed_and_asking_keeps_none_alive(home: str) -> None:
    """By id, with their shards on request; listing does not count as a call."""
    kinesis, clock = FakeKinesis(), Clock()
    kinesis.create_stream("s", 2)
    config = ReaderConfig(session_timeout=timedelta(seconds=60))
    async with LocalShardReader(kinesis, config, clock=clock) as local, listing_at(home, local) as reader:
        assert await reader.sessions() == []
        for name in ("b", "a"):
            positions, polling = kinesis.trim_horizon("s"), RecordPublisherType.POLLING
            epoch = await local.open(OpenRequest(session_id=name, positions=positions, record_publisher=polling))
        first, second = await reader.sessions()
        assert (first.session_id, second.session_id) == ("a", "b")
        assert (first.epoch, first.shard_count, first.shards) == (epoch, 2, ())
        for seconds in (20.0, 40.0):
            clock.now = 100.0 + seconds
            first, _ = await reader.sessions(with_shards=True)
            assert (first.idle_seconds, first.time_to_live_seconds) == (seconds, 60.0 - seconds)
        assert [shard.stream_name for shard in first.shards] == ["s", "s"]
        await local.stats("a")
        first, _ = await reader.sessions()
        assert first.idle_seconds == 0


async def test_a_session_that_never_ends_has_no_time_to_live() -> None:
    """As is the default of readers in this process; over gRPC too."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    async with LocalShardReader(kinesis) as local, listing_at("remote", local) as reader:
        await local.open(OpenRequest(session_id="q", positions=kinesis.trim_horizon("s")))
        (session,) = await reader.sessions()
        assert session.time_to_live_seconds is None
