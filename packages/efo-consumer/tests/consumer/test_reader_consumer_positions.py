"""What a consumer writes down: where it stands, and what proves later that nothing was lost in between."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CheckpointClaim,
    Consumer,
    FollowedBatch,
    LocalShardReader,
    OpenRequest,
    PositionsSnapshot,
    ShardPosition,
    ShardStats,
    SqliteCheckpointStore,
    StreamPositions,
    to_read_batch,
)
from penstock.efo_consumer._consumer.checkpoint import _CheckpointFile
from penstock.efo_consumer.testing import FakeKinesis, wire_records

NOWHERE = emulator_options("http://127.0.0.1:1")
CREATED = {"s": 1_700_000_000_000}


def stored(path: Path, name: str = "billing") -> Any:
    with sqlite3.connect(path) as connection:
        ((text,),) = connection.execute("SELECT positions FROM checkpoint WHERE name = ?", (name,)).fetchall()
    return json.loads(text)


def at(number: int, caught_up_millis: int, created: dict[str, int] | None = None) -> StreamPositions:
    position = replace(ShardPosition.after(str(number)), caught_up_millis=caught_up_millis)
    return StreamPositions({"s": {"shard": position}}, CREATED if created is None else created)


class Scripted:
    """A reader that brings these steps, and then something happens."""

    def __init__(self, steps: Sequence[tuple[pa.RecordBatch | None, StreamPositions]]) -> None:
        self.steps = steps
        self.at_end: Callable[[], object] = lambda: None
        self.last_may_come = asyncio.Event()
        self.last_may_come.set()
        self.opened: list[StreamPositions] = []

    async def open(self, request: OpenRequest) -> int:
        self.opened.append(request.positions)
        return 1

    async def follow(self, *_: Any, **__: Any) -> AsyncGenerator[FollowedBatch, None]:
        for number, (records, positions) in enumerate(self.steps, 1):
            if number == len(self.steps):
                await self.last_may_come.wait()
            rows = 0 if records is None else records.num_rows
            yield FollowedBatch(records, PositionsSnapshot(positions, rows, 0, 0))
        self.at_end()

    async def commit(self, *_: Any) -> None:
        """Nothing is kept."""

    async def close_session(self, *_: Any) -> None:
        """Nothing is kept."""

    async def stats(self, *_: Any) -> list[ShardStats]:
        return []


async def test_a_checkpoint_of_version_1_is_read_and_version_2_is_written(tmp_path: Path) -> None:
    """As a release before wrote it: what it knows is kept, and what is learnt is added."""
    kinesis = FakeKinesis()
    kinesis.created = dict(CREATED)
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 5)
    path = tmp_path / "billing.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE checkpoint (name TEXT PRIMARY KEY, positions TEXT NOT NULL, at REAL NOT NULL)")
        other, read = (
            '{"type": "AT_TIMESTAMP", "value": 1700000000000}',
            f'"AFTER_SEQUENCE_NUMBER", "value": "{numbers[1]}"',
        )
        document = (
            f'{{"version": 1, "streams": {{"other": {{"shardId-000000000000": {other}}}, '
            f'"s": {{"shardId-000000000000": {{"type": {read}}}}}}}}}'
        )
        connection.execute("INSERT INTO checkpoint VALUES ('billing', ?, 0)", (document,))
    rows: list[int] = []
    async with (
        LocalShardReader(kinesis) as reader,
        Consumer("s", name="billing", checkpoints=path, aws=NOWHERE, reader=reader) as consumer,
    ):
        async for batch in consumer:
            rows += [int(number) for number in batch.records.column("sequenceNumber").to_pylist()]
            await consumer.checkpoint(batch)
            if len(rows) == 3:
                break
    assert rows == numbers[2:]
    found = stored(path)
    assert found["version"] == 2
    assert found["streams"]["other"] == {"shardId-000000000000": {"type": "AT_TIMESTAMP", "value": 1700000000000}}
    assert StreamPositions.from_json(found).streams["s"][shard].rank >= (1, numbers[-1])


@pytest.mark.parametrize("is_checkpointed", [True, False], ids=["from a checkpoint", "from a start"])
async def test_when_a_stream_was_created_is_kept(tmp_path: Path, is_checkpointed: bool) -> None:
    """From the start or the checkpoint to the reader, and back to the checkpoint."""
    path = tmp_path / "billing.db"
    start = at(1, 5)
    if is_checkpointed:
        store = SqliteCheckpointStore(path)
        await store.save(await store.claim("billing", start.streams, "me"), start)
    reader = Scripted([])
    consumer = Consumer("s", name="billing", start=start, checkpoints=path, aws=NOWHERE, reader=reader)  # type: ignore[arg-type]  # by its methods
    async with consumer:
        assert reader.opened[0].created == CREATED
    assert stored(path)["created"] == CREATED


async def test_what_is_learnt_of_an_idle_shard_reaches_the_checkpoint(tmp_path: Path) -> None:
    """Its position stays for longer than the retention; every hour it is known again that it is caught up."""
    path = tmp_path / "billing.db"
    hour = 3_600_000
    reader = Scripted([(None, at(1, hour)), (None, at(1, 2 * hour))])
    consumer = Consumer("s", name="billing", start=at(1, 0), checkpoints=path, aws=NOWHERE, reader=reader)  # type: ignore[arg-type]  # by its methods
    reader.at_end = consumer.stop
    async with consumer:
        assert [batch async for batch in consumer] == []
        assert stored(path)["streams"]["s"]["shard"]["caughtUp"] == 2 * hour


async def test_records_that_are_done_are_checkpointed_when_their_shards_become_idle(tmp_path: Path) -> None:
    """However long the interval is: nothing that comes later would write it down, and positions grow old."""
    path = tmp_path / "billing.db"
    records = to_read_batch(wire_records([5]), "s", "shard")
    reader = Scripted([(records, at(5, 10)), (None, at(5, 20))])
    consumer = Consumer("s", name="billing", start=at(1, 0), checkpoints=path, aws=NOWHERE, reader=reader)  # type: ignore[arg-type]  # by its methods
    reader.at_end = consumer.stop
    async with consumer:
        assert [record.sequence_number async for record in consumer.records(checkpoint_interval=timedelta(days=9))] == [
            "5"
        ]
        assert StreamPositions.from_json(stored(path)) == at(5, 20)
        assert stored(path)["streams"]["s"]["shard"]["caughtUp"] == 20


class WatchedStore(SqliteCheckpointStore):
    """A file, and a queue of what was saved to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.saved: asyncio.Queue[StreamPositions] = asyncio.Queue()

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """See `SqliteCheckpointStore.save`."""
        await super().save(claim, positions)
        self.saved.put_nowait(positions)


