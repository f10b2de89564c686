"""Where consumers stand, kept over restarts, and written by the newest consumer of a name only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from platformdirs import user_state_path

from penstock.aws import AwsError, AwsSession, ConditionalStore, DynamoDbTable, Item, S3Store, StoredValue, error_code
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError, CheckpointTakenOverError, EfoConsumerConfigError
from penstock.rpc import make_database_private, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


_BUSY_SECONDS = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class CheckpointClaim:
    """The right to save the positions in some streams, until another consumer claims one of them.

    Attributes:
        name: of the checkpoint.
        owner: who claimed it, for people: host, process and a number.
        numbers: a fencing number per stream, which only grows with each claim.
        positions: the checkpoint as it was claimed, other streams included; None when there was none.
    """

    name: str
    owner: str
    numbers: Mapping[str, int]
    positions: StreamPositions | None = None


class CheckpointStore(Protocol):
    """Keeps one checkpoint per name."""

    async def load(self, name: str) -> StreamPositions | None:
        """Give the checkpoint; None if it does not exist.

        Raises:
            CheckpointError: it cannot be read.
        """
        ...

    async def claim(self, name: str, streams: Collection[str], owner: str) -> CheckpointClaim:
        """Give the checkpoint with a fencing number per stream, larger than any before.

        From then on an older claim cannot save these streams: a consumer that was paused does not undo the work of its
        successor. Another consumer of the same name may claim other streams.

        Args:
            name: of the checkpoint.
            streams: whose positions are to be saved.
            owner: named in the errors of other consumers; it differs for each claim.

        Raises:
            CheckpointError: it cannot be read or written.
        """
        ...

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """Replace the positions in these streams, which are claimed; it is durable on return.

        Positions in other streams stay: another consumer of the same name may read those.

        Raises:
            CheckpointTakenOverError: another consumer claimed one of the streams since; nothing is written.
            CheckpointError: it cannot be written.
        """
        ...

    async def close(self) -> None:
        """Close what is open; a consumer does so at its end. Using it again opens it again."""
        ...


@dataclass(frozen=True)
class _Kept:
    """What a store keeps by a name, as text. Checkpoints that are older than claims have no claims."""

    positions: str | None = None
    claims: str | None = None

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def version(self) -> str | None:
        """For stores that compare the content itself; None if nothing is kept."""
        return None if self == _Kept() else self.dump().decode()

    @classmethod
    def parse(cls, data: bytes | str | None) -> _Kept:
        if data is None:
            return cls()
        document = json.loads(data)
        try:
            return cls(*(None if text is None else str(text) for text in (document["positions"], document["claims"])))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it holds no positions: {error!r}") from error

    def parse_positions(self) -> StreamPositions | None:
        return None if self.positions is None else StreamPositions.from_json(json.loads(self.positions))

    def parse_claims(self) -> dict[str, dict[str, Any]]:
        claims = {} if self.claims is None else json.loads(self.claims)
        if not all(isinstance(one, dict) and isinstance(one.get("number"), int) for one in claims.values()):
            raise ValueError(f"no claims: {self.claims}")
        return dict(claims)


def _claimed(kept: _Kept, name: str, streams: Collection[str], owner: str, at: float) -> tuple[_Kept, CheckpointClaim]:
    claims = kept.parse_claims()
    numbers = {stream: int(claims.get(stream, {"number": 0})["number"]) + 1 for stream in streams}
    claims |= {stream: {"number": number, "owner": owner, "at": at} for stream, number in numbers.items()}
    return _Kept(kept.positions, json.dumps(claims)), CheckpointClaim(name, owner, numbers, kept.parse_positions())


def _saved(kept: _Kept, claim: CheckpointClaim, positions: StreamPositions) -> _Kept:
    claims = kept.parse_claims()
    for stream in positions.streams:
        if stream not in claim.numbers:
            raise CheckpointError(name=claim.name, reason=f"positions in {stream} were not claimed")
        newest = claims.get(stream)
        # A store that was set back, to a copy of before the claim, has no newer one.
        if newest is None or newest["number"] < claim.numbers[stream]:
            continue
        if (newest["number"], newest.get("owner")) != (claim.numbers[stream], claim.owner):
            raise CheckpointTakenOverError(
                name=claim.name, stream=stream, owner=str(newest.get("owner")), at=float(newest.get("at", 0.0))
            )
    return _Kept(json.dumps(merged(kept.parse_positions(), positions).to_json()), kept.claims)


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


_TABLES = (
    "CREATE TABLE IF NOT EXISTS checkpoint (name TEXT PRIMARY KEY, positions TEXT NOT NULL, at REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS claims (name TEXT PRIMARY KEY, claims TEXT NOT NULL)",
)


_ATTEMPTS = 100
"""Each failed attempt is a write of another consumer, so that many in a row mean a store that does not compare."""
_MISSING = {
    "ResourceNotFoundException": ": create it with the string key `name`, or look at the region and the account",
    "NoSuchBucket": ": create the bucket, or look at the region and the account",
}


class _Checkpoints:
    """Checkpoints in a `ConditionalStore`, which are replaced if they still are what was read or written last.

    With `remembers` a checkpoint is read again only after another consumer wrote it.
    """

    def __init__(self, store: ConditionalStore, clock: Callable[[], float], *, remembers: bool = True) -> None:
        self._store = store
        self._clock = clock
        self._remembers = remembers
        self._known: dict[str, tuple[_Kept, str | None]] = {}

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`; reads what was saved last, by any consumer."""
        with self._typed(name):
            return (await self._read(name))[0].parse_positions()

    async def claim(self, name: str, streams: Collection[str], owner: str) -> CheckpointClaim:
        """See `CheckpointStore.claim`."""
        return await self._change(name, lambda kept: _claimed(kept, name, streams, owner, self._clock()))

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`; one write, and a read where another consumer of the name wrote meanwhile."""
        await self._change(claim.name, lambda kept: (_saved(kept, claim, positions), None))

    def _key(self, name: str) -> str:
        return name

    def _place(self, name: str) -> str:
        raise NotImplementedError

    async def _read(self, name: str) -> tuple[_Kept, str | None]:
        found = await self._store.read(self._key(name))
        return (_Kept(), None) if found is None else (_Kept.parse(found.data), found.version)

    async def _change(self, name: str, change: Callable[[_Kept], tuple[_Kept, _T]]) -> _T:
        with self._typed(name):
            kept, version = self._known[name] if name in self._known else await self._read(name)
            for _ in range(_ATTEMPTS):
                changed, result = change(kept)
                if changed != kept:
                    newer = await self._store.write(self._key(name), changed.dump(), if_version=version)
                    if newer is None:
                        kept, version = await self._read(name)
                        continue
                    version = newer
                if self._remembers:
                    self._known[name] = changed, version
                return result
        raise CheckpointError(name=name, reason=f"others wrote it {_ATTEMPTS} times meanwhile")

    @contextmanager
    def _typed(self, name: str) -> Iterator[None]:
        try:
            yield
        except (AwsError, sqlite3.Error, OSError, ValueError) as error:
            reason = f"{self._place(name)}: {error}{_MISSING.get(error_code(error) or '', '')}"
            raise CheckpointError(name=name, reason=reason) from error


class SqliteCheckpointStore(_Checkpoints):
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
        self._prefix = f"{namespace} " if namespace else ""
        self._file = _CheckpointFile(self._path, clock, makes_folder=path is None)
        super().__init__(self._file, clock, remembers=False)

    async def names(self) -> list[str]:
        """Give the names of the checkpoints, in order.

        Raises:
            CheckpointError: they cannot be read.
        """
        with self._typed(""):
            keys = await self._file.keys()
        return [key.removeprefix(self._prefix) for key in keys if key.startswith(self._prefix)]

    async def close(self) -> None:
        """See `CheckpointStore.close`: between two calls the file is closed."""

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _place(self, name: str) -> str:
        return str(self._path)


class _CheckpointFile:
    """A `ConditionalStore` in the two tables of a file."""

    def __init__(self, path: Path, clock: Callable[[], float], *, makes_folder: bool) -> None:
        self._path = path
        self._clock = clock
        self._makes_folder = makes_folder

    async def keys(self) -> list[str]:
        statement = "SELECT name FROM checkpoint ORDER BY name"
        rows = await asyncio.to_thread(self._look, lambda file: file.execute(statement).fetchall())
        return [name for (name,) in rows or ()]

    async def read(self, key: str) -> StoredValue | None:
        kept = await asyncio.to_thread(self._look, lambda file: _kept_in(file, key)) or _Kept()
        return None if kept.version is None else StoredValue(kept.dump(), kept.version)

    async def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        # A write that has begun is finished when its caller is cancelled: the file is either old or new.
        return await asyncio.shield(asyncio.to_thread(self._write, key, _Kept.parse(data), if_version))

    def _look(self, look: Callable[[sqlite3.Connection], _T]) -> _T | None:
        if not self._path.exists():
            # A look must not leave an empty file: the name may be mistyped.
            return None
        with closing(self._connect()) as connection:
            made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoint'").fetchone()
            return look(connection) if made else None

    def _write(self, key: str, changed: _Kept, if_version: str | None) -> str | None:
        if self._makes_folder:
            make_folder(self._path.parent)
        make_database_private(self._path)
        with closing(self._connect()) as connection, connection:
            for table in _TABLES:
                connection.execute(table)
            connection.execute("BEGIN IMMEDIATE")
            kept = _kept_in(connection, key)
            if kept.version != if_version:
                return None
            if changed.positions != kept.positions:
                row = (key, changed.positions, self._clock())
                connection.execute("INSERT OR REPLACE INTO checkpoint (name, positions, at) VALUES (?, ?, ?)", row)
            if changed.claims != kept.claims:
                connection.execute("INSERT OR REPLACE INTO claims (name, claims) VALUES (?, ?)", (key, changed.claims))
        return changed.version

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS)


def _kept_in(connection: sqlite3.Connection, key: str) -> _Kept:
    positions = connection.execute("SELECT positions FROM checkpoint WHERE name = ?", (key,)).fetchone()
    # A file of the first release has no claims.
    has_claims = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'claims'").fetchone()
    claims = connection.execute("SELECT claims FROM claims WHERE name = ?", (key,)).fetchone() if has_claims else None
    return _Kept(positions and positions[0], claims and claims[0])


class DynamoDbCheckpointStore(_Checkpoints):
    """A `CheckpointStore` in a table that is there already, with the string `name` as its only key; one item per name.

    Args:
        session: has the credentials. Uses DynamoDB in its region, or at `AWS_ENDPOINT_URL_DYNAMODB`.
        table_name: of the table.
        clock: seconds since the epoch.

    Raises:
        AwsOptionError: `session` is not an `AwsSession`.
    """

    def __init__(self, session: AwsSession, table_name: str, *, clock: Callable[[], float] = time.time) -> None:
        self._client = AwsSession.of(session).aio_client("dynamodb")
        self._table_name = table_name
        super().__init__(_CheckpointTable(self._client, table_name), clock)

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        await self._client.close()

    def _place(self, name: str) -> str:
        return f"table {self._table_name}"


class _CheckpointTable(DynamoDbTable):
    """A `ConditionalStore` in two attributes of an item."""

    async def read(self, key: str) -> StoredValue | None:
        item = await self.get({"name": {"S": key}})
        if item is None:
            return None
        try:
            kept = _Kept(*(item[one]["S"] if one in item else None for one in asdict(_Kept())))
        except KeyError as error:
            raise ValueError(f"the item holds no positions: {error!r}") from error
        if kept.version is None:
            raise ValueError("the item holds no positions")
        return StoredValue(kept.dump(), kept.version)

    async def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        changed = _Kept.parse(data)
        item: Item = {"name": {"S": key}} | _attributes(changed)
        known = dict.fromkeys(asdict(changed)) | _attributes(_Kept.parse(if_version))
        _, in_the_way = await self.change("put_item", Item=item, unless_changed=known)
        # An earlier attempt may have been carried out, and its answer lost.
        return changed.version if in_the_way in (None, item) else None


def _attributes(kept: _Kept) -> Item:
    return {attribute: {"S": text} for attribute, text in asdict(kept).items() if text is not None}


_S3_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(|/[^?#]*)")


def parse_s3_url(url: str) -> tuple[str, str]:
    """The bucket and the folder of a place for checkpoints. Raises: EfoConsumerConfigError: the place is not on S3."""
    found = _S3_URL.fullmatch(url)
    if found is None:
        raise EfoConsumerConfigError(
            option="checkpoints", reason=f"is {url!r}: write s3://BUCKET/FOLDER, or give the Path of a file, or a store"
        )
    return found[1], found[2].strip("/")


class S3CheckpointStore(_Checkpoints):
    """A `CheckpointStore` on S3: one object per name, which is replaced only if no other consumer replaced it.

    The bucket must have conditional writes, as S3 has in all regions: a service that ignores them is refused.

    Args:
        session: has the credentials. Uses S3 in its region, or at `AWS_ENDPOINT_URL_S3`.
        url: `s3://BUCKET/FOLDER`.
        clock: seconds since the epoch.

    Raises:
        EfoConsumerConfigError: the URL is not one of S3.
        AwsOptionError: `session` is not an `AwsSession`.
    """

    def __init__(self, session: AwsSession, url: str, *, clock: Callable[[], float] = time.time) -> None:
        bucket, folder = parse_s3_url(url)
        self._client = AwsSession.of(session).aio_client("s3")
        self._url = url.rstrip("/")
        super().__init__(_CheckpointBucket(self._client, bucket, f"{folder}/" if folder else ""), clock)

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        await self._client.close()

    def _key(self, name: str) -> str:
        return f"{quote(name, safe='')}.json"

    def _place(self, name: str) -> str:
        return f"{self._url}/{self._key(name)}"


class _CheckpointBucket(S3Store):
    """Refuses a service that would let two consumers overwrite each other."""

    _has_conditions = False

    async def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        if if_version is None and not self._has_conditions:
            # The first one makes the object, unless an earlier store has.
            await super().write(".conditions", os.urandom(16), if_version=None)
            if await super().write(".conditions", os.urandom(16), if_version=None) is not None:
                raise ValueError("this service ignores If-None-Match, by which S3 refuses to overwrite an object")
            self._has_conditions = True
        return await super().write(key, data, if_version=if_version)
