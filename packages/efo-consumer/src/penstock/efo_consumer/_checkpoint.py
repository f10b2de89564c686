"""Where consumers stand, kept over restarts."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from penstock.efo_consumer._positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TABLE = "CREATE TABLE IF NOT EXISTS checkpoint (name TEXT PRIMARY KEY, positions TEXT NOT NULL, at REAL NOT NULL)"
_BUSY_SECONDS = 10.0


class CheckpointStore(Protocol):
    """Keeps one checkpoint per name."""

    async def load(self, name: str) -> StreamPositions | None:
        """Give the checkpoint, None when there is none.

        Raises:
            CheckpointError: it cannot be read.
        """
        ...

    async def save(self, name: str, positions: StreamPositions) -> None:
        """Replace the checkpoint; it is durable on return.

        Raises:
            CheckpointError: it cannot be written.
        """
        ...


class SqliteCheckpointStore:
    """Checkpoints in a file, which several processes may share.

    Args:
        path: of the file; its folder has to be there.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`."""
        return await asyncio.to_thread(self._load, name)

    async def save(self, name: str, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`."""
        # A write that has begun is finished when its caller is cancelled: the file is either old or new.
        await asyncio.shield(asyncio.to_thread(self._save, name, json.dumps(positions.to_json())))

    def _load(self, name: str) -> StreamPositions | None:
        try:
            with closing(self._connect()) as connection:
                row = connection.execute("SELECT positions FROM checkpoint WHERE name = ?", (name,)).fetchone()
            return None if row is None else StreamPositions.from_json(json.loads(row[0]))
        except (sqlite3.Error, ValueError) as error:
            raise CheckpointError(name=name, reason=str(error)) from error

    def _save(self, name: str, positions: str) -> None:
        statement = "INSERT OR REPLACE INTO checkpoint (name, positions, at) VALUES (?, ?, ?)"
        try:
            with closing(self._connect()) as connection, connection:
                connection.execute(statement, (name, positions, self._clock()))
        except sqlite3.Error as error:
            raise CheckpointError(name=name, reason=str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS)
        connection.execute(_TABLE)
        return connection
