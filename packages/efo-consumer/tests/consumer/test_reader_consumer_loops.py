"""Leaving a loop over a consumer half-way, entering it again, and what a checkpoint inside a batch holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kpl_aggregates import aggregate
from reader_homes import HOMES, reader_at

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    Consumer,
    ConsumerRecord,
    LocalShardReader,
    ReaderConfig,
    ShardPosition,
    SqliteCheckpointStore,
)
from penstock.efo_consumer.errors import DataLossError
from penstock.efo_consumer.testing import FakeKinesis, arrival_micros

NOWHERE = emulator_options("http://127.0.0.1:1")
SELDOM = timedelta(hours=1)


class Stopwatch:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def stream_of(count: int, shards: int = 1, **options: Any) -> tuple[FakeKinesis, list[int]]:
    """A stream that holds so many records, and their sequence numbers by shard."""
    kinesis = FakeKinesis(**{"event_records": 10_000, **options})
    ids = kinesis.create_stream("s", shards)
    return kinesis, [number for shard in ids for number in kinesis.put("s", shard, count // shards)]


@asynccontextmanager
async def consumer_of(
    kinesis: FakeKinesis, path: Path | None, home: str = "local", config: ReaderConfig | None = None, **options: Any
) -> AsyncIterator[Consumer]:
    """A consumer that begins at the checkpoint, or with the oldest record."""
    start = kinesis.trim_horizon("s")
    async with asyncio.timeout(60), reader_at(home, kinesis, config=config or ReaderConfig()) as reader:
        consumer = Consumer("s", name="c", start=start, checkpoints=path, aws=NOWHERE, reader=reader, **options)
        async with consumer:
            yield consumer


@asynccontextmanager
async def killed(kinesis: FakeKinesis, path: Path, **options: Any) -> AsyncIterator[Consumer]:
    """A consumer whose process ends without leaving its context."""
    async with asyncio.timeout(60), LocalShardReader(kinesis) as reader:
        start = kinesis.trim_horizon("s")
        consumer = Consumer("s", name="c", start=start, checkpoints=path, aws=NOWHERE, reader=reader, **options)
        await consumer.__aenter__()
        yield consumer


def numbers_of(batch: Any) -> list[int]:
    return [int(number) for number in batch.records.column("sequenceNumber").to_pylist()]


async def break_after(consumer: Consumer, count: int, done: list[int], interval: timedelta | None) -> None:
    """Handle some records, and leave the next one."""
    async for record in consumer.records(checkpoint_interval=interval):
        if count == 0:
            break
        done.append(int(record.sequence_number))
        count -= 1


async def test_a_loop_that_another_one_replaced_ends_with_an_error() -> None:
    """Both would hand out the same records."""
    kinesis, written = stream_of(8)
    async with consumer_of(kinesis, None) as consumer:
        older = consumer.records()
        assert int((await anext(older)).sequence_number) == written[0]
        newer = consumer.records()
        assert int((await anext(newer)).sequence_number) == written[0]
        with pytest.raises(RuntimeError, match="another loop"):
            await anext(older)
        assert [int((await anext(newer)).sequence_number) for _ in range(7)] == written[1:]
        waiting = asyncio.ensure_future(anext(newer))
        await asyncio.sleep(0)
        newest = asyncio.ensure_future(anext(aiter(consumer)))
        await asyncio.sleep(0)
        later = kinesis.put("s", next(iter(kinesis.shards))[1])
        assert numbers_of(await newest) == later
        with pytest.raises(RuntimeError, match="another loop"):
            await waiting


async def test_lives_that_are_killed_inside_a_batch_make_progress(tmp_path: Path) -> None:
    """A handler of 10 ms, a checkpoint every 0.5 s, a kill after 300 records: at most 0.5 s of work is repeated."""
    kinesis, written = stream_of(2_000)
    done: list[int] = []
    for _ in range(3):
        clock, left = Stopwatch(), 300
        async with killed(kinesis, tmp_path / "c.db", clock=clock) as consumer:
            async for record in consumer.records(checkpoint_interval=timedelta(seconds=0.5)):
                clock.now += 0.01
                done.append(int(record.sequence_number))
                left -= 1
                if left == 0:
                    break
    assert set(done) == set(written[: len(set(done))])
    assert len(set(done)) >= 3 * 300 - 2 * 52


async def test_a_stop_takes_effect_at_the_next_record(tmp_path: Path) -> None:
    """The rest of the batch is handed out by the next life."""
    kinesis, written = stream_of(1_000)
    done: list[int] = []
    async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
        async for record in consumer.records(checkpoint_interval=SELDOM):
            done.append(int(record.sequence_number))
            if len(done) == 5:
                consumer.stop()
        assert [record async for record in consumer.records()] == []
        assert [batch async for batch in consumer] == []
    async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
        async for record in consumer.records():
            done.append(int(record.sequence_number))
            if len(done) == 1_000:
                break
    assert done == written


@HOMES
async def test_batches_are_bounded_unless_the_caller_says_otherwise(home: str) -> None:
    """At most 10,000 records or 10 MiB by default, and no bound with 0."""
    kinesis, written = stream_of(25_000)
    async with consumer_of(kinesis, None, home) as consumer:
        rows = 0
        async for batch in consumer:
            assert batch.records.num_rows <= 10_000
            rows += batch.records.num_rows
            if rows == len(written):
                break
    config = ReaderConfig(buffer_bytes_per_shard=2**30, buffer_bytes=2**30)
    large = FakeKinesis(event_records=1_000)
    (shard,) = large.create_stream("s")
    large.put("s", shard, 1_000 * 24, size=1_024)
    for limits, most in (({}, 10 * 2**20), ({"max_records": 0, "max_bytes": 0}, 2**30)):
        async with consumer_of(large, None, home, config, **limits) as consumer:
            sizes: list[int] = []
            async for batch in consumer:
                sizes.append(batch.records.column("data").nbytes)
                assert sizes[-1] <= most
                if sum(sizes) >= 24_000 * 1_024:
                    break
            assert max(sizes) > (4 * 2**20 if limits else 0)


def put_aggregate(kinesis: FakeKinesis, shard: str, users: int) -> int:
    (number,) = kinesis.put("s", shard)
    first, _ = kinesis.shards["s", shard].hash_keys
    keys = [f"{number}-{user}" for user in range(users)]
    kinesis.shards["s", shard].data[-1] = aggregate(keys, explicit=str(first))
    return number


def identity(record: ConsumerRecord) -> tuple[int, int]:
    return int(record.sequence_number), record.sub_sequence_number


async def test_a_checkpoint_lies_before_an_aggregate_until_all_of_it_is_finished(tmp_path: Path) -> None:
    """In the same context its finished user records do not come again; after a restart they do."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = [*kinesis.put("s", shard), put_aggregate(kinesis, shard, 3), *kinesis.put("s", shard)]
    store = SqliteCheckpointStore(tmp_path / "c.db")
    user_records = [(numbers[0], 0), *((numbers[1], place) for place in range(3)), (numbers[2], 0)]

    async def kept() -> str | None:
        positions = await store.load("c")
        assert positions is not None
        return positions.streams["s"][shard].record

    async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
        records = consumer.records(checkpoint_interval=timedelta(0))
        seen = [identity(await anext(records))]
        for expected in [str(numbers[0])] * 3:
            seen.append(identity(await anext(records)))
            assert await kept() == expected
        assert seen == user_records[:4]
        # The last user record of the aggregate is in hand.
        again = consumer.records(checkpoint_interval=timedelta(0))
        assert identity(await anext(again)) == user_records[3]
    assert await kept() == str(numbers[0])
    async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
        records = consumer.records(checkpoint_interval=timedelta(0))
        assert [identity(await anext(records)) for _ in range(4)] == user_records[1:]
        assert await kept() == str(numbers[1])


