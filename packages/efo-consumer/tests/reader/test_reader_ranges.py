"""Ranges are facts: whoever asks, whenever, gets the same records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_homes import numbers_of

from penstock.efo_consumer import (
    DataLossError,
    LocalShardReader,
    OpenRequest,
    RangeDeadlineError,
    ReaderConfig,
    ShardEvent,
    ShardPosition,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._model.positions import after_record
from penstock.efo_consumer.errors import StreamRecreatedError
from penstock.efo_consumer.testing import FakeKinesis


def written(kinesis: FakeKinesis) -> list[int]:
    return sorted(number for shard in kinesis.shards.values() for number in shard.sequence_numbers)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(1, 9)),
        st.tuples(st.just("split"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("merge"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("batch"), st.integers(0, 12), st.integers(0, 200)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("idle"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([1, 20_000, 10_000_000]), st.booleans())
def test_any_chain_of_positions_partitions_the_streams(
    steps: list[tuple[str, int, int]], buffer_bytes: int, commits: bool
) -> None:
    """Writes, reshards, limits, tiny buffers, new sessions and processes: each record is in one range, for ever."""

    async def run() -> None:
        kinesis = FakeKinesis(event_records=3)
        live = kinesis.create_stream("s", 2)
        start = kinesis.trim_horizon("s")
        config = ReaderConfig(
            buffer_bytes_per_shard=buffer_bytes,
            buffer_bytes=buffer_bytes,
            idle_offset_interval=timedelta(0),
            promise_grace=timedelta(0),
        )
        reader = LocalShardReader(kinesis, config)
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        position, batches = start, []

        async def batch(max_records: int, max_bytes: int, wait_seconds: float = 0.0) -> bool:
            nonlocal position
            for _ in range(10):
                await asyncio.sleep(0)
            snapshot = await reader.positions(
                "q", epoch, position, max_records=max_records, max_bytes=max_bytes, wait_seconds=wait_seconds
            )
            if commits:
                await reader.commit("q", epoch, position)
            ranges = ranges_between(position, StreamPositions.from_json(snapshot.positions.to_json()))
            rows = await numbers_of(reader, ranges)
            assert len(rows) == len(set(rows))
            assert len(rows) == snapshot.records
            batches.append((ranges, rows, snapshot.positions))
            moved = snapshot.positions != position
            position = snapshot.positions
            return moved

        try:
            for kind, one, two in steps:
                if kind == "put":
                    kinesis.put("s", live[one % len(live)], two)
                elif kind == "split" and len(live) < 6:
                    live += kinesis.reshard("s", [live.pop(one % len(live))], 2)
                elif kind == "merge" and len(live) > 1:
                    parents = [live.pop(one % len(live)), live.pop(two % len(live))]
                    live += kinesis.reshard("s", parents, 1)
                elif kind == "idle":
                    kinesis.idle()
                elif kind == "batch":
                    await batch(one, two)
                elif kind == "reopen":
                    back = one % (len(batches) + 1)
                    position = [start, *(end for _, _, end in batches)][back]
                    del batches[back:]
                    epoch = await reader.open(OpenRequest(session_id="q", positions=position))
                elif kind == "restart":
                    await reader.aclose()
                    reader = LocalShardReader(kinesis, config)
                    epoch = await reader.open(OpenRequest(session_id="q", positions=position))
            while sum(len(rows) for _, rows, _ in batches) < len(written(kinesis)):
                assert await batch(0, 0, wait_seconds=5)
            assert sorted(row for _, rows, _ in batches for row in rows) == written(kinesis)
            for ranges, rows, _ in batches:
                assert await numbers_of(reader, ranges) == rows
        finally:
            await reader.aclose()
        assert reader.buffered_bytes == 0

    asyncio.run(run())


async def test_a_new_process_answers_ranges_before_it_opened_anything() -> None:
    """After a crash the range comes first: it is read from Kinesis again, cut exactly."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 20)
    bounds = [
        (ShardPosition.trim_horizon(), ShardPosition.after(str(numbers[4])), numbers[:5]),
        (ShardPosition.after(str(numbers[4])), ShardPosition.after(str(numbers[11] + 1)), numbers[5:12]),
        (ShardPosition.at_timestamp(numbers[7] * 10), ShardPosition.after(str(numbers[-1] + 1)), numbers[7:]),
        (ShardPosition.after(str(numbers[3])), ShardPosition.after(str(numbers[4] - 1)), []),
    ]
    async with LocalShardReader(kinesis) as reader:
        for after, upto, expected in bounds:
            assert await numbers_of(reader, [ShardRange("s", shard, after, upto)]) == expected
        kinesis.reshard("s", [shard], 2)
        last = ShardRange("s", shard, ShardPosition.after(str(numbers[-2])), ShardPosition.shard_end())
        assert await numbers_of(reader, [last]) == numbers[-1:]


