"""Idle shards and lost records, told apart by the time at which nothing lay beyond a position."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.aws import AwsSession, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    DataLossError,
    LocalShardReader,
    OpenRequest,
    PositionsError,
    ReaderConfig,
    ShardEvent,
    ShardPosition,
    StreamIdentity,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._continuity.loss import CLOCK_MARGIN_SECONDS, passed_over
from penstock.efo_consumer._publish.polling import PollingRecordPublisher, PollingTools
from penstock.efo_consumer._remote.messages import position_from_message, position_to_message
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis
from penstock.emulator.testing import running_emulator

NOW = int(time.time())
HOUR = 3600
DAY = 24 * HOUR
# In hours; minutes matter where the retention ends.
AGES = st.floats(0, 72) | st.floats(23.8, 24.2)


def number_of(second: int, counter: int = 0) -> int:
    """A sequence number of the present version."""
    return (1 << 185) | (counter << 85) | (second << 36) | 2


class PolledKinesis(FakeKinesis):
    """Ends of idle shards are the last record, and events at the tip know when they were."""

    def __init__(self, now: int) -> None:
        super().__init__()
        self.now = now

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        last = position.sequence_number
        async for event in super().follow(stream, shard_id, position):
            if event.records.num_rows:
                last = event.records.column("sequenceNumber")[-1].as_py()
            at = self.now * 1000 if event.millis_behind_latest == 0 else None
            yield replace(event, continuation=last, caught_up_millis=at)

    def write(self, shard_id: str, second: int) -> int:
        shard = self.shards["s", shard_id]
        number = number_of(second, len(shard.sequence_numbers))
        shard.sequence_numbers.append(number)
        shard.data.append(b"row")
        self.idle()
        return number


async def idle_since(kinesis: PolledKinesis, idle: str, busy: str) -> StreamPositions:
    """Give positions of which those of the idle shard are a day and an hour older than the others."""
    kinesis.write(idle, NOW - 26 * HOUR)
    kinesis.write(busy, NOW - HOUR)
    async with LocalShardReader(kinesis, wall_clock=lambda: NOW - HOUR) as reader:
        position = kinesis.trim_horizon("s")
        epoch = await reader.open(OpenRequest(session_id="q", positions=position))
        while not all(at.sequence_number for at in position.streams["s"].values()):
            position = (await reader.positions("q", epoch, position, wait_seconds=5)).positions
    return StreamPositions.from_json(position.to_json())


async def rows(reader: LocalShardReader, start: StreamPositions, shard: str) -> list[int]:
    epoch = await reader.open(OpenRequest(session_id="q", positions=start))
    end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
    found: list[int] = []
    async for batch in reader.read_range("q", [one for one in ranges_between(start, end) if one.shard_id == shard]):
        found += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
    return found


@pytest.mark.parametrize("known", [True, False])
async def test_a_polled_shard_that_was_idle_beyond_the_retention_has_lost_nothing(known: bool) -> None:
    """Its first new record after a day opens as before; positions that do not know when it was idle still say loss."""
    kinesis = PolledKinesis(NOW - HOUR)
    idle, busy = kinesis.create_stream("s", 2)
    start = await idle_since(kinesis, idle, busy)
    assert start.streams["s"][idle].caught_up_millis == (NOW - HOUR) * 1000
    if not known:
        plain = {shard: replace(at, caught_up_millis=None) for shard, at in start.streams["s"].items()}
        start = StreamPositions({"s": plain})
    shard = kinesis.shards["s", idle]
    shard.sequence_numbers.clear()
    shard.data.clear()
    number = kinesis.write(idle, NOW - 60)
    async with LocalShardReader(kinesis, wall_clock=lambda: NOW) as reader:
        if not known:
            with pytest.raises(DataLossError):
                await rows(reader, start, idle)
            return
        assert await rows(reader, start, idle) == [number]


async def test_a_position_that_kinesis_refuses_for_its_age_is_no_loss_while_the_shard_was_idle() -> None:
    """The shard is read from its oldest record, and only what lies beyond the position comes."""
    kinesis = PolledKinesis(NOW - HOUR)
    idle, busy = kinesis.create_stream("s", 2)
    start = await idle_since(kinesis, idle, busy)
    number = kinesis.write(idle, NOW - 60)
    refusal = RecordPublisherFatalError("old", stream="s", shard_id=idle, code="InvalidArgumentException")
    kinesis.fail("s", idle, refusal)
    async with LocalShardReader(kinesis, ReaderConfig(), wall_clock=lambda: NOW) as reader:
        assert await rows(reader, start, idle) == [number]
        assert [stats.losses for stats in await reader.stats("q")] == [0, 0]


@settings(max_examples=200, deadline=None)
@given(
    hours=st.lists(AGES, min_size=1, max_size=8).map(lambda ages: sorted(ages, reverse=True)),
    at=st.integers(0, 7),
    seen=st.none() | AGES,
    wrong_seconds=st.floats(-CLOCK_MARGIN_SECONDS, CLOCK_MARGIN_SECONDS),
)
async def test_no_loss_is_missed_and_no_idle_shard_is_one(
    hours: list[float], at: int, seen: float | None, wrong_seconds: float
) -> None:
    """Whatever was written when, and whenever the shard was seen idle, by clocks that are minutes apart."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    seconds = [NOW - int(age * HOUR) for age in hours]
    at %= len(seconds)
    kept = [(second, n) for n, second in enumerate(seconds) if second > NOW - DAY]
    # In the order of numbers, which is that of arrival.
    kinesis.shards["s", shard].sequence_numbers = [(1 << 185) | (second << 36) | n << 1 for second, n in kept]
    kinesis.shards["s", shard].data = [b"row"] * len(kept)
    position = ShardPosition.after(str((1 << 185) | (seconds[at] << 36) | at << 1))
    beyond = seconds[at + 1 :]
    if seen is not None:
        # It could be seen idle at any time between this record and the next.
        latest = beyond[0] - 1 if beyond else NOW
        second = min(max(seconds[at], NOW - int(seen * HOUR)), latest)
        if second >= seconds[at]:
            position = replace(position, caught_up_millis=int((second + wrong_seconds) * 1000))
    lost = any(second <= NOW - DAY for second in beyond)
    found = await passed_over(kinesis, "s", shard, position, NOW, promised=bool(kept))
    if lost and kept:
        assert found is not None
    if position.caught_up_millis is not None and NOW - position.caught_up_millis / 1000 < DAY - CLOCK_MARGIN_SECONDS:
        assert found is None


def test_the_time_is_a_fact_about_a_position_and_not_another_position() -> None:
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


async def test_polling_knows_since_before_the_call_that_it_is_at_the_tip() -> None:
    """An answer at the tip carries the time before it was asked for, one further back carries none."""
    with running_emulator(enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        for _ in range(3):
            shard = client.put_record(StreamName="s", Data=b"row", PartitionKey="k")["ShardId"]
        now = [100.0]
        tools = PollingTools(wall_clock=lambda: now[0])
        tools.config = replace(tools.config, get_records_max_records=2)
        client = JsonClient(AwsSession(emulator_options(emulator.endpoint_url)))
        publisher = PollingRecordPublisher(client, tools=tools)
        events = publisher.publish(StreamIdentity("s"), shard, ShardPosition.trim_horizon())
        found: list[tuple[int, int | None]] = []
        async with asyncio.timeout(20):
            while sum(rows for rows, _ in found) < 3:
                event = await anext(events)
                found.append((event.records.num_rows, event.caught_up_millis))
                now[0] += 1
        await events.aclose()
        await publisher.close()
    assert found[-1] == (1, int((99 + len(found)) * 1000))
    assert {at for rows, at in found if rows == 2} == {None}
