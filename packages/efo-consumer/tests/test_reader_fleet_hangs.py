"""A reader of a fleet that neither answers nor refuses: it costs its own shards the lease's time, and nobody more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fleet_in_memory import SkippingLoop

from penstock.efo_consumer import (
    FleetShardReader,
    LocalShardReader,
    OpenRequest,
    PositionsSnapshot,
    ShardStats,
)
from penstock.efo_consumer._remote.resume import ANSWER_SECONDS
from penstock.efo_consumer.testing import FakeKinesis

LEASE_SECONDS = 10.0
ENDPOINTS = ["a:1", "b:1"]


class Stopped:
    """A reader whose process can be stopped: then nothing that it is asked comes to an end."""

    def __init__(self, local: LocalShardReader) -> None:
        self.local = local
        self.hangs = False

    async def open(self, request: OpenRequest) -> int:
        await self._hang()
        return await self.local.open(request)

    async def stats(self, session_id: str) -> list[ShardStats]:
        await self._hang()
        return await self.local.stats(session_id)

    async def positions(self, *arguments: Any, **options: Any) -> PositionsSnapshot:
        await self._hang()
        return await self.local.positions(*arguments, **options)

    async def aclose(self) -> None:
        """The reader stays."""

    async def _hang(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()


class Fleet:
    """A fleet of two over a stream of eight shards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.kinesis = FakeKinesis()
        self.shards = self.kinesis.create_stream("s", 8)
        self.start = self.kinesis.trim_horizon("s")
        self.readers = {name: Stopped(LocalShardReader(self.kinesis, clock=clock)) for name in ENDPOINTS}
        self.fleet = FleetShardReader(
            ENDPOINTS,
            lease_seconds=LEASE_SECONDS,
            clock=clock,
            connect=lambda endpoint, _: self.readers[endpoint],  # type: ignore[arg-type, return-value]  # by its methods
        )


def run(test: Callable[[Fleet, Callable[[], float]], Awaitable[None]]) -> None:
    """Run a test with a fleet, for two minutes of its time at most."""
    loop = SkippingLoop()

    async def with_fleet() -> None:
        made = Fleet(loop.time)
        try:
            async with asyncio.timeout(120):
                await test(made, loop.time)
        finally:
            await made.fleet.aclose()
            for reader in made.readers.values():
                await reader.local.aclose()

    try:
        loop.run_until_complete(with_fleet())
    finally:
        loop.close()


def test_a_reader_that_hangs_holds_up_its_own_shards_alone() -> None:
    """It is waited for once; to try whether it came back takes a moment, and after the lease others have its shards."""

    async def test(made: Fleet, clock: Callable[[], float]) -> None:
        epoch = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
        made.readers["b:1"].hangs = True
        for shard in made.shards:
            made.kinesis.put("s", shard)
        began, position, records = clock(), made.start, 0
        found = await made.fleet.positions("q", epoch, position, wait_seconds=5)
        assert 0 < found.records < len(made.shards)
        assert clock() - began <= 2 * ANSWER_SECONDS
        while (records := records + found.records) < len(made.shards):
            position = found.positions
            found = await made.fleet.positions("q", epoch, position, wait_seconds=5)
        assert LEASE_SECONDS <= clock() - began < 2 * LEASE_SECONDS

    run(test)


def test_a_reader_that_hangs_costs_the_others_no_lease() -> None:
    """While the caller is busy with a batch, those that answer are told that it is there."""

    async def test(made: Fleet, clock: Callable[[], float]) -> None:
        await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
        made.readers["b:1"].hangs = True
        await asyncio.sleep(6 * LEASE_SECONDS)
        assert [session.session_id for session in await made.readers["a:1"].local.sessions()] == ["q"]
        assert await made.readers["b:1"].local.sessions() == []

    run(test)
