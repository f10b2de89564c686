"""Where a range that is read again, a lag and a start end: at what Kinesis calls an end, or with an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    DataLossError,
    KinesisBackend,
    LocalShardReader,
    RangeDeadlineError,
    ReaderConfig,
    RecordPublisherConfig,
    ShardEvent,
    ShardFailedError,
    ShardPosition,
    ShardRange,
    ShardState,
    StreamPositions,
    measure_lag,
)
from penstock.efo_consumer._continuity.rule import OldestRecord
from penstock.efo_consumer.testing import FakeKinesis, shard_event, wire_records
from penstock.emulator import Behaviour
from penstock.emulator.testing import RunningEmulator, running_emulator

SHARD = "shardId-000000000000"
SILENT = 10**6
"""Answers without records, which do not end within a test."""


class Source:
    """A stream of one shard, and the sequence numbers of its records."""

    def __init__(self, emulator: RunningEmulator) -> None:
        self.emulator = emulator
        self.client: Any = emulator.client()
        self.client.create_stream(StreamName="s", ShardCount=1)
        self.numbers: list[str] = []

    def put(self, count: int) -> None:
        for _ in range(count):
            answer = self.client.put_record(StreamName="s", Data=b"row", PartitionKey="k")
            self.numbers.append(answer["SequenceNumber"])

    def split(self) -> None:
        self.client.split_shard(StreamName="s", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))

    def behave(self, **fields: Any) -> None:
        self.emulator.behaviour = replace(self.emulator.behaviour, **fields)

    @property
    def session(self) -> AwsSession:
        return AwsSession(emulator_options(self.emulator.endpoint_url))

    def backend(self, patience: timedelta = timedelta(minutes=10)) -> KinesisBackend:
        return KinesisBackend(self.session, RecordPublisherConfig(retry_patience=patience))

    @property
    def range(self) -> ShardRange:
        """All but the first record, as a micro-batch has it in its log."""
        first, *_, last = (replace(ShardPosition.after(number), record=number) for number in self.numbers)
        return ShardRange("s", SHARD, first, last)


@pytest.fixture
def source() -> Iterator[Source]:
    with source_of() as found:
        yield found


@contextmanager
def source_of() -> Iterator[Source]:
    with running_emulator(tls=False, enforce_limits=False, behaviour=Behaviour()) as emulator:
        yield Source(emulator)


async def read(reader: LocalShardReader, one: ShardRange) -> list[str]:
    return [
        number async for batch in reader.read_range("q", [one]) for number in batch.column("sequenceNumber").to_pylist()
    ]


async def test_a_range_of_a_closed_shard_is_read_again_over_answers_that_look_like_a_tip(source: Source) -> None:
    """They are no proof that its records have expired."""
    source.put(5)
    source.split()
    source.behave(empty_answers=20)
    async with LocalShardReader(source.backend()) as reader:
        assert await read(reader, source.range) == source.numbers[1:]


async def test_a_range_that_a_closed_shard_does_not_give_fails(source: Source) -> None:
    """After the patience, with the shard and the position. Nothing counts as lost."""
    source.put(5)
    source.split()
    source.behave(empty_answers=SILENT)
    async with LocalShardReader(source.backend(timedelta(seconds=2)), ReaderConfig(fail_on_data_loss=False)) as reader:
        with pytest.raises(ShardFailedError) as caught:
            await read(reader, source.range)
    assert (caught.value.code, caught.value.shard_id) == ("ShardEndMissing", SHARD)
    assert source.numbers[0] in str(caught.value)


class HidingKinesis(FakeKinesis):
    """Answers to polls are at the tip of an open shard, and have no records, though there are some."""

    async def read_once(
        self, stream_name: str, shard_id: str, after: ShardPosition, **options: Any
    ) -> AsyncGenerator[ShardEvent, None]:
        await asyncio.sleep(0)
        yield shard_event(wire_records([]), int(after.sequence_number or 0))

    oldest: int | None = None

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        return None if self.oldest is None else OldestRecord(self.oldest, 0)


@pytest.mark.parametrize("oldest", ["before", "behind", "none"])
async def test_a_range_is_lost_only_if_the_oldest_record_lies_behind_it(oldest: str) -> None:
    """A record that is left before its end may be one of the range: then it does not come in time."""
    kinesis = HidingKinesis()
    kinesis.create_stream("s")
    first, *_, last, later = kinesis.put("s", SHARD, 5)
    kinesis.oldest = {"before": first, "behind": later, "none": None}[oldest]
    after, upto = (replace(ShardPosition.after(str(number)), record=str(number)) for number in (first, last))
    error = RangeDeadlineError if oldest == "before" else DataLossError
    async with LocalShardReader(kinesis, ReaderConfig(range_deadline=timedelta(seconds=3))) as reader:
        with pytest.raises(error) as caught:
            await read(reader, ShardRange("s", SHARD, after, upto))
    assert str(first) in str(caught.value)


async def test_a_lag_counts_what_lies_behind_answers_that_look_like_a_tip(source: Source) -> None:
    """Records of a closed shard, and of its children."""
    source.put(2)
    position = StreamPositions({"s": {SHARD: ShardPosition.after(source.numbers[0])}})
    source.split()
    source.behave(empty_answers=5)
    backend = source.backend()
    now = backend.service_millis() / 1000 + 100
    [behind] = await measure_lag(backend, position, now)
    assert (behind.seconds or 0) > 90
    assert behind.condition.state is ShardState.READING
    source.put(1)
    [behind] = await measure_lag(backend, StreamPositions({"s": {SHARD: ShardPosition.after(source.numbers[1])}}), now)
    assert (behind.seconds or 0) > 90
    source.behave(empty_answers=SILENT)
    [behind] = await measure_lag(backend, position, now)
    assert (behind.seconds, behind.condition.state) == (None, ShardState.STUCK)
    await backend.aclose()
