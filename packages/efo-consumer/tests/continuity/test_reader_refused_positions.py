"""Positions that Kinesis refuses though nothing is lost, and streams that are made again while Kinesis is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from reader_homes import numbers_of

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    RecordPublisher,
    RecordPublisherType,
    ShardEvent,
    ShardPosition,
    ShardRange,
    StreamConsumer,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._continuity.rule import OldestRecord
from penstock.efo_consumer.errors import RecordPublisherFatalError, StreamRecreatedError, SubscriptionStuckError
from penstock.efo_consumer.testing import FakeKinesis, FakePublisher

SHARD = "shardId-000000000000"
FIRST, SECOND = 1, 2
"""When the stream was created, and when another one of its name was."""


def read_upto(number: int, *, continuation: int) -> ShardPosition:
    """Where a subscription stood: behind the last record, at a number that no record has."""
    return replace(ShardPosition.after(str(continuation)), record=str(number), arrived_millis=number * 10)


def at(position: ShardPosition, created: int | None = None) -> StreamPositions:
    return StreamPositions({"s": {SHARD: position}}, {} if created is None else {"s": created})


class RefusingKinesis(FakeKinesis):
    """Refuses every position in sequence numbers when it is polled; GetRecords is behind for some answers."""

    def __init__(self, *, answers_behind: int = 0) -> None:
        super().__init__()
        self.asked: list[ShardPosition] = []
        self.subscribed = 0
        self._answers_behind = answers_behind

    async def read_once(
        self, stream_name: str, shard_id: str, after: ShardPosition, **options: Any
    ) -> AsyncGenerator[ShardEvent, None]:
        self._ask(stream_name, shard_id, after)
        if self._answers_behind:
            self._answers_behind -= 1
            return
        async for event in super().read_once(stream_name, shard_id, after):
            yield event

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        return FakePublisher(self.subscribe if record_publisher is RecordPublisherType.EFO else self.publish)

    async def publish(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        self._ask(stream, shard_id, position)
        async for event in self.follow(stream, shard_id, position):
            yield event

    async def subscribe(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        self.subscribed += 1
        raise SubscriptionStuckError(stream=stream, shard_id=shard_id, outcomes=("expired",) * 3)
        yield  # a generator, as the publisher's is

    def _ask(self, stream: str, shard_id: str, position: ShardPosition) -> None:
        self.asked.append(position)
        if position.sequence_number is not None:
            code = "InvalidArgumentException"
            raise RecordPublisherFatalError("no such number", stream=stream, shard_id=shard_id, code=code)


async def test_a_replay_that_waits_at_the_tip_does_not_go_back_to_a_position_that_was_refused() -> None:
    """Its records show up late; until then it is asked from the time that took the refused position's place."""
    kinesis = RefusingKinesis(answers_behind=2)
    kinesis.create_stream("s")
    first, *wanted = kinesis.put("s", SHARD, 3)
    after = read_upto(first, continuation=first + 1)
    async with LocalShardReader(kinesis) as reader:
        assert await numbers_of(reader, [ShardRange("s", SHARD, after, ShardPosition.after(str(wanted[-1])))]) == wanted
    assert kinesis.asked[0] == after
    assert [position.sequence_number for position in kinesis.asked[1:]] == [None] * 3


async def test_a_stuck_shard_whose_position_is_refused_is_polled_on_instead_of_subscribed_to() -> None:
    """The refusal leads polling to a time from which it reads on; what was delivered is dropped."""
    kinesis = RefusingKinesis()
    kinesis.create_stream("s")
    first, *wanted = kinesis.put("s", SHARD, 3)
    start = at(read_upto(first, continuation=first + 1))
    request = OpenRequest(
        session_id="q",
        positions=start,
        record_publisher=RecordPublisherType.EFO,
        consumers=(StreamConsumer("s", "arn:aws:kinesis:us-east-1:123456789012:stream/s/consumer/c:1"),),
    )
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(request)
        end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        assert await numbers_of(reader, ranges_between(start, end)) == wanted
        assert [stats.losses for stats in await reader.stats("q")] == [0]
        assert [str(stats.condition) for stats in await reader.stats("q")] == [
            "caught up: polled, as its subscriptions bring nothing"
        ]
    assert kinesis.subscribed == 1
    assert [position.sequence_number is None for position in kinesis.asked] == [False, True]


class RemadeKinesis(FakeKinesis):
    """Deletes the stream and makes another one, of the same numbers, while it is asked for the oldest record."""

    def __init__(self) -> None:
        super().__init__()
        self.created["s"] = FIRST

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        oldest = await super().oldest_record(stream_name, shard_id)
        self.created["s"] = SECOND
        return oldest


@pytest.mark.parametrize("way", ["replay", "follow", "refusal"])
async def test_the_oldest_record_of_a_stream_that_was_just_made_again_proves_nothing(way: str) -> None:
    """Only another creation time tells it from the old stream's: the sequence numbers are the same."""
    kinesis = RemadeKinesis()
    kinesis.create_stream("s")
    (number,) = kinesis.put("s", SHARD)
    position = read_upto(number, continuation=number)
    async with LocalShardReader(kinesis) as reader:
        if way == "replay":
            kinesis.pass_day()
            (later,) = kinesis.put("s", SHARD)
            again = ShardRange("s", SHARD, position, ShardPosition.after(str(later)), created_millis=FIRST)
            with pytest.raises(StreamRecreatedError) as caught:
                await numbers_of(reader, [again])
        else:
            epoch = await reader.open(OpenRequest(session_id="q", positions=at(position, FIRST)))
            kinesis.pass_day()
            kinesis.put("s", SHARD)
            if way == "refusal":
                code = "InvalidArgumentException"
                kinesis.fail("s", SHARD, RecordPublisherFatalError("no", stream="s", shard_id=SHARD, code=code))
            with pytest.raises(StreamRecreatedError) as caught:
                await reader.positions("q", epoch, at(position, FIRST), wait_seconds=5)
    assert (caught.value.created_millis, caught.value.current_millis) == (FIRST, SECOND)
