"""Records in one SQLite file, shared by the processes of a machine."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from penstock.registration._record import ConsumerRecord
from penstock.registration._sqlite_file import SqliteFile
from penstock.registration._sqlite_rows import INSERT, RENEW, SELECT, SELECT_1, UPDATE, from_row, to_row
from penstock.registration._store import Renewal


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
        row = to_row(record)
        if record.version == 0:
            return connection.execute(INSERT, (self._namespace, *row)).rowcount == 1
        where = (self._namespace, *record.key, record.version)
        return connection.execute(UPDATE, (*row[2:], *where)).rowcount == 1

    def _renew_one(self, connection: sqlite3.Connection, renewal: Renewal) -> float | None:
        where = (renewal.stream_arn, renewal.consumer_name, renewal.job_id, renewal.fencing_token)
        # Read to its end: a statement that returns rows is done only then.
        rows = connection.execute(RENEW, (renewal.at, self._namespace, *where)).fetchall()
        return float(rows[0][0]) if rows else None

    async def _query(self, condition: str, values: tuple[str, ...]) -> builtins.list[ConsumerRecord]:
        rest = f"AND {condition} ORDER BY stream_name, consumer_name"

        def read(connection: sqlite3.Connection) -> builtins.list[ConsumerRecord]:
            # A file that may only be read stays as an older release left it.
            query = f"{SELECT_1 if self._file.schema == 1 else SELECT} {rest}"
            return [from_row(row) for row in connection.execute(query, (self._namespace, *values))]

        return await self._file.run(read, writes=False)


def _key_of(renewal: Renewal) -> tuple[str, str]:
    return renewal.stream_arn, renewal.consumer_name
