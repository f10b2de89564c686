"""Shared memory between a reader and the tasks of its machine: the same rows, and none that changes under anybody."""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.efo_consumer import (
    ReaderConfig,
    ReaderHost,
    ShardRange,
    StreamPositions,
    ranges_between,
    read_ranges,
)
from penstock.efo_consumer._buffer.owned_folder import MEMORY
from penstock.efo_consumer._remote import fetch, shared_blocks
from penstock.efo_consumer._remote.shared_blocks import BlockPool, Blocks, BlockWriter
from penstock.efo_consumer.testing import FakeKinesis

RECORDS, EVENT_RECORDS, RECORD_BYTES = 9_000, 600, 1_000
pytestmark = pytest.mark.skipif(not MEMORY.is_dir(), reason="this system keeps no files in memory")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of readers of other tests."""
    monkeypatch.setattr(fetch, "_without_blocks", set())
    monkeypatch.setattr(fetch, "_blocks", {})


@pytest.fixture
def host() -> Iterator[tuple[ReaderHost, list[ShardRange]]]:
    """A reader with some megabytes in its buffers, in events that are worth a block each, and the range of all."""
    kinesis = FakeKinesis(event_records=EVENT_RECORDS)
    (shard,) = kinesis.create_stream("s", 1)
    kinesis.put("s", shard, RECORDS, size=RECORD_BYTES)
    config = ReaderConfig(buffer_bytes_per_shard=64 << 20, buffer_bytes=64 << 20)
    with ReaderHost(config=config, backend=lambda: kinesis) as started:
        start = kinesis.trim_horizon("s")
        started.reader.open("q", start)
        yield started, ranges_between(start, all_of(started, start))


def all_of(host: ReaderHost, start: StreamPositions) -> StreamPositions:
    while sum(stats.records for stats in host.reader.stats()) < RECORDS:
        host.reader.positions(start, wait_seconds=0.05)
    return host.reader.positions(start, wait_seconds=5).positions


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the blocks that tasks of this process took."""
    names: list[str] = []
    take = Blocks.take

    def noting(self: Blocks, folder: Path, name: str, nbytes: int) -> pa.Buffer:
        names.append(name)
        return take(self, folder, name, nbytes)

    monkeypatch.setattr(Blocks, "take", noting)
    return names


def near(host: ReaderHost) -> str:
    return f"unix:{host.socket_path}"


def test_tasks_of_the_machine_get_the_same_rows_from_few_blocks(
    host: tuple[ReaderHost, list[ShardRange]], taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is used again as soon as its rows are done with; over the network there are none."""
    # This process may be held up for longer than a task may be.
    monkeypatch.setitem(BlockWriter.__init__.__kwdefaults__ or {}, "patience_seconds", 60.0)
    reader, ranges = host
    far = pa.Table.from_batches(read_ranges(reader.address, reader.security, "q", ranges))
    assert not taken
    for _ in range(3):
        rows = [batch.to_pylist() for batch in read_ranges(near(reader), reader.security, "q", ranges)]
        assert [row for part in rows for row in part] == far.to_pylist()
    assert len(taken) >= 3 * 15
    assert len(set(taken)) <= 4


def test_some_rows_are_kept_at_random(host: tuple[ReaderHost, list[ShardRange]]) -> None:
    """Of many calls, some left in the middle: what was kept is looked at when all are over."""
    reader, ranges = host
    far = list(read_ranges(reader.address, reader.security, "q", ranges))
    order = {batch.column("sequenceNumber")[0].as_py(): batch for batch in far}
    chance = random.Random(7)
    kept: list[pa.RecordBatch] = []
    for _ in range(25):
        batches = read_ranges(near(reader), reader.security, "q", ranges)
        for batch in batches:
            if chance.random() < 0.1:
                kept.append(batch.slice(0, chance.randrange(1, batch.num_rows)))
            if chance.random() < 0.05:
                break
            if kept and chance.random() < 0.1:
                kept.pop(chance.randrange(len(kept)))
    assert kept
    for batch in kept:
        first = batch.column("sequenceNumber")[0].as_py()
        assert batch.equals(order[first].slice(0, batch.num_rows))


def test_a_block_that_cannot_be_opened_is_done_without(
    host: tuple[ReaderHost, list[ShardRange]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records come through the socket then, each once, and the next task does not try again."""
    reader, ranges = host
    expected = pa.Table.from_batches(read_ranges(reader.address, reader.security, "q", ranges))
    opened, take = 0, Blocks.take

    def take_two(self: Blocks, folder: Path, name: str, nbytes: int) -> pa.Buffer:
        nonlocal opened
        opened += 1
        if opened > 2:
            raise PermissionError(13, "not for you")
        return take(self, folder, name, nbytes)

    monkeypatch.setattr(Blocks, "take", take_two)
    for _ in range(2):
        assert pa.Table.from_batches(read_ranges(near(reader), reader.security, "q", ranges)).equals(expected)
    assert opened == 3
    assert "read through the socket instead" in caplog.text


def test_without_memory_for_blocks_records_come_through_the_socket(
    host: tuple[ReaderHost, list[ShardRange]], monkeypatch: pytest.MonkeyPatch, taken: list[str]
) -> None:
    """A full /dev/shm, as containers have it, is not an error: it would have ended the process to find out later."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    reader, ranges = host
    rows = sum(batch.num_rows for batch in read_ranges(near(reader), reader.security, "q", ranges))
    assert (rows, taken) == (RECORDS, [])
    assert {path.name for path in reader.socket_path.parent.iterdir()} == {"in-use", "socket"}  # type: ignore[union-attr]


def test_a_host_leaves_no_blocks(host: tuple[ReaderHost, list[ShardRange]]) -> None:
    """While it lives they are its user's alone; kept rows outlive it."""
    reader, ranges = host
    batches = read_ranges(near(reader), reader.security, "q", ranges)
    first = next(batches)
    assert reader.socket_path is not None
    folder = reader.socket_path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.glob("*.block"))
    assert files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    before = first.to_pylist()
    reader.close()
    assert not folder.exists()
    assert first.to_pylist() == before


