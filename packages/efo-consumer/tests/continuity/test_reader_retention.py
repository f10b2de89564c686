"""How long a stream keeps its records: asked rarely, and a period that changes under a reader hides no loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from reader_world import BEHAVIOURS, CONFIG, READINGS, SHARD, World, at, horizon

from penstock.aws import AwsServiceError, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CheckedRead,
    DataLossError,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    RecordPublisherType,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, running_emulator

HOUR = 3600.0
TWO_AT_ONCE = replace(CONFIG, get_records_max_records=2)
ONE_ANSWER = {"buffer_bytes_per_shard": 1, "buffer_bytes": 20 << 20}
"""The buffer has room for any answer, and is full with it."""
FAIL = pytest.mark.parametrize("fail", [True, False])

SHARDS = 300


async def test_the_shards_of_a_stream_ask_once() -> None:
    """All at the same moment, as when a session is opened where each stood yesterday: none is throttled."""
    with running_emulator() as emulator:
        client = emulator.client()
        for stream in ("a", "b"):
            client.create_stream(StreamName=stream, ShardCount=1)
        client.increase_stream_retention_period(StreamName="b", RetentionPeriodHours=48)
        backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
        try:
            async with asyncio.timeout(120):
                found = await asyncio.gather(*(backend.stream_facts("ab"[n % 2]) for n in range(SHARDS)))
            assert [facts.retention_millis // 3_600_000 for facts in found] == [24, 48] * (SHARDS // 2)
        finally:
            await backend.aclose()


async def test_a_stream_that_cannot_be_asked_about_is_asked_about_once() -> None:
    """Each shard gets the cause; none of them tries again while the others wait for it."""
    with running_emulator() as emulator:
        emulator.faults.add("error", operation="DescribeStreamSummary", code="AccessDeniedException", count=1)
        backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
        try:
            asked = (backend.stream_facts("a") for _ in range(SHARDS))
            found = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await backend.aclose()
    assert {type(one) for one in found} == {AwsServiceError}
    assert {one.code for one in found if isinstance(one, AwsServiceError)} == {"AccessDeniedException"}


def with_long_pages(behaviour: Behaviour) -> Behaviour:
    """A shard is read five times a second: shorter pages would take most of the time."""
    return behaviour if behaviour.page_span is None else replace(behaviour, page_span=timedelta(hours=8))


@asynccontextmanager
async def old_world(publisher: RecordPublisherType, behaviour: Behaviour) -> AsyncIterator[World]:
    """A stream that keeps records for 48 h, with six that are 30 h old, of which a reader gets two at a time."""
    clock = ManualClock()
    with running_emulator(
        clock=clock,
        behaviour=with_long_pages(behaviour),
        # An event of 800 kB, and then none for 20 s of the emulator's clock.
        subscription_bytes_per_second=40_000,
        shard_read_calls_per_second=None,
        shard_read_bytes_per_second=None,
    ) as emulator:
        world = World(emulator, clock, publisher)
        world.retain(48)
        world.put(6, padding=400_000)
        clock.advance(30 * HOUR)
        yield world


@FAIL
@READINGS
async def test_a_retention_period_that_is_lowered_under_a_reader_hides_no_loss(
    publisher: RecordPublisherType, behaviour: Behaviour, fail: bool
) -> None:
    """What it was seconds ago proves nothing: the third to sixth record are stepped over without a word."""
    async with old_world(publisher, behaviour) as world:
        start = at(world.positions[0])
        reader = world.reader(TWO_AT_ONCE, **ONE_ANSWER, fail_on_data_loss=fail)
        async with reader:
            epoch = await world.open(reader, start)
            position = (await reader.positions("q", epoch, start, wait_seconds=60)).positions
            assert position == at(world.positions[2])
            world.retain(24)
            world.put(2)
            if fail:
                with pytest.raises(DataLossError, match="keeps records for 24 h") as raised:
                    await _read_on(world, reader, epoch, start, position)
                assert (raised.value.shard_id, raised.value.after) == (SHARD, str(world.positions[2]))
                return
            await _read_on(world, reader, epoch, start, position)
            assert [stats.losses for stats in await reader.stats("q")] == [1]


async def _read_on(
    world: World, reader: LocalShardReader, epoch: int, start: StreamPositions, end: StreamPositions
) -> None:
    """Take a range, and read on for two more records."""
    assert [batch.num_rows async for batch in reader.read_range("q", ranges_between(start, end))] == [2]
    await reader.commit("q", epoch, end)
    world.clock.advance(25)
    await world.read(reader, epoch, end, 2)


@FAIL
@BEHAVIOURS
async def test_a_retention_period_that_is_lowered_while_a_range_is_read_again_hides_no_loss(
    behaviour: Behaviour, fail: bool
) -> None:
    """The range ends with its last record, and has a hole before it."""
    async with old_world(RecordPublisherType.POLLING, behaviour) as world:
        world.put(1)
        logged = ShardRange("s", SHARD, world.positions[0], world.positions[-1])
        async with world.reader(TWO_AT_ONCE, fail_on_data_loss=fail) as reader:
            batches = reader.read_range("q", [logged], max_batch_bytes=1)
            assert (await anext(batches)).num_rows
            world.retain(24)
            if fail:
                with pytest.raises(DataLossError, match="keeps records for 24 h"):
                    [batch async for batch in batches]
                return
            assert sum([batch.num_rows async for batch in batches]) < 5


@READINGS
async def test_a_retention_period_that_was_raised_too_late_hides_no_loss(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """The stream was not read for 30 h, and after 26 h its retention became 48 h: two hours of records are gone."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=with_long_pages(behaviour), enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(3)
        clock.advance(26 * HOUR)
        world.retain(48)
        clock.advance(4 * HOUR)
        world.put(2)
        async with world.reader() as reader:
            with pytest.raises(DataLossError, match=SHARD):
                await world.open_and_read(reader, at(world.positions[0]), 2)


