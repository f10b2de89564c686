"""The journal of a durable gateway: what is in it survives, whatever happened to the process or the disk."""

import asyncio
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink._entries import EntryFailure
from penstock.async_sink._gateway._journal_format import HEADER, AcceptedBatch, SettledBatch, encode, scan
from penstock.async_sink.errors import GatewayStorageError, JournalError
from penstock.async_sink.gateway import Journal
from penstock.async_sink.testing import settle, wait_until
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb


def journal(folder: Path, **options: Any) -> Journal:
    return Journal(folder, **{"fsync": False, **options})


async def append(kept: Journal, content: bytes, destination: str = "flights") -> int:
    return await kept.append("kinesis", destination, "client", 1, content)


def files(folder: Path) -> list[Path]:
    return list(folder.glob("journal-*.log"))


def contents(kept: Journal, destination: str = "flights") -> list[bytes]:
    return [record.batch for record in kept.pending("kinesis", destination)]


async def test_what_was_accepted_and_not_settled_is_there_after_reopening(tmp_path: Path) -> None:
    """In order, by destination, with what is needed to write it."""
    first = journal(tmp_path, fsync=True)
    sequences = [await append(first, b"%d" % number) for number in range(4)]
    await append(first, b"other", "delays")
    first.settle(sequences[1])
    await first.close()
    second = journal(tmp_path)
    assert second.destinations() == [("kinesis", "delays"), ("kinesis", "flights")]
    assert contents(second) == [b"0", b"2", b"3"]
    assert second.destinations() == [("kinesis", "delays")]
    assert contents(second) == []
    (other,) = second.pending("kinesis", "delays")
    assert (other.client_id, other.weight, other.batch) == ("client", 1, b"other")
    assert await append(second, b"new") > other.sequence
    await second.close()


async def test_a_torn_tail_loses_nothing_but_itself(tmp_path: Path) -> None:
    """Cut at every byte of the last record, or ended by zeros: the records before are read."""
    kept = journal(tmp_path / "whole")
    for number in range(3):
        await append(kept, b"batch %d" % number)
    await kept.close()
    (path,) = (tmp_path / "whole").glob("journal-*.log")
    content = path.read_bytes()
    offsets = [offset for offset, _, _ in scan(content, "x")]
    for end in range(offsets[2], len(content)):
        for tail in (b"", b"\0" * 50):
            if tail and end > offsets[2]:
                continue
            assert [record.sequence for _, _, record in scan(content[:end] + tail, "x")] == [1, 2]
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / path.name).write_bytes(content[:-3])
    reopened = journal(torn)
    assert contents(reopened) == [b"batch 0", b"batch 1"]
    await append(reopened, b"after")
    await reopened.close()
    again = journal(torn)
    assert contents(again) == [b"batch 0", b"batch 1", b"after"]
    await again.close()


async def test_damage_before_the_end_is_an_error_that_names_the_byte(tmp_path: Path) -> None:
    """Nothing is left out without a word; a version of the future is refused."""
    frames = [encode(AcceptedBatch(number, "kinesis", "flights", "c", 1, b"x" * 40)) for number in (1, 2)]
    damaged = bytearray(HEADER + b"".join(frames))
    damaged[len(HEADER) + 20] ^= 1
    path = tmp_path / "journal-00000001.log"
    path.write_bytes(damaged)
    with pytest.raises(JournalError, match="checksum") as caught:
        journal(tmp_path)
    assert (caught.value.name, caught.value.offset) == (str(path), len(HEADER))
    for header, words in ((b"PSGJ\x03\0\0\0", "version 3"), (b"GIF89a\0\0", "no journal")):
        with pytest.raises(JournalError, match=words):
            list(scan(header + frames[0], "x"))


