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
    stream_client,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
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
    logger = logging.getLogger("penstock.efo_consumer._publish.list_shards")
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


async def test_a_consumer_waits_for_a_stream_as_long_as_its_config_says(world: World) -> None:
    """It begins at LATEST, which is asked of Kinesis before its reader is there."""
    world.client.create_stream(StreamName="s", ShardCount=1)
    config = ReaderConfig(publisher=RecordPublisherConfig(retry_patience=timedelta(seconds=1)))
    consumer = Consumer("s", start="LATEST", aws=world.options, checkpoints=None, config=config)
    async with asyncio.timeout(60):
        with pytest.raises(InitialPositionError, match="CREATING"):
            await consumer.__aenter__()
