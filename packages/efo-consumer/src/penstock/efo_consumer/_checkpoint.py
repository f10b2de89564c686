"""Where consumers stand, kept over restarts."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from platformdirs import user_state_path

from penstock.efo_consumer._positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

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
        """Replace the positions in these streams; it is durable on return.

        Positions in other streams stay: another consumer of the same name may read those.

        Raises:
            CheckpointError: it cannot be written.
        """
        ...


def merged(saved: StreamPositions | None, positions: StreamPositions) -> StreamPositions:
    """What is kept after `positions` are saved over `saved`."""
    return positions if saved is None else StreamPositions({**saved.streams, **positions.streams})


def default_checkpoints_path() -> Path:
    """`checkpoints.db` in the user's state directory."""
    return user_state_path("penstock") / "checkpoints.db"


class SqliteCheckpointStore:
    """Checkpoints in a file, which several processes may share.

    Args:
        path: of the file; its folder has to be there. Default: in the user's state directory.
        namespace: keeps apart names of, say, several endpoints in one file.
        clock: seconds since the epoch.
    """

    def __init__(
        self, path: Path | None = None, *, namespace: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path or default_checkpoints_path()
        self._makes_folder = path is None
        self._prefix = f"{namespace} " if namespace else ""
        self._clock = clock

    async def names(self) -> list[str]:
        """Give the names of the checkpoints, in order.

        Raises:
            CheckpointError: they cannot be read.
        """
        return await asyncio.to_thread(self._names)

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`."""
        return await asyncio.to_thread(self._load, name)

    async def save(self, name: str, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`."""
        # A write that has begun is finished when its caller is cancelled: the file is either old or new.
        await asyncio.shield(asyncio.to_thread(self._save, name, positions))

    def _names(self) -> list[str]:
        try:
            if not self._path.exists():
                return []
            with closing(self._connect()) as connection:
                rows = connection.execute("SELECT name FROM checkpoint ORDER BY name").fetchall()
        except (sqlite3.Error, OSError) as error:
            raise CheckpointError(name="", reason=f"{self._path}: {error}") from error
        return [name.removeprefix(self._prefix) for (name,) in rows if name.startswith(self._prefix)]

    def _load(self, name: str) -> StreamPositions | None:
        try:
            if not self._path.exists():
                # To look is not to make: a name that was mistyped must not leave an empty file.
                return None
            with closing(self._connect()) as connection:
                return self._read(connection, name)
        except (sqlite3.Error, OSError, ValueError) as error:
            raise CheckpointError(name=name, reason=f"{self._path}: {error}") from error

    def _save(self, name: str, positions: StreamPositions) -> None:
        statement = "INSERT OR REPLACE INTO checkpoint (name, positions, at) VALUES (?, ?, ?)"
        try:
            if self._makes_folder:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                kept = merged(self._read(connection, name), positions)
                connection.execute(statement, (self._prefix + name, json.dumps(kept.to_json()), self._clock()))
        except (sqlite3.Error, OSError, ValueError) as error:
            raise CheckpointError(name=name, reason=f"{self._path}: {error}") from error

    def _read(self, connection: sqlite3.Connection, name: str) -> StreamPositions | None:
        found = connection.execute("SELECT positions FROM checkpoint WHERE name = ?", (self._prefix + name,))
        row = found.fetchone()
        return None if row is None else StreamPositions.from_json(json.loads(row[0]))

    def _connect(self) -> sqlite3.Connection:
        with suppress(FileExistsError):
            # SQLite would let everybody read it.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS)
        connection.execute(_TABLE)
        return connection