async def test_a_damaged_length_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    """Whichever byte in the middle is damaged: an error, else what was acknowledged after it would be lost."""
    kept = journal(tmp_path)
    for number in range(3):
        await append(kept, b"batch %d" % number)
    await kept.close()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    offsets = [offset for offset, _, _ in scan(whole, "x")]
    for place in range(offsets[1], offsets[2]):
        for bit in (0x01, 0x80):
            damaged = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
            with pytest.raises(JournalError) as caught:
                list(scan(damaged, "x"))
            assert caught.value.offset == offsets[1]
    path.write_bytes(whole[: offsets[1]] + b"\xff" + whole[offsets[1] + 1 :])
    with pytest.raises(JournalError, match="head"):
        journal(tmp_path)
    assert path.stat().st_size == len(whole)
    path.write_bytes(whole)
    reopened = journal(tmp_path)
    assert contents(reopened) == [b"batch 0", b"batch 1", b"batch 2"]
    await reopened.close()


async def test_a_file_that_is_cut_off_before_another_one_is_an_error(tmp_path: Path) -> None:
    """A kill cuts off the last file only: any other has lost what was acknowledged."""
    kept = journal(tmp_path, segment_bytes=100)
    for number in range(3):
        await append(kept, b"%d" % number * 80)
    await kept.close()
    first = min(files(tmp_path))
    first.write_bytes(first.read_bytes()[:-3])
    with pytest.raises(JournalError, match="its end is missing") as caught:
        journal(tmp_path)
    assert caught.value.name == str(first)


async def test_one_process_has_the_folder(tmp_path: Path) -> None:
    """A second gateway is refused, until the first one is gone."""
    first = journal(tmp_path)
    with pytest.raises(JournalError, match="in use"):
        journal(tmp_path)
    await first.close()
    await journal(tmp_path).close()


class FullDisk:
    """Takes so many more bytes, and then none: a record may be half written."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, content: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(file, content[: self.room])
        self.room -= written
        return written


async def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """What could not be kept is refused, what was kept before and after is there, and settled batches are forgotten."""
    disk = FullDisk(10_000)
    kept = journal(tmp_path, write=disk.write)
    first = await append(kept, b"a" * 100)
    await append(kept, b"b" * 100)
    disk.room = 60
    with pytest.raises(GatewayStorageError, match="No space left"):
        await append(kept, b"c" * 100)
    kept.settle(first)
    await asyncio.sleep(0)
    disk.room = 10_000
    await append(kept, b"d" * 100)
    await kept.close()
    again = journal(tmp_path)
    assert contents(again) == [b"b" * 100, b"d" * 100]
    await again.close()


async def test_a_disk_that_fills_up_between_two_files_loses_nothing(tmp_path: Path) -> None:
    """The next file cannot be begun: the one before goes on."""
    disk = FullDisk(10_000)
    kept = journal(tmp_path, segment_bytes=300, write=disk.write)
    await append(kept, b"a" * 100)
    disk.room = len(encode(AcceptedBatch(2, "kinesis", "flights", "client", 1, b"b" * 200))) + 4
    await append(kept, b"b" * 200)
    disk.room = 10_000
    await append(kept, b"c" * 100)
    await kept.close()
    again = journal(tmp_path)
    assert contents(again) == [b"a" * 100, b"b" * 200, b"c" * 100]
    await again.close()


async def test_files_are_removed_once_nobody_needs_them(tmp_path: Path) -> None:
    """One destination that stands still does not keep the files of the others."""
    kept = journal(tmp_path, segment_bytes=1_000)
    stuck = await append(kept, b"stuck", "delays")
    for number in range(400):
        kept.settle(await append(kept, b"%03d" % number + b"x" * 100))
    stuck_again = await append(kept, b"last")
    assert len(files(tmp_path)) <= 10
    await kept.close()
    again = journal(tmp_path)
    assert contents(again, "delays") == [b"stuck"]
    assert contents(again) == [b"last"]
    again.settle(stuck)
    again.settle(stuck_again)
    await append(again, b"x" * 1_000)
    await append(again, b"y")
    await again.close()
    assert len(files(tmp_path)) == 1


async def test_batches_that_are_given_back_are_given_out_again(tmp_path: Path) -> None:
    """As when a destination fails and is opened anew."""
    kept = journal(tmp_path)
    sequence = await append(kept, b"1")
    assert contents(kept) == []
    kept.release(sequence)
    assert contents(kept) == [b"1"]
    kept.settle(sequence)
    kept.release(sequence + 1)
    assert contents(kept) == []
    await kept.close()


async def test_entries_that_were_refused_after_their_acknowledgement_are_kept(tmp_path: Path) -> None:
    """In a file of lines, with the destination's words."""
    kept = journal(tmp_path)
    kept.reject("kinesis", "flights", "c", pb.Entry(data=b"bad"), EntryFailure(0, "Poison", "no\ngood"))
    await kept.close()
    (line,) = (tmp_path / "rejected.jsonl").read_text().splitlines()
    assert '"Poison"' in line


