"""Record batches in shared memory, for tasks on the reader's machine: they are spared what gRPC and a socket copy.

A block is a file in memory beside the reader's Unix socket, in a folder that is its user's alone. The reader copies a
batch into one that is free and passes its name on; the task maps the file, once for all batches, and marks it when it
no longer holds the batch. Then the next batch goes there: memory that has been used before costs a tenth of new
memory. A block that a task still holds when its call is over is not written to until the task releases it.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import re
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.efo_consumer._model.schema import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALLEST_BYTES = 64 * 1024
"""Smallest batch that is worth a block."""

# The first byte of a block's first page says whose it is.
_CONTENT_OFFSET: Final = 4096
_FREE, _FILLED, _TAKEN = 0, 1, 2
# Batches are about as large as asked for: their keys and numbers may come on top.
_BLOCK_BYTES = DEFAULT_MAX_BATCH_BYTES + DEFAULT_MAX_BATCH_BYTES // 4
_MOST_BLOCKS = 8
"""Most blocks of a reader. Containers have 64 MB of such memory by default."""
_MOST_OF_A_CALL = 3
"""One that is filled, one on its way, one that is read."""
_PATIENCE_SECONDS = 0.25
"""A task that releases no block for so long keeps what it reads: the rest of its call goes through the socket."""
_LOOK_SECONDS = 0.0005
_LONGEST_LOOK_SECONDS = 0.02
_NAME = re.compile(r"[0-9]+\.block")
_UNIX = "unix:"


class Block:
    """Shared memory for one batch at a time, as the reader has it.

    Args:
        path: of a file that is not there yet.
        nbytes: of a batch, at most.

    Raises:
        OSError: shared memory has no room for the block.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path = path
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # All of it at once: a write without memory left would end the process.
            os.posix_fallocate(file, 0, _CONTENT_OFFSET + nbytes)
            self._map = mmap.mmap(file, 0)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    @property
    def name(self) -> str:
        """The name of its file."""
        return self._path.name

    @property
    def state(self) -> int:
        """Free, filled and not yet taken, or taken: the task changes it."""
        return self._map[0]

    def fill(self, parts: Sequence[memoryview]) -> None:
        """Copy a batch into it."""
        place = _CONTENT_OFFSET
        for part in parts:
            self._map[place : place + part.nbytes] = part
            place += part.nbytes
        self._map[0] = _FILLED

    def remove(self) -> None:
        """Unlink it: only tasks that have mapped it keep it."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class BlockPool:
    """The blocks of a reader, for one event loop.

    Args:
        folder: for their files; it exists, is its user's alone, and goes with the reader.
        block_bytes: of a batch, at most; a larger one goes through the socket.
        most_blocks: at most.
    """

    def __init__(self, folder: Path, *, block_bytes: int = _BLOCK_BYTES, most_blocks: int = _MOST_BLOCKS) -> None:
        self.block_bytes = block_bytes
        self._folder = folder
        self._most_blocks = most_blocks
        self._numbers = itertools.count(1)
        self._free: list[Block] = []
        self._held: list[Block] = []
        self._count = 0

    def lend(self) -> Block | None:
        """Give an unused block; None without one."""
        self._free += [block for block in self._held if block.state == _FREE]
        self._held = [block for block in self._held if block.state != _FREE]
        if self._free:
            return self._free.pop()
        if self._count >= self._most_blocks:
            if not self._held:
                return None
            # Its task may have been killed.
            self.remove(self._held.pop(0))
        try:
            block = Block(self._folder / f"{next(self._numbers)}.block", self.block_bytes)
        except OSError:
            return None
        self._count += 1
        return block

    def give_back(self, block: Block) -> None:
        """Take back a block that was lent; a task that has it may continue to read it."""
        if block.state == _FILLED:
            # Its task may know of it, but is not known to have it: it may come for it at any time, or never.
            self.remove(block)
        else:
            self._held.append(block)

    def remove(self, block: Block) -> None:
        """Never write to it again."""
        block.remove()
        self._count -= 1


class BlockWriter:
    """What a call writes to blocks. Close it."""

    def __init__(self, pool: BlockPool, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._pool = pool
        self._patience_seconds = patience_seconds
        self._lent: list[Block] = []
        self._is_over = False

    async def write(self, parts: Sequence[memoryview]) -> tuple[str, int] | None:
        """Write a batch; give the block's name and the batch's bytes, or None if it is not for a block."""
        nbytes = sum(part.nbytes for part in parts)
        if self._is_over or not SMALLEST_BYTES <= nbytes <= self._pool.block_bytes:
            return None
        block = self._find() or await self._wait()
        if block is None:
            return None
        block.fill(parts)
        return block.name, nbytes

    async def taken(self) -> None:
        """Wait until the task has taken all: then it no longer needs this call."""
        pause = _LOOK_SECONDS
        while any(block.state == _FILLED for block in self._lent):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)

    def close(self) -> None:
        """Give back what was lent."""
        self._is_over = True
        while self._lent:
            self._pool.give_back(self._lent.pop())

    def _find(self) -> Block | None:
        for lent in self._lent:
            if lent.state == _FREE:
                return lent
        block = self._pool.lend() if len(self._lent) < _MOST_OF_A_CALL else None
        if block is not None:
            self._lent.append(block)
        return block

    async def _wait(self) -> Block | None:
        """Poll for a block that a task releases: that takes milliseconds, or never happens."""
        deadline, pause = time.monotonic() + self._patience_seconds, _LOOK_SECONDS
        while self._lent and time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)
            if (block := self._find()) is not None:
                return block
        self._is_over = bool(self._lent)
        return None


class Blocks:
    """The blocks of readers, as a task maps them. For any thread; a forked child needs its own."""

    MOST_MAPPED = 4 * _MOST_BLOCKS
    """Most blocks of all readers: the processes of tasks outlive many readers."""

    def __init__(self) -> None:
        self._mapped: dict[Path, tuple[int, mmap.mmap]] = {}
        self._lock = threading.Lock()

    def take(self, folder: Path, name: str, nbytes: int) -> pa.Buffer:
        """Give a batch that was written to a block. The block is free again when the buffer is garbage collected.

        Raises:
            OSError: the block cannot be opened.
        """
        if _NAME.fullmatch(name) is None:
            raise FileNotFoundError(f"{name!r} is not a block's name")
        with self._lock:
            file, mapped = self._map(folder / name)
            if not 0 < nbytes <= len(mapped) - _CONTENT_OFFSET:
                raise FileNotFoundError(f"{name} does not hold {nbytes} bytes")
            os.pwrite(file, bytes((_TAKEN,)), 0)
            view = memoryview(mapped)[_CONTENT_OFFSET : _CONTENT_OFFSET + nbytes]
            own = os.dup(file)
        weakref.finalize(view, _release, own, os.getpid()).atexit = False
        return pa.py_buffer(view)

    def _map(self, path: Path) -> tuple[int, mmap.mmap]:
        found = self._mapped.get(path)
        if found is None:
            # What a reader removed is memory that only this map holds.
            for gone in [known for known in self._mapped if not known.exists()]:
                os.close(self._mapped.pop(gone)[0])
            while len(self._mapped) >= self.MOST_MAPPED:
                os.close(self._mapped.pop(next(iter(self._mapped)))[0])
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            found = self._mapped[path] = file, mmap.mmap(file, 0, flags=flags, prot=mmap.PROT_READ)
        return found


def _release(file: int, process: int) -> None:
    """Mark the block as free. The system call orders the mark after all reads."""
    if os.getpid() == process:  # a forked child has a copy of all, and says nothing for its parent
        os.pwrite(file, bytes((_FREE,)), 0)
        os.close(file)


def folder_of(endpoint: str) -> Path | None:
    """The folder in which a reader may have blocks for its callers at this endpoint; None for TCP endpoints."""
    return Path(endpoint.removeprefix(_UNIX)).parent if endpoint.startswith(_UNIX) else None
