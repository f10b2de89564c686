"""Streams that Kinesis is still creating: their records wait, and no record is charged for it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import AggregationConfig, AsyncSinkConfig, KinesisRequestEntry, KinesisStreamsSink
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

CREATION = 40.0
ENTRIES = [KinesisRequestEntry(data=b"%d" % number, partition_key=str(number)) for number in range(20)]


class World:
    """An emulator whose streams take 40 s of a moved clock to be created."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock) -> None:
        self.emulator, self.clock = emulator, clock
        self.client = emulator.client()

    def sink(self, **options: Any) -> KinesisStreamsSink:
        return KinesisStreamsSink(emulator_options(self.emulator.endpoint_url), "flights", **options)

    def held(self) -> list[bytes]:
        shard = {"StreamName": "flights", "ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self.client.get_shard_iterator(**shard)["ShardIterator"]
        return sorted(one["Data"] for one in self.client.get_records(ShardIterator=iterator)["Records"])


@pytest.fixture
def world() -> Iterator[World]:
    clock = ManualClock()
    delays = {f"stream_{name}_delay": timedelta(seconds=CREATION) for name in ("creation", "deletion")}
    with running_emulator(tls=False, clock=clock, enforce_limits=False, **delays) as emulator:
        yield World(emulator, clock)


class _Then(logging.Handler):
    """Does something as soon as the sink says what it waits for."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__(logging.WARNING)
        self._then = then
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())
        self._then()


@pytest.fixture
def when_told() -> Iterator[Callable[[Callable[[], object]], _Then]]:
    logger, handlers = logging.getLogger("penstock.async_sink._destinations.aws"), []

    def add(then: Callable[[], object]) -> _Then:
        handlers.append(_Then(then))
        logger.addHandler(handlers[-1])
        return handlers[-1]

    yield add
    for one in handlers:
        logger.removeHandler(one)


WhenTold = Callable[[Callable[[], object]], _Then]


async def write(sink: KinesisStreamsSink) -> Any:
    async with asyncio.timeout(60), sink.create_writer() as writer:
        for entry in ENTRIES:
            await writer.write(entry)
        await writer.flush(end_of_input=True)
        return writer.metrics


@pytest.mark.parametrize("config", [{}, {"max_attempts": 1}, {"fail_on_error": True}])
async def test_records_wait_until_the_stream_is_active(world: World, when_told: WhenTold, config: Any) -> None:
    """Attempts before that do not count; otherwise each record would be rejected."""
    told = when_told(lambda: world.clock.advance(CREATION))
    world.client.create_stream(StreamName="flights", ShardCount=1)
    metrics = await write(world.sink(config=AsyncSinkConfig(**config)))
    assert world.held() == sorted(one.data for one in ENTRIES)
    assert (metrics.records_out, metrics.rejected, metrics.throttled) == (len(ENTRIES), 0, 0)
    assert "CREATING" in metrics.last_failure
    assert [one for one in told.told if "flights is CREATING" in one]


async def test_aggregating_writer_opens_when_the_stream_is_active(world: World, when_told: WhenTold) -> None:
    """It asks for the shards before its first record."""
    told = when_told(lambda: world.clock.advance(CREATION))
    world.client.create_stream(StreamName="flights", ShardCount=1)
    metrics = await write(world.sink(aggregation=AggregationConfig()))
    assert metrics.records_out == len(ENTRIES)
    assert len(told.told) == 1
