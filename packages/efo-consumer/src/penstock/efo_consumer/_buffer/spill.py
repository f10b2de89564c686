"""Keeps records on disk that memory has no room for: bounded, private, and gone with the process."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.efo_consumer._buffer.owned_folder import SPILL_PREFIX, new_folder, remove_leftovers
from penstock.efo_consumer._model.events import WIRE_SCHEMA
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0


class SpillFolder:
    """A `Spill` in a temporary folder of its own, one file per segment.

    Only this user can enter the folder. It is removed by `close`; what a process that was killed left behind is removed
    by the next one that uses the same parent. A disk that is full, or fails, counts as no room for a minute: what was
    not stored stays in memory, so nothing is lost.

    One thread writes and removes files, in the order in which they were asked for; until a file is written its records
    stay in memory, and count as such.

    Args:
        limit_bytes: bound of all files.
        parent: where to make the folder; the system's temporary folder when None.
        in_flight_bytes: bound of what waits to be written; one segment may always wait.
        on_written: called, by the thread that writes, when a file was written or could not be.
        write: writes a file.
        clock: monotonic seconds.

    Raises:
        EfoConsumerConfigError: the folder cannot be made.
    """

    def __init__(
        self,
        limit_bytes: int,
        parent: Path | None = None,
        *,
        in_flight_bytes: int = 8 * 1024 * 1024,
        on_written: Callable[[], None] = lambda: None,
        write: Callable[[Path, pa.Buffer], object] = Path.write_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._in_flight_bytes = in_flight_bytes
        self._on_written = on_written
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        self._used = 0
        self._memory = 0
        self._count = 0
        self._broken_until: float | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="penstock-spill")
        root = Path(tempfile.gettempdir()) if parent is None else parent
        try:
            remove_leftovers([root])
            self.folder, self._in_use = new_folder(SPILL_PREFIX, root)
        except OSError as error:
            raise EfoConsumerConfigError(option="spill_folder", reason=f"cannot be used: {error}") from error

    @property
    def used_bytes(self) -> int:
        """Bytes in the files, and of those that are to be written."""
        return self._used

    @property
    def memory_bytes(self) -> int:
        """Bytes that are not written yet, or could not be."""
        return self._memory

    def store(self, records: pa.RecordBatch) -> SpilledFile | None:
        """See `Spill.store`."""
        size = pa.ipc.get_record_batch_size(records)
        with self._lock:
            if self._broken_until is not None and self._clock() < self._broken_until:
                return None
            if self._used + size > self._limit_bytes:
                return None
            if self._memory and self._memory + size > self._in_flight_bytes:
                return None
            self._used += size
            self._memory += size
            spilled = SpilledFile(self, self.folder / str(self._count), size, records)
            self._count += 1
        self._writer.submit(self._store, spilled)
        return spilled

    def _store(self, spilled: SpilledFile) -> None:
        with self._lock:
            wanted = spilled.records is not None
            broken = self._broken_until is not None and self._clock() < self._broken_until
        written = wanted and not broken and self._written(spilled)
        with self._lock:
            spilled.is_written = written
            if not written:
                self._uncount(spilled)
            if written and spilled.records is not None:
                spilled.records = None
                self._memory -= spilled.nbytes
            dropped_meanwhile = written and spilled.is_dropped
        if dropped_meanwhile:
            self.remove(spilled)
        self._on_written()

    def _written(self, spilled: SpilledFile) -> bool:
        records = spilled.records
        try:
            if records is not None:
                self._write(spilled.path, records.serialize())
        except OSError as error:
            _log.warning("cannot spill to %s, going on without: %s", self.folder, error)
            self._broken_until = self._clock() + _RETRY_SECONDS
            with suppress(OSError):
                spilled.path.unlink(missing_ok=True)
            return False
        return records is not None

    def drop(self, spilled: SpilledFile) -> None:
        """Let go of a file and of what is in memory of it."""
        with self._lock:
            if spilled.is_dropped:
                return
            spilled.is_dropped = True
            # It is removed, or not written, before anything that is stored from now on.
            self._uncount(spilled)
            if spilled.records is not None:
                spilled.records = None
                self._memory -= spilled.nbytes
            if not spilled.is_written:
                # Still to be written, or it could not be: the writer settles it.
                return
        with suppress(RuntimeError):
            # Closed: the folder is gone as a whole.
            self._writer.submit(self.remove, spilled)

    def remove(self, spilled: SpilledFile) -> None:
        """Remove a file. For the thread that writes."""
        with suppress(OSError):
            spilled.path.unlink(missing_ok=True)

    def _uncount(self, spilled: SpilledFile) -> None:
        if spilled.is_counted:
            spilled.is_counted = False
            self._used -= spilled.nbytes

    def settle(self) -> None:
        """Wait until everything that was asked for so far is done. Blocks."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Wait for the file that is being written, and remove the folder. Blocks."""
        self._writer.shutdown(cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._in_use.close()


class SpilledFile:
    """The records of one segment in a file, or on their way to it; see `Spilled`.

    Attributes:
        path: the file.
        nbytes: its length.
        records: in memory until the file is written, and if it could not be.
        is_counted: its bytes count among those of the disk.
        is_written: the file holds the records.
        is_dropped: nobody wants them any more.
    """

    def __init__(self, folder: SpillFolder, path: Path, nbytes: int, records: pa.RecordBatch) -> None:
        self._folder = folder
        self._kept: pa.RecordBatch | None = None
        self._is_lost = False
        self.path = path
        self.nbytes = nbytes
        self.records: pa.RecordBatch | None = records
        self.is_counted = True
        self.is_written = False
        self.is_dropped = False

    @property
    def is_at_hand(self) -> bool:
        """See `Spilled.is_at_hand`."""
        return self.records is not None or self._kept is not None or self.is_dropped or self._is_lost

    def load(self) -> pa.RecordBatch | None:
        """See `Spilled.load`."""
        if self.is_dropped or self._is_lost:
            return None
        # Looked up once: the thread that writes may let go of them in between.
        records = self.records
        if records is None:
            records = self._kept
        if records is not None:
            return records
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(self.path.read_bytes()), WIRE_SCHEMA)
        except (OSError, pa.ArrowInvalid) as error:
            if not self.is_dropped:
                _log.warning("cannot read %s, its records are read from Kinesis again: %s", self.path, error)
            self._is_lost = True
            return None

    def keep(self) -> None:
        """See `Spilled.keep`."""
        self._kept = self.load()

    def release(self) -> None:
        """See `Spilled.release`."""
        self._kept = None

    def drop(self) -> None:
        """See `Spilled.drop`."""
        self._folder.drop(self)
