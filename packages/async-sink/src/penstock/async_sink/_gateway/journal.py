"""A durable gateway's journal: what it has accepted and not yet written, on disk."""

import asyncio
import errno
import json
import logging
import os
import resource
import sqlite3
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time as default_time
from typing import Any, Final, NamedTuple
from zlib import crc32

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink.errors import GatewayStorageError, JournalError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.rpc import OwnFiles

_VERSION: Final = 4
_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE batch (
    sequence INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    destination TEXT NOT NULL,
    client_id TEXT NOT NULL,
    weight INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    content BLOB NOT NULL
);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_MEBIBYTE: Final = 1024 * 1024
_CURE: Final = "make room on its disk, or wait until destinations have taken what is there"
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# A message of SQLite's has the damaged bytes in it, which may not be text.
_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
_FILES: Final = ("journal.db", "journal.db-wal", "journal.db-shm", "reserve")
_REJECTED: Final = "rejected.jsonl"
_logger = logging.getLogger(__name__)


class AcceptedBatch(NamedTuple):
    """A batch that was taken on."""

    sequence: int
    """Counts up."""
    kind: str
    destination: str
    client_id: str
    weight: int
    content: bytes
    """The contract's `Batch`."""


def _checksum_of(batch: AcceptedBatch) -> int:
    """Over all of it: a whole content in another order, or for another destination, is damage, too."""
    return crc32(batch.content, crc32(json.dumps(batch[:5]).encode()))


@dataclass(frozen=True)
class LeftoverJournal:
    """A journal's folder that no gateway has open.

    Attributes:
        folder: with its files.
        pending_batches: acknowledged, and not written to their destinations: the next gateway on the folder does it.
        nbytes: of its files.
        age_seconds: since one of them was changed last.
        trouble: why it cannot be read, with the cure; None if it can.
    """

    folder: Path
    pending_batches: int
    nbytes: int
    age_seconds: float
    trouble: str | None

    def remove(self) -> bool:
        """Remove it, unless batches are pending or a gateway has it by now; entries that were refused stay.

        Returns whether it is gone.
        """
        path = self.folder / _FILES[0]
        try:
            with _alone(path) as database:
                if _count(database, path):
                    return False
                for name in _FILES:
                    (self.folder / name).unlink(missing_ok=True)
        except (OSError, *_UNREADABLE, JournalError):
            return False
        with suppress(OSError):
            # Not where other files are.
            self.folder.rmdir()
        return True


def find_leftover_journal(folder: Path) -> LeftoverJournal | None:
    """The journal in a folder; None where there is none, or a gateway has it open. Blocks."""
    old, path = sorted(folder.glob("journal-*.log")), folder / _FILES[0]
    files = [file for file in [*old, *(folder / name for name in _FILES)] if file.exists()]
    if not old and not path.exists():
        return None
    pending, trouble = 0, None
    try:
        if old:
            raise _of_former_release(old[0])
        with _alone(path) as database:
            pending = _count(database, path)
    except _UNREADABLE as error:
        if _code_of(error) == sqlite3.SQLITE_BUSY:
            return None
        trouble = f"{path} cannot be read: {error}"
    except (OSError, JournalError) as error:
        trouble = str(error)
    about = []
    for file in files:
        with suppress(FileNotFoundError):  # SQLite removes its own, of what it has written to the database
            about.append(file.stat())
    age = max(0.0, default_time() - max((one.st_mtime for one in about), default=0.0))
    return LeftoverJournal(folder, pending, sum(one.st_size for one in about), age, trouble)


