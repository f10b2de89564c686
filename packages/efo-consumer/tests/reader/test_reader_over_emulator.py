"""The reader over the emulator's sockets: exactly all records, in both homes and with both publishers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from reader_homes import home_of

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    EfoConsumerConfigError,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    RecordPublisherType,
    ShardPosition,
    ShardReader,
    StreamConsumer,
    StreamPositions,
    ranges_between,
    resolve_initial_positions,
)
from penstock.emulator.testing import RunningEmulator, running_emulator

STREAM = "orders"


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName=STREAM, ShardCount=2)
        yield running


def aws(emulator: RunningEmulator) -> AwsSession:
    return AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))


def consumer(emulator: RunningEmulator, name: str = "reader") -> StreamConsumer:
    client = emulator.client()
    stream_arn = client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    registered = client.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)["Consumer"]
    deadline = time.monotonic() + 10
    while True:
        found = client.describe_stream_consumer(ConsumerARN=registered["ConsumerARN"])["ConsumerDescription"]
        if found["ConsumerStatus"] == "ACTIVE":
            return StreamConsumer(STREAM, registered["ConsumerARN"], 1)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def put(client: Any, first: int, count: int) -> set[str]:
    names = {f"record-{number}" for number in range(first, first + count)}
    left = sorted(names)
    while left:
        entries: list[Any] = [{"Data": name.encode(), "PartitionKey": name} for name in left[:500]]
        answer = client.put_records(StreamName=STREAM, Records=entries)
        failed = [
            entry["Data"].decode()
            for entry, result in zip(entries, answer["Records"], strict=True)
            if "ErrorCode" in result
        ]
        left = failed + left[500:]
        if failed:
            time.sleep(0.1)
    return names


class Loop:
    """What Spark does: positions, then the range, then the commit of the batch before."""

    def __init__(self, reader: ShardReader, session_id: str, epoch: int, start: StreamPositions) -> None:
        self.reader, self.session_id, self.epoch, self.start = reader, session_id, epoch, start
        self.rows: list[str] = []
        self.per_shard: dict[str, list[int]] = {}
        self.promised = 0

    async def step(self, **limits: Any) -> int:
        snapshot = await self.reader.positions(self.session_id, self.epoch, self.start, wait_seconds=1.0, **limits)
        await self.reader.commit(self.session_id, self.epoch, self.start)
        before = len(self.rows)
        async for batch in self.reader.read_range(self.session_id, ranges_between(self.start, snapshot.positions)):
            self.rows += [value.decode() for value in batch.column("data").to_pylist()]
            for shard, number in zip(
                batch.column("shardId").to_pylist(), batch.column("sequenceNumber").to_pylist(), strict=True
            ):
                self.per_shard.setdefault(shard, []).append(int(number))
        self.start = snapshot.positions
        self.promised += snapshot.records
        return len(self.rows) - before

    async def until(self, done: Callable[[], bool], seconds: float = 120.0, **limits: Any) -> None:
        async with asyncio.timeout(seconds):
            while not done():
                await self.step(**limits)


@pytest.mark.parametrize(
    ("home", "publisher"), [("local", RecordPublisherType.POLLING), ("remote", RecordPublisherType.EFO)]
)
async def test_every_record_is_read_once_through_a_split_and_a_merge_under_load(
    emulator: RunningEmulator, home: str, publisher: RecordPublisherType
) -> None:
    """Positions, ranges and commits in a loop give all records exactly once, in order within each shard."""
    session, client = aws(emulator), emulator.client()
    start = await asyncio.to_thread(resolve_initial_positions, session, [STREAM], "TRIM_HORIZON")
    consumers = (await asyncio.to_thread(consumer, emulator),) if publisher is RecordPublisherType.EFO else ()
    written: set[str] = set()

    def produce() -> None:
        for part in range(12):
            written.update(put(client, part * 100, 100))
            if part == 4:
                client.split_shard(
                    StreamName=STREAM, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
                )
            if part == 8:
                client.merge_shards(
                    StreamName=STREAM,
                    ShardToMerge="shardId-000000000003",
                    AdjacentShardToMerge="shardId-000000000001",
                )

    async with LocalShardReader(KinesisBackend(session)) as local, home_of(local, home) as reader:
        request = OpenRequest(session_id="q", positions=start, record_publisher=publisher, consumers=consumers)
        loop = Loop(reader, "q", await reader.open(request), start)
        producing = asyncio.create_task(asyncio.to_thread(produce))
        await loop.until(lambda: producing.done() and len(loop.rows) >= len(written), max_records=170)
        await producing
        assert await loop.step() == 0
        assert sorted(loop.rows) == sorted(written)
        assert loop.promised == len(written)
        assert len(loop.per_shard) == 5
        assert all(numbers == sorted(set(numbers)) for numbers in loop.per_shard.values())
        # A merged shard may tell its end after its last record.
        await loop.until(lambda: not any(one.is_shard_end for one in loop.start.streams[STREAM].values()))
        assert sorted(loop.rows) == sorted(written)
        await reader.close_session("q", loop.epoch)


async def test_a_consumer_of_another_accounts_stream_of_the_same_name_is_refused(
    emulator: RunningEmulator,
) -> None:
    """Its records would be taken for this stream's. By its ARN it is read, even without permission to describe it."""
    own = await asyncio.to_thread(consumer, emulator)
    own_arn = own.consumer_arn.partition("/consumer/")[0]
    others = own.consumer_arn.replace(":000000000000:", ":222222222222:")
    others_arn = others.partition("/consumer/")[0]
    async with LocalShardReader(KinesisBackend(aws(emulator))) as reader:
        for session, (stream, consumer_arn, is_right) in enumerate(
            (
                (STREAM, own.consumer_arn, True),
                (own_arn, own.consumer_arn, True),
                (others_arn, others, True),
                (STREAM, others, False),
                (own_arn, others, False),
                (others_arn, own.consumer_arn, False),
            )
        ):
            request = OpenRequest(
                session_id=f"session-{session}",
                positions=StreamPositions({stream: {"shardId-000000000000": ShardPosition.trim_horizon()}}),
                record_publisher=RecordPublisherType.EFO,
                consumers=(StreamConsumer(stream, consumer_arn),),
            )
            if is_right:
                assert await reader.open(request) > 0
                continue
            with pytest.raises(EfoConsumerConfigError, match=f"{consumer_arn} is not a consumer of .* by its ARN"):
                await reader.open(request)
