"""Streams that Kinesis is still creating: a start waits for them, and for no other stream that it cannot read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    Consumer,
    InitialPosition,
    InitialPositionError,
    InitialPositionType,
    ReaderConfig,
    RecordPublisherConfig,
    ShardPosition,
    StreamIdentity,
    call_patiently,
    list_shards,
    resolve_initial_positions,
    resolve_named_shards,
    stream_client,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.emulator._operations import shards as shard_operations
from penstock.emulator._operations.perform import OPERATIONS
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

ROOT = "shardId-000000000000"
CREATION = timedelta(seconds=40)


class World:
    """An emulator whose streams take 40 s of a moved clock to be created."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock) -> None:
        self.emulator, self.clock = emulator, clock
        self.client = emulator.client()
        self.options = emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))
        self.session = AwsSession(self.options)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Move the clock instead."""
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def resolve(self, start: InitialPosition | str = "LATEST", patience: float = 600) -> dict[str, ShardPosition]:
        found = resolve_initial_positions(
            self.session, ["s"], start, retry_patience=timedelta(seconds=patience), sleep=self.sleep
        )
        return {**found.streams["s"]}


@pytest.fixture
def world() -> Iterator[World]:
    clock = ManualClock()
    delays = {f"stream_{name}_delay": CREATION for name in ("creation", "deletion")}
    with running_emulator(clock=clock, enforce_limits=False, **delays) as emulator:
        yield World(emulator, clock)


@pytest.mark.parametrize(
    "start", ["LATEST", "TRIM_HORIZON", InitialPosition(InitialPositionType.AT_TIMESTAMP, 1_700_000_000_000)]
)
def test_start_waits_until_the_stream_is_active(
    world: World, caplog: pytest.LogCaptureFixture, start: InitialPosition | str
) -> None:
    """It says at once what it waits for, and for how long."""
    world.client.create_stream(StreamName="s", ShardCount=1)
    assert world.resolve(start).keys() == {ROOT}
    assert CREATION.total_seconds() <= sum(world.slept) < CREATION.total_seconds() + 5
    (told,) = (one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
    assert "stream s is CREATING" in told
    assert "600 s" in told


def test_latest_is_a_time_after_the_wait(world: World) -> None:
    """Nothing that comes after the start is skipped, and a reader does not begin before it."""
    begun = world.clock.time()
    world.client.create_stream(StreamName="s", ShardCount=1)
    millis = world.resolve()[ROOT].timestamp_millis
    assert millis is not None
    assert begun + CREATION.total_seconds() - 5 <= millis / 1000 <= world.clock.time()


def test_start_ends_with_the_status_when_its_patience_is_over(world: World) -> None:
    """The error has the stream and the service's code."""
    world.client.create_stream(StreamName="s", ShardCount=1)
    with pytest.raises(InitialPositionError) as caught:
        world.resolve(patience=10)
    assert (caught.value.stream, caught.value.code) == ("s", "ResourceInUseException")
    assert "CREATING" in caught.value.reason
    assert sum(world.slept) == 10


@pytest.mark.parametrize("exists", [True, False])
def test_start_does_not_wait_for_a_stream_that_is_going_or_missing(world: World, exists: bool) -> None:
    """A stream that is being deleted is named as such."""
    if exists:
        world.client.create_stream(StreamName="s", ShardCount=1)
        world.clock.advance(60)
        world.client.delete_stream(StreamName="s")
    with pytest.raises(InitialPositionError) as caught:
        world.resolve()
    assert ("DELETING" in caught.value.reason) is exists
    assert world.slept == []


def test_wait_ends_when_the_stream_is_deleted(world: World) -> None:
    """Its creation may fail, or somebody may delete it."""
    world.client.create_stream(StreamName="s", ShardCount=1)

    async def delete(seconds: float) -> None:
        world.client.delete_stream(StreamName="s")
        world.clock.advance(2 * CREATION.total_seconds())

    with pytest.raises(InitialPositionError) as caught:
        resolve_initial_positions(world.session, ["s"], "LATEST", sleep=delete)
    assert caught.value.code == "ResourceNotFoundException"