async def test_a_position_inside_a_batch_has_the_facts_of_its_record(tmp_path: Path) -> None:
    """Its record, that one's arrival and the first record of the range; other shards stand where they were read to."""
    kinesis = FakeKinesis()
    kinesis.created = {"s": 1_700_000_000_000}
    shards = kinesis.create_stream("s", 3)
    written = [kinesis.put("s", shard, 4) for shard in shards[:2]]
    async with consumer_of(kinesis, None) as consumer:
        start = consumer.positions
        await break_after(consumer, 6, [], None)
        positions = consumer.positions
        batch = await anext(aiter(consumer))
        assert numbers_of(batch) == written[1][2:]
    here = positions.streams["s"]
    assert positions.created == kinesis.created
    assert here[shards[0]].with_facts == batch.positions.streams["s"][shards[0]].with_facts
    second = here[shards[1]]
    assert second == ShardPosition.after(str(written[1][1]))
    assert second.record == str(written[1][1])
    assert second.arrived_millis == arrival_micros(written[1][1]) // 1000
    assert second.first_record == str(written[1][0])
    assert here[shards[2]] == batch.positions.streams["s"][shards[2]]
    assert start == kinesis.trim_horizon("s")


async def test_records_that_expire_behind_a_position_inside_a_batch_are_a_loss(tmp_path: Path) -> None:
    """The position knows its record: it proves that nothing is missing while that record is there, and no longer."""
    kinesis, written = stream_of(10)
    shard = next(iter(kinesis.shards))[1]
    async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
        await break_after(consumer, 5, [], SELDOM)
    kinesis.trim("s", shard, written[3])
    done: list[int] = []
    async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
        await break_after(consumer, 2, done, SELDOM)
    assert done == written[5:7]
    kinesis.trim("s", shard, written[8])
    with pytest.raises(DataLossError) as lost:
        async with consumer_of(kinesis, tmp_path / "c.db") as consumer:
            await anext(consumer.records())
    assert (lost.value.stream, lost.value.shard_id) == ("s", shard)
