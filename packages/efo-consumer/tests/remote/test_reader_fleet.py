"""Several readers as one: shards are spread, and move when their reader is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from reader_homes import read

from penstock.efo_consumer import (
    SERVICE_NAME,
    FleetShardReader,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ReaderUnavailableError,
    RemoteShardReader,
    ShardPosition,
    ShardReaderServicer,
    StaleEpochError,
    StreamPositions,
)
from penstock.efo_consumer._remote.members import Members, place
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings

LEASE_SECONDS = 0.6


@dataclass
class Instance:
    """One reader behind a socket."""

    address: str
    local: LocalShardReader
    stop: Callable[[], Awaitable[None]]


@asynccontextmanager
async def instance(kinesis: FakeKinesis, port: int = 0, **options: object) -> AsyncIterator[Instance]:
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(LocalShardReader(kinesis, ReaderConfig(**options)))  # type: ignore[arg-type]  # any of its options
        settings = ServerSettings(port=port, drain_seconds=0)
        server = await stack.enter_async_context(
            GrpcServer(settings, register=[ShardReaderServicer(local).add_to], service_names=[SERVICE_NAME])
        )
        yield Instance(server.address, local, stack.aclose)


@asynccontextmanager
async def fleet_of(*instances: Instance) -> AsyncIterator[FleetShardReader]:
    fleet = FleetShardReader([one.address for one in instances], lease_seconds=LEASE_SECONDS)
    try:
        yield fleet
    finally:
        await fleet.aclose()


class Loop:
    """Positions, exactly the range, commit: and every row that came."""

    def __init__(self, fleet: FleetShardReader, epoch: int, start: StreamPositions) -> None:
        self.fleet, self.epoch, self.at = fleet, epoch, start
        self.rows: list[int] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                found = await self.fleet.positions("q", self.epoch, self.at, wait_seconds=0.5, max_records=7)
                assert found.records <= 7
                self.rows += await read(self.fleet, self.at, found.positions)
                self.at = found.positions
                await self.fleet.commit("q", self.epoch, self.at)


def written(kinesis: FakeKinesis) -> list[int]:
    return sorted(number for shard in kinesis.shards.values() for number in shard.sequence_numbers)


async def until_buffered(fleet: FleetShardReader, epoch: int, start: StreamPositions, records: int) -> None:
    """Wait until the readers hold so many records."""
    async with asyncio.timeout(60):
        while sum(stats.buffered_records for stats in await fleet.stats("q")) < records:
            await fleet.positions("q", epoch, start)


async def test_a_step_asks_each_reader_once_however_many_shards_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring shards are rarely the same reader's: a call for each run of them took seconds of a step."""
    asked: list[str] = []
    read = RemoteShardReader.read_range

    def counted(self: RemoteShardReader, *arguments: Any, **options: Any) -> Any:
        asked.append(self._endpoint)
        return read(self, *arguments, **options)

    monkeypatch.setattr(RemoteShardReader, "read_range", counted)
    kinesis = FakeKinesis()
    shards = kinesis.create_stream("s", 40)
    start = kinesis.trim_horizon("s")
    for shard in shards:
        kinesis.put("s", shard, 2)
    async with instance(kinesis) as one, instance(kinesis) as two, fleet_of(one, two) as fleet:
        epoch = await fleet.open(OpenRequest(session_id="q", positions=start))
        rows, steps = 0, 0
        async with asyncio.timeout(120), aclosing(fleet.follow("q", epoch, start)) as batches:
            async for batch in batches:
                rows += 0 if batch.records is None else batch.records.num_rows
                steps += batch.reached is not None
                if rows == 80 and batch.reached is not None:
                    break
        assert len(asked) <= 2 * steps


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_records": 20}, 20),
        ({"max_bytes": 2000}, 20),
        ({"max_records": 15, "max_bytes": 10_000}, 15),
        ({"max_records": 20, "max_records_per_shard": 3}, 3),
    ],
)
async def test_what_one_reader_does_not_need_of_the_limits_another_may_give(limits: Any, most: int) -> None:
    """The only shard is one reader's: its steps are as large as if it were alone, and no larger."""
    kinesis = FakeKinesis(event_records=2)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 40, size=91)  # 100 bytes with the partition key
    async with instance(kinesis) as one, instance(kinesis) as two, fleet_of(one, two) as fleet:
        epoch = await fleet.open(OpenRequest(session_id="q", positions=start))
        await until_buffered(fleet, epoch, start, 40)
        position = start
        for _ in range(2):
            found = await fleet.positions("q", epoch, position, **limits)
            assert found.records == most
            assert len(await read(fleet, position, found.positions)) == most
            position = found.positions