def test_start_does_not_wait_where_the_status_may_not_be_asked(world: World) -> None:
    """Nothing says then that the stream will ever be there."""
    world.client.create_stream(StreamName="s", ShardCount=1)
    world.emulator.faults.add("error", operation="DescribeStreamSummary", code="AccessDeniedException")
    with pytest.raises(InitialPositionError) as caught:
        world.resolve()
    assert caught.value.code == "ResourceInUseException"
    assert world.slept == []


def test_server_that_lists_the_shards_of_such_a_stream_is_waited_for_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse the first read."""
    monkeypatch.setitem(
        OPERATIONS,
        "ListShards",
        lambda kinesis, params, now: shard_operations.list_shards(kinesis, params, now + 3600),
    )
    world.client.create_stream(StreamName="s", ShardCount=1)
    assert world.resolve("TRIM_HORIZON").keys() == {ROOT}
    assert sum(world.slept) >= CREATION.total_seconds()


def test_named_shards_wait_for_their_stream(world: World) -> None:
    """They are listed when the stream is ACTIVE."""
    world.client.create_stream(StreamName="s", ShardCount=2)
    at = ShardPosition.at_timestamp(1_700_000_000_000)
    assert resolve_named_shards(world.session, "s", {ROOT: at}, sleep=world.sleep) == {ROOT: at}
    assert sum(world.slept) >= CREATION.total_seconds()


class _Advance(logging.Handler):
    """Moves the clock as soon as somebody says what it waits for."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__(logging.WARNING)
        self._then = then
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())
        self._then()


@pytest.fixture
def advance(world: World) -> Iterator[_Advance]:
    handler = _Advance(lambda: world.clock.advance(CREATION.total_seconds()))
    logger = logging.getLogger("penstock.efo_consumer._publish.creating")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_calls_with_patience_wait(world: World, advance: _Advance) -> None:
    """All of ListShards that a Spark query makes before it has positions."""
    patience, stream = timedelta(minutes=1), StreamIdentity("s")
    async with stream_client(world.session) as client:

        async def one() -> Any:
            request = {**stream.request, "MaxResults": 1}
            return await call_patiently(client, "ListShards", request, stream=stream, retry_patience=patience)

        async def all_of_them() -> Any:
            return await list_shards(client, stream, retry_patience=patience)

        for call in (one, all_of_them):
            world.client.create_stream(StreamName="s", ShardCount=1)
            assert await call()
            world.client.delete_stream(StreamName="s")
            with pytest.raises(RecordPublisherFatalError) as caught:
                await call()
            assert caught.value.stream == "s"
            world.clock.advance(CREATION.total_seconds())
    assert len(advance.told) == 2


async def test_consumer_reads_a_stream_that_is_being_created(world: World, advance: _Advance) -> None:
    """It waits as it is entered."""
    world.client.create_stream(StreamName="s", ShardCount=1)
    async with (
        asyncio.timeout(60),
        Consumer("s", start="TRIM_HORIZON", aws=world.options, checkpoints=None) as consumer,
    ):
        world.client.put_record(StreamName="s", Data=b"first", PartitionKey="k")
        async for batch in consumer:
            assert batch.records["data"].to_pylist() == [b"first"]
            break
    assert len(advance.told) == 1


async def test_a_consumer_waits_for_a_stream_as_long_as_its_config_says(world: World) -> None:
    """It begins at LATEST, which is asked of Kinesis before its reader is there."""
    world.client.create_stream(StreamName="s", ShardCount=1)
    config = ReaderConfig(publisher=RecordPublisherConfig(retry_patience=timedelta(seconds=1)))
    consumer = Consumer("s", start="LATEST", aws=world.options, checkpoints=None, config=config)
    async with asyncio.timeout(60):
        with pytest.raises(InitialPositionError, match="CREATING"):
            await consumer.__aenter__()
