"""Records in one SQLite file, shared by the processes of a machine."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.registration._lease.record import ConsumerRecord, Holding, RegistrationPhase
from penstock.registration._stores.sqlite_file import SqliteFile
from penstock.registration._stores.store import Renewal

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
            return [_from_row(row) for row in connection.execute(query, (self._namespace, *values))]

        return await self._file.run(read, writes=False)


def _key_of(renewal: Renewal) -> tuple[str, str]:
    return renewal.stream_arn, renewal.consumer_name


def _to_row(record: ConsumerRecord) -> tuple[object, ...]:
    """In the order of `_COLUMNS`, with the version that it will have when it is written."""
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
        record.stream_arn,
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
        record.ended_token,
        "" if holding is None else holding.claim,
    )


def _from_row(row: sqlite3.Row) -> ConsumerRecord:
    """The record as it was written."""
    holding = None
    if row["holding_token"] is not None:
        holding = Holding(
            job_id=row["job_id"],
            fencing_token=row["holding_token"],
            acquired_at=row["acquired_at"],
            renewed_at=row["renewed_at"],
            time_to_live_seconds=row["time_to_live_seconds"],
            claim=row["claim"],
        )
    return ConsumerRecord(
        stream_arn=row["stream_name"],
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
        ended_token=row["ended_token"],
    )
