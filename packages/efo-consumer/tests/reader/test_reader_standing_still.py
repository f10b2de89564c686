"""Shards whose answers lead nowhere: ListShards says whether they are open, and closed ones are polled to their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import pytest
from reader_homes import read

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisher,
    RecordPublisherConfig,
    RecordPublisherType,
    Shard,
    ShardEvent,
    ShardPosition,
    ShardState,
    ShardStats,
    StreamConsumer,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._publish.list_shards import STILL_SECONDS, ShardListings
from penstock.efo_consumer._reader.shard import StandingShard
from penstock.efo_consumer.testing import FakeKinesis, FakePublisher, shard_event, wire_records
from penstock.emulator import Behaviour
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator

HALF = str(2**127)
QUICK = 20
"""How much faster than this machine's the reader's clock is."""
CONFIG = ReaderConfig(idle_offset_interval=timedelta(0))
PUBLISHERS = pytest.mark.parametrize("publisher", list(RecordPublisherType))


class Reading:
    """A session over an emulator, and what it gave."""

    def __init__(self, emulator: RunningEmulator, publisher: RecordPublisherType, shards: int = 1) -> None:
        self.client = emulator.client()
        self.client.create_stream(StreamName="s", ShardCount=shards)
        self.shards = [one["ShardId"] for one in self.client.list_shards(StreamName="s")["Shards"]]
        self.consumers: tuple[StreamConsumer, ...] = ()
        if publisher is RecordPublisherType.EFO:
            arn = self.client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
            consumer = self.client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
            self.consumers = (StreamConsumer("s", consumer["ConsumerARN"]),)
        self.publisher = publisher
        config = RecordPublisherConfig(resubscribe_interval=timedelta(milliseconds=50))
        backend = KinesisBackend(AwsSession(emulator_options(emulator.endpoint_url)), config)
        self.reader = LocalShardReader(backend, CONFIG, clock=lambda: time.monotonic() * QUICK)
        self.position = StreamPositions({"s": dict.fromkeys(self.shards, ShardPosition.trim_horizon())})
        self.put_rows: list[str] = []
        self.rows: list[str] = []
        self.came: dict[str, int] = {}
        self.looks: list[list[ShardStats]] = []

    async def open(self, *, named_shards_only: bool = False) -> None:
        request = OpenRequest(
            session_id="q",
            positions=self.position,
            record_publisher=self.publisher,
            consumers=self.consumers,
            named_shards_only=named_shards_only,
        )
        self.epoch = await self.reader.open(request)

    def put(self, count: int = 20) -> None:
        rows = [f"row-{number}" for number in range(len(self.put_rows), len(self.put_rows) + count)]
        answer = self.client.put_records(
            StreamName="s", Records=[{"Data": row.encode(), "PartitionKey": row} for row in rows]
        )
        assert not answer["FailedRecordCount"]
        self.put_rows += rows

    async def step(self, max_shard_skew_seconds: float | None = None) -> None:
        found = await self.reader.positions(
            "q",
            self.epoch,
            self.position,
            wait_seconds=0.1 * QUICK,
            max_shard_skew_seconds=max_shard_skew_seconds,
        )
        self.lineage = found.lineage
        async for batch in self.reader.read_range("q", ranges_between(self.position, found.positions)):
            rows = [data.decode() for data in batch.column("data").to_pylist()]
            self.rows += rows
            self.came.update(dict.fromkeys(rows, len(self.looks)))
        self.position = found.positions
        self.looks.append(await self.reader.stats("q"))

    async def read(self, max_shard_skew_seconds: float | None = None) -> None:
        async with asyncio.timeout(60):
            while len(self.rows) < len(self.put_rows):
                await self.step(max_shard_skew_seconds)

    def seen(self, shard: str) -> list[ShardStats]:
        return [one for look in self.looks for one in look if one.shard_id == shard]


@contextmanager
def emulator(behaviour: Behaviour, clock: OtherClock | None = None) -> Iterator[RunningEmulator]:
    with running_emulator(
        tls=False,
        clock=clock,
        behaviour=behaviour,
        consumer_creation_delay=timedelta(0),
        idle_event_interval=timedelta(milliseconds=100),
        resubscribe_interval=timedelta(0),
    ) as running:
        yield running


def split(reading: Reading) -> None:
    reading.client.split_shard(StreamName="s", ShardToSplit=reading.shards[0], NewStartingHashKey=HALF)


@PUBLISHERS
async def test_a_closed_shard_that_gives_nothing_is_stuck_and_then_read_to_its_end(
    publisher: RecordPublisherType,
) -> None:
    """By enhanced fan-out and by polling. From when it is known to be closed it never counts as caught up."""
    with emulator(Behaviour(subscriptions_outlive_shards=True, empty_answers=10)) as running:
        reading = Reading(running, publisher)
        async with reading.reader:
            await reading.open()
            reading.put()
            await reading.read()
            split(reading)
            reading.put()
            await reading.read()
    assert sorted(reading.rows) == sorted(reading.put_rows)
    seen = reading.seen(reading.shards[0])
    states = [one.condition.state for one in seen]
    since = states.index(ShardState.STUCK)
    assert set(states[since:]) <= {ShardState.STUCK, ShardState.READING, ShardState.ENDED}
    stuck = [one for one in seen if one.condition.state is ShardState.STUCK]
    assert all("closed" in one.condition.cause for one in stuck)
    # Nothing is known of its tip: the lag grows from the last answer that was one of an open shard.
    assert all(one.millis_behind_latest for one in stuck[1:])


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_a_merged_shard_is_read_though_its_parents_end_in_different_ways(seed: int) -> None:
    """By chance a subscription of a parent ends without an event, or does not end."""
    with emulator(Behaviour(subscriptions_outlive_shards=True, shard_end_without_event=True, seed=seed)) as running:
        reading = Reading(running, RecordPublisherType.EFO, shards=2)
        async with reading.reader:
            await reading.open()
            reading.put()
            await reading.read()
            first, second = reading.shards
            reading.client.merge_shards(StreamName="s", ShardToMerge=first, AdjacentShardToMerge=second)
            reading.put()
            await reading.read()
    assert sorted(reading.rows) == sorted(reading.put_rows)


class StillKinesis(FakeKinesis):
    """Subscriptions without continuations of their own, as other servers have them; and a clock to be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.listed_at: list[float] = []

    async def tick(self, seconds: float) -> None:
        """Let time pass, second by second, with an event in each."""
        for _ in range(int(seconds)):
            self.now += 1
            self.tip += 99
            self.idle()
            for _ in range(20):
                await asyncio.sleep(0)

    async def list_shards(self, stream_name: str) -> list[Shard]:
        self.listed_at.append(self.now)
        return await super().list_shards(stream_name)

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        if record_publisher is RecordPublisherType.POLLING:
            return super().record_publisher(record_publisher, consumer_arns)
        return FakePublisher(self.subscribe)

    async def subscribe(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        number = int(position.sequence_number or 0)
        async for event in self.follow(stream, shard_id, position):
            if event.records.num_rows:
                number = int(event.records.column("sequenceNumber")[-1].as_py())
            millis = self.service_millis()
            yield shard_event(event.records, number, caught_up_millis=millis, read_millis=millis)
            while event.child_shards:
                # It is over, and does not say so.
                await self._changed.wait(3600)
                millis = self.service_millis()
                yield shard_event(wire_records([]), number, caught_up_millis=millis, read_millis=millis)


async def open_still(kinesis: StillKinesis, reader: LocalShardReader) -> int:
    request = OpenRequest(
        session_id="q",
        positions=kinesis.trim_horizon("s"),
        record_publisher=RecordPublisherType.EFO,
        consumers=(StreamConsumer("s", "arn:aws:kinesis:us-east-1:123456789012:stream/s/consumer/c:1"),),
    )
    return await reader.open(request)


async def test_open_shards_that_stand_still_share_one_list_now_and_then() -> None:
    """They stay caught up. What they prove of their children is as old as the list that showed them open."""
    kinesis = StillKinesis()
    shards = kinesis.create_stream("s", 3)
    async with LocalShardReader(kinesis, CONFIG, clock=lambda: kinesis.now) as reader:
        epoch = await open_still(kinesis, reader)
        for shard in shards:
            kinesis.put("s", shard)
        await kinesis.tick(10 * STILL_SECONDS)
        assert 8 <= len(kinesis.listed_at) <= 10
        assert min(kinesis.listed_at) >= 1000 + STILL_SECONDS
        assert {one.condition.state for one in await reader.stats("q")} == {ShardState.CAUGHT_UP}
        found = await reader.positions("q", epoch, kinesis.trim_horizon("s"), wait_seconds=1)
        known = [position.known_millis for position in found.positions.streams["s"].values()]
        assert all(millis is not None and millis <= kinesis.service_millis() for millis in known)


async def test_open_shards_that_stand_still_hold_nothing_back() -> None:
    """An hour without records: ListShards shows up to when the shard was read, and what others bring is given."""
    kinesis = StillKinesis()
    busy, _ = kinesis.create_stream("s", 2)
    position, given = kinesis.trim_horizon("s"), 0
    async with LocalShardReader(kinesis, CONFIG, clock=lambda: kinesis.now) as reader:
        epoch = await open_still(kinesis, reader)
        await kinesis.tick(3 * STILL_SECONDS)
        for count in range(1, 61):
            kinesis.put("s", busy)
            await kinesis.tick(60)
            found = await reader.positions("q", epoch, position, max_shard_skew_seconds=60)
            assert found.skew is not None
            assert not found.skew.left_behind
            async for batch in reader.read_range("q", ranges_between(position, found.positions)):
                given += batch.num_rows
            position = found.positions
            assert given == count


@pytest.mark.parametrize(
    ("publisher", "behaviour"),
    [
        (RecordPublisherType.EFO, Behaviour(subscriptions_outlive_shards=True)),
        (RecordPublisherType.POLLING, Behaviour(empty_answers=12)),
    ],
)
async def test_the_children_of_a_closed_shard_that_stands_still_hold_the_others_back(
    publisher: RecordPublisherType, behaviour: Behaviour
) -> None:
    """Its answers say that it is at its tip, while its children hold what arrived long ago."""
    clock = OtherClock(-3600)
    with emulator(behaviour, clock=clock) as running:
        reading = Reading(running, publisher, shards=2)
        keys = [one["HashKeyRange"]["StartingHashKey"] for one in reading.client.list_shards(StreamName="s")["Shards"]]

        def put(key: str, row: str) -> None:
            reading.client.put_record(StreamName="s", Data=row.encode(), PartitionKey="k", ExplicitHashKey=key)
            reading.put_rows.append(row)

        put(keys[0], "parent")
        reading.client.split_shard(StreamName="s", ShardToSplit=reading.shards[0], NewStartingHashKey=str(2**126))
        clock.advance(600)
        put(keys[0], "child")
        clock.advance(2400)
        put(keys[1], "other")
        async with reading.reader:
            await reading.open()
            await reading.read(max_shard_skew_seconds=60)
    assert reading.came["parent"] < reading.came["child"] <= reading.came["other"]


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_shard_that_is_not_shown_open_is_polled(is_listed: bool) -> None:
    """One that has left the list may be closed as well: polling shows its children, or that it is gone."""
    kinesis = StillKinesis()
    [shard] = kinesis.create_stream("s")
    async with LocalShardReader(kinesis, CONFIG, clock=lambda: kinesis.now) as reader:
        epoch = await open_still(kinesis, reader)
        [first] = kinesis.put("s", shard)
        await kinesis.tick(2)
        kinesis.shards["s", shard].unlisted = not is_listed
        children = kinesis.reshard("s", [shard], 2)
        rows = [first, *(number for child in children for number in kinesis.put("s", child))]
        await kinesis.tick(2 * STILL_SECONDS)
        position, numbers = kinesis.trim_horizon("s"), list[int]()
        async with asyncio.timeout(30):
            while len(numbers) < len(rows):
                found = (await reader.positions("q", epoch, position)).positions
                numbers += await read(reader, position, found)
                position = found
                await kinesis.tick(1)
    assert sorted(numbers) == sorted(rows)


@pytest.mark.parametrize("is_subscription", [False, True])
async def test_a_shard_that_is_polled_asks_for_the_list_at_its_first_empty_answer(is_subscription: bool) -> None:
    """Until then nothing shows how far it was read, and it holds the others back. Subscriptions seldom stand still."""
    kinesis = StillKinesis()
    (shard,) = kinesis.create_stream("s")
    listings = ShardListings(kinesis.list_shards, clock=lambda: kinesis.now)
    standing = StandingShard("s", shard, listings, kinesis, lambda: kinesis.now)
    event = shard_event(wire_records([]), 1, read_millis=kinesis.service_millis())
    assert standing.proved(event, is_subscription=is_subscription).read_millis is None
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = standing.proved(event, is_subscription=is_subscription).read_millis
    assert (found is not None, len(kinesis.listed_at)) == ((False, 0) if is_subscription else (True, 1))
    await listings.aclose()
