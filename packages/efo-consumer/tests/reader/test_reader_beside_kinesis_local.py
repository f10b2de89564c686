"""Reshards on kinesis-local, whose subscriptions to closed shards do not end: every record once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kinesis_local import running_kinesis_local

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    Consumer,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherType,
    ShardPosition,
    StreamConsumer,
    StreamPositions,
    ranges_between,
)
from penstock.emulator.testing import kinesis_client

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
QUICK = 20
"""How much faster than this machine's the reader's clock is."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_kinesis_local() as running:
        yield running


class World:
    """A stream of two shards, and what was put into it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client = kinesis_client(endpoint)
        self.stream = f"s-{uuid.uuid4().hex[:8]}"
        self.client.create_stream(StreamName=self.stream, ShardCount=2)
        self.arn = self._active()["StreamARN"]
        self.rows: list[str] = []

    def _active(self) -> dict[str, Any]:
        deadline = time.monotonic() + 10
        while True:
            summary: dict[str, Any] = self.client.describe_stream_summary(StreamName=self.stream)
            found: dict[str, Any] = summary["StreamDescriptionSummary"]
            if found["StreamStatus"] == "ACTIVE":
                return found
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def put(self, count: int = 60) -> None:
        rows = [f"row-{number}" for number in range(len(self.rows), len(self.rows) + count)]
        answer = self.client.put_records(
            StreamName=self.stream, Records=[{"Data": row.encode(), "PartitionKey": row} for row in rows]
        )
        assert not answer["FailedRecordCount"]
        self.rows += rows

    def split(self) -> None:
        self.client.split_shard(StreamName=self.stream, ShardToSplit=FIRST, NewStartingHashKey=str(2**126))
        self._active()

    def merge(self) -> None:
        """A child of the split with the other shard, which is one generation older."""
        child = "shardId-000000000003"
        self.client.merge_shards(StreamName=self.stream, ShardToMerge=child, AdjacentShardToMerge=SECOND)
        self._active()

    def consumer(self) -> StreamConsumer:
        registered = self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName=self.stream)["Consumer"]
        deadline = time.monotonic() + 10
        while True:
            listed = self.client.list_stream_consumers(StreamARN=self.arn)["Consumers"]
            if all(one["ConsumerStatus"] == "ACTIVE" for one in listed):
                return StreamConsumer(self.stream, registered["ConsumerARN"])
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def world(endpoint: str) -> World:
    return World(endpoint)


@pytest.mark.parametrize("publisher", list(RecordPublisherType))
async def test_every_record_is_read_once_over_a_split_and_a_merge(world: World, publisher: RecordPublisherType) -> None:
    """By each publisher. The merge joins a child of the split with an older shard."""
    consumers = (world.consumer(),) if publisher is RecordPublisherType.EFO else ()
    start = StreamPositions({world.stream: dict.fromkeys((FIRST, SECOND), ShardPosition.trim_horizon())})
    config = ReaderConfig(idle_offset_interval=timedelta(0))
    backend = KinesisBackend(AwsSession(emulator_options(world.endpoint)))
    rows: list[str] = []
    async with LocalShardReader(backend, config, clock=lambda: time.monotonic() * QUICK) as reader:
        request = OpenRequest(session_id="q", positions=start, record_publisher=publisher, consumers=consumers)
        epoch, position = await reader.open(request), start

        async def read() -> None:
            nonlocal position
            async with asyncio.timeout(60):
                while len(rows) < len(world.rows):
                    found = (await reader.positions("q", epoch, position, wait_seconds=QUICK)).positions
                    async for batch in reader.read_range("q", ranges_between(position, found)):
                        rows.extend(data.decode() for data in batch.column("data").to_pylist())
                    position = found

        world.put()
        await read()
        for reshard in (world.split, world.merge):
            await asyncio.to_thread(reshard)
            world.put()
            await read()
    assert sorted(rows) == sorted(world.rows)


async def test_a_consumer_reads_the_children_of_a_split(world: World, tmp_path: Path) -> None:
    """Enhanced fan-out, by this machine's clock: the closed shard is left within half a minute."""
    world.put()
    consumer = Consumer(
        world.stream,
        efo=world.stream,
        start="TRIM_HORIZON",
        checkpoints=tmp_path / "checkpoints",
        aws=emulator_options(world.endpoint),
        registry=tmp_path / "registry",
    )
    rows: list[str] = []
    async with asyncio.timeout(120), consumer:
        async for batch in consumer:
            rows += [data.decode() for data in batch.records.column("data").to_pylist()]
            if len(rows) == len(world.rows) == 60:
                await asyncio.to_thread(world.split)
                world.put()
            if len(rows) == 120:
                break
    assert sorted(rows) == sorted(world.rows)