def _code_of(error: sqlite3.Error | UnicodeDecodeError) -> int:
    """SQLite's code; for what Python itself could not read, that of damage."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF


@contextmanager
def _alone(path: Path) -> Iterator[sqlite3.Connection]:
    """The database while no gateway has it, nor gets it."""
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)
    ) as database:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        yield database
        database.rollback()


def _count(database: sqlite3.Connection, path: Path) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise JournalError(str(path), "is not a journal of a gateway: name another folder")
        return 0
    if version != _VERSION:
        raise _of_former_release(path, f"has version {version}, this release reads version {_VERSION}, ")
    (count,) = database.execute("SELECT count(*) FROM batch").fetchone()
    return int(count)


def _of_former_release(path: Path, what: str = "is of a release before this one, ") -> JournalError:
    return JournalError(
        str(path),
        f"{what}and may hold batches that were acknowledged: start the release that wrote it with this folder until "
        "`penstock-sink stats` shows nothing ON DISK, then remove it; or give this gateway a folder of its own",
    )


class Journal:
    """A batch is on disk before it is acknowledged, until it is settled. What comes at the same time shares a sync.

    An SQLite database with a write-ahead log, a transaction for each group of batches. A transaction that a power cut
    has left unfinished is dropped: its batches have no acknowledgement.

    On a full disk settled batches must still be forgotten, or it would stay full. So a file beside the database keeps
    as much room as the log can need, and more batches are taken on only while it is there.
    """

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        """Open the folder, and find what is pending. Blocks.

        Raises:
            JournalError: a file is damaged or of another version, or another process has the folder.
            OSError: the folder cannot be read or written.
        """
        self._folder = folder
        self._fsync = fsync
        self._path = folder / "journal.db"
        self._log_path = folder / "journal.db-wal"
        self._reserve_path = folder / "reserve"
        # The connection is one, threads are several.
        self._busy = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(folder)
        # The log is merged into the database when it is that large; a small disk has little to spare for it.
        self._log_bytes = min(32 * _MEBIBYTE, max(_MEBIBYTE // 8, disk.f_blocks * disk.f_frsize // 16))
        self._database = self._open()
        self._live: dict[int, tuple[str, str]] = {}
        """(kind, name) of the destination of each batch that is accepted and not settled, by sequence."""
        self._reserved_bytes = self._reserve_path.stat().st_size if self._reserve_path.exists() else 0
        try:
            self._load()
        except _UNREADABLE as error:
            self._database.close()
            raise self._explained(error) from error
        except BaseException:
            self._database.close()
            raise
        self._files = OwnFiles(self._path, self._log_path)
        self._next_sequence = max(self._live, default=0) + 1
        # Being written, or settled and not yet forgotten.
        self._in_hand: set[int] = set()
        self._waiting: list[tuple[AcceptedBatch, asyncio.Future[None]]] = []
        self._settled: list[int] = []
        self._rejected: list[str] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def _open(self) -> sqlite3.Connection:
        old = sorted(self._folder.glob("journal-*.log"))
        if old:
            raise _of_former_release(old[0])
        # Records are readable by this user only. SQLite gives its other files the mode of this one.
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)

    def _load(self) -> None:
        log = self._log_path.read_bytes() if self._log_path.exists() else b""
        database = self._database
        # Of this process alone; and the index of the log needs no file then, which a full disk would refuse.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise _of_former_release(self._path, f"has version {version}, this release reads version {_VERSION}, ")
        if not self._path.exists():
            raise JournalError(str(self._path), "was removed as this gateway opened it: start the gateway again")
        if version == 0:
            # Batches are large; on a small disk the room that a transaction takes is what counts.
            database.execute(f"PRAGMA page_size = {16_384 if self._log_bytes > _MEBIBYTE else 4_096}")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'OFF'}")
        database.execute(f"PRAGMA journal_size_limit = {self._log_bytes}")
        # Some builds overwrite what is deleted: that takes as much room in the log as it took to write.
        database.execute("PRAGMA secure_delete = OFF")
        if version == 0:
            database.executescript(_SCHEMA)
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
        database.execute(f"PRAGMA wal_autocheckpoint = {self._log_bytes // page_bytes}")
        try:
            _check_log(log, self._log_path, self._merge())
        except sqlite3.Error as error:
            if _code_of(error) in _DAMAGE:
                raise
            _logger.warning("the journal in %s has no room: %s", self._folder, error)
        query = "SELECT sequence, kind, destination, client_id, weight, checksum, content FROM batch"
        with closing(database.execute(query)) as rows:
            for sequence, kind, destination, client_id, weight, checksum, content in rows:
                # What a damaged file says of types is not what the table was made with.
                texts = all(isinstance(one, str) for one in (kind, destination, client_id))
                if not (texts and isinstance(weight, int) and isinstance(content, bytes)):
                    raise JournalError(str(self._path), f"is damaged: batch {sequence} cannot be read")
                batch = AcceptedBatch(sequence, kind, destination, client_id, weight, content)
                if _checksum_of(batch) != checksum:
                    raise JournalError(str(self._path), f"is damaged: the checksum of batch {sequence} is wrong")
                self._live[sequence] = (kind, destination)

    def _explained(self, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
        code = _code_of(error)
        if code == sqlite3.SQLITE_BUSY:
            reason = "is in use by another gateway: end that one, or give this one a folder of its own"
            return JournalError(str(self._path), reason)
        if code in _DAMAGE:
            return JournalError(str(self._path), f"is damaged: {error}")
        return OSError(errno.EIO, f"{error} ({getattr(error, 'sqlite_errorname', code)})")

    @property
    def pending_batches(self) -> int:
        """Batches that are accepted and not settled."""
        return len(self._live)

    def pending_by_destination(self) -> Counter[tuple[str, str]]:
        """Batches that are accepted and not settled, by (kind, name) of their destination."""
        return Counter(list(self._live.values()))

    def destinations(self) -> list[tuple[str, str]]:
        """(kind, name) of the destinations with pending batches that are not being written."""
        return sorted({where for sequence, where in list(self._live.items()) if sequence not in self._in_hand})

    def pending(self, kind: str, destination: str) -> list[AcceptedBatch]:
        """Batches of a destination that nobody writes yet, in the order of acceptance, for the caller to write. Blocks.

        Raises:
            GatewayStorageError: the disk cannot be read.
        """
        # Two callers at once must not both have a batch.
        with self._busy:
            try:
                rows = self._database.execute(
                    "SELECT sequence, kind, destination, client_id, weight, content FROM batch"
                    " WHERE kind = ? AND destination = ? ORDER BY sequence",
                    (kind, destination),
                )
                found = [batch for row in rows if (batch := AcceptedBatch(*row)).sequence not in self._in_hand]
            except sqlite3.Error as error:
                raise GatewayStorageError(f"{self._path} cannot be read: {error}") from error
            self._in_hand.update(batch.sequence for batch in found)
        return found

    def release(self, sequence: int) -> None:
        """The batch is not being written any more, and not settled: `pending` gives it out again."""
        self._in_hand.discard(sequence)

    async def append(self, kind: str, destination: str, client_id: str, weight: int, content: bytes) -> int:
        """Keep a batch; returns its sequence when it is on disk.

        Raises:
            GatewayStorageError: the batch could not be written, and is not kept.
        """
        if self._closed:
            raise GatewayStorageError("its journal is closed")
        batch = AcceptedBatch(self._next_sequence, kind, destination, client_id, weight, content)
        self._next_sequence += 1
        self._in_hand.add(batch.sequence)
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, written))
        self._start()
        try:
            await written
        except GatewayStorageError:
            self._in_hand.discard(batch.sequence)
            raise
        except asyncio.CancelledError:
            # Its client broke off without an acknowledgement, and sends it again: forget what is on disk.
            if (batch, written) in self._waiting:
                self._waiting.remove((batch, written))
                self._in_hand.discard(batch.sequence)
            else:
                self.settle(batch.sequence)
            raise
        return batch.sequence

    def settle(self, sequence: int) -> None:
        """Every entry of the batch is settled: forget it, on disk with the next write."""
        self._settled.append(sequence)
        self._start()

    def reject(self, kind: str, destination: str, client_id: str, entry: pb.Entry, failure: EntryFailure) -> None:
        """Keep an entry that was refused for good after its acknowledgement; call before `settle`."""
        self._rejected.append(_line_of(kind, destination, client_id, entry, failure))
        self._start()

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="gateway journal")

    async def _work(self) -> None:
        while not self._closed:
            await self._wake.wait()
            self._wake.clear()
            await self._write_groups()
        # Once more, for what was settled while the last group was written.
        await self._write_groups()

    async def _write_groups(self) -> None:
        while self._waiting or self._settled or self._rejected:
            group = self._next_group()
            settled, self._settled = self._settled, []
            rejected, self._rejected = self._rejected, []
            accepted = [batch for batch, _ in group]
            try:
                refusal = await asyncio.to_thread(self._store, accepted, settled, rejected)
            except Exception as error:
                # Any error: the callers that wait get it.
                # Settled batches are kept until a later write succeeds: else they would only be written twice.
                self._settled[:0], self._rejected[:0] = settled, rejected
                self._answer(group + self._waiting, error)
                self._waiting.clear()
                return
            self._in_hand.difference_update(settled)
            self._answer(group, refusal)

    def _next_group(self) -> list[tuple[AcceptedBatch, asyncio.Future[None]]]:
        """Some that wait: no more than the log is to grow by, but at least one."""
        size, count = 0, 0
        for batch, _ in self._waiting:
            size += len(batch.content)
            if count and size > self._log_bytes:
                break
            count += 1
        group = self._waiting[:count]
        del self._waiting[:count]
        return group

    def _answer(self, group: list[tuple[AcceptedBatch, asyncio.Future[None]]], error: Exception | None) -> None:
        refusal = None
        if error is not None:
            refusal = GatewayStorageError(f"{self._folder} cannot be written: {error}; {_CURE}")
            _logger.error("%s", refusal)
        for _, written in group:
            if written.done():
                continue
            if refusal is None:
                written.set_result(None)
            else:
                written.set_exception(refusal)

    def _store(
        self, accepted: Sequence[AcceptedBatch], settled: Sequence[int], rejected: list[str]
    ) -> OSError | sqlite3.Error | None:
        """Keep and forget batches; returns why nothing of `accepted` is kept.

        Raises:
            OSError, sqlite3.Error: nothing is kept or forgotten; `rejected` has lost what is written.
        """
        refusal = None
        with self._busy, self._files.written():
            try:
                self._commit(accepted, settled, rejected)
            except (OSError, sqlite3.Error):
                try:
                    self._commit((), settled, rejected)
                except (OSError, sqlite3.Error):
                    self._release_reserve()
                    self._commit((), settled, rejected)
                try:
                    self._shrinking(lambda: self._commit(accepted, (), rejected))
                except (OSError, sqlite3.Error) as error:
                    refusal = error
            if not self._reserved_bytes:
                with suppress(OSError, sqlite3.Error):
                    self._shrinking(lambda: self._make_room(0))
        return refusal

    def _commit(self, accepted: Sequence[AcceptedBatch], settled: Sequence[int], rejected: list[str]) -> None:
        if rejected:
            _append_lines(self._folder / _REJECTED, rejected, fsync=self._fsync)
            # They are there, whatever becomes of the rest.
            rejected.clear()
        if not accepted and not settled:
            return
        if accepted:
            self._make_room(sum(len(batch.content) for batch in accepted))
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((*batch[:5], _checksum_of(batch), batch.content) for batch in accepted),
            )
            self._database.executemany("DELETE FROM batch WHERE sequence = ?", ((number,) for number in settled))
        self._live.update((batch.sequence, (batch.kind, batch.destination)) for batch in accepted)
        for sequence in settled:
            self._live.pop(sequence, None)

    def _make_room(self, size: int) -> None:
        """Let the reserve be as large as the log can become: merging the log, too, needs no more.

        Raises:
            OSError, sqlite3.Error: the disk is full.
        """
        log_bytes = self._log_size()
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if most != resource.RLIM_INFINITY and self._path.stat().st_size + log_bytes + size + size // 8 > most:
            # Merging the log could make the database larger than any file may be.
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if log_bytes > 3 * self._log_bytes:
            # SQLite merges by itself, and reports no failure of that.
            self._merge()
        self._reserve(log_bytes + size + size // 8 + max(64 * 1024, self._log_bytes // 128))

    def _shrinking(self, write: Callable[[], None]) -> None:
        """Write, if need be with the room that settled batches had."""
        while True:
            try:
                return write()
            except (OSError, sqlite3.Error):
                if not self._shrink():
                    raise

    def _reserve(self, size: int) -> None:
        if self._reserved_bytes >= size:
            return
        # Its owner's alone, as all files of a journal: who truncates it takes the room away.
        opened = os.open(self._reserve_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(opened, 0, size)
        except OSError:
            os.ftruncate(opened, self._reserved_bytes)
            raise
        finally:
            os.close(opened)
        self._reserved_bytes = size

    def _release_reserve(self) -> None:
        self._reserved_bytes = 0
        if self._reserve_path.exists():
            os.truncate(self._reserve_path, 0)
        with suppress(sqlite3.Error):
            self._merge()

    def _merge(self, mode: str = "PASSIVE") -> int:
        """Bring the log's pages into the database, so that the log begins anew; returns how many it had."""
        _, pages, _ = self._database.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return int(pages)

    def _shrink(self) -> bool:
        """Give room in the files that is free back to the disk; whether there was any."""
        before = self._log_size()
        (free,) = self._database.execute("PRAGMA freelist_count").fetchone()
        if free:
            # Pages in use move to the places of free ones, by way of the log: so few at a time that they fit in there.
            self._database.executescript("PRAGMA incremental_vacuum(8)")
        with suppress(sqlite3.Error):
            self._merge("PASSIVE" if free else "TRUNCATE")
        return bool(free) or self._log_size() < before

    def _log_size(self) -> int:
        return self._log_path.stat().st_size if self._log_path.exists() else 0

    async def close(self) -> None:
        """Write what waits, and give the folder free. Pending batches stay on disk."""
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            self._wake.set()
            await self._task
        with suppress(sqlite3.Error):
            # The log stays where it is, on a full disk.
            self._database.close()