def test_records_survive_the_format() -> None:
    """Both kinds, non-ASCII names and any bytes."""
    records = [AcceptedBatch(7, "sqs", "рейсы", "ключ", 3, bytes(range(256))), SettledBatch(7)]
    content = HEADER + b"".join(map(encode, records))
    assert [record for _, _, record in scan(content, "x")] == records


class SlowDisk:
    """Writes when it may."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def write(self, file: int, content: memoryview) -> int:
        self.began.set()
        self.gate.wait(10.0)
        return os.write(file, content)


async def test_a_batch_whose_client_breaks_off_before_it_is_kept_is_not_kept(tmp_path: Path) -> None:
    """Neither while it is being written nor while it waits for that: nobody would ever write it to its destination."""
    disk = SlowDisk()
    kept = journal(tmp_path, write=disk.write)
    disk.began.clear()
    disk.gate.clear()
    writing = asyncio.create_task(append(kept, b"being written"))
    await wait_until(disk.began.is_set)
    waiting = asyncio.create_task(append(kept, b"waiting"))
    await settle()
    for task in (writing, waiting):
        task.cancel()
    await asyncio.gather(writing, waiting, return_exceptions=True)
    disk.gate.set()
    await append(kept, b"whole")
    await wait_until(lambda: kept.pending_batches == 1)
    await kept.close()
    again = journal(tmp_path)
    assert contents(again) == [b"whole"]
    await again.close()


async def test_damage_that_turns_up_later_keeps_nobody_waiting(tmp_path: Path) -> None:
    """An old file that cannot be carried forward stays as it is, and new batches are kept."""
    kept = journal(tmp_path, segment_bytes=100)
    await append(kept, b"old")
    first = min(files(tmp_path))
    first.write_bytes(first.read_bytes()[:-3] + b"\xff\xff\xff")
    for number in range(12):
        kept.settle(await asyncio.wait_for(append(kept, b"%d" % number * 100), 10))
    await kept.close()
    assert first.exists()


@pytest.mark.parametrize("size", [0, 3, 8, 4_096])
async def test_a_file_of_which_nothing_reached_the_disk_is_empty(tmp_path: Path, size: int) -> None:
    """A power cut may leave zeros where even the header was to be."""
    kept = journal(tmp_path)
    await append(kept, b"1")
    await kept.close()
    (tmp_path / "journal-00000002.log").write_bytes(b"\0" * size)
    for _ in range(2):
        again = journal(tmp_path)
        assert contents(again) == [b"1"]
        await again.close()


async def test_half_a_line_about_a_refused_entry_does_not_spoil_the_next(tmp_path: Path) -> None:
    """A power cut may leave one."""
    (tmp_path / "rejected.jsonl").write_text('{"time": 1, "ki')
    kept = journal(tmp_path)
    for code in ("Poison", "Other"):
        kept.reject("kinesis", "flights", "c", pb.Entry(data=b"bad"), EntryFailure(0, code))
        await append(kept, b"1")
    await kept.close()
    _, *lines = (tmp_path / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["error_code"] for line in lines] == ["Poison", "Other"]


async def test_what_is_settled_while_the_last_batch_is_written_is_not_written_again(tmp_path: Path) -> None:
    """As the last answers before a gateway ends: its successor would send those batches a second time."""
    disk = SlowDisk()
    kept = journal(tmp_path, write=disk.write)
    first = await append(kept, b"settled")
    disk.began.clear()
    disk.gate.clear()
    writing = asyncio.create_task(append(kept, b"pending"))
    await wait_until(disk.began.is_set)
    kept.settle(first)
    closing = asyncio.create_task(kept.close())
    await settle()
    disk.gate.set()
    await asyncio.gather(writing, closing)
    again = journal(tmp_path)
    assert contents(again) == [b"pending"]
    await again.close()
