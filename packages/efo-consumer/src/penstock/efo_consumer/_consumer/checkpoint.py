"""Where consumers stand, kept over restarts."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from platformdirs import user_state_path

from penstock.aws import AwsError, BackoffPolicy, error_code, retry
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.aws import AwsSession

_TABLE = "CREATE TABLE IF NOT EXISTS checkpoint (name TEXT PRIMARY KEY, positions TEXT NOT NULL, at REAL NOT NULL)"
_BUSY_SECONDS = 10.0
_T = TypeVar("_T")


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

    async def close(self) -> None:
        """Close what is open; a consumer does so at its end. Using it again opens it again."""
        ...


def merged(saved: StreamPositions | None, positions: StreamPositions) -> StreamPositions:
    """What is kept after `positions` are saved over `saved`: a stream's are replaced with all that is known of it."""
    if saved is None:
        return positions
    others = within(saved, saved.streams.keys() - positions.streams.keys())
    return StreamPositions({**saved.streams, **positions.streams}, {**others.created, **positions.created})


def within(positions: StreamPositions, streams: Collection[str]) -> StreamPositions:
    """The positions in some streams alone."""
    return StreamPositions(
        {stream: shards for stream, shards in positions.streams.items() if stream in streams},
        {stream: millis for stream, millis in positions.created.items() if stream in streams},
    )


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
        statement = "SELECT name FROM checkpoint ORDER BY name"
        rows = await asyncio.to_thread(self._looked_up, "", lambda file: file.execute(statement).fetchall())
        return [name.removeprefix(self._prefix) for (name,) in rows or () if name.startswith(self._prefix)]

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`."""
        return await asyncio.to_thread(self._looked_up, name, lambda file: self._read(file, name))

    async def save(self, name: str, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`."""
        # A write that has begun is finished when its caller is cancelled: the file is either old or new.
        await asyncio.shield(asyncio.to_thread(self._save, name, positions))

    async def close(self) -> None:
        """See `CheckpointStore.close`: between two calls the file is closed."""

    def _looked_up(self, name: str, look: Callable[[sqlite3.Connection], _T]) -> _T | None:
        try:
            if not self._path.exists():
                # To look is not to make: a name that was mistyped must not leave an empty file.
                return None
            with closing(self._connect()) as connection:
                return look(connection)
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


_ATTEMPTS = 20
_CHANGED = "ConditionalCheckFailedException"


class DynamoDbCheckpointStore:
    """A `CheckpointStore` in a table that is there already, with the string `name` as its only key; one item per name.

    Args:
        session: has the credentials; DynamoDB is that of its region, or at `AWS_ENDPOINT_URL_DYNAMODB`.
        table_name: of the table.
    """

    def __init__(self, session: AwsSession, table_name: str) -> None:
        self._client = session.aio_client("dynamodb")
        self._table_name = table_name
        # What was written last, by name: as long as nobody else writes, a checkpoint needs no read.
        self._known: dict[str, str] = {}

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`; what was saved last is read, whoever saved it."""
        text = await self._read(name)
        return None if text is None else _parse(name, text)

    async def save(self, name: str, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`; one write, and a read where another consumer of the name wrote meanwhile."""
        known = self._known[name] if name in self._known else await self._read(name)
        for _ in range(_ATTEMPTS):
            kept = merged(None if known is None else _parse(name, known), positions)
            text = json.dumps(kept.to_json())
            if await self._replace(name, known, text):
                self._known[name] = text
                return
            known = await self._read(name)
            if known == text:
                # An attempt of before was carried out, and its answer lost.
                self._known[name] = text
                return
        raise CheckpointError(name=name, reason=f"others wrote it {_ATTEMPTS} times meanwhile")

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        await self._client.close()

    async def _read(self, name: str) -> str | None:
        answer = await self._call(name, "get_item", Key={"name": {"S": name}}, ConsistentRead=True)
        item = answer.get("Item")
        if item is None:
            return None
        try:
            return str(item["positions"]["S"])
        except KeyError as error:
            raise CheckpointError(name=name, reason=f"the item holds no positions: {error}") from error

    async def _replace(self, name: str, known: str | None, text: str) -> bool:
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(positions)"}
        if known is not None:
            condition = {
                "ConditionExpression": "positions = :known",
                "ExpressionAttributeValues": {":known": {"S": known}},
            }
        item = {"name": {"S": name}, "positions": {"S": text}}
        try:
            await self._call(name, "put_item", Item=item, **condition)
        except CheckpointError as error:
            if error.__cause__ is not None and error_code(error.__cause__) == _CHANGED:
                return False
            raise
        return True

    async def _call(self, name: str, operation: str, **request: Any) -> dict[str, Any]:
        table = self._table_name
        try:
            return await retry(lambda: self._client.call(operation, TableName=table, **request), BackoffPolicy())
        except AwsError as error:
            reason = f"table {table}: {error}"
            if error_code(error) == "ResourceNotFoundException":
                reason += ": create it with the string key `name`, or look at the region and the account"
            raise CheckpointError(name=name, reason=reason) from error


def _parse(name: str, text: str) -> StreamPositions:
    try:
        return StreamPositions.from_json(json.loads(text))
    except ValueError as error:
        raise CheckpointError(name=name, reason=f"the item holds no positions: {error}") from error