def _check_log(log: bytes, path: Path, valid_pages: int) -> None:
    """Tell damage from a transaction that was cut off, which is the last one: no other follows that.

    Raises:
        JournalError: transactions follow that cannot be read because of damage before them.
    """
    step = 24 + int.from_bytes(log[8:12], "big")
    begin = 32 + valid_pages * step
    # A page's head: its number, the size of the database where it ends a transaction, and salts of this use of the log.
    ends = [
        offset
        for offset in range(begin, len(log) - 24, step)
        if any(log[offset + 4 : offset + 8]) and log[offset + 8 : offset + 16] == log[16:24]
    ]
    if len(ends) > 1:
        raise JournalError(str(path), f"is damaged at byte {begin} or soon after it, and what follows cannot be read")


def _line_of(
    kind: str,
    destination: str,
    client_id: str,
    entry: pb.Entry,
    failure: EntryFailure,
    time: Callable[[], float] = default_time,
) -> str:
    """The line about a refused entry; `entry` is the contract's, in base64."""
    content: dict[str, Any] = {
        "time": time(),
        "kind": kind,
        "destination": destination,
        "client": client_id,
        "error_code": failure.error_code,
        "error_message": failure.error_message,
        "entry": b64encode(entry.SerializeToString()).decode(),
    }
    return json.dumps(content, ensure_ascii=True) + "\n"


def _append_lines(path: Path, lines: Sequence[str], *, fsync: bool) -> None:
    """Add the lines to the file, which is made if need be.

    Raises:
        OSError: it cannot be written; then none of them is in it.
    """
    content = memoryview("".join(lines).encode("ascii"))
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "ab", buffering=0) as file:
        size, done = file.seek(0, os.SEEK_END), 0
        if size and os.pread(opened, 1, size - 1) != b"\n":
            # A power cut left half a line.
            content = memoryview(b"\n" + content)
        try:
            while done < len(content):
                done += file.write(content[done:])
            if fsync:
                os.fsync(file)
        except OSError:
            # Half a line would spoil the next one.
            file.truncate(size)
            raise