@pytest.mark.parametrize("limits", [{"max_records": 12}, {"max_bytes": 1200}])
async def test_several_readers_give_what_arrived_first(limits: Any) -> None:
    """A limit cuts the shards of all readers at the same arrival time, and is used up."""
    kinesis = FakeKinesis(event_records=2)
    shards = kinesis.create_stream("s", 30)
    start = kinesis.trim_horizon("s")
    for count in (4, 1, 2):
        for shard in shards[:20]:
            kinesis.put("s", shard, count, size=91)  # 100 bytes with the partition key
    async with (
        instance(kinesis) as one,
        instance(kinesis) as two,
        instance(kinesis) as three,
        fleet_of(one, two, three) as fleet,
    ):
        epoch = await fleet.open(OpenRequest(session_id="q", positions=start))
        await until_buffered(fleet, epoch, start, len(written(kinesis)))
        position, rows = start, list[int]()
        for _ in range(5):
            found = await fleet.positions("q", epoch, position, **limits)
            assert found.records == 12
            rows += await read(fleet, position, found.positions)
            assert sorted(rows) == written(kinesis)[: len(rows)]
            position = found.positions


async def test_shards_are_told_by_the_reader_that_has_them_or_that_they_wait_for() -> None:
    """Also while none is left: by one that was there, with the cause; no shard is reported twice."""
    kinesis = FakeKinesis()
    shards = set(kinesis.create_stream("s", 8))
    start = kinesis.trim_horizon("s")
    now = 0.0
    async with instance(kinesis) as one, instance(kinesis) as two:
        addresses = (one.address, two.address)
        fleet = FleetShardReader(addresses, lease_seconds=LEASE_SECONDS, clock=lambda: now)
        await fleet.open(OpenRequest(session_id="q", positions=start))
        shares = {one: set(part.streams.get("s", ())) for one, part in place(start, addresses).items()}

        async def told() -> tuple[dict[str, set[str]], list[str]]:
            found = await fleet.stats_by_reader("q")
            causes = [stats.condition.cause for part in found.values() for stats in part]
            return {endpoint: {stats.shard_id for stats in part} for endpoint, part in found.items()}, causes

        assert (await told())[0] == shares
        await two.stop()
        found, causes = await told()
        assert found == shares
        assert sum("moves to another" in cause for cause in causes) == len(shares[two.address])
        await one.stop()
        await told()
        now += 2 * LEASE_SECONDS
        found, causes = await told()
        assert [*found.values()] == [shards]
        assert all("waits for its reader" in cause for cause in causes)
        await fleet.aclose()


async def test_a_successor_fences_its_predecessor_on_every_reader() -> None:
    """The run of the old caller is over; the error names the new owner."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s", 4)
    start = kinesis.trim_horizon("s")
    async with instance(kinesis) as one, instance(kinesis) as two, fleet_of(one, two) as old, fleet_of(one, two) as new:
        request = OpenRequest(session_id="q", positions=start)
        epoch = await old.open(request)
        await new.open(replace(request, owner="the successor"))
        with pytest.raises(StaleEpochError):
            await old.positions("q", epoch, start)
        # Neither may it come back where its successor is not known yet.
        with pytest.raises(StaleEpochError, match="the successor"):
            await old.open(replace(request, epoch=epoch))


async def test_a_fleet_that_cannot_be_reached_is_told() -> None:
    """Opening needs one reader at least; with one the others are tried again later."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.put("s", shard, 2)
    start = kinesis.trim_horizon("s")
    async with instance(kinesis) as one, instance(kinesis) as two:
        await two.stop()
        async with fleet_of(two) as fleet:
            with pytest.raises(ReaderUnavailableError):
                await fleet.open(OpenRequest(session_id="q", positions=start))
        async with fleet_of(one, two) as fleet:
            epoch = await fleet.open(OpenRequest(session_id="q", positions=start))
            assert (await fleet.positions("q", epoch, start, wait_seconds=5)).records == 2