async def test_a_checkpoint_is_written_when_its_interval_is_over_though_the_stream_is_quiet(tmp_path: Path) -> None:
    """Nothing further has to come for it, and what comes then comes once."""
    batches = {number: to_read_batch(wire_records([number]), "s", "shard") for number in (5, 6)}
    reader = Scripted([(batches[5], at(5, 10)), (batches[6], at(6, 20))])
    reader.last_may_come.clear()
    store = WatchedStore(tmp_path / "billing.db")
    consumer = Consumer("s", name="billing", start=at(1, 0), checkpoints=store, aws=NOWHERE, reader=reader)  # type: ignore[arg-type]  # by its methods
    async with asyncio.timeout(20), consumer:
        assert await store.saved.get() == at(1, 0)
        records = consumer.records(checkpoint_interval=timedelta(milliseconds=50))
        assert (await anext(records)).sequence_number == "5"
        following = asyncio.ensure_future(anext(records))
        assert await store.saved.get() == at(5, 10)
        assert not following.done()
        reader.last_may_come.set()
        assert (await following).sequence_number == "6"


class HeldFile(_CheckpointFile):
    """A file; the next write waits until the test allows it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, time.time, makes_folder=False)
        self.is_held = False
        self.writing, self.may_write = threading.Event(), threading.Event()

    def _connect(self) -> sqlite3.Connection:
        if self.is_held:
            self.is_held = False
            self.writing.set()
            assert self.may_write.wait(60)
        return super()._connect()


async def test_a_checkpoint_whose_caller_was_cancelled_is_not_written_over_a_later_one(tmp_path: Path) -> None:
    """Its thread may still write it: the checkpoint at the end of the context waits for that."""
    batches = [to_read_batch(wire_records([number]), "s", "shard") for number in (5, 6)]
    reader = Scripted([(batches[0], at(5, 10)), (batches[1], at(6, 20))])
    store, held = SqliteCheckpointStore(tmp_path / "billing.db"), HeldFile(tmp_path / "billing.db")
    store._store = held
    options: dict[str, Any] = {"reader": reader, "aws": NOWHERE}
    consumer = Consumer("s", name="billing", start=at(1, 0), checkpoints=store, **options)
    async with asyncio.timeout(60):
        await consumer.__aenter__()
        records = consumer.records(checkpoint_interval=timedelta(0))
        assert (await anext(records)).sequence_number == "5"
        held.is_held = True
        asking = asyncio.ensure_future(anext(records))
        await asyncio.to_thread(held.writing.wait, 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        reader.steps = reader.steps[1:]
        later = [record.sequence_number async for record in consumer.records(checkpoint_interval=timedelta(hours=1))]
        assert later == ["6"]
        leaving = asyncio.ensure_future(consumer.__aexit__(None, None, None))
        await asyncio.wait([leaving], timeout=0.2)
        held.may_write.set()
        await leaving
    assert await SqliteCheckpointStore(tmp_path / "billing.db").load("billing") == at(6, 20)
