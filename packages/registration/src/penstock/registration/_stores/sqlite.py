"""Records in one SQLite file, shared by the processes of a machine."""

from __future__ import annotations

import asyncio
import builtins
import queue
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from penstock.registration._lease.record import ConsumerRecord, Renewal, from_columns, to_columns
from penstock.registration.errors import LeaseStoreError
from penstock.rpc import make_database_private, make_folder

T = TypeVar("T")

_SCHEMA_VERSION: Final = 2
"""2 has leases by the ARN of their stream, and the tokens that operators ended."""
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS consumers (
  namespace TEXT NOT NULL,
  stream_name TEXT NOT NULL,
  consumer_name TEXT NOT NULL,
  version INTEGER NOT NULL,
  fencing_token INTEGER NOT NULL,
  created_at REAL NOT NULL,
  phase TEXT NOT NULL,
  consumer_arn TEXT NOT NULL,
  registration_is_ours INTEGER NOT NULL,
  registering_token INTEGER NOT NULL,
  job_id TEXT,
  holding_token INTEGER,
  acquired_at REAL,
  renewed_at REAL,
  time_to_live_seconds REAL,
  idle_since REAL,
  ended_token INTEGER NOT NULL DEFAULT 0,
  claim TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (namespace, stream_name, consumer_name)
) WITHOUT ROWID
"""
_UPGRADES: Final = {
    1: (
        "ALTER TABLE consumers ADD COLUMN ended_token INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE consumers ADD COLUMN claim TEXT NOT NULL DEFAULT ''",
    )
}
"""From one schema to the next. Records by the name of a stream are moved to its ARN by the registry."""
_OLDEST_SQLITE: Final = (3, 35, 0)
_BUSY_SECONDS: Final = 30.0
_LOCKED_PAUSE_SECONDS: Final = 0.02
_LONGEST_GROUP: Final = 2_000
"""Operations of one transaction: other processes wait for its end."""

Outcome = tuple[Any, BaseException | None]


@dataclass(frozen=True, slots=True)
class _Operation:
    call: Callable[[sqlite3.Connection], Any]
    writes: bool
    future: asyncio.Future[Any]


class SqliteFile:
    """Runs operations in the order of their arrival; those that arrive while others run share a transaction.

    A transaction costs a write to the disk, however much is in it: a thousand heartbeats that arrive together cost
    hardly more than one. An operation that fails is on its own: the others are run again without it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._path = path
        self.schema = _SCHEMA_VERSION
        """Of the open file: an older one only where it may not be changed."""
        self._connection: sqlite3.Connection | None = None
        # One thread: a SQLite connection is for one user at a time.
        self._thread = DaemonThread(name="penstock lease store")
        self._waiting: list[_Operation] = []
        self._lock = threading.Lock()

    async def run(self, call: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        """Run the operation in a transaction. What it wrote is on the disk when this returns.

        Cancelling stops the waiting, not the operation.

        Raises:
            LeaseStoreError: the file cannot be used; nothing was written.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(_Operation(call, writes, future))
            is_first = len(self._waiting) == 1
        if is_first:
            self._thread.submit(self._run_waiting)
        return await future

    async def close(self) -> None:
        """Close the file. It is opened again when it is used again."""

        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.wrap_future(self._thread.submit(close))
        self._thread.close()

    def _run_waiting(self) -> None:
        while True:
            with self._lock:
                group = self._waiting[:_LONGEST_GROUP]
            _answer(group, self._run_group(group))
            with self._lock:
                del self._waiting[: len(group)]
                # Whoever comes to an empty list wakes this thread again.
                if not self._waiting:
                    return

    def _run_group(self, group: Sequence[_Operation]) -> list[Outcome]:
        writes = any(operation.writes for operation in group)
        try:
            connection = self._open()
            if writes:
                # Immediate: a transaction that begins by reading fails at its first write if another process wrote.
                connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            return [(None, self._typed(error)) for _ in group]
        try:
            results: list[Outcome] = [(operation.call(connection), None) for operation in group]
            if writes:
                connection.execute("COMMIT")
        except Exception as error:
            self._roll_back(connection)
            if len(group) > 1:
                return [outcome for operation in group for outcome in self._run_group([operation])]
            return [(None, self._typed(error))]
        return results

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Of no use any more, such as after an error of the disk: the next operation opens another one.
            connection.close()
            self._connection = None

    def _typed(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error | OSError):
            return error
        typed = LeaseStoreError(store=str(self._path), reason=str(error))
        typed.__cause__ = error
        return typed

    def _open(self) -> sqlite3.Connection:
        if self._connection is None and self._read_only:
            self._connection = self._open_to_read()
        if self._connection is None:
            make_folder(self._path.parent)
            make_database_private(self._path)
            give_up_at = time.monotonic() + _BUSY_SECONDS
            while (connection := self._try_to_open(last=time.monotonic() > give_up_at)) is None:
                time.sleep(_LOCKED_PAUSE_SECONDS)
            self._connection = connection
        return self._connection

    def _open_to_read(self) -> sqlite3.Connection:
        """A connection that neither makes nor changes the file."""
        if not self._path.is_file():
            raise FileNotFoundError("there is no such file: no job keeps its leases there")
        url = f"{self._path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(url, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not 1 <= version <= _SCHEMA_VERSION:
                raise sqlite3.DatabaseError(f"it holds no leases: its schema is {version}, and {_SCHEMA_VERSION} here")
            self.schema = version
        except BaseException:
            connection.close()
            raise
        return connection

    def _try_to_open(self, *, last: bool) -> sqlite3.Connection | None:
        """A connection; None when another process is setting up the file: SQLite does not wait for that by itself."""
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            _set_up(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError) and _is_busy(error) and not last:
                return None
            raise
        return connection


def _answer(group: Sequence[_Operation], outcomes: Sequence[Outcome]) -> None:
    """Wake each loop once, whatever the number of its operations."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = defaultdict(list)
    for operation, outcome in zip(group, outcomes, strict=True):
        by_loop[operation.future.get_loop()].append((operation.future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, answers)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            continue


def _settle(answers: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (result, error) in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    # The low byte is the error; the rest says more about it.
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _set_up(connection: sqlite3.Connection) -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise sqlite3.NotSupportedError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 has RETURNING")
    connection.execute("PRAGMA journal_mode = WAL")
    # A token that was given must not be given again after a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == _SCHEMA_VERSION:
        return
    if version > _SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"the file has schema {version}, this release knows {_SCHEMA_VERSION}")
    connection.execute("BEGIN IMMEDIATE")
    # Again, under the lock: another process may have been faster.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for statement in _UPGRADES.get(version, ()):
        connection.execute(statement)
    connection.execute(_CREATE)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    connection.execute("COMMIT")


class _Job(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._call = call

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._call())
        except BaseException as error:
            self.future.set_exception(error)


class DaemonThread:
    """Runs blocking calls, one after the other.

    `asyncio.to_thread` uses threads that the interpreter joins when it exits: a file whose disk hangs would then hold
    up the end of the process that merely keeps a lease.
    """

    def __init__(self, *, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._name = name
        self._lock = threading.Lock()
        self._lives = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run the call in the thread, for whoever cares about its outcome."""
        job: _Job[T] = _Job(call)
        with self._lock:
            if not self._lives:
                self._lives = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Let the thread end after what it is doing now. Does not wait."""
        with self._lock:
            if self._lives:
                self._lives = False
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


_COLUMNS: Final = (
    # Its ARN: the name in rows of the first release, whose jobs go on to look for them by this column.
    "stream_name",
    "consumer_name",
    "version",
    "fencing_token",
    "created_at",
    "phase",
    "consumer_arn",
    "registration_is_ours",
    "registering_token",
    "job_id",
    "holding_token",
    "acquired_at",
    "renewed_at",
    "time_to_live_seconds",
    "idle_since",
    "ended_token",
    "claim",
)
_SELECT_1: Final = (
    f"SELECT {', '.join(_COLUMNS[:-2])}, 0 AS ended_token, '' AS claim FROM consumers WHERE namespace = ?"
)
"""Of a file of the first schema that may only be read."""
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM consumers WHERE namespace = ?"
_INSERT: Final = (
    f"INSERT INTO consumers (namespace, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)}) ON CONFLICT DO NOTHING"
)
_UPDATE: Final = (
    f"UPDATE consumers SET {', '.join(f'{name} = ?' for name in _COLUMNS[2:])}"
    " WHERE namespace = ? AND stream_name = ? AND consumer_name = ? AND version = ?"
)
_RENEW: Final = (
    "UPDATE consumers SET version = version + 1, renewed_at = ?"
    " WHERE namespace = ? AND stream_name = ? AND consumer_name = ? AND job_id = ? AND holding_token = ?"
    " RETURNING time_to_live_seconds"
)


class SqliteLeaseStore:
    """A LeaseStore in a file: write-ahead log, immediate transactions, synced to the disk.

    Survives the end of a process at any instruction, and serves several processes of one machine at once. The file must
    not lie on a network file system: SQLite's locks do not hold there. Calls that arrive together share a transaction.

    `namespace` keeps apart what shares a file: registries for different endpoints or regions do not see each other's
    records. With `read_only` the file is neither made nor changed.
    """

    def __init__(self, path: Path | str, *, namespace: str = "", read_only: bool = False) -> None:
        self._file = SqliteFile(Path(path), read_only=read_only)
        self._namespace = namespace

    async def get(self, stream_arn: str, consumer_name: str) -> ConsumerRecord | None:
        """See LeaseStore."""
        rows = await self._query("stream_name = ? AND consumer_name = ?", (stream_arn, consumer_name))
        return rows[0] if rows else None

    async def list(self) -> list[ConsumerRecord]:
        """See LeaseStore."""
        return await self._query("TRUE", ())

    async def write(self, records: Sequence[ConsumerRecord]) -> builtins.list[bool]:
        """See LeaseStore."""

        def write(connection: sqlite3.Connection) -> builtins.list[bool]:
            return [self._write_one(connection, record) for record in records]

        return await self._file.run(write, writes=True)

    async def renew(self, renewals: Sequence[Renewal]) -> builtins.list[float | None]:
        """See LeaseStore."""

        def renew(connection: sqlite3.Connection) -> builtins.list[float | None]:
            answers: builtins.list[float | None] = [None] * len(renewals)
            # In the order of the primary key: neighbours share a page, which doubles the rate of large batches.
            for index in sorted(range(len(renewals)), key=lambda index: _key_of(renewals[index])):
                answers[index] = self._renew_one(connection, renewals[index])
            return answers

        return await self._file.run(renew, writes=True)

    async def close(self) -> None:
        """See LeaseStore. The store opens again when it is used again."""
        await self._file.close()

    def _write_one(self, connection: sqlite3.Connection, record: ConsumerRecord) -> bool:
        row = _to_row(record)
        if record.version == 0:
            return connection.execute(_INSERT, (self._namespace, *row)).rowcount == 1
        where = (self._namespace, *record.key, record.version)
        return connection.execute(_UPDATE, (*row[2:], *where)).rowcount == 1

    def _renew_one(self, connection: sqlite3.Connection, renewal: Renewal) -> float | None:
        where = (renewal.stream_arn, renewal.consumer_name, renewal.job_id, renewal.fencing_token)
        # Read to its end: a statement that returns rows is done only then.
        rows = connection.execute(_RENEW, (renewal.at, self._namespace, *where)).fetchall()
        return float(rows[0][0]) if rows else None

    async def _query(self, condition: str, values: tuple[str, ...]) -> builtins.list[ConsumerRecord]:
        rest = f"AND {condition} ORDER BY stream_name, consumer_name"

        def read(connection: sqlite3.Connection) -> builtins.list[ConsumerRecord]:
            # A file that may only be read stays as an older release left it.
            query = f"{_SELECT_1 if self._file.schema == 1 else _SELECT} {rest}"
            return [from_columns(dict(row)) for row in connection.execute(query, (self._namespace, *values))]

        return await self._file.run(read, writes=False)


def _key_of(renewal: Renewal) -> tuple[str, str]:
    return renewal.stream_arn, renewal.consumer_name


def _to_row(record: ConsumerRecord) -> tuple[object, ...]:
    """In the order of `_COLUMNS`."""
    columns = to_columns(record)
    return *(columns[name] for name in _COLUMNS[:-1]), columns["claim"] or ""
