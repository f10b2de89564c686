"""Idle shards and lost records, told apart by the time up to which a position is known to be complete."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import pytest
from reader_homes import read

from penstock.efo_consumer import (
    DataLossError,
    LocalShardReader,
    OpenRequest,
    PositionsError,
    ReaderConfig,
    ShardEvent,
    ShardPosition,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._remote.messages import position_from_message, position_to_message
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis

MINUTE = 6_000
HOUR = 60 * MINUTE
# Positions that only time has moved are reported as soon as possible.
CONFIG = ReaderConfig(idle_offset_interval=timedelta(0))


class PolledKinesis(FakeKinesis):
    """Ends of idle shards are the last record, as GetRecords has it; None before the first one."""

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        last = position.record or position.sequence_number
        async for event in super().follow(stream, shard_id, position):
            if event.records.num_rows:
                last = event.records.column("sequenceNumber")[-1].as_py()
            yield event if event.continuation is None else replace(event, continuation=last)

    def pass_time(self, units: int) -> None:
        self.tip += units
        self.idle()


def logged(positions: StreamPositions) -> StreamPositions:
    """What a log of offsets gives back."""
    return StreamPositions.from_json(positions.to_json())


async def follow_idle(kinesis: PolledKinesis, start: StreamPositions, hours: int) -> tuple[StreamPositions, int]:
    """Follow for some hours, step by step of ten minutes; give the last positions, and how often they were logged."""
    position, count = start, 0
    async with LocalShardReader(kinesis, CONFIG) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=position))
        for _ in range(hours * 6):
            kinesis.pass_time(10 * MINUTE)
            found = (await reader.positions("q", epoch, position, wait_seconds=0.005)).positions
            if found.to_json() != position.to_json():
                assert found == position or count == 0
                position, count = logged(found), count + 1
                await reader.commit("q", epoch, position)
    return position, count


async def rows(reader: LocalShardReader, start: StreamPositions) -> list[int]:
    epoch = await reader.open(OpenRequest(session_id="q", positions=start))
    end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
    return await read(reader, start, end)


@pytest.mark.parametrize("begins", ["record", "time", "horizon"])
async def test_a_query_that_followed_an_idle_shard_for_days_starts_again(begins: str) -> None:
    """Its positions are logged again once an hour: the shard's first new record comes, and no loss is reported."""
    kinesis = PolledKinesis()
    (shard,) = kinesis.create_stream("s")
    begin = ShardPosition.at_timestamp(kinesis.service_millis()) if begins == "time" else ShardPosition.trim_horizon()
    start = StreamPositions({"s": {shard: begin}})
    if begins == "record":
        kinesis.put("s", shard, 1)
    position, count = await follow_idle(kinesis, start, hours=50)
    assert 45 <= count <= 52
    (number,) = kinesis.put("s", shard, 1)
    if begins == "record":
        kinesis.shards["s", shard].trimmed = number - 1
    async with LocalShardReader(kinesis) as reader:
        assert await rows(reader, position) == [number]
        assert [stats.losses for stats in await reader.stats("q")] == [0]


async def test_a_query_that_was_stopped_for_longer_than_the_retention_is_told() -> None:
    """Nothing proves that no record came and expired meanwhile."""
    kinesis = PolledKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.put("s", shard, 1)
    position, _ = await follow_idle(kinesis, kinesis.trim_horizon("s"), hours=2)
    kinesis.trim("s", shard, kinesis.tip)
    async with LocalShardReader(kinesis) as reader:
        with pytest.raises(DataLossError, match="the shard holds no record"):
            await reader.open(OpenRequest(session_id="q", positions=position))


async def test_an_idle_position_that_is_refused_for_its_age_is_no_loss() -> None:
    """Reading continues from the time up to which it was complete, and only later records come."""
    kinesis = PolledKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.put("s", shard, 1)
    position, _ = await follow_idle(kinesis, kinesis.trim_horizon("s"), hours=26)
    (number,) = kinesis.put("s", shard, 1)
    refusal = RecordPublisherFatalError("old", stream="s", shard_id=shard, code="InvalidArgumentException")
    kinesis.fail("s", shard, refusal)
    async with LocalShardReader(kinesis) as reader:
        assert await rows(reader, position) == [number]
        assert [stats.losses for stats in await reader.stats("q")] == [0]


def test_what_is_known_of_a_position_makes_no_other_position() -> None:
    """It goes into JSON and messages and comes back; older ones have none; equality and ranges do not see it."""
    plain = ShardPosition.after("7")
    known = replace(plain, caught_up_millis=5)
    assert known == plain
    assert hash(known) == hash(plain)
    assert plain.to_json() == {"type": "AFTER_SEQUENCE_NUMBER", "value": "7"}
    assert ShardPosition.from_json(known.to_json()).caught_up_millis == 5
    for position in (plain, known):
        message = type(position_to_message(position)).FromString(position_to_message(position).SerializeToString())
        assert position_from_message(message).to_json() == position.to_json()
    start, end = StreamPositions({"s": {"a": plain}}), StreamPositions({"s": {"a": known}})
    assert ranges_between(start, end) == []
    with pytest.raises(PositionsError, match="caughtUp"):
        ShardPosition.from_json({**plain.to_json(), "caughtUp": "yesterday"})
