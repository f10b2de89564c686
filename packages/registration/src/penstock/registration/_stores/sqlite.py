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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.registration._lease.record import ConsumerRecord, Renewal, from_columns, to_columns
from penstock.registration.errors import LeaseStoreError
from penstock.rpc import make_database_private, make_folder

T = TypeVar("T")

_SCHEMA_VERSION: Final = 2
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
_UPGRADE: Final = (
    "ALTER TABLE consumers ADD COLUMN ended_token INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE consumers ADD COLUMN claim TEXT NOT NULL DEFAULT ''",
)
"""From schema 1, which had names of streams instead of ARNs. The registry moves such records to the ARN."""
_OLDEST_SQLITE: Final = (3, 35, 0)
_BUSY_SECONDS: Final = 30.0
_LOCKED_PAUSE_SECONDS: Final = 0.02
_LONGEST_GROUP: Final = 2_000
"""The most operations of one transaction: other processes wait for its end."""

Outcome = tuple[Any, BaseException | None]


def _close_file(_connection: sqlite3.Connection) -> None:
    """Stand for the operation that closes the file."""


@dataclass(frozen=True, slots=True)
class _Operation:
    call: Callable[[sqlite3.Connection], Any]
    writes: bool
    future: asyncio.Future[Any]


class SqliteFile:
    """Runs operations in the order of their arrival. Operations that arrive while others run share a transaction.

    A transaction costs one write to the disk: a thousand heartbeats that arrive together cost hardly more than one. If
    an operation fails, the others are run again without it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._operations: queue.SimpleQueue[_Operation] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lives = False

    async def run(self, call: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        """Run the operation in a transaction. What it wrote is on the disk when this returns.

        Cancelling stops the waiting, not the operation.

        Raises:
            LeaseStoreError: the file cannot be used; nothing was written.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if not self._lives:
                self._lives = True
                # A thread of its own: the interpreter joins the threads of `asyncio.to_thread` when it exits, and a
                # file on a disk that hangs would then keep the process alive.
                threading.Thread(target=self._work, name="penstock lease store", daemon=True).start()
            self._operations.put(_Operation(call, writes, future))
        return await future

    async def close(self) -> None:
        """Close the file after the operations that wait. It is opened again when it is used again."""
        await self.run(_close_file, writes=False)

    def _work(self) -> None:
        """Run operations until the file is closed: a SQLite connection has one user at a time."""
        while True:
            group = [self._operations.get()]
            with suppress(queue.Empty):
                while group[-1].call is not _close_file and len(group) < _LONGEST_GROUP:
                    group.append(self._operations.get_nowait())
            closing = group[-1:] if group[-1].call is _close_file else []
            group = group[: len(group) - len(closing)]
            if group:
                _answer(group, self._run_group(group))
            if closing:
                outcome = None, self._end_connection()
                with self._lock:
                    self._lives = lives = not self._operations.empty()
                _answer(closing, [outcome])
                if not lives:
                    return

    def _end_connection(self) -> Exception | None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.close()
        except sqlite3.Error as error:
            return self._typed(error)
        return None

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
            # The connection is broken, for example by an error of the disk: the next operation opens another one.
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
            raise FileNotFoundError("the file does not exist: no job keeps its leases there")
        url = f"{self._path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(url, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            if not _schema_of(connection):
                raise sqlite3.DatabaseError("it holds no leases")
        except BaseException:
            connection.close()
            raise
        return connection

    def _try_to_open(self, *, last: bool) -> sqlite3.Connection | None:
        """A connection; None while another process sets up the file: SQLite does not wait for that."""
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
    """Wake each loop once for all of its operations."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = defaultdict(list)
    for operation, outcome in zip(group, outcomes, strict=True):
        by_loop[operation.future.get_loop()].append((operation.future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, answers)
        except RuntimeError:
            # The loop is closed, and with it the caller is gone.
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
    if _schema_of(connection) == _SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    # Another process may have set up the file meanwhile.
    for statement in _UPGRADE if _schema_of(connection) == 1 else ():
        connection.execute(statement)
    connection.execute(_CREATE)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _schema_of(connection: sqlite3.Connection) -> int:
    """The schema of the file; 0 for a new file. Raises: sqlite3.DatabaseError."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not 0 <= version <= _SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"the file has schema {version}, this release knows {_SCHEMA_VERSION}")
    return version


_COLUMNS: Final = (
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
# All columns: a file with schema 1 that is opened for reading has fewer.
_SELECT: Final = "SELECT * FROM consumers WHERE namespace = ?"
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
    not be on a network file system: SQLite's locks do not work there. Calls that arrive together share a transaction.

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

    async def write(self, record: ConsumerRecord) -> bool:
        """See LeaseStore."""
        row = _to_row(record)

        def write(connection: sqlite3.Connection) -> bool:
            if record.version == 0:
                return connection.execute(_INSERT, (self._namespace, *row)).rowcount == 1
            where = (self._namespace, *record.key, record.version)
            return connection.execute(_UPDATE, (*row[2:], *where)).rowcount == 1

        return await self._file.run(write, writes=True)

    async def renew(self, renewal: Renewal) -> float | None:
        """See LeaseStore."""
        where = (renewal.stream_arn, renewal.consumer_name, renewal.job_id, renewal.fencing_token)

        def renew(connection: sqlite3.Connection) -> float | None:
            # Read to its end: a statement that returns rows is done only then.
            rows = connection.execute(_RENEW, (renewal.at, self._namespace, *where)).fetchall()
            return float(rows[0][0]) if rows else None

        return await self._file.run(renew, writes=True)

    async def close(self) -> None:
        """See LeaseStore. The store opens again when it is used again."""
        await self._file.close()

    async def _query(self, condition: str, values: tuple[str, ...]) -> builtins.list[ConsumerRecord]:
        query = f"{_SELECT} AND {condition} ORDER BY stream_name, consumer_name"

        def read(connection: sqlite3.Connection) -> builtins.list[ConsumerRecord]:
            return [from_columns(dict(row)) for row in connection.execute(query, (self._namespace, *values))]

        return await self._file.run(read, writes=False)


def _to_row(record: ConsumerRecord) -> tuple[object, ...]:
    """In the order of `_COLUMNS`."""
    columns = to_columns(record)
    return *(columns[name] for name in _COLUMNS[:-1]), columns["claim"] or ""
