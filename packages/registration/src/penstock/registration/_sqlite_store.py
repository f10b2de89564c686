"""Records in one SQLite file, shared by the processes of a machine."""

from __future__ import annotations

import builtins
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from penstock.registration._record import ConsumerRecord, Holding, RegistrationPhase
from penstock.registration._threads import DaemonThreads
from penstock.registration.errors import LeaseStoreError

T = TypeVar("T")

_SCHEMA_VERSION: Final = 1
_BUSY_SECONDS: Final = 30.0
_LOCKED_PAUSE_SECONDS: Final = 0.02
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
)
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
  PRIMARY KEY (namespace, stream_name, consumer_name)
) WITHOUT ROWID
"""
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM consumers WHERE namespace = ?"
_INSERT: Final = (
    f"INSERT INTO consumers (namespace, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)}) ON CONFLICT DO NOTHING"
)
_UPDATE: Final = (
    f"UPDATE consumers SET {', '.join(f'{name} = ?' for name in _COLUMNS[2:])}"
    " WHERE namespace = ? AND stream_name = ? AND consumer_name = ? AND version = ?"
)


def _to_row(record: ConsumerRecord) -> tuple[object, ...]:
    holding = record.holding
    held = (
        (None,) * 5
        if holding is None
        else (
            holding.job_id,
            holding.fencing_token,
            holding.acquired_at,
            holding.renewed_at,
            holding.time_to_live_seconds,
        )
    )
    return (
        record.stream_name,
        record.consumer_name,
        record.version + 1,
        record.fencing_token,
        record.created_at,
        record.phase.value,
        record.consumer_arn,
        int(record.registration_is_ours),
        record.registering_token,
        *held,
        record.idle_since,
    )


def _from_row(row: sqlite3.Row) -> ConsumerRecord:
    holding = None
    if row["holding_token"] is not None:
        holding = Holding(
            job_id=row["job_id"],
            fencing_token=row["holding_token"],
            acquired_at=row["acquired_at"],
            renewed_at=row["renewed_at"],
            time_to_live_seconds=row["time_to_live_seconds"],
        )
    return ConsumerRecord(
        stream_name=row["stream_name"],
        consumer_name=row["consumer_name"],
        created_at=row["created_at"],
        version=row["version"],
        fencing_token=row["fencing_token"],
        phase=RegistrationPhase(row["phase"]),
        consumer_arn=row["consumer_arn"],
        registration_is_ours=bool(row["registration_is_ours"]),
        registering_token=row["registering_token"],
        holding=holding,
        idle_since=row["idle_since"],
    )


class SqliteLeaseStore:
    """A LeaseStore in a file: write-ahead log, one immediate transaction per write, synced to the disk.

    Survives the end of a process at any instruction, and serves several processes of one machine at once. The file must
    not lie on a network file system: SQLite's locks do not hold there.

    `namespace` keeps apart what shares a file: registries for different endpoints or regions do not see each other's
    records.
    """

    def __init__(self, path: Path | str, *, namespace: str = "") -> None:
        self._path = Path(path)
        self._namespace = namespace
        self._connection: sqlite3.Connection | None = None
        # One thread: a SQLite connection is for one user at a time.
        self._thread = DaemonThreads(1, name="penstock lease store")

    async def get(self, stream_name: str, consumer_name: str) -> ConsumerRecord | None:
        """See LeaseStore."""
        rows = await self._query("stream_name = ? AND consumer_name = ?", (stream_name, consumer_name))
        return rows[0] if rows else None

    async def list(self, stream_name: str | None = None) -> list[ConsumerRecord]:
        """See LeaseStore."""
        if stream_name is None:
            return await self._query("TRUE", ())
        return await self._query("stream_name = ?", (stream_name,))

    async def write(self, records: Sequence[ConsumerRecord]) -> builtins.list[bool]:
        """See LeaseStore."""

        def write(connection: sqlite3.Connection) -> builtins.list[bool]:
            # Immediate: a transaction that begins by reading fails at its first write if another process wrote.
            connection.execute("BEGIN IMMEDIATE")
            try:
                written = [self._write_one(connection, record) for record in records]
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            return written

        return await self._run(write)

    def _write_one(self, connection: sqlite3.Connection, record: ConsumerRecord) -> bool:
        row = _to_row(record)
        if record.version == 0:
            return connection.execute(_INSERT, (self._namespace, *row)).rowcount == 1
        where = (self._namespace, *record.key, record.version)
        return connection.execute(_UPDATE, (*row[2:], *where)).rowcount == 1

    async def _query(self, condition: str, values: tuple[str, ...]) -> builtins.list[ConsumerRecord]:
        query = f"{_SELECT} AND {condition} ORDER BY stream_name, consumer_name"

        def read(connection: sqlite3.Connection) -> builtins.list[ConsumerRecord]:
            return [_from_row(row) for row in connection.execute(query, (self._namespace, *values))]

        return await self._run(read)

    async def close(self) -> None:
        """See LeaseStore. The store opens again when it is used again."""

        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await self._thread.run(close)
        self._thread.close()

    async def _run(self, call: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            try:
                return call(self._open())
            except (sqlite3.Error, OSError) as error:
                raise LeaseStoreError(store=str(self._path), reason=str(error)) from error

        return await self._thread.run(run)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            give_up_at = time.monotonic() + _BUSY_SECONDS
            while (connection := self._try_to_open(last=time.monotonic() > give_up_at)) is None:
                time.sleep(_LOCKED_PAUSE_SECONDS)
            self._connection = connection
        return self._connection

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


def _is_busy(error: sqlite3.OperationalError) -> bool:
    # The low byte is the error; the rest says more about it.
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # A token that was given must not be given again after a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == _SCHEMA_VERSION:
        return
    if version > _SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"the file has schema {version}, this release knows {_SCHEMA_VERSION}")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_CREATE)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    connection.execute("COMMIT")
