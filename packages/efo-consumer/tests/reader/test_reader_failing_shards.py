"""Shards that cannot be followed any more are errors, whatever the others do, and shards that are gone end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from fleet_in_memory import in_skipped_time
from reader_homes import HOMES, read, reader_at, request, until

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    Shard,
    ShardEvent,
    ShardFailedError,
    ShardPosition,
    ShardState,
    StreamPositions,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis


class Refusing(FakeKinesis):
    """Refuses every position, as it does where another argument is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ShardPosition] = []

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        self.asked.append(position)
        await asyncio.sleep(0.001)
        raise refusal(shard_id, "InvalidArgumentException")
        yield  # it makes this a generator


def refusal(shard: str, code: str) -> RecordPublisherFatalError:
    return RecordPublisherFatalError("no", stream="s", shard_id=shard, code=code)


@HOMES
async def test_a_shard_that_fails_is_told_after_what_was_read_and_opening_again_resumes(home: str) -> None:
    """Buffered records come first, then the error with its code; a new session continues after them."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    first = kinesis.put("s", shard, 4)
    async with reader_at(home, kinesis) as reader:
        epoch = await reader.open(request(start))
        await until(lambda: kinesis.events_taken == 1)
        code = "AccessDeniedException"
        kinesis.fail("s", shard, RecordPublisherFatalError("no", stream="s", shard_id=shard, code=code))
        snapshot = await reader.positions("q", epoch, start, wait_seconds=5)
        with pytest.raises(ShardFailedError) as raised:
            await reader.positions("q", epoch, snapshot.positions, wait_seconds=5)
        assert (raised.value.stream, raised.value.shard_id, raised.value.code) == ("s", shard, code)
        second = kinesis.put("s", shard, 3)
        epoch = await reader.open(request(snapshot.positions))
        after = await reader.positions("q", epoch, snapshot.positions, wait_seconds=5)
        assert await read(reader, start, snapshot.positions) == first
        assert await read(reader, snapshot.positions, after.positions) == second


async def test_a_shard_that_fails_is_told_while_others_are_busy() -> None:
    """Endless records of others do not hide it; its own records were reported before."""
    kinesis = FakeKinesis()
    broken, busy = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    kinesis.put("s", broken, 3)
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        position = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        kinesis.fail("s", broken, refusal(broken, "AccessDeniedException"))
        told: ShardFailedError | None = None
        for _ in range(20):
            # There is always something else to tell, as where a batch takes its time.
            taken = kinesis.events_taken
            kinesis.put("s", busy)
            await until(lambda taken=taken: kinesis.events_taken > taken)  # type: ignore[misc]  # a loop's variable
            try:
                position = (await reader.positions("q", epoch, position)).positions
            except ShardFailedError as error:
                told = error
                break
        assert told is not None
        assert (told.shard_id, told.code) == (broken, "AccessDeniedException")
        assert position.streams["s"][broken].rank[0] == 1


class WithoutList(FakeKinesis):
    """A shard that was split and one that is busy, of a stream that is not listed for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True
        self.ended, self.busy = self.create_stream("s", 2)
        self.children = self.reshard("s", [self.ended], 2)
        self.written = [number for child in self.children for number in self.put("s", child, 3)]
        self.start = StreamPositions(
            {"s": {self.ended: ShardPosition.shard_end(), self.busy: ShardPosition.trim_horizon()}}
        )

    @property
    def retry_patience(self) -> timedelta:
        return timedelta(minutes=1)

    async def list_shards(self, stream_name: str) -> list[Shard]:
        if self.is_broken:
            raise OSError("no answer")
        return await super().list_shards(stream_name)


def test_a_list_that_fails_is_told_while_other_shards_are_busy() -> None:
    """Their records do not hide that a shard's successors are unknown; until then its lag is unknown, not zero."""

    async def scenario() -> None:
        kinesis = WithoutList()
        loop = asyncio.get_running_loop()
        position = kinesis.start
        async with LocalShardReader(kinesis, clock=loop.time) as reader:
            for _ in range(2):
                # Opening the session again starts the patience again.
                epoch = await reader.open(OpenRequest(session_id="q", positions=position))
                told: ShardFailedError | None = None
                steps = 0
                while told is None:
                    kinesis.put("s", kinesis.busy)
                    try:
                        found = await reader.positions("q", epoch, position, wait_seconds=5)
                    except ShardFailedError as error:
                        told = error
                        continue
                    assert found.positions != position
                    assert found.millis_behind_latest == -1
                    ended = next(one for one in await reader.stats("q") if one.shard_id == kinesis.ended)
                    assert ended.millis_behind_latest == -1
                    assert ended.condition.state is ShardState.STUCK
                    position = found.positions
                    steps += 1
                    await asyncio.sleep(1)
                assert (told.shard_id, told.code) == (kinesis.ended, "OSError")
                assert 55 < steps < 75
            kinesis.is_broken = False
            await asyncio.sleep(20)
            rows: list[int] = []
            while len(rows) < len(kinesis.written) + 1:
                found = await reader.positions("q", epoch, position, wait_seconds=5)
                assert found.millis_behind_latest >= 0
                rows += await read(reader, position, found.positions)
                position = found.positions
            assert {*kinesis.written} < {*rows}

    in_skipped_time(scenario)


def test_a_list_that_works_again_fails_no_query_that_did_not_ask_meanwhile() -> None:
    """A micro-batch may take longer than the outage and the patience together."""

    async def scenario() -> None:
        kinesis = WithoutList()
        loop = asyncio.get_running_loop()
        async with LocalShardReader(kinesis, clock=loop.time) as reader:
            epoch = await reader.open(OpenRequest(session_id="q", positions=kinesis.start))
            await asyncio.sleep(300)
            kinesis.is_broken = False
            await asyncio.sleep(20)
            end = (await reader.positions("q", epoch, kinesis.start, wait_seconds=5)).positions
            assert sorted(await read(reader, kinesis.start, end)) == kinesis.written

    in_skipped_time(scenario)


async def test_a_refusal_that_no_position_cures_is_no_endless_loss() -> None:
    """With fail_on_data_loss=False the reader tries the oldest record once; a refusal there is an error, not a loss."""
    kinesis = Refusing()
    (shard,) = kinesis.create_stream("s")
    start = StreamPositions({"s": {shard: ShardPosition.after("500")}})
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=False)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        with pytest.raises(ShardFailedError, match="no"):
            await reader.positions("q", epoch, start, wait_seconds=30)
        assert kinesis.asked == [ShardPosition.after("500"), ShardPosition.trim_horizon()]
        assert [stats.losses for stats in await reader.stats("q")] == [1]
