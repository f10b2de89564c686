"""Where consumers stand, kept over restarts, and written by the newest consumer of a name only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from platformdirs import user_state_path

from penstock.aws import (
    AwsConnectionError,
    AwsError,
    AwsServiceError,
    AwsSession,
    BackoffPolicy,
    ErrorKind,
    classify,
    error_code,
    retry,
)
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError, CheckpointTakenOverError, EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection


_BUSY_SECONDS = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class CheckpointClaim:
    """The right to save the positions in some streams, until somebody claims one of them anew.

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
        """Give the checkpoint, None when there is none.

        Raises:
            CheckpointError: it cannot be read.
        """
        ...

    async def claim(self, name: str, streams: Collection[str], owner: str) -> CheckpointClaim:
        """Give the checkpoint with a fencing number per stream, larger than any before.

        From then on nobody saves these streams by an older claim: who was paused does not put back what its successor
        has done. Another consumer of the same name may claim other streams.

        Args:
            name: of the checkpoint.
            streams: whose positions are to be saved.
            owner: whom the others are told of; it differs for each claim.

        Raises:
            CheckpointError: it cannot be read or written.
        """
        ...

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """Replace the positions in these streams, which are claimed; it is durable on return.

        Positions in other streams stay: another consumer of the same name may read those.

        Raises:
            CheckpointTakenOverError: one of the streams was claimed anew; nothing is written.
            CheckpointError: it cannot be written.
        """
        ...

    async def close(self) -> None:
        """Close what is open; a consumer does so at its end. Using it again opens it again."""
        ...


@dataclass(frozen=True)
class _Kept:
    """What a store keeps by a name, as text: compared when it is replaced. Checkpoints of before claims have none."""

    positions: str | None = None
    claims: str | None = None

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
        return await asyncio.to_thread(
            self._looked_up, name, lambda file: self._positions(file, name).parse_positions()
        )

    async def claim(self, name: str, streams: Collection[str], owner: str) -> CheckpointClaim:
        """See `CheckpointStore.claim`."""

        def change(kept: _Kept) -> tuple[_Kept, CheckpointClaim]:
            return _claimed(kept, name, streams, owner, self._clock())

        return await asyncio.shield(asyncio.to_thread(self._change, name, change))

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`."""

        def change(kept: _Kept) -> tuple[_Kept, None]:
            return _saved(kept, claim, positions), None

        # A write that has begun is finished when its caller is cancelled: the file is either old or new.
        await asyncio.shield(asyncio.to_thread(self._change, claim.name, change))

    async def close(self) -> None:
        """See `CheckpointStore.close`: between two calls the file is closed."""

    def _looked_up(self, name: str, look: Callable[[sqlite3.Connection], _T]) -> _T | None:
        try:
            if not self._path.exists():
                # To look is not to make: a name that was mistyped must not leave an empty file.
                return None
            with closing(self._connect()) as connection:
                made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoint'").fetchone()
                return look(connection) if made else None
        except (sqlite3.Error, OSError, ValueError) as error:
            raise CheckpointError(name=name, reason=f"{self._path}: {error}") from error

    def _change(self, name: str, change: Callable[[_Kept], tuple[_Kept, _T]]) -> _T:
        try:
            if self._makes_folder:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection, connection:
                for table in _TABLES:
                    connection.execute(table)
                connection.execute("BEGIN IMMEDIATE")
                kept = self._read(connection, name)
                changed, result = change(kept)
                key = self._prefix + name
                if changed.positions != kept.positions:
                    row = (key, changed.positions, self._clock())
                    connection.execute("INSERT OR REPLACE INTO checkpoint (name, positions, at) VALUES (?, ?, ?)", row)
                if changed.claims != kept.claims:
                    connection.execute(
                        "INSERT OR REPLACE INTO claims (name, claims) VALUES (?, ?)", (key, changed.claims)
                    )
            return result
        except (sqlite3.Error, OSError, ValueError) as error:
            raise CheckpointError(name=name, reason=f"{self._path}: {error}") from error

    def _read(self, connection: sqlite3.Connection, name: str) -> _Kept:
        claims = connection.execute("SELECT claims FROM claims WHERE name = ?", (self._prefix + name,)).fetchone()
        return replace(self._positions(connection, name), claims=None if claims is None else claims[0])

    def _positions(self, connection: sqlite3.Connection, name: str) -> _Kept:
        found = connection.execute("SELECT positions FROM checkpoint WHERE name = ?", (self._prefix + name,)).fetchone()
        return _Kept(None if found is None else found[0])

    def _connect(self) -> sqlite3.Connection:
        with suppress(FileExistsError):
            # SQLite would let everybody read it.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return sqlite3.connect(self._path, timeout=_BUSY_SECONDS)


_ATTEMPTS = 20
_ATTRIBUTES = ("positions", "claims")
_S3_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(|/[^?#]*)")
_CHANGED = "ConditionalCheckFailedException"


class _ComparedStore:
    """Checkpoints that are replaced on the condition that they are what was read, or written last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # What was written last, by name: as long as nobody else writes, a checkpoint needs no read.
        self._known: dict[str, _Kept] = {}

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`; what was saved last is read, whoever saved it."""
        kept = await self._read(name)
        with _told_by_name(name):
            return kept.parse_positions()

    async def claim(self, name: str, streams: Collection[str], owner: str) -> CheckpointClaim:
        """See `CheckpointStore.claim`."""
        return await self._change(name, lambda kept: _claimed(kept, name, streams, owner, self._clock()))

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`; one write, and a read where another consumer of the name wrote meanwhile."""
        await self._change(claim.name, lambda kept: (_saved(kept, claim, positions), None))

    async def _read(self, name: str) -> _Kept:
        raise NotImplementedError

    async def _replace(self, name: str, known: _Kept, changed: _Kept) -> bool:
        """Write `changed`, if `known` is what is kept; whether that was so."""
        raise NotImplementedError

    async def _change(self, name: str, change: Callable[[_Kept], tuple[_Kept, _T]]) -> _T:
        known = self._known[name] if name in self._known else await self._read(name)
        for _ in range(_ATTEMPTS):
            with _told_by_name(name):
                changed, result = change(known)
            if changed == known or await self._replace(name, known, changed):
                self._known[name] = changed
                return result
            # An attempt of before may have been carried out, and its answer lost.
            known = await self._read(name)
            if known == changed:
                self._known[name] = changed
                return result
        raise CheckpointError(name=name, reason=f"others wrote it {_ATTEMPTS} times meanwhile")


