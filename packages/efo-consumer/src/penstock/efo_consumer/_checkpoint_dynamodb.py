"""Checkpoints in DynamoDB, for consumers that may start on any machine."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from penstock.aws import AwsError, BackoffPolicy, retry
from penstock.efo_consumer._checkpoint import merged
from penstock.efo_consumer._positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPTS = 20
_CHANGED = "ConditionalCheckFailedException"


class Clients(Protocol):
    """What gives boto3 clients: an `AwsSession`, or a fake."""

    def client(self, service_name: str) -> Any:
        """A client, usable from several threads."""
        ...


class DynamoDbCheckpointStore:
    """A `CheckpointStore` in a table that is there already, with the string `name` as its only key; one item per name.

    Args:
        session: gives the client of DynamoDB.
        table_name: of the table.
    """

    def __init__(self, session: Clients, table_name: str) -> None:
        self._client = session.client("dynamodb")
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

    async def _read(self, name: str) -> str | None:
        answer = await self._call(name, self._client.get_item, Key={"name": {"S": name}}, ConsistentRead=True)
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
            await self._call(name, self._client.put_item, Item=item, **condition)
        except CheckpointError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and cause.response["Error"].get("Code") == _CHANGED:
                return False
            raise
        return True

    async def _call(self, name: str, method: Callable[..., dict[str, Any]], **request: Any) -> dict[str, Any]:
        call = partial(asyncio.to_thread, method, TableName=self._table_name, **request)
        try:
            return await retry(call, BackoffPolicy())
        except (ClientError, BotoCoreError, AwsError) as error:
            reason = f"table {self._table_name}: {error}"
            if isinstance(error, ClientError) and error.response["Error"].get("Code") == "ResourceNotFoundException":
                reason += ": create it with the string key `name`, or look at the region and the account"
            raise CheckpointError(name=name, reason=reason) from error


def _parse(name: str, text: str) -> StreamPositions:
    try:
        return StreamPositions.from_json(json.loads(text))
    except ValueError as error:
        raise CheckpointError(name=name, reason=f"the item holds no positions: {error}") from error
