"""Outages that pass: reading bears them, and its lag and condition show meanwhile what is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from reader_homes import home_of

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options, running_sts
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    RangeDeadlineError,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardFailedError,
    ShardPosition,
    ShardState,
    ShardStats,
    StreamConsumer,
    StreamPositions,
    ranges_between,
)
from penstock.emulator.testing import RunningEmulator, running_emulator

SHARD = "shardId-000000000000"
START = StreamPositions({"s": {SHARD: ShardPosition.trim_horizon()}})
OPERATIONS = ("SubscribeToShard", "GetShardIterator", "GetRecords")


@dataclass
class Query:
    """A stream of one shard, and a session that reads it."""

    emulator: RunningEmulator
    reader: LocalShardReader
    epoch: int
    position: StreamPositions = START
    rows: list[bytes] = field(default_factory=list)

    async def put(self, *rows: bytes) -> None:
        records = [{"Data": row, "PartitionKey": "k"} for row in rows]
        await asyncio.to_thread(self.emulator.client().put_records, StreamName="s", Records=records)

    async def read(self, rows: int) -> None:
        """Read on until there are so many rows."""
        async with asyncio.timeout(120):
            while len(self.rows) < rows:
                found = await self.reader.positions("q", self.epoch, self.position, wait_seconds=5)
                async for batch in self.reader.read_range("q", ranges_between(self.position, found.positions)):
                    self.rows += batch.column("data").to_pylist()
                self.position = found.positions

    async def stats(self) -> ShardStats:
        (stats,) = await self.reader.stats("q")
        return stats

    async def until(self, holds: Callable[[ShardStats], bool]) -> ShardStats:
        """Wait until the shard's numbers are so."""
        async with asyncio.timeout(120):
            while not holds(stats := await self.stats()):  # noqa: ASYNC110  # the reader has no event for it
                await asyncio.sleep(0.02)
        return stats

    def fail(self, kind: str = "error", **options: Any) -> None:
        """Let every call that reads fail; without `count` until the faults are cleared."""
        if kind == "error":
            options = {"code": "InternalFailure", **options}
        for operation in OPERATIONS:
            self.emulator.faults.add(kind, operation=operation, **options)

    def cut(self) -> None:
        """End the connections of the subscriptions; polling has none."""
        self.emulator.faults.add("reset", operation="SubscribeToShard", count=1)

    @property
    def hits(self) -> int:
        return sum(fault["hits"] for fault in self.emulator.faults.list())


@asynccontextmanager
async def query(
    way: RecordPublisherType, *, aws: AwsSession | None = None, config: ReaderConfig | None = None, **changes: Any
) -> AsyncIterator[Query]:
    options: dict[str, Any] = {
        "consumer_creation_delay": timedelta(0),
        "resubscribe_interval": timedelta(seconds=0.2),
        "idle_event_interval": timedelta(seconds=0.2),
    }
    with running_emulator(**options) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        arn = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="billing")["Consumer"]
        publisher = RecordPublisherConfig(**{"resubscribe_interval": timedelta(seconds=0.2), **changes})
        session = aws or AwsSession(emulator_options(emulator.endpoint_url))
        request = OpenRequest(
            session_id="q",
            positions=START,
            record_publisher=way,
            consumers=(StreamConsumer("s", consumer["ConsumerARN"]),) if way is RecordPublisherType.EFO else (),
        )
        async with asyncio.timeout(120), LocalShardReader(KinesisBackend(session, publisher), config) as reader:
            yield Query(emulator, reader, await reader.open(request))


@pytest.mark.parametrize(
    ("way", "kind"), [(RecordPublisherType.EFO, "error"), (RecordPublisherType.POLLING, "throttle")]
)
async def test_seconds_of_failures_end_no_query(way: RecordPublisherType, kind: str) -> None:
    """With the default options: 500s, or throttling, for several seconds cost time, and no record comes twice."""
    async with query(way) as opened:
        await opened.put(b"1", b"2")
        await opened.read(2)
        opened.fail(kind)
        opened.cut()
        expected = ShardState.REFUSED if kind == "error" else ShardState.THROTTLED
        await opened.put(b"3", b"4")
        stats = await opened.until(
            lambda one: one.condition.state is expected and one.millis_behind_latest > 4000 and opened.hits > 5
        )
        assert stats.condition.cause
        opened.emulator.faults.clear()
        await opened.read(4)
        assert opened.rows == [b"1", b"2", b"3", b"4"]
        await opened.until(lambda one: one.condition.state is ShardState.CAUGHT_UP and not one.millis_behind_latest)


