"""A stream on an emulator, and a caller that reads it and logs positions: what tests of losses share."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardPosition,
    StreamConsumer,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._model.positions import after_record
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, RunningEmulator

PUBLISHERS = pytest.mark.parametrize("publisher", list(RecordPublisherType))
BEHAVIOURS = pytest.mark.parametrize(
    "behaviour", [Behaviour.kind(), Behaviour.hostile(seed=3)], ids=["kind", "hostile"]
)
READINGS = pytest.mark.parametrize(
    ("publisher", "behaviour"),
    [(RecordPublisherType.POLLING, Behaviour.kind()), (RecordPublisherType.EFO, Behaviour.hostile(seed=3))],
    ids=["polling-kind", "efo-hostile"],
)
"""Two points of the matrix; `test_a_shard_is_read_to_its_end_and_its_children_after_it` has all four."""
SHARD = "shardId-000000000000"
CONFIG = RecordPublisherConfig(resubscribe_interval=timedelta(milliseconds=50))


class World:
    """A stream on an emulator whose clock the test moves, and a caller that logs positions as JSON."""

    def __init__(
        self, emulator: RunningEmulator, clock: ManualClock, publisher: RecordPublisherType, *, shards: int = 1
    ) -> None:
        self.emulator = emulator
        self.clock = clock
        self.client = emulator.client()
        self._publisher = publisher
        self.consumers: tuple[StreamConsumer, ...] = ()
        self.positions: list[ShardPosition] = []
        """After each record that was put."""
        self.create(shards)

    def create(self, shards: int = 1) -> None:
        arn = (
            self.client.create_stream(StreamName="s", ShardCount=shards)
            and self.client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
        )
        if self._publisher is RecordPublisherType.EFO:
            consumer = self.client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
            self.consumers = (StreamConsumer("s", consumer["ConsumerARN"]),)

    def put(self, count: int = 1, padding: int = 0) -> list[bytes]:
        rows = []
        for _ in range(count):
            rows.append(f"row {self.clock.time():.3f}".encode() + bytes(padding))
            answer = self.client.put_record(StreamName="s", Data=rows[-1], PartitionKey="k")
            self.positions.append(after_record(answer["SequenceNumber"], int(self.clock.time() * 1000)))
            self.clock.advance(0.5)
        return rows

    def retain(self, hours: int) -> None:
        """Set the retention period; what it has ended for is gone at once, and does not come back."""
        summary = self.client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
        is_longer = hours > summary["RetentionPeriodHours"]
        change = (
            self.client.increase_stream_retention_period if is_longer else self.client.decrease_stream_retention_period
        )
        change(StreamName="s", RetentionPeriodHours=hours)

    def backend(self, config: RecordPublisherConfig = CONFIG) -> KinesisBackend:
        return KinesisBackend(AwsSession(emulator_options(self.emulator.endpoint_url)), config)

    def reader(self, publisher: RecordPublisherConfig = CONFIG, **options: Any) -> LocalShardReader:
        config = ReaderConfig(idle_offset_interval=timedelta(0), publisher=publisher, **options)
        return LocalShardReader(self.backend(publisher), config)

    async def open(self, reader: LocalShardReader, start: StreamPositions, *, named_shards_only: bool = False) -> int:
        request = OpenRequest(
            session_id="q",
            positions=start,
            record_publisher=self._publisher,
            consumers=self.consumers,
            named_shards_only=named_shards_only,
        )
        return await reader.open(request)

    async def open_and_read(self, reader: LocalShardReader, start: StreamPositions, rows: int) -> None:
        await self.read(reader, await self.open(reader, start), start, rows)

    async def read(
        self, reader: LocalShardReader, epoch: int, start: StreamPositions, rows: int
    ) -> tuple[StreamPositions, list[bytes]]:
        """Read on until so many rows came; time passes meanwhile."""
        found: list[bytes] = []
        position = start
        async with asyncio.timeout(120):
            while len(found) < rows:
                end = (await reader.positions("q", epoch, position, wait_seconds=0.1)).positions
                async for batch in reader.read_range("q", ranges_between(position, end)):
                    found += batch.column("data").to_pylist()
                position = StreamPositions.from_json(end.to_json())
                await reader.commit("q", epoch, position)
                self.clock.advance(0.5)
        return position, found


def horizon(shard: str = SHARD) -> StreamPositions:
    return StreamPositions({"s": {shard: ShardPosition.trim_horizon()}})


def at(position: ShardPosition) -> StreamPositions:
    return StreamPositions({"s": {SHARD: position}})
