"""One reader behind a socket, which is ended and started anew at its address under a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.efo_consumer import (
    SERVICE_NAME,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ReaderUnavailableError,
    ReopeningShardReader,
    SessionNotFoundError,
    ShardReaderServicer,
    StaleEpochError,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._remote.resume import Patience
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings


@asynccontextmanager
async def service(kinesis: FakeKinesis, address: str = "127.0.0.1:0") -> AsyncIterator[GrpcServer]:
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(LocalShardReader(kinesis, ReaderConfig()))
        settings = ServerSettings(port=int(address.rpartition(":")[2]), drain_seconds=0)
        yield await stack.enter_async_context(
            GrpcServer(settings, register=[ShardReaderServicer(local).add_to], service_names=[SERVICE_NAME])
        )


async def rows(reader: ReopeningShardReader, start: StreamPositions, end: StreamPositions) -> list[int]:
    found: list[int] = []
    async for batch in reader.read_range("q", ranges_between(start, end)):
        found += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
    return found


async def test_a_session_outlives_a_restart_of_its_service() -> None:
    """Told before it and read after it, or asked for while it is away: every record comes once, by the same epoch."""
    kinesis = FakeKinesis(event_records=3)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    restart = AsyncExitStack()
    server = await restart.enter_async_context(service(kinesis))
    reader = ReopeningShardReader(server.address, sleep=lambda _: back())

    is_away = False

    async def back() -> None:
        """What the first wait does: the service comes back. The channel takes a moment to see it."""
        nonlocal is_away
        if is_away:
            await restart.enter_async_context(service(kinesis, server.address))
            is_away = False
        await asyncio.sleep(0.05)

    epoch = await reader.open(OpenRequest(session_id="q", positions=start))
    kinesis.put("s", shard, 5)
    told = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
    await restart.aclose()
    is_away = True
    await reader.commit("q", epoch, start)
    (waiting,) = await reader.stats("q")
    assert "waits for its reader" in str(waiting.condition)
    read = await rows(reader, start, told)
    assert not is_away
    await restart.aclose()
    is_away = True
    kinesis.put("s", shard, 4)
    further = told
    while len(read) < 9:
        before, further = further, (await reader.positions("q", epoch, further, wait_seconds=5)).positions
        read += await rows(reader, before, further)
    await reader.commit("q", epoch, further)
    assert [one.shard_id for one in await reader.stats("q")] == [shard]
    assert read == next(iter(kinesis.shards.values())).sequence_numbers
    with pytest.raises(StaleEpochError):
        await reader.positions("q", epoch + 1, start)
    with pytest.raises(SessionNotFoundError):
        await reader.positions("other", epoch, start)
    await reader.close_session("q", epoch)
    await reader.aclose()
    await restart.aclose()


async def test_a_service_that_stays_away_is_told_after_the_time() -> None:
    """And at once where the session was never open, as with an address that is wrong."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async with service(kinesis) as server:
        reader = ReopeningShardReader(server.address, patience_seconds=3, clock=lambda: now, sleep=sleep)
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
    with pytest.raises(ReaderUnavailableError, match="UNAVAILABLE"):
        await reader.positions("q", epoch, start)
    assert now == 3
    with pytest.raises(ReaderUnavailableError):
        await reader.open(OpenRequest(session_id="q", positions=start))
    assert now == 3
    await reader.aclose()


class _Late(LocalShardReader):
    """A reader that does what it is asked to open when it is told to, whether or not its caller still waits."""

    def __init__(self, kinesis: FakeKinesis) -> None:
        super().__init__(kinesis)
        self.asked: asyncio.Queue[OpenRequest] = asyncio.Queue()
        self.is_stopped = True

    async def open(self, request: OpenRequest) -> int:
        if self.is_stopped:
            self.asked.put_nowait(request)
            await asyncio.Event().wait()
        return await super().open(request)


async def test_an_opening_that_is_done_late_does_not_supersede_the_next_one() -> None:
    """A caller gives up waiting for a reader, and opens again: what it asked for first has no session of its own."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    settings = ServerSettings(drain_seconds=0)
    async with _Late(kinesis) as late:
        register = [ShardReaderServicer(late).add_to]
        async with GrpcServer(settings, register=register, service_names=[SERVICE_NAME]) as server:
            reader = ReopeningShardReader(server.address)
            first = asyncio.create_task(reader.open(OpenRequest(session_id="q", positions=start)))
            abandoned = await asyncio.wait_for(late.asked.get(), 20)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            late.is_stopped = False
            epoch = await reader.open(OpenRequest(session_id="q", positions=start))
            await late.open(abandoned)
            kinesis.put("s", shard, 2)
            assert (await reader.positions("q", epoch, start, wait_seconds=5)).records > 0
            assert [one.epoch for one in await late.sessions()] == [epoch]
            await reader.aclose()


def test_failures_in_a_row_are_borne_for_a_time() -> None:
    """Anything that comes between them begins the time anew; a refusal is never borne."""
    away = ReaderUnavailableError(endpoint="e", reason="UNAVAILABLE: gone")
    patience = Patience(10)
    assert patience.pause(away, 0) == patience.pause(away, 9) > 0
    with pytest.raises(ReaderUnavailableError):
        patience.pause(away, 10)
    patience.worked()
    assert patience.pause(away, 20) > 0
    with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
        patience.pause(ReaderUnavailableError(endpoint="e", reason="UNAUTHENTICATED"), 20)
    with pytest.raises(ReaderUnavailableError):
        Patience(0).pause(away, 0)