@pytest.fixture
def pool(tmp_path: Path) -> BlockPool:
    return BlockPool(tmp_path, block_bytes=100_000, most_blocks=3)


PART = [memoryview(bytes(40_000)), memoryview(bytes(30_000))]


async def written(writer: BlockWriter) -> str:
    found = await writer.write(PART)
    assert found is not None
    assert found[1] == 70_000
    return found[0]


async def test_a_call_gets_no_more_than_its_share_and_waits_for_what_it_has(pool: BlockPool) -> None:
    """The rest of the pool is for others."""
    writer, tasks = BlockWriter(pool, patience_seconds=5), Blocks()
    names = [await written(writer) for _ in range(shared_blocks._MOST_OF_A_CALL)]
    buffers = [tasks.take(pool._folder, name, 70_000) for name in names]
    waiting = asyncio.create_task(written(writer))
    await asyncio.sleep(0)
    assert not waiting.done()
    del buffers[1]
    assert await waiting == names[1]


@pytest.mark.parametrize("nbytes", [100, 100_001])
async def test_batches_that_are_too_small_or_too_large_are_not_written(pool: BlockPool, nbytes: int) -> None:
    """Small ones are as quick through the socket; large ones do not fit."""
    assert await BlockWriter(pool).write([memoryview(bytes(nbytes))]) is None
    assert list(pool._folder.iterdir()) == []


async def test_blocks_of_killed_tasks_are_given_up_when_there_are_no_others(pool: BlockPool) -> None:
    """Dead tasks never release them; a living task keeps what it has."""
    held = []
    for number in range(5):
        writer = BlockWriter(pool)
        content = bytes([number]) * 70_000
        found = await writer.write([memoryview(content)])
        assert found is not None
        held.append((content, Blocks().take(pool._folder, *found)))
        writer.close()
    assert all(buffer.to_pybytes() == content for content, buffer in held)
    assert len(list(pool._folder.iterdir())) == 3


@pytest.mark.parametrize("name", ["../socket", "/etc/passwd", "", "1.block/../2.block", "1.arrow"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """A reader names files of its folder alone."""
    with pytest.raises(FileNotFoundError, match="not a block's name"):
        Blocks().take(tmp_path, name, 1)


@pytest.mark.parametrize("nbytes", [-1, 0, 100_001])
async def test_a_length_that_no_block_has_is_refused(pool: BlockPool, nbytes: int) -> None:
    """It would show what does not belong to the batch."""
    name = await written(BlockWriter(pool))
    with pytest.raises(FileNotFoundError, match="does not hold"):
        Blocks().take(pool._folder, name, nbytes)