@READINGS
async def test_a_shard_that_was_idle_for_longer_than_a_day_is_no_loss(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """Its last record has expired as it should, and the next one came 30 h ago: nothing speaks of a loss."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=with_long_pages(behaviour), enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.retain(48)
        world.put(1)
        clock.advance(20 * HOUR)
        caught_up = replace(world.positions[0], caught_up_millis=int(clock.time() * 1000))
        clock.advance(10)
        world.put(2)
        clock.advance(30 * HOUR)
        async with world.reader() as reader:
            await world.open_and_read(reader, at(caught_up), 2)
            assert [stats.losses for stats in await reader.stats("q")] == [0]


@BEHAVIOURS
async def test_a_retention_period_that_was_raised_in_time_is_no_loss(behaviour: Behaviour) -> None:
    """A user who is warned makes it longer: what it was seconds ago does not prove a loss either."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=with_long_pages(behaviour), enforce_limits=False) as emulator:
        world = World(emulator, clock, RecordPublisherType.POLLING)
        world.put(1)
        clock.advance(80 * HOUR)
        caught_up = replace(world.positions[0], caught_up_millis=int(clock.time() * 1000))
        clock.advance(10)
        world.put(1)
        backend = world.backend()
        try:
            assert (await backend.stream_facts("s")).retention_millis == 24 * 3_600_000
            world.retain(72)
            clock.advance(27 * HOUR)
            shard = CheckedRead(backend, "s", SHARD, fail_on_data_loss=True)
            assert sum([event.records.num_rows async for event in shard.events(caught_up)]) == 1
            await shard.prove()
        finally:
            await backend.aclose()


@BEHAVIOURS
async def test_a_shard_that_expired_before_the_retention_period_was_raised_is_lost(behaviour: Behaviour) -> None:
    """The new period says that it could not have expired: it is waited for, but not for ever."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, RecordPublisherType.POLLING)
        world.put(1)
        async with world.reader() as reader:
            position, _ = await world.read(reader, await world.open(reader, horizon()), horizon(), 1)
        world.put(1)
        world.client.split_shard(StreamName="s", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
        clock.advance(25 * HOUR)
        world.retain(72)
        async with world.reader() as reader:
            with pytest.raises(DataLossError, match=f"{SHARD}.*the shard is gone"):
                await world.open_and_read(reader, position, 1)


@BEHAVIOURS
async def test_a_range_that_is_taken_from_the_buffer_before_positions_are_asked_for_hides_no_loss(
    behaviour: Behaviour,
) -> None:
    """As by the tasks of a batch that was logged before a restart."""
    async with old_world(RecordPublisherType.POLLING, behaviour) as world:
        start = at(world.positions[0])
        async with world.reader(TWO_AT_ONCE, **ONE_ANSWER) as reader:
            epoch = await world.open(reader, start)
            await until_buffered(reader, 2)
            world.retain(24)
            world.put(1)
            third = at(world.positions[2])
            logged = ranges_between(third, at(world.positions[-1]))
            await reader.commit("q", epoch, third)
            await until_buffered(reader, 1)
            with pytest.raises(DataLossError, match="keeps records for 24 h"):
                [batch async for batch in reader.read_range("q", logged)]


async def until_buffered(reader: LocalShardReader, records: int) -> None:
    async with asyncio.timeout(120):
        while [stats.buffered_records for stats in await reader.stats("q")] != [records]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@FAIL
@BEHAVIOURS
async def test_a_bounded_read_over_a_lowered_retention_period_hides_no_loss(behaviour: Behaviour, fail: bool) -> None:
    """What it gave before it knew counts only once it is proved."""
    async with old_world(RecordPublisherType.POLLING, behaviour) as world:
        world.put(1)
        backend = world.backend(TWO_AT_ONCE)
        try:
            shard = CheckedRead(backend, "s", SHARD, fail_on_data_loss=fail)
            events = shard.events(world.positions[0])
            assert (await anext(events)).records.num_rows == 2
            await shard.prove()
            world.retain(24)
            assert sum([event.records.num_rows async for event in events]) == 1
            if fail:
                with pytest.raises(DataLossError, match="keeps records for 24 h"):
                    await shard.prove()
                return
            await shard.prove()
        finally:
            await backend.aclose()


async def test_a_session_that_failed_by_a_lowered_retention_period_goes_on_where_losses_are_allowed() -> None:
    """Opened again, it counts the hole that its buffer has."""
    async with old_world(RecordPublisherType.POLLING, Behaviour.kind()) as world:
        start = at(world.positions[0])
        async with world.reader(TWO_AT_ONCE, **ONE_ANSWER) as reader:
            epoch = await world.open(reader, start)
            end = (await reader.positions("q", epoch, start, wait_seconds=60)).positions
            world.retain(24)
            world.put(2)
            with pytest.raises(DataLossError):
                await _read_on(world, reader, epoch, start, end)
            request = OpenRequest(
                session_id="q",
                positions=end,
                record_publisher=RecordPublisherType.POLLING,
                fail_on_data_loss=False,
            )
            epoch = await reader.open(request)
            await world.read(reader, epoch, end, 2)
            assert all(stats.losses for stats in await reader.stats("q"))


async def test_facts_are_asked_for_four_times_a_second_at_most() -> None:
    """However many shards are a day behind, and want them fresh."""
    with running_emulator() as emulator:
        emulator.client().create_stream(StreamName="a", ShardCount=1)
        backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
        try:
            began = time.monotonic()
            for _ in range(4):
                await asyncio.gather(*(backend.stream_facts("a", is_fresh=True) for _ in range(10)))
            assert time.monotonic() - began >= 0.7
        finally:
            await backend.aclose()