async def test_a_mere_continuation_ends_a_range_at_the_tip() -> None:
    """A promised position without a record of its own is not waited for."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 2)
    beyond = ShardRange("s", shard, ShardPosition.trim_horizon(), ShardPosition.after(str(numbers[-1] + 500)))
    async with LocalShardReader(kinesis) as reader:
        assert await asyncio.wait_for(numbers_of(reader, [beyond]), 5) == numbers


@pytest.mark.parametrize("gone", [True, False])
async def test_a_range_that_the_stream_lost_is_an_error_that_says_so(gone: bool) -> None:
    """The error names stream, shard and range; with fail_on_data_loss=False the rest of the range is given."""
    kinesis = FakeKinesis()
    one, two = kinesis.create_stream("s", 2)
    lost, kept = kinesis.put("s", one, 5), kinesis.put("s", two, 5)
    ranges = [
        ShardRange("s", shard, ShardPosition.after(str(numbers[0])), ShardPosition.after(str(numbers[3])))
        for shard, numbers in ((one, lost), (two, kept))
    ]
    if gone:
        kinesis.expire("s", one)
    else:
        kinesis.trim("s", one, lost[2])
    async with LocalShardReader(kinesis) as reader:
        with pytest.raises(DataLossError, match="failOnDataLoss") as raised:
            await numbers_of(reader, ranges)
        assert (raised.value.stream, raised.value.shard_id) == ("s", one)
        assert (raised.value.after, raised.value.upto) == (str(ranges[0].after), str(ranges[0].upto))
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=False)) as reader:
        left = [] if gone else lost[3:4]
        assert await numbers_of(reader, ranges) == left + kept[1:4]


@pytest.mark.parametrize(("hours", "lost"), [(25, True), (23, False)])
async def test_a_range_older_than_the_retention_is_lost_though_kinesis_does_not_say_so(hours: int, lost: bool) -> None:
    """Kinesis reads on from its oldest record: the arrival time of the last record before the range tells."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    began = kinesis.tip
    kinesis.tip += hours * 360_000
    (ended,) = kinesis.put("s", shard, 1)
    old = [ShardRange("s", shard, after_record(str(began), began * 10), after_record(str(ended), ended * 10))]
    async with LocalShardReader(kinesis) as reader:
        if lost:
            with pytest.raises(DataLossError, match=r"25\.0 h have passed .* keeps records for 24 h"):
                await numbers_of(reader, old)
        else:
            assert await numbers_of(reader, old) == [ended]
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=False)) as reader:
        assert await numbers_of(reader, old) == [ended]


async def test_a_range_that_is_known_to_be_empty_asks_nothing() -> None:
    """Idle shards' ranges lead from one continuation to the next: their end names the last record before both."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    begin = after_record("1003", 10_030)
    idle = replace(ShardPosition.after("1010"), record="1003", arrived_millis=10_030)
    never = replace(ShardPosition.after("1010"), record="")
    async with LocalShardReader(kinesis) as reader:
        ranges = [
            ShardRange("s", shard, begin, idle),
            ShardRange("s", shard, ShardPosition.trim_horizon(), never),
        ]
        assert await numbers_of(reader, ranges) == []
    assert kinesis.polls == 0


async def test_a_range_of_a_stream_that_was_made_again_is_told_without_a_session() -> None:
    """Ranges name when their stream was created, so a restarted reader can check it; idle ones hide nothing."""
    kinesis = FakeKinesis()
    shards = kinesis.create_stream("s", 2)
    kinesis.created["s"] = 1000
    numbers = kinesis.put("s", shards[1], 3)
    start = kinesis.trim_horizon("s")
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
    ranges = ranges_between(start, StreamPositions.from_json(end.to_json()))
    async with LocalShardReader(kinesis) as reader:
        assert await numbers_of(reader, ranges) == numbers
    kinesis.created["s"] = 2000
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=False)) as reader:
        with pytest.raises(StreamRecreatedError):
            await numbers_of(reader, ranges)


class Stalled(FakeKinesis):
    """Never answers, or fails at once."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    async def read_once(
        self, stream_name: str, shard_id: str, after: ShardPosition, **options: Any
    ) -> AsyncGenerator[ShardEvent, None]:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        yield  # type: ignore[misc]  # never reached: it makes this a generator


async def test_a_range_that_does_not_come_is_given_up() -> None:
    """Reading stands still for the deadline at most, and says which range it was."""
    some = [ShardRange("s", "shard", ShardPosition.after("1"), ShardPosition.after("2"))]
    async with LocalShardReader(Stalled(), ReaderConfig(range_deadline=timedelta(milliseconds=30))) as reader:
        with pytest.raises(RangeDeadlineError) as raised:
            await numbers_of(reader, some)
    assert (raised.value.stream, raised.value.shard_id) == ("s", "shard")
