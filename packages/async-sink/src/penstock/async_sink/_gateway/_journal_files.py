"""The files of a durable gateway's journal: appended to, read, carried forward and removed. Blocks."""

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.async_sink._gateway._journal_format import HEADER, AcceptedBatch, SettledBatch, decode, encode, scan
from penstock.async_sink.errors import JournalError

_logger = logging.getLogger(__name__)
_MAX_OLD_SEGMENTS = 8


@dataclass
class _Segment:
    path: Path
    live: set[int]
    """Sequences of its batches that are not settled."""


@dataclass(frozen=True)
class Place:
    """Where a batch is that is not settled."""

    segment: _Segment
    offset: int
    length: int
    kind: str
    destination: str


class JournalFiles:
    """Segments of records in a folder, and where in them the batches are that are not settled.

    Files whose batches are all settled are removed from the oldest on, so that a word about a settled batch outlives
    the batch. One process at a time has the folder.
    """

    def __init__(
        self, folder: Path, *, fsync: bool, segment_bytes: int, write: Callable[[int, memoryview], int]
    ) -> None:
        """Open the folder, and find what is pending.

        Raises:
            JournalError: a file is damaged, or another process has the folder.
            OSError: the folder cannot be read or written.
        """
        self._folder = folder
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._os_write = write
        # A file must not be removed while another thread reads it.
        self._busy = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.places: dict[int, Place] = {}
            """By sequence. Changed by `write` only."""
            self.next_sequence = 1
            """Higher than all that the files hold."""
            self.broken: OSError | None = None
            """Why nothing can be written any more."""
            self._segments: list[_Segment] = []
            self._load()
            self._start_segment()
        except BlockingIOError as error:
            os.close(self._lock)
            reason = "is in use by another gateway: end that one, or give this one a folder of its own"
            raise JournalError(str(folder), 0, reason) from error
        except BaseException:
            os.close(self._lock)
            raise

    def _load(self) -> None:
        paths = sorted(self._folder.glob("journal-*.log"))
        for path in paths:
            segment = _Segment(path, set())
            content = path.read_bytes()
            end = min(len(HEADER), len(content))
            for offset, length, record in scan(content, str(path)):
                end = offset + length
                self.next_sequence = max(self.next_sequence, record.sequence + 1)
                if isinstance(record, AcceptedBatch):
                    self._place(record, segment, offset, length)
                else:
                    self._forget(record.sequence)
            if end < len(content):
                if path is not paths[-1]:
                    # Only the last file can have been cut off by a kill: the next one begins after this is mended.
                    raise JournalError(str(path), end, "is damaged: its end is missing, and another file follows")
                self._cut_off(path, end, len(content) - end)
            self._segments.append(segment)

    def _cut_off(self, path: Path, end: int, length: int) -> None:
        _logger.warning("%s was cut off in a record: its last %d bytes are left out", path, length)
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(file, end)
            if self._fsync:
                os.fsync(file)
        finally:
            os.close(file)

    def _place(self, record: AcceptedBatch, segment: _Segment, offset: int, length: int) -> None:
        self._forget(record.sequence)
        segment.live.add(record.sequence)
        self.places[record.sequence] = Place(segment, offset, length, record.kind, record.destination)

    def _forget(self, sequence: int) -> None:
        place = self.places.pop(sequence, None)
        if place is not None:
            place.segment.live.discard(sequence)

    def _start_segment(self) -> None:
        number = 1 + max((int(segment.path.stem.rpartition("-")[2]) for segment in self._segments), default=0)
        path = self._folder / f"journal-{number:08d}.log"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if self._os_write(file, memoryview(HEADER)) < len(HEADER):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # The file before it stays in use.
            os.close(file)
            path.unlink()
            raise
        self._file = file
        self._size = len(HEADER)
        self._segments.append(_Segment(path, set()))
        if self._fsync:
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def read(self, sequences: Sequence[int]) -> list[AcceptedBatch]:
        """Those batches, which are not settled."""
        with self._busy:
            return list(self._read(sequences))

    def _read(self, sequences: Sequence[int]) -> Iterator[AcceptedBatch]:
        for sequence in sequences:
            place = self.places[sequence]
            with place.segment.path.open("rb") as file:
                file.seek(place.offset)
                record = decode(file.read(place.length), str(place.segment.path), place.offset)
            assert isinstance(record, AcceptedBatch)
            assert record.sequence == sequence
            yield record

    def write(self, accepted: Sequence[AcceptedBatch], settled: Sequence[int]) -> None:
        """Append, and wait for the disk.

        Raises:
            OSError: nothing of it is kept, or nobody knows and `broken` says why.
        """
        with self._busy:
            if self.broken is not None:
                raise self.broken
            self._write(accepted, settled)

    def _write(self, accepted: Sequence[AcceptedBatch], settled: Sequence[int]) -> None:
        frames = [encode(record) for record in accepted]
        start = self._size
        self._append(b"".join((*frames, *(encode(SettledBatch(sequence)) for sequence in settled))))
        self._sync()
        for record, frame in zip(accepted, frames, strict=True):
            self._place(record, self._segments[-1], start, len(frame))
            start += len(frame)
        for sequence in settled:
            self._forget(sequence)
        try:
            self._tidy()
        except (OSError, JournalError) as error:
            _logger.warning("the journal in %s cannot be tidied up: %s", self._folder, error)

    def _append(self, content: bytes) -> None:
        """All of it or nothing: a record that is half there would be damage once another one follows."""
        view, done = memoryview(content), 0
        try:
            while done < len(content):
                done += self._os_write(self._file, view[done:])
        except OSError:
            try:
                os.ftruncate(self._file, self._size)
                os.lseek(self._file, self._size, os.SEEK_SET)
            except OSError as error:
                self.broken = error
            raise
        self._size += len(content)

    def _sync(self) -> None:
        if not self._fsync:
            return
        try:
            os.fsync(self._file)
        except OSError as error:
            # What a failed sync has left on the disk nobody knows; trying it again would say that all is well.
            self.broken = error
            raise

    def _tidy(self) -> None:
        """Begin a new file when this one is large, and remove the oldest ones that nobody needs."""
        if self._size >= self._segment_bytes:
            file = self._file
            self._start_segment()
            os.close(file)
        if len(self._segments) > _MAX_OLD_SEGMENTS:
            self._carry_forward(self._segments[0])
        while len(self._segments) > 1 and not self._segments[0].live:
            self._segments.pop(0).path.unlink(missing_ok=True)

    def _carry_forward(self, oldest: _Segment) -> None:
        """Write the batches of a file again: one destination that stands still must not keep the others' files."""
        moved = list(self._read(sorted(oldest.live)))
        starts = []
        for record in moved:
            frame = encode(record)
            starts.append((self._size, len(frame)))
            self._append(frame)
        # Before the old places are forgotten: their file is removed next.
        self._sync()
        for record, (start, length) in zip(moved, starts, strict=True):
            self._place(record, self._segments[-1], start, length)

    def close(self) -> None:
        """Give the folder free."""
        os.close(self._file)
        os.close(self._lock)
