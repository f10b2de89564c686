"""Keeps records on disk that memory has no room for: bounded, private, and gone with the process."""

from __future__ import annotations

import fcntl
import logging
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.efo_consumer._publisher import WIRE_SCHEMA
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_PREFIX = "penstock-spill-"
_LOCK = "in-use"
_RETRY_SECONDS = 60.0


class SpillFolder:
    """A `Spill` in a temporary folder of its own, one file per segment.

    Only this user can enter the folder. It is removed by `close`; what a process that was killed left behind is removed
    by the next one that uses the same parent. A disk that is full, or fails, counts as no room for a minute: what was
    not stored stays in memory, so nothing is lost.

    Files are written and read on the caller's thread: a segment is one event and goes to the page cache.

    Args:
        limit_bytes: bound of all files.
        parent: where to make the folder; the system's temporary folder when None.
        clock: monotonic seconds.

    Raises:
        EfoConsumerConfigError: the folder cannot be made.
    """

    def __init__(
        self, limit_bytes: int, parent: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._used = 0
        self._count = 0
        self._broken_until: float | None = None
        root = Path(tempfile.gettempdir()) if parent is None else parent
        try:
            _remove_abandoned(root)
            self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            # Held for as long as the process lives, however it ends.
            self._lock = (self.folder / _LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise EfoConsumerConfigError(option="spill_folder", reason=f"cannot be used: {error}") from error

    @property
    def used_bytes(self) -> int:
        """Bytes in the files."""
        return self._used

    def store(self, records: pa.RecordBatch) -> SpilledFile | None:
        """See `Spill.store`."""
        if self._broken_until is not None and self._clock() < self._broken_until:
            return None
        message = records.serialize()
        if self._used + message.size > self._limit_bytes:
            return None
        path = self.folder / str(self._count)
        self._count += 1
        try:
            path.write_bytes(message)
        except OSError as error:
            _log.warning("cannot spill to %s, going on without: %s", self.folder, error)
            self._broken_until = self._clock() + _RETRY_SECONDS
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        self._used += message.size
        return SpilledFile(self, path, message.size)

    def freed(self, nbytes: int) -> None:
        """Note that a file was removed."""
        self._used -= nbytes

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


class SpilledFile:
    """The records of one segment in a file; see `Spilled`."""

    def __init__(self, folder: SpillFolder, path: Path, nbytes: int) -> None:
        self._folder = folder
        self._path: Path | None = path
        self._nbytes = nbytes

    def load(self) -> pa.RecordBatch | None:
        """See `Spilled.load`."""
        if self._path is None:
            return None
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(self._path.read_bytes()), WIRE_SCHEMA)
        except (OSError, pa.ArrowInvalid) as error:
            _log.warning("cannot read %s, its records are read from Kinesis again: %s", self._path, error)
            return None

    def drop(self) -> None:
        """See `Spilled.drop`."""
        path, self._path = self._path, None
        if path is not None:
            self._folder.freed(self._nbytes)
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        # Another user's cannot be opened, and one in use cannot be locked.
        with suppress(OSError), (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
