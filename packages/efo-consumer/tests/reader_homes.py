"""A reader over streams in memory, in this process or a fleet of one behind a socket, for tests of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.efo_consumer import (
    READ_SCHEMA,
    SERVICE_NAME,
    FleetShardReader,
    LocalShardReader,
    OpenRequest,
    ShardPosition,
    ShardRange,
    ShardReader,
    ShardReaderServicer,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings

HOMES = pytest.mark.parametrize("home", ["local", "remote"])
END = ShardPosition.shard_end()


@asynccontextmanager
async def reader_at(home: str, kinesis: FakeKinesis, **options: Any) -> AsyncIterator[Any]:
    """A reader over streams in memory, in this process or behind a socket."""
    async with LocalShardReader(kinesis, **options) as local, home_of(local, home) as reader:
        yield reader


@asynccontextmanager
async def home_of(local: LocalShardReader, home: str) -> AsyncIterator[ShardReader]:
    """The reader itself, or the same one behind a socket."""
    if home == "local":
        yield local
        return
    register = [ShardReaderServicer(local).add_to]
    async with GrpcServer(ServerSettings(drain_seconds=0), register=register, service_names=[SERVICE_NAME]) as server:
        remote = FleetShardReader([server.address])
        try:
            yield remote
        finally:
            await remote.aclose()


def request(positions: StreamPositions, session_id: str = "q", **options: Any) -> OpenRequest:
    return OpenRequest(session_id=session_id, positions=positions, **options)


async def until(condition: Callable[[], bool]) -> None:
    """Let the reader's tasks run until the condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # what is awaited is in the reader's inner state
            await asyncio.sleep(0.001)


async def numbers_of(reader: ShardReader, ranges: list[ShardRange], **options: Any) -> list[int]:
    """The sequence numbers of ranges."""
    rows: list[int] = []
    async for batch in reader.read_range("q", ranges, **options):
        assert batch.schema == READ_SCHEMA
        rows += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
    return rows


async def read(reader: ShardReader, start: StreamPositions, end: StreamPositions) -> list[int]:
    return await numbers_of(reader, ranges_between(start, end))
