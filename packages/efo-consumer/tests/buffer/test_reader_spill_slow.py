"""A disk that is slow, full or in use: only what needs it waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.efo_consumer import LocalShardReader, OpenRequest, ReaderConfig, StreamPositions, ranges_between
from penstock.efo_consumer._buffer.spill import SpillFolder
from penstock.efo_consumer.testing import FakeKinesis, wire_records

BIG = 100_000
RECORDS = 20


class Disk:
    """Writes when it is allowed to, or fails; remembers who used it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready = threading.Event()
        self.writing = threading.Event()
        self.is_full = False
        self.written: list[str] = []
        self.readers: set[threading.Thread] = set()
        read = Path.read_bytes

        def read_bytes(path: Path) -> bytes:
            self.readers.add(threading.current_thread())
            return read(path)

        monkeypatch.setattr(Path, "read_bytes", read_bytes)

    def write(self, path: Path, data: pa.Buffer) -> None:
        self.writing.set()
        assert self.ready.wait(30)
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written.append(path.name)
        path.write_bytes(data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def reader_on(disk: Disk, kinesis: FakeKinesis, folder: Path) -> LocalShardReader:
    config = ReaderConfig(buffer_bytes_per_shard=3 * BIG, buffer_bytes=6 * BIG, spill_bytes=10**9, spill_folder=folder)
    reader = LocalShardReader(kinesis, config)
    assert reader._spill is not None
    reader._spill._write = disk.write
    return reader


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # a disk tells nobody
            await asyncio.sleep(0.01)


async def read(reader: LocalShardReader, start: StreamPositions, end: StreamPositions) -> list[int]:
    rows: list[int] = []
    async for batch in reader.read_range("q", ranges_between(start, end)):
        rows += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
    return rows


async def test_a_slow_disk_holds_up_no_other_shard(disk: Disk, tmp_path: Path) -> None:
    """While one shard's records wait for the disk, another's are told and read, and memory keeps its bounds."""
    kinesis = FakeKinesis(event_records=1)
    busy, quiet = kinesis.create_stream("s", 2)
    start = kinesis.trim_horizon("s")
    numbers = kinesis.put("s", busy, RECORDS, size=BIG)
    async with reader_on(disk, kinesis, tmp_path) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await until(disk.writing.is_set)
        wanted = kinesis.put("s", quiet, 3)
        found = start
        rows: list[int] = []
        async with asyncio.timeout(5):
            while not set(wanted) <= set(rows):
                end = (await reader.positions("q", epoch, found, max_records=4, wait_seconds=1)).positions
                rows += await read(reader, found, end)
                found = end
        assert disk.written == []
        # One event more for each shard, and what the segments cost beside their records.
        assert reader.buffered_bytes <= 8.5 * BIG
        disk.ready.set()
        while len(rows) < RECORDS + 3:
            end = (await reader.positions("q", epoch, found, max_records=4, wait_seconds=5)).positions
            rows += await read(reader, found, end)
            found = end
        assert sorted(rows) == sorted(numbers + wanted)
        assert [number for number in rows if number in set(numbers)] == numbers
        assert kinesis.polls == 0
    assert threading.main_thread() not in disk.readers


async def test_a_disk_that_fills_up_meanwhile_loses_nothing(disk: Disk, tmp_path: Path) -> None:
    """What could not be written stays in memory: nothing is read from Kinesis again."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    numbers = kinesis.put("s", shard, RECORDS, size=BIG)
    async with reader_on(disk, kinesis, tmp_path) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await until(disk.writing.is_set)
        disk.is_full = True
        disk.ready.set()
        found = start
        rows: list[int] = []
        while len(rows) < RECORDS:
            end = (await reader.positions("q", epoch, found, wait_seconds=5)).positions
            rows += await read(reader, found, end)
            found = end
            await reader.commit("q", epoch, found)
        assert rows == numbers
        assert disk.written == []
        assert reader.buffered_bytes == reader.spilled_bytes == 0
        assert kinesis.polls == 0


def test_what_waits_for_the_disk_is_bounded_and_can_be_dropped(disk: Disk, tmp_path: Path) -> None:
    """One segment may always wait, more as far as there is room; a file that nobody wants is not written."""
    records = wire_records([1, 2, 3])
    size = pa.ipc.get_record_batch_size(records)
    spill = SpillFolder(10**6, tmp_path, in_flight_bytes=2 * size, write=disk.write)
    first, second = spill.store(records), spill.store(records)
    assert first is not None
    assert second is not None
    assert spill.store(records) is None
    assert spill.memory_bytes == spill.used_bytes == 2 * size
    assert disk.writing.wait(5)
    first.drop()
    second.drop()
    assert (first.load(), second.load(), spill.memory_bytes) == (None, None, 0)
    disk.ready.set()
    spill.settle()
    spill.settle()
    assert disk.written == ["0"]
    assert spill.used_bytes == 0
    assert [path.name for path in spill.folder.iterdir()] == ["in-use"]
    spill.close()
