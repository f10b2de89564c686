"""The file format of the journal."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from penstock.emulator import JournalError
from penstock.emulator._persist.journal import MAGIC, Journal, frame

if TYPE_CHECKING:
    from pathlib import Path

PAYLOADS = [b"one", b"", b"three" * 1000]


async def write(path: Path, payloads: list[bytes]) -> None:
    journal = Journal(path)
    list(journal.frames())
    journal.append([frame(payload) for payload in payloads])
    await journal.close()


async def read(path: Path) -> list[bytes]:
    journal = Journal(path)
    try:
        return list(journal.frames())
    finally:
        await journal.close()


async def test_what_was_appended_is_read(tmp_path: Path) -> None:
    """Payloads come back in order, also those of several openings."""
    path = tmp_path / "journal"
    await write(path, PAYLOADS)
    await write(path, [b"four"])
    assert await read(path) == [*PAYLOADS, b"four"]


@pytest.mark.parametrize("cut", range(1, 13))
async def test_a_last_frame_that_is_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    """Wherever the death of the process cut it, and what is written next is read again."""
    path = tmp_path / "journal"
    await write(path, [b"one", b"four"])
    os.truncate(path, path.stat().st_size - cut)
    assert await read(path) == [b"one"]
    await write(path, [b"two"])
    assert await read(path) == [b"one", b"two"]


async def test_a_beginning_that_is_cut_off_is_begun_again(tmp_path: Path) -> None:
    """A process may die while it writes the first line."""
    path = tmp_path / "journal"
    path.write_bytes(MAGIC[:5])
    assert await read(path) == []
    await write(path, [b"one"])
    assert await read(path) == [b"one"]


async def test_zeros_at_the_end_are_left_out(tmp_path: Path) -> None:
    """A file system that lost its power may have made the file longer without its data."""
    path = tmp_path / "journal"
    await write(path, [b"one"])
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert await read(path) == [b"one"]


async def test_damage_before_the_end_is_an_error(tmp_path: Path) -> None:
    """Nothing that was acknowledged is left out without a word: the error says where the file is wrong."""
    path = tmp_path / "journal"
    await write(path, PAYLOADS)
    content = bytearray(path.read_bytes())
    content[len(MAGIC) + 9] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalError) as caught:
        await read(path)
    assert (caught.value.path, caught.value.offset) == (path, len(MAGIC))


async def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file that is not a journal, or one of another version, is not written to."""
    path = tmp_path / "notes.txt"
    path.write_text("penstock-emulator journal 9\n")
    with pytest.raises(JournalError, match="version"):
        await read(path)
    assert path.read_text() == "penstock-emulator journal 9\n"


async def test_two_emulators_do_not_share_a_file(tmp_path: Path) -> None:
    """The second is told, also after the first has written its file anew."""
    first = Journal(tmp_path / "journal")
    list(first.frames())
    with pytest.raises(JournalError, match="another"):
        Journal(tmp_path / "journal")
    first.rewrite([frame(b"one")])
    with pytest.raises(JournalError, match="another"):
        Journal(tmp_path / "journal")
    await first.close()
    assert await read(tmp_path / "journal") == [b"one"]


async def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up within a frame: it is cut away, and room that comes back is used."""
    path = tmp_path / "journal"
    journal = Journal(path)
    list(journal.frames())
    journal.append([frame(b"one")])
    pwrite = os.pwrite

    def fill_up(fd: int, data: memoryview, offset: int) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data[:10], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_up)
        with pytest.raises(OSError, match="No space"):
            journal.append([frame(b"two" * 8)])
    journal.append([frame(b"three")])
    await journal.close()
    assert await read(path) == [b"one", b"three"]


async def test_writers_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes while one fsync is under way is served by the next one, together with all others."""
    calls = 0
    fsync = os.fsync

    def count(fd: int) -> None:
        nonlocal calls
        calls += 1
        fsync(fd)

    monkeypatch.setattr(os, "fsync", count)
    journal = Journal(tmp_path / "journal", fsync=True)
    list(journal.frames())

    async def put(number: int) -> None:
        journal.append([frame(b"%d" % number)])
        await journal.synced()

    await asyncio.gather(*(put(number) for number in range(50)))
    assert 1 <= calls <= 3
    await journal.close()


async def test_a_failed_fsync_is_the_end_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reached the disk cannot be known any more, so nobody is told that something did."""

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path / "journal", fsync=True)
    list(journal.frames())
    journal.append([frame(b"one")])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await journal.synced()
    with pytest.raises(OSError, match="failed before"):
        journal.append([frame(b"two")])
    with pytest.raises(OSError, match="failed before"):
        await journal.synced()
    await journal.close()
