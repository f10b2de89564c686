"""Whether a loss is an error is said by who opens a session or asks for a range; the reader's setting is a default."""

from __future__ import annotations

import asyncio

import pytest
from reader_homes import HOMES, numbers_of, reader_at, request

from penstock.efo_consumer import (
    ReaderConfig,
    ShardPosition,
    ShardRange,
    StreamPositions,
    read_ranges,
)
from penstock.efo_consumer.errors import DataLossError, RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis

ASKED = pytest.mark.parametrize("asked", [True, False])
REFUSED = RecordPublisherFatalError("old", stream="s", shard_id="shard", code="InvalidArgumentException")


def world() -> tuple[FakeKinesis, StreamPositions, list[int]]:
    """A stream that holds three records and refuses the position that is asked for, once."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 3)
    kinesis.fail("s", shard, REFUSED)
    return kinesis, StreamPositions({"s": {shard: ShardPosition.after("500")}}), numbers


def lost_range(kinesis: FakeKinesis, start: StreamPositions, numbers: list[int]) -> list[ShardRange]:
    """Two records, of which the stream still holds the last."""
    (shard,) = start.streams["s"]
    kinesis.trim("s", shard, numbers[1])
    return [ShardRange("s", shard, ShardPosition.after(str(numbers[0])), ShardPosition.after(str(numbers[2])))]


@HOMES
@pytest.mark.parametrize(("asked", "setting"), [(True, False), (False, True), (None, True), (None, False)])
async def test_a_session_says_whether_a_loss_ends_its_shards(home: str, asked: bool | None, setting: bool) -> None:
    """The caller's choice counts; without one the reader's setting."""
    kinesis, start, _ = world()
    async with reader_at(home, kinesis, config=ReaderConfig(fail_on_data_loss=setting)) as reader:
        if setting if asked is None else asked:
            with pytest.raises(DataLossError):
                await reader.open(request(start, fail_on_data_loss=asked))
        else:
            epoch = await reader.open(request(start, fail_on_data_loss=asked))
            assert (await reader.positions("q", epoch, start, wait_seconds=5)).records == 3


@HOMES
async def test_a_session_that_is_opened_again_may_change_its_mind(home: str) -> None:
    """A query that failed is started again with `failOnDataLoss=false`, on the same service."""
    kinesis, start, numbers = world()
    async with reader_at(home, kinesis) as reader:
        with pytest.raises(DataLossError):
            await reader.open(request(start, fail_on_data_loss=True))
        epoch = await reader.open(request(start, fail_on_data_loss=False))
        found = await reader.positions("q", epoch, start, wait_seconds=5)
        assert found.records == 3
        # What the buffers no longer hold is read from the stream again.
        await reader.commit("q", epoch, found.positions)
        assert await numbers_of(reader, lost_range(kinesis, start, numbers)) == numbers[2:]


@HOMES
@ASKED
async def test_a_range_without_a_session_says_it_itself(home: str, asked: bool) -> None:
    """A service that was restarted while a task asks does not know the session."""
    kinesis, start, numbers = world()
    async with reader_at(home, kinesis, config=ReaderConfig(fail_on_data_loss=not asked)) as reader:
        if asked:
            with pytest.raises(DataLossError):
                await numbers_of(reader, lost_range(kinesis, start, numbers), fail_on_data_loss=asked)
        else:
            assert await numbers_of(reader, lost_range(kinesis, start, numbers), fail_on_data_loss=asked) == numbers[2:]


async def test_a_task_says_whether_a_loss_ends_its_ranges() -> None:
    """As the fleet of its query does."""
    kinesis, start, numbers = world()
    async with reader_at("remote", kinesis) as fleet:
        asked = lost_range(kinesis, start, numbers)

        def of_a_task() -> list[str]:
            batches = read_ranges(fleet.endpoint, None, "q", asked, fail_on_data_loss=False)
            return [number for batch in batches for number in batch.column("sequenceNumber").to_pylist()]

        assert await asyncio.to_thread(of_a_task) == [str(numbers[2])]
