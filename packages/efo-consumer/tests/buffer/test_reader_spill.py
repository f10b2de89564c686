"""Buffers that memory has no room for, on disk or read again: always the same records."""

from __future__ import annotations

import asyncio
import fcntl
import stat
from collections.abc import AsyncGenerator
from datetime import timedelta
from io import TextIOWrapper
from pathlib import Path

import pytest

from penstock.efo_consumer import (
    EfoConsumerConfigError,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ShardEvent,
    ShardPosition,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._buffer.owned_folder import remove_leftovers
from penstock.efo_consumer._buffer.spill import SpillFolder
from penstock.efo_consumer._publish.condition import NoteSign, unnoted
from penstock.efo_consumer.testing import FakeKinesis, wire_records

SEGMENTS = 30
BIG = 100_000


class Watched(FakeKinesis):
    """Remembers from where it was read again."""

    def __init__(self) -> None:
        super().__init__(event_records=1)
        self.reads: list[ShardPosition] = []

    async def read_once(
        self,
        stream_name: str,
        shard_id: str,
        after: ShardPosition,
        *,
        note: NoteSign = unnoted,
        is_open: bool | None = None,
    ) -> AsyncGenerator[ShardEvent, None]:
        self.reads.append(after)
        async for event in super().read_once(stream_name, shard_id, after, note=note):
            yield event


def config(folder: Path, spill_bytes: int = 10**9, **options: timedelta) -> ReaderConfig:
    return ReaderConfig(
        buffer_bytes_per_shard=3 * BIG,
        buffer_bytes=3 * BIG,
        spill_bytes=spill_bytes,
        spill_folder=folder,
        **options,  # type: ignore[arg-type]  # times only
    )


def stream() -> tuple[Watched, StreamPositions, list[int]]:
    kinesis = Watched()
    (shard,) = kinesis.create_stream("s")
    return kinesis, kinesis.trim_horizon("s"), kinesis.put("s", shard, SEGMENTS, size=BIG)


def contents(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def stands_still(kinesis: FakeKinesis) -> None:
    """Wait until the reader takes nothing more."""
    taken = -1
    async with asyncio.timeout(10):
        while taken != kinesis.events_taken:
            taken = kinesis.events_taken
            await asyncio.sleep(0.1)


async def read(reader: LocalShardReader, ranges: list[ShardRange]) -> list[int]:
    rows: list[int] = []
    async for batch in reader.read_range("q", ranges):
        rows += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
    return rows


async def test_what_memory_cannot_hold_waits_on_disk(tmp_path: Path) -> None:
    """The reader reads on; positions, limits and ranges are the same; nothing is asked of Kinesis again."""
    kinesis, start, numbers = stream()
    reader = LocalShardReader(kinesis, config(tmp_path))
    epoch = await reader.open(OpenRequest(session_id="q", positions=start))
    await stands_still(kinesis)
    assert kinesis.events_taken == SEGMENTS
    assert reader.buffered_bytes <= 4 * BIG
    (folder,) = contents(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    position = start
    rows: list[int] = []
    while len(rows) < SEGMENTS:
        found = await reader.positions("q", epoch, position, max_records=7, wait_seconds=5)
        assert found.records <= 7
        rows += await read(reader, ranges_between(position, found.positions))
        position = found.positions
        await reader.commit("q", epoch, position)
    assert rows == numbers
    assert kinesis.reads == []
    assert reader._spill is not None
    await asyncio.to_thread(reader._spill.settle)
    assert [path.name for path in contents(folder)] == ["in-use"]
    assert reader.spilled_bytes == reader.buffered_bytes == 0
    await reader.aclose()
    assert contents(tmp_path) == []


async def test_a_full_disk_stops_the_reader_until_something_is_fetched(tmp_path: Path) -> None:
    """The bound counts as a full disk: what was not stored is not lost, it is read later."""
    kinesis, start, numbers = stream()
    async with LocalShardReader(kinesis, config(tmp_path, 10 * BIG)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await stands_still(kinesis)
        assert 9 <= kinesis.events_taken <= 15
        position = start
        rows: list[int] = []
        while len(rows) < SEGMENTS:
            found = await reader.positions("q", epoch, position, wait_seconds=5)
            rows += await read(reader, ranges_between(position, found.positions))
            position = found.positions
        assert rows == numbers


async def test_a_disk_that_fails_is_done_without(tmp_path: Path) -> None:
    """Neither writing nor reading errors lose records: they stay in memory, or are read from Kinesis again."""
    kinesis, start, numbers = stream()
    async with LocalShardReader(kinesis, config(tmp_path)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await stands_still(kinesis)
        (folder,) = contents(tmp_path)
        for number, path in enumerate(contents(folder)):
            if path.name != "in-use":
                path.unlink() if number % 2 else path.write_bytes(b"damaged")
        end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        assert await read(reader, ranges_between(start, end)) == numbers
        assert kinesis.reads


def test_a_disk_that_cannot_be_written_has_no_room_for_a_while(tmp_path: Path) -> None:
    """It is tried again later, not with every segment."""
    now = [0.0]
    spill = SpillFolder(10**6, tmp_path, clock=lambda: now[0])
    records = wire_records([1, 2, 3])
    spilled = spill.store(records)
    assert spilled is not None
    spill.settle()
    assert (spill.memory_bytes, spill.used_bytes) == (0, spilled.nbytes)
    assert spilled.load() == records
    moved = spill.folder.rename(tmp_path / "elsewhere")
    failed = spill.store(records)
    assert failed is not None
    spill.settle()
    assert failed.load() == records
    assert (spill.memory_bytes, spill.used_bytes) == (spilled.nbytes, spilled.nbytes)
    assert spill.store(records) is None
    failed.drop()
    assert (spill.memory_bytes, failed.load()) == (0, None)
    moved.rename(spill.folder)
    assert spill.store(records) is None
    now[0] = 61
    assert spill.store(records) is not None
    used = spill.used_bytes
    spilled.drop()
    spilled.drop()
    spill.settle()
    assert spill.used_bytes == used // 2
    assert spilled.load() is None
    spill.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """A folder that no process holds goes; one in use stays."""
    for name in ("penstock-spill-left", "penstock-spill-used"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in-use").touch()
        (tmp_path / name / "7").write_bytes(b"rows")
    with (tmp_path / "penstock-spill-used" / "in-use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        SpillFolder(1, tmp_path).close()
        assert [path.name for path in tmp_path.iterdir()] == ["penstock-spill-used"]


def test_a_folder_that_cannot_be_made_names_its_option(tmp_path: Path) -> None:
    """A wrong setting is told when the reader is made."""
    with pytest.raises(EfoConsumerConfigError, match="spill_folder"):
        SpillFolder(1, tmp_path / "missing")
    with pytest.raises(EfoConsumerConfigError, match="spill_bytes"):
        ReaderConfig(spill_bytes=-1)
    with pytest.raises(EfoConsumerConfigError, match="needs spill_bytes"):
        ReaderConfig(spill_folder=tmp_path)


async def test_of_a_range_that_is_held_in_part_only_the_rest_is_read_again() -> None:
    """Evicted segments at its beginning cost one read up to the first one that is held."""
    kinesis = Watched()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    numbers = kinesis.put("s", shard, 3, size=BIG)
    options = ReaderConfig(buffer_bytes_per_shard=3 * BIG, buffer_bytes=3 * BIG, promise_grace=timedelta(0))
    async with LocalShardReader(kinesis, options) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await stands_still(kinesis)
        await reader.positions("q", epoch, start, wait_seconds=5)
        numbers += kinesis.put("s", shard, 2, size=BIG)
        await stands_still(kinesis)
        end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        polls = kinesis.polls
        assert await read(reader, ranges_between(start, end)) == numbers
        assert kinesis.reads == [ShardPosition.trim_horizon()]
        assert kinesis.polls - polls < len(numbers)


def test_a_folder_that_is_removed_before_it_is_held_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two readers that start at once, one may take the other's new folder for one that was left."""
    flock = fcntl.flock

    def late(file: TextIOWrapper, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        remove_leftovers([tmp_path])
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    spill = SpillFolder(10**6, tmp_path)
    assert contents(tmp_path) == [spill.folder]
    stored = spill.store(wire_records([1, 2, 3]))
    assert stored is not None
    spill.settle()
    assert [path.name for path in contents(spill.folder)] == ["0", "in-use"]
    spill.close()
    assert contents(tmp_path) == []