@pytest.mark.parametrize("home", ["local", "remote"])
async def test_the_caller_decides_how_long_failures_are_borne(home: str) -> None:
    """What a session or a range asks for counts, not what the reader was started with; its condition comes along."""
    async with (
        query(RecordPublisherType.POLLING, retry_patience=timedelta(hours=1)) as opened,
        home_of(opened.reader, home) as reader,
    ):
        opened.fail()
        request = OpenRequest(
            session_id="q",
            positions=START,
            record_publisher=RecordPublisherType.POLLING,
            retry_patience_seconds=1.5,
        )
        epoch = await reader.open(request)
        while not (stats := (await reader.stats("q"))[0]).condition.cause:  # noqa: ASYNC110  # the reader has no event for it
            await asyncio.sleep(0.02)
        assert stats.condition.state is ShardState.REFUSED
        assert "InternalFailure" in stats.condition.cause
        assert stats.condition.since_millis
        with pytest.raises(ShardFailedError, match="retryPatience"):
            await reader.positions("q", epoch, START, wait_seconds=20)
        ranges = ranges_between(START, StreamPositions({"s": {SHARD: ShardPosition.after("1")}}))
        with pytest.raises(ShardFailedError, match="retryPatience"):
            _ = [one async for one in reader.read_range("other", ranges, retry_patience_seconds=0.5)]


async def test_a_session_opens_during_an_outage() -> None:
    """Also where the position is so old that the stream has to be asked: the shard bears the outage, not the caller."""
    async with query(RecordPublisherType.POLLING) as opened:
        await opened.put(b"1")
        await opened.read(1)
        position = replace(opened.position.streams["s"][SHARD], caught_up_millis=1, arrived_millis=1)
        opened.fail()
        request = OpenRequest(
            session_id="old",
            positions=StreamPositions({"s": {SHARD: position}}),
            record_publisher=RecordPublisherType.POLLING,
        )
        async with asyncio.timeout(15):
            await opened.reader.open(request)


async def test_a_range_that_is_read_again_bears_what_reading_bears() -> None:
    """Failures that are retried are not a standstill of the range, however short its deadline is."""
    config = ReaderConfig(range_deadline=timedelta(seconds=1))
    async with query(RecordPublisherType.POLLING, config=config) as opened:
        await opened.put(b"1", b"2")
        await opened.read(2)
        ranges = ranges_between(START, opened.position)
        opened.fail()

        async def read_again() -> list[bytes]:
            batches = opened.reader.read_range("another session", ranges)
            return [row async for batch in batches for row in batch.column("data").to_pylist()]

        again = asyncio.create_task(read_again())
        done, _ = await asyncio.wait([again], timeout=3)
        assert not done
        opened.emulator.faults.clear()
        assert await again == [b"1", b"2"]
        opened.emulator.faults.add("silence", operation="GetRecords")
        with pytest.raises(RangeDeadlineError):
            await read_again()


async def test_credentials_that_cannot_be_refreshed_are_waited_for() -> None:
    """While their source is away and the old ones have expired, reading is refused; it continues afterwards."""
    with running_sts() as sts:
        sts.lifetime = timedelta(seconds=2)
        sts.refusal = (500, "InternalFailure")
        options: dict[str, Any] = {"consumer_creation_delay": timedelta(0)}
        with running_emulator(**options) as emulator:
            client = emulator.client()
            client.create_stream(StreamName="s", ShardCount=1)
            client.put_record(StreamName="s", Data=b"row", PartitionKey="k")
            backend = KinesisBackend(AwsSession(sts.options(emulator.endpoint_url)))
            request = OpenRequest(
                session_id="q",
                positions=START,
                record_publisher=RecordPublisherType.POLLING,
            )
            async with asyncio.timeout(120), LocalShardReader(backend) as reader:
                opened = Query(emulator, reader, await reader.open(request))
                stats = await opened.until(lambda one: one.condition.state is ShardState.REFUSED)
                assert "credentials" in stats.condition.cause
                sts.refusal, sts.lifetime = None, timedelta(hours=1)
                await opened.read(1)
                assert opened.rows == [b"row"]


async def test_a_shard_that_makes_no_progress_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """After half a minute by the reader's clock, with its condition; and once more when it comes on."""
    caplog.set_level(logging.WARNING, logger="penstock.efo_consumer._reader.local")
    async with query(RecordPublisherType.POLLING) as opened:
        await opened.until(lambda one: one.condition.state is ShardState.CAUGHT_UP)
        opened.fail("throttle")
        await opened.until(lambda one: one.condition.state is ShardState.THROTTLED)
        (shard,) = opened.reader._sessions["q"].followed.shards.values()
        shard._tracker.progress_at -= 30 + shard._tracker.interval_seconds
        await opened.reader.warn()
        await opened.reader.warn()
        (line,) = caplog.messages
        assert line.startswith(f"s/{SHARD}: no progress for 3")
        assert "throttled since 20" in line
        assert "ProvisionedThroughputExceededException" in line
        opened.emulator.faults.clear()
        await opened.until(lambda one: one.condition.state is ShardState.CAUGHT_UP)
        await opened.reader.warn()
        assert caplog.messages[1].startswith(f"s/{SHARD}: comes on again, after ")
