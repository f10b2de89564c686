"""An append-only file of checksummed frames.

The file begins with a line that names the format and its version. A frame is the length of its payload and the CRC32 of
that length and the payload (both unsigned 32 bits, big-endian), then the payload. Frames are written with one call
each, so that the death of the process leaves a whole file, or one whose last frame is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from typing import TYPE_CHECKING, BinaryIO
from zlib import crc32

from penstock.emulator.errors import JournalError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAGIC = b"penstock-emulator journal 1\n"
_LENGTH = struct.Struct("!I")
_HEADER = struct.Struct("!II")
_READ_BYTES = 1024 * 1024


def frame(payload: bytes) -> bytes:
    """Put a payload into a frame."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _LENGTH.pack(crc32(payload, crc32(length))), payload))


class Journal:
    """A journal that this process holds alone; `frames` first, then `append`.

    Raises:
        JournalError: another emulator holds the file, or it is not a journal, of another version, or damaged before
            its end.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = 0
        self.written_bytes = 0
        """What this process has appended."""
        self._synced = 0
        self._syncing: asyncio.Task[None] | None = None
        self._broken = False
        try:
            self._lock(self._fd)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def size_bytes(self) -> int:
        """The length of the file up to its last whole frame."""
        return self._end

    def frames(self) -> Iterator[bytes]:
        """The payloads, oldest first; a frame that was cut off at the end of the file is cut away."""
        size = os.fstat(self._fd).st_size
        start = os.pread(self._fd, len(MAGIC), 0)
        if start != MAGIC:
            if not MAGIC.startswith(start):
                raise JournalError(path=self.path, offset=0, reason="not a journal of this version")
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, MAGIC, 0)
            size = len(MAGIC)
            self._sync_folder()
        self._end = len(MAGIC)
        with open(self._fd, "rb", buffering=_READ_BYTES, closefd=False) as file:
            file.seek(self._end)
            while self._end < size:
                payload = self._read_frame(file, size)
                if payload is None:
                    break
                self._end += _HEADER.size + len(payload)
                yield payload
        os.ftruncate(self._fd, self._end)

    def append(self, frames: Iterable[bytes]) -> None:
        """Write frames (see `frame`): all of them, or none.

        Raises:
            OSError: they could not be written, or an earlier failure left the file in an unknown state.
        """
        if self._broken:
            raise OSError(f"the journal {self.path} failed before")
        data = memoryview(b"".join(frames))
        done = 0
        try:
            while done < len(data):
                done += self._write(data[done:], self._end + done)
        except OSError:
            try:
                os.ftruncate(self._fd, self._end)
            except OSError:
                self._broken = True
            raise
        self._end += done
        self.written_bytes += done

    def rewrite(self, frames: Iterable[bytes]) -> None:
        """Replace everything by `frames`; the old file stays until the new one is whole."""
        part = self.path.with_name(self.path.name + ".part")
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._lock(fd)
            end = 0
            for data in (MAGIC, *frames):
                view = memoryview(data)
                while view:
                    written = os.pwrite(fd, view, end)
                    end += written
                    view = view[written:]
            # Renaming must not overtake the data: otherwise a power cut could leave an empty journal.
            os.fsync(fd)
            part.replace(self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
            raise
        os.close(self._fd)
        self._fd, self._end = fd, end
        self._sync_folder()

    async def synced(self) -> None:
        """Wait until everything written so far is on the disk, where fsync is asked for; callers share the calls.

        Raises:
            OSError: the disk did not take it; nothing can be written any more.
        """
        if not self._fsync:
            return
        wanted = self.written_bytes
        while self._synced < wanted:
            if self._broken:
                raise OSError(f"the journal {self.path} failed before")
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync(), name="fsync the journal")
            await asyncio.shield(self._syncing)

    async def close(self) -> None:
        """Let go of the file, once nothing is on its way to the disk."""
        if self._syncing is not None:
            await asyncio.gather(self._syncing, return_exceptions=True)
        os.close(self._fd)

    async def _sync(self) -> None:
        written = self.written_bytes
        try:
            await asyncio.to_thread(os.fsync, self._fd)
            self._synced = written
        except OSError:
            # What a failed fsync did reach cannot be known.
            self._broken = True
            raise
        finally:
            self._syncing = None

    def _sync_folder(self) -> None:
        # A file is only as safe as its name.
        if self._fsync:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _write(self, data: memoryview, offset: int) -> int:
        return os.pwrite(self._fd, data, offset)

    def _read_frame(self, file: BinaryIO, size: int) -> bytes | None:
        header = file.read(_HEADER.size)
        if len(header) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            payload = file.read(length)
            if len(payload) == length and crc32(payload, crc32(header[: _LENGTH.size])) == checksum:
                return payload
            # A file system that lost its power may leave zeros where data was on its way.
            if length and self._end + _HEADER.size + length < size:
                raise JournalError(path=self.path, offset=self._end, reason="damaged before its end")
        return None

    def _lock(self, fd: int) -> None:
        if fcntl is None:
            reason = "files cannot be locked on this system: an emulator keeps nothing on disk here"
            raise JournalError(path=self.path, offset=0, reason=reason)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(path=self.path, offset=0, reason="another emulator uses it") from error