async def test_idle_shards_advance_together() -> None:
    """Moves without records come after the interval, though a poll received them."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s", 4)
    start = kinesis.trim_horizon("s")
    interval = timedelta(seconds=0.2)
    async with (
        instance(kinesis, idle_offset_interval=interval) as one,
        instance(kinesis, idle_offset_interval=interval) as two,
        fleet_of(one, two) as fleet,
    ):
        epoch = await fleet.open(OpenRequest(session_id="q", positions=start))
        kinesis.idle()
        found = await fleet.positions("q", epoch, start, wait_seconds=5)
        assert found.positions != start
        assert found.records == 0


def test_a_reader_owns_its_shards_until_its_lease_is_over() -> None:
    """Placement is the same for everybody, and moves only the shards of the reader that is gone."""
    endpoints = ["a:1", "b:1", "c:1"]
    members = Members(lease_seconds=10)
    for endpoint in endpoints:
        members.join(endpoint)
    assert members.owners(0) == []
    for endpoint in endpoints:
        members.serve(endpoint)
    positions = StreamPositions({"s": {f"shard-{n}": ShardPosition.trim_horizon() for n in range(50)}})
    before = place(positions, members.owners(0))
    failure = ReaderUnavailableError(endpoint="b:1", reason="UNAVAILABLE")
    assert members.fail(failure, 5)
    assert not members.fail(failure, 9)
    assert members.owners(14.9) == endpoints
    assert members.deadline(14) == 1
    after = place(positions, members.owners(15))
    assert set(after) == {"a:1", "c:1"}
    for endpoint, part in after.items():
        assert set(part.streams["s"]) >= set(before[endpoint].streams["s"])


async def test_readers_join_and_leave_a_session_that_goes_on() -> None:
    """One that joins takes its share and no more; the shards of one that leaves flow again before its lease ends."""
    kinesis = FakeKinesis(event_records=3)
    shards = kinesis.create_stream("s", 12)
    start = kinesis.trim_horizon("s")
    async with instance(kinesis) as one, instance(kinesis) as two, instance(kinesis) as three:
        there = [one.address]
        fleet = FleetShardReader(lambda: there, lease_seconds=3600)
        try:
            loop = Loop(fleet, await fleet.open(OpenRequest(session_id="q", positions=start)), start)

            async def put_and_read() -> None:
                for shard in shards:
                    kinesis.put("s", shard, 3)
                await loop.until(lambda: len(loop.rows) == len(written(kinesis)))

            await put_and_read()
            assert fleet.endpoint == one.address
            for joined in (two, three):
                before = place(loop.at, there)
                there.append(joined.address)
                await put_and_read()
                assert fleet.endpoint == ",".join(there)
                placed = place(loop.at, there)
                for each in (reader for reader in (one, two, three) if reader.address in there):
                    mine = set(placed[each.address].streams.get("s", ()))
                    assert {s.shard_id for s in await each.local.stats("q")} == mine
                    assert each is joined or mine <= set(before.get(each.address, StreamPositions({})).streams["s"])
            there.remove(one.address)
            await one.stop()
            await put_and_read()
            assert fleet.endpoint == ",".join(there)
            assert fleet.away == []
            there.append(one.address)  # not running: it is waited for, like any reader that does not answer
            await loop.until(lambda: fleet.away == [one.address])
            there.remove(one.address)
            await put_and_read()
            assert sorted(loop.rows) == written(kinesis)
        finally:
            await fleet.aclose()


@pytest.mark.parametrize(
    ("settings", "known"), [(["all", "all"], "all"), ([True, "all"], None), ([False, False], False)], ids=str
)
async def test_fleet_knows_what_its_readers_do_with_aggregates(settings: list[Any], known: Any) -> None:
    """A task that reads in their place does the same; where they differ, none does."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s", 2)
    request = OpenRequest(session_id="q", positions=kinesis.trim_horizon("s"))
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(instance(kinesis, deaggregate=one)) for one in settings]
        fleet = await stack.enter_async_context(fleet_of(*members))
        await fleet.open(request)
        assert fleet.deaggregates == known


async def test_a_session_waits_for_a_first_reader_and_ends_with_the_last_word_of_its_fleet() -> None:
    """Without readers for now it waits, and says so; when there will be none it fails with what it was given."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    looks = 0

    class StoppedError(Exception):
        pass

    async with instance(kinesis) as one:

        def there() -> list[str]:
            nonlocal looks
            looks += 1
            if looks > 5:
                raise StoppedError
            return [one.address] if looks in (2, 3) else []

        fleet = FleetShardReader(there)
        try:
            epoch = await fleet.open(OpenRequest(session_id="q", positions=start))
            await fleet.positions("q", epoch, start)
            assert looks == 3

            with pytest.raises(StoppedError):
                await fleet.positions("q", epoch, start)
            assert {s.condition.cause for s in await fleet.stats("q")} == {"waits for its reader: none is there"}
            # For tasks that were planned by then, and read from Kinesis itself.
            assert (fleet.endpoint, fleet.deaggregates) == (one.address, True)
        finally:
            await fleet.aclose()

        empty = FleetShardReader(list, patience_seconds=0)
        with pytest.raises(ReaderUnavailableError, match="no reader is there"):
            await empty.open(OpenRequest(session_id="q", positions=start))


async def test_a_session_outlives_restarts_of_its_only_reader() -> None:
    """A range that was planned before a restart, and records that are asked for while it is away, come once."""
    kinesis = FakeKinesis(event_records=3)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with instance(kinesis) as only, fleet_of(only) as fleet:
        loop = Loop(fleet, await fleet.open(OpenRequest(session_id="q", positions=start)), start)
        port = int(only.address.rpartition(":")[2])
        kinesis.put("s", shard, 5)
        planned = (await fleet.positions("q", loop.epoch, start, wait_seconds=5)).positions
        await only.stop()
        async with instance(kinesis, port) as second:
            loop.rows += await read(fleet, start, planned)
            loop.at = planned
            await second.stop()
        kinesis.put("s", shard, 4)
        reading = asyncio.create_task(loop.until(lambda: len(loop.rows) == 9))
        async with instance(kinesis, port):
            await reading
            assert [one.shard_id for one in await fleet.stats("q")] == [shard]
        assert loop.rows == written(kinesis)
