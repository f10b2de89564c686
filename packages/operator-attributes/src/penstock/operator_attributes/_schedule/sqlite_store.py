"""Jobs, their events and claims in a SQLite file, which survives the end of the process, however that comes."""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec

from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._schedule.claims import ClaimRecord
from penstock.operator_attributes._schedule.job_store import StoredJob, StoredState
from penstock.operator_attributes._schedule.states import EVENT_KINDS, StageEvent, event_name
from penstock.operator_attributes.errors import InvalidDocumentError, JobStoreError
from penstock.rpc import make_database_private, make_folder

_SCHEMA_VERSION: Final = 1
_BUSY_SECONDS: Final = 2.0
_CREATE: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, plan TEXT NOT NULL,
    slots INTEGER, max_attempts INTEGER NOT NULL
);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, kind TEXT NOT NULL, content BLOB NOT NULL
);
CREATE INDEX events_of_job ON events (job_id);
CREATE TABLE claims (store TEXT NOT NULL, fingerprint TEXT NOT NULL, content BLOB NOT NULL, changed INTEGER NOT NULL,
    PRIMARY KEY (store, fingerprint)
);
CREATE TABLE tokens (last INTEGER NOT NULL);
INSERT INTO tokens VALUES (0);
"""


class SqliteJobStore:
    """Keeps a scheduler's jobs and claims in one file. One scheduler uses it at a time; a second one is refused.

    What a call wrote is on the disk when the call returns. Each call raises JobStoreError if the file cannot be used,
    and has changed nothing then. The file is released when the process ends, even if it is killed. A file that another
    program has changed meanwhile is not used any more.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it.

        Raises:
            JobStoreError: it cannot be used, is of a later release, or another scheduler uses it.
        """
        self._path = Path(path)
        self._lock = threading.Lock()
        self._closed = False
        try:
            make_folder(self._path.parent)
            make_database_private(self._path)
            # Calls come from the threads of a pool, one at a time.
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error
        try:
            self._set_up()
            self._files = OwnFiles(self._path, self._path.with_name(f"{self._path.name}-wal"))
        except BaseException as error:
            self._connection.close()
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise JobStoreError(str(self._path), "another scheduler uses it") from error
            if isinstance(error, sqlite3.Error):
                raise self._error(error) from error
            raise

    def load(self) -> StoredState:
        """Read all that is there."""
        with self._transaction() as connection:
            events: dict[str, list[StageEvent]] = {}
            for job_id, kind, content in connection.execute("SELECT job_id, kind, content FROM events ORDER BY number"):
                events.setdefault(job_id, []).append(msgspec.json.decode(content, type=EVENT_KINDS[kind]))
            jobs = tuple(
                StoredJob(
                    job_id=job_id,
                    plan=StagePlan.from_json(plan),
                    slots=slots,
                    max_attempts=max_attempts,
                    events=tuple(events.get(job_id, ())),
                )
                for job_id, plan, slots, max_attempts in connection.execute(
                    "SELECT job_id, plan, slots, max_attempts FROM jobs ORDER BY number"
                )
            )
            claims = tuple(
                msgspec.json.decode(content, type=ClaimRecord)
                for (content,) in connection.execute("SELECT content FROM claims ORDER BY changed")
            )
            (last_token,) = connection.execute("SELECT last FROM tokens").fetchone()
        return StoredState(jobs=jobs, claims=claims, last_token=last_token)

    def add_job(self, job: StoredJob) -> None:
        """Keep a new job. It replaces the job of the same id, if there is one, with its events."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM jobs WHERE job_id = ?", (job.job_id,))
            connection.execute(
                "INSERT INTO jobs (job_id, plan, slots, max_attempts) VALUES (?, ?, ?, ?)",
                (job.job_id, job.plan.to_json(), job.slots, job.max_attempts),
            )

    def add_event(self, job_id: str, event: StageEvent) -> None:
        """Add an event of a stage to a job."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO events (job_id, kind, content) VALUES (?, ?, ?)",
                (job_id, event_name(event), msgspec.json.encode(asdict(event))),
            )

    def remove_job(self, job_id: str) -> None:
        """Forget a job and its events."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def put_claim(self, record: ClaimRecord) -> None:
        """Keep a claim in place of the claim on the same fingerprint."""
        with self._transaction() as connection:
            connection.execute("UPDATE tokens SET last = max(last, ?)", (record.token,))
            connection.execute(
                "INSERT OR REPLACE INTO claims (store, fingerprint, content, changed) "
                "VALUES (?, ?, ?, (SELECT coalesce(max(changed), 0) + 1 FROM claims))",
                (record.store, record.fingerprint, msgspec.json.encode(asdict(record))),
            )

    def remove_claim(self, store: str, fingerprint: str) -> None:
        """Forget the claim on a fingerprint; its token is not given again."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM claims WHERE store = ? AND fingerprint = ?", (store, fingerprint))

    def close(self) -> None:
        """Close the file. May be repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise JobStoreError(str(self._path), "it is closed")
            try:
                with self._files.written():
                    self._connection.execute("BEGIN IMMEDIATE")
                    try:
                        yield self._connection
                        self._connection.execute("COMMIT")
                    except BaseException:
                        if self._connection.in_transaction:  # a full disk has ended it
                            self._connection.execute("ROLLBACK")
                        raise
            except (OSError, sqlite3.Error, msgspec.MsgspecError, InvalidDocumentError, KeyError) as error:
                raise self._error(error) from error

    def _set_up(self) -> None:
        # The lock is taken by the first access, and kept until the process ends or the file is closed.
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A token that was granted must not be granted again after a power cut.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("BEGIN IMMEDIATE")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > _SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it has schema {version}, this release knows {_SCHEMA_VERSION}")
        if version < _SCHEMA_VERSION:
            for statement in _CREATE.split(";\n"):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        self._connection.execute("COMMIT")

    def _error(self, error: Exception) -> JobStoreError:
        return JobStoreError(str(self._path), str(error))


class OwnFiles:
    """Files that only this process writes, such as those of a database: checks that no other process changed them.

    SQLite caches a file that it has locked exclusively. It would continue to write, without an error, after the file
    was cut, replaced or overwritten by another process. For one thread at a time.

    Args:
        files: the files; some may not exist yet.
    """

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._left = self._found()

    @contextmanager
    def written(self) -> Iterator[None]:
        """Check the files before and after a write.

        Raises:
            OSError: another process changed or replaced a file.
        """
        if self._found() != self._left:
            raise self._error()
        before = self._left
        try:
            yield
        finally:
            found = self._found()
            is_ours = all(
                was is None or (now is not None and now[:2] == was[:2]) for was, now in zip(before, found, strict=True)
            )
            if is_ours:
                self._left = found
        if not is_ours:
            raise self._error()

    def _found(self) -> list[tuple[int, int, int, int] | None]:
        return [self._stamp(file) for file in self._files]

    @staticmethod
    def _stamp(file: Path) -> tuple[int, int, int, int] | None:
        try:
            found = os.stat(file)
        except OSError:
            return None
        # Not the time of change: a backup by hard links sets it.
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _error(self) -> OSError:
        reason = "another process has changed it: restore a whole copy of it, and start again"
        return OSError(errno.ESTALE, reason, str(self._files[0]))