class DynamoDbCheckpointStore(_ComparedStore):
    """A `CheckpointStore` in a table that is there already, with the string `name` as its only key; one item per name.

    Args:
        session: has the credentials; DynamoDB is that of its region, or at `AWS_ENDPOINT_URL_DYNAMODB`.
        table_name: of the table.
        clock: seconds since the epoch.

    Raises:
        AwsOptionError: `session` is not an `AwsSession`.
    """

    def __init__(self, session: AwsSession, table_name: str, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._client = AwsSession.of(session).aio_client("dynamodb")
        self._table_name = table_name

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        await self._client.close()

    async def _read(self, name: str) -> _Kept:
        answer = await self._call(name, "get_item", Key={"name": {"S": name}}, ConsistentRead=True)
        texts = {attribute: answer.get("Item", {}).get(attribute) for attribute in _ATTRIBUTES}
        if "Item" in answer and not any(texts.values()):
            raise CheckpointError(name=name, reason="the item holds no positions")
        try:
            return _Kept(**{attribute: None if text is None else str(text["S"]) for attribute, text in texts.items()})
        except (KeyError, TypeError) as error:
            raise CheckpointError(name=name, reason=f"the item holds no positions: {error!r}") from error

    async def _replace(self, name: str, known: _Kept, changed: _Kept) -> bool:
        item, conditions, values = {"name": {"S": name}}, [], {}
        for attribute in _ATTRIBUTES:
            old, new = getattr(known, attribute), getattr(changed, attribute)
            conditions.append(f"attribute_not_exists({attribute})" if old is None else f"{attribute} = :{attribute}")
            if old is not None:
                values[f":{attribute}"] = {"S": old}
            if new is not None:
                item[attribute] = {"S": new}
        condition: dict[str, Any] = {"ConditionExpression": " AND ".join(conditions)}
        if values:
            condition["ExpressionAttributeValues"] = values
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


def parse_s3_url(url: str) -> tuple[str, str]:
    """The bucket and the folder of a place for checkpoints. Raises: EfoConsumerConfigError: the place is not on S3."""
    found = _S3_URL.fullmatch(url)
    if found is None:
        raise EfoConsumerConfigError(
            option="checkpoints", reason=f"is {url!r}: write s3://BUCKET/FOLDER, or give the Path of a file, or a store"
        )
    return found[1], found[2].strip("/")


class S3CheckpointStore(_ComparedStore):
    """A `CheckpointStore` on S3: one object per name, which is replaced on the condition that nobody else has.

    The bucket must have conditional writes, as S3 has in all regions: a service that ignores them is refused.

    Args:
        session: has the credentials; S3 is that of its region, or at `AWS_ENDPOINT_URL_S3`.
        url: `s3://BUCKET/FOLDER`.
        clock: seconds since the epoch.

    Raises:
        EfoConsumerConfigError: the URL is not one of S3.
        AwsOptionError: `session` is not an `AwsSession`.
    """

    def __init__(self, session: AwsSession, url: str, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._url = url.rstrip("/")
        self._bucket, folder = parse_s3_url(url)
        self._prefix = f"{folder}/" if folder else ""
        self._client = AwsSession.of(session).aio_client("s3")
        self._versions: dict[str, tuple[_Kept, str]] = {}
        self._has_conditions = False

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        await self._client.close()

    async def _read(self, name: str) -> _Kept:
        async def read() -> tuple[bytes, str]:
            answer = await self._client.call("get_object", Bucket=self._bucket, Key=self._key(name))
            try:
                async with answer["Body"] as body:
                    return await body.read(), str(answer["ETag"])
            except AwsError:
                raise
            except Exception as error:  # its body breaks off, by the errors of any layer below
                raise AwsConnectionError(
                    operation="get_object", endpoint=self._bucket, reason=str(error) or type(error).__name__
                ) from error

        try:
            data, version = await self._call(name, read)
        except CheckpointError as error:
            if error.__cause__ is not None and error_code(error.__cause__) == "NoSuchKey":
                self._versions.pop(name, None)
                return _Kept()
            raise
        try:
            document = json.loads(data)
            kept = _Kept(*(None if document[one] is None else str(document[one]) for one in _ATTRIBUTES))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(name=name, reason=f"{self._at(name)} holds no positions: {error!r}") from error
        self._versions[name] = kept, version
        return kept

    async def _replace(self, name: str, known: _Kept, changed: _Kept) -> bool:
        before, version = self._versions.get(name, (_Kept(), ""))
        if before != known:
            return False
        condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}
        if not version and not self._has_conditions:
            await self._check_conditions(name)
        answer = await self._put(name, self._key(name), changed, condition)
        if answer is None:
            return False
        self._versions[name] = changed, str(answer["ETag"])
        return True

    async def _check_conditions(self, name: str) -> None:
        """Refuse a service that would let two consumers overwrite each other."""
        probe = f"{self._prefix}.conditions"
        for _ in range(2):
            if await self._put(name, probe, _Kept(), {"IfNoneMatch": "*"}) is None:
                self._has_conditions = True
                return
        raise CheckpointError(
            name=name,
            reason=f"{self._url}: this service ignores If-None-Match, by which S3 makes an object only where there is "
            "none",
        )

    async def _put(self, name: str, key: str, kept: _Kept, condition: dict[str, str]) -> dict[str, Any] | None:
        """None if the condition does not hold, maybe by an attempt of before whose answer was lost."""
        data = json.dumps({one: getattr(kept, one) for one in _ATTRIBUTES}).encode()
        try:
            return await self._call(
                name,
                lambda: self._client.call("put_object", Bucket=self._bucket, Key=key, Body=data, **condition),
            )
        except CheckpointError as error:
            cause = error.__cause__
            # An object that was to be replaced may be gone.
            if isinstance(cause, AwsServiceError) and (cause.status == 412 or cause.code == "NoSuchKey"):
                return None
            raise

    async def _call(self, name: str, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await retry(call, BackoffPolicy(), is_retryable=_may_pass)
        except AwsError as error:
            reason = f"{self._at(name)}: {error}"
            if error_code(error) == "NoSuchBucket":
                reason += ": create the bucket, or look at the region and the account"
            raise CheckpointError(name=name, reason=reason) from error

    def _key(self, name: str) -> str:
        return f"{self._prefix}{quote(name, safe='')}.json"

    def _at(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._key(name)}"


def _may_pass(error: BaseException) -> bool:
    if error_code(error) == "ConditionalRequestConflict":
        return True  # another writes at the same moment
    return classify(error) is not ErrorKind.FATAL


@contextmanager
def _told_by_name(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise CheckpointError(name=name, reason=f"the item holds no positions: {error}") from error
