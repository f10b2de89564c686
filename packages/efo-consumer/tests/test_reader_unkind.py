"""Reading from a service that is unkind, over sockets: nothing is lost, and what cannot be read is named."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    DataLossError,
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
from penstock.efo_consumer.errors import StreamRecreatedError
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

PUBLISHERS = pytest.mark.parametrize("publisher", list(RecordPublisherType))
BEHAVIOURS = pytest.mark.parametrize(
    "behaviour", [Behaviour.kind(), Behaviour.hostile(seed=3)], ids=["kind", "hostile"]
)
CONFIG = RecordPublisherConfig(resubscribe_interval=timedelta(milliseconds=50))


class World:
    """A stream of one shard on an emulator whose clock the test moves, and a caller that logs positions as JSON."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock, publisher: RecordPublisherType) -> None:
        self.emulator = emulator
        self.clock = clock
        self.client = emulator.client()
        self._publisher = publisher
        self.consumers: tuple[StreamConsumer, ...] = ()
        self.create()

    def create(self) -> None:
        arn = (
            self.client.create_stream(StreamName="s", ShardCount=1)
            and self.client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
        )
        if self._publisher is RecordPublisherType.EFO:
            consumer = self.client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
            self.consumers = (StreamConsumer("s", consumer["ConsumerARN"]),)

    def put(self, count: int = 1) -> list[bytes]:
        rows = []
        for _ in range(count):
            rows.append(f"row {self.clock.time():.3f}".encode())
            self.client.put_record(StreamName="s", Data=rows[-1], PartitionKey="k")
            self.clock.advance(0.5)
        return rows

    def reader(self, **options: Any) -> LocalShardReader:
        session = AwsSession(emulator_options(self.emulator.endpoint_url))
        config = ReaderConfig(idle_offset_interval=timedelta(0), publisher=CONFIG, **options)
        return LocalShardReader(KinesisBackend(session, CONFIG), config)

    async def open(self, reader: LocalShardReader, start: StreamPositions) -> int:
        request = OpenRequest(
            session_id="q", positions=start, record_publisher=self._publisher, consumers=self.consumers
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
        async with asyncio.timeout(30):
            while len(found) < rows:
                end = (await reader.positions("q", epoch, position, wait_seconds=0.1)).positions
                async for batch in reader.read_range("q", ranges_between(position, end)):
                    found += batch.column("data").to_pylist()
                position = StreamPositions.from_json(end.to_json())
                await reader.commit("q", epoch, position)
                self.clock.advance(0.5)
        return position, found


def horizon(shard: str = "shardId-000000000000") -> StreamPositions:
    return StreamPositions({"s": {shard: ShardPosition.trim_horizon()}})


@PUBLISHERS
@BEHAVIOURS
async def test_a_shard_is_read_to_its_end_and_its_children_after_it(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """Also where its subscriptions never bring the end, and where its children are listed late."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        written = world.put(3)
        async with world.reader() as reader:
            epoch = await world.open(reader, horizon())
            position, found = await world.read(reader, epoch, horizon(), 3)
            emulator.client().split_shard(
                StreamName="s", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
            )
            written += world.put(4)
            position, more = await world.read(reader, epoch, position, 4)
            assert sorted(found + more) == sorted(written)
            assert {stats.losses for stats in await reader.stats("q")} == {0}


@PUBLISHERS
@BEHAVIOURS
@pytest.mark.parametrize("fail", [True, False])
async def test_a_reader_slower_than_its_stream_at_the_edge_of_the_retention_is_told(
    publisher: RecordPublisherType, behaviour: Behaviour, fail: bool
) -> None:
    """Each position stays valid, and Kinesis steps over what expires ahead of it without a word."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        first = world.put(2)
        async with world.reader(fail_on_data_loss=fail) as reader:
            epoch = await world.open(reader, horizon())
            position, found = await world.read(reader, epoch, horizon(), 2)
            assert found == first
            await reader.close_session("q", epoch)
            clock.advance(3600)
            lost = world.put(3)
            clock.advance(24 * 3600 - 1)
            left = world.put(2)
            if fail:
                with pytest.raises(DataLossError, match="s/shardId-000000000000"):
                    await world.open_and_read(reader, position, 2)
                return
            epoch = await world.open(reader, position)
            _, found = await world.read(reader, epoch, position, 2)
            assert set(found) <= {*lost, *left}
            assert set(left) <= set(found)
            assert [stats.losses for stats in await reader.stats("q")] == [1]


@PUBLISHERS
@BEHAVIOURS
async def test_records_that_expire_ahead_of_an_open_reader_are_told(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """The reader is open all the time, and its caller takes a day over one micro-batch."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(2)
        async with world.reader(buffer_bytes_per_shard=1, buffer_bytes=1) as reader:
            epoch = await world.open(reader, horizon())
            position = (await reader.positions("q", epoch, horizon(), max_records=1, wait_seconds=5)).positions
            world.put(2)
            clock.advance(25 * 3600)
            world.put(1)
            with pytest.raises(DataLossError, match="s/shardId-000000000000"):
                async with asyncio.timeout(40):
                    await world.read(reader, epoch, position, 10)


@PUBLISHERS
@BEHAVIOURS
async def test_a_stream_that_was_made_again_is_another_one(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """A session that is opened at positions of the old stream says so, and when each was created."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(2)
        async with world.reader(fail_on_data_loss=False) as reader:
            epoch = await world.open(reader, horizon())
            position, _ = await world.read(reader, epoch, horizon(), 2)
        assert position.created.keys() == {"s"}
        world.client.delete_stream(StreamName="s", EnforceConsumerDeletion=True)
        clock.advance(5)
        world.create()
        world.put(2)
        async with world.reader(fail_on_data_loss=False) as reader:
            with pytest.raises(StreamRecreatedError, match="deleted and made again") as raised:
                await world.open(reader, position)
        assert raised.value.created_millis == position.created["s"]
        assert raised.value.current_millis > raised.value.created_millis


@PUBLISHERS
@BEHAVIOURS
async def test_a_running_query_is_told_that_its_stream_was_made_again(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """The refusal of its iterator, or of its consumer, is not taken for a loss or for a stream that is missing."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, publisher)
        world.put(2)
        async with world.reader(fail_on_data_loss=False) as reader:
            epoch = await world.open(reader, horizon())
            position, _ = await world.read(reader, epoch, horizon(), 2)
            world.client.delete_stream(StreamName="s", EnforceConsumerDeletion=True)
            clock.advance(5)
            world.create()
            world.put(1)
            with pytest.raises(StreamRecreatedError):
                async with asyncio.timeout(30):
                    await world.read(reader, epoch, position, 1)


@BEHAVIOURS
async def test_a_logged_range_is_read_again_exactly_or_called_lost(behaviour: Behaviour) -> None:
    """Batch 0 began at a time: it is compared with its first and last record, on both sides of the retention."""
    clock = ManualClock()
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        world = World(emulator, clock, RecordPublisherType.POLLING)
        start = StreamPositions(
            {"s": {"shardId-000000000000": ShardPosition.at_timestamp(int(clock.time() * 1000) - 2000)}}
        )
        began = clock.time()
        written = []
        for _ in range(4):
            written += world.put(1)
            clock.advance(2)
        async with world.reader() as reader:
            epoch = await world.open(reader, start)
            position, found = await world.read(reader, epoch, start, 4)
        assert found == written
        ranges = ranges_between(start, position)

        async def again(**options: Any) -> list[bytes]:
            async with world.reader(**options) as other:
                return [
                    row async for batch in other.read_range("x", ranges) for row in batch.column("data").to_pylist()
                ]

        assert await again() == written
        # The first two of the four expire.
        clock.advance(began + 24 * 3600 + 4 - clock.time())
        world.put(1)
        with pytest.raises(DataLossError):
            await again()
        assert await again(fail_on_data_loss=False) == written[2:]
