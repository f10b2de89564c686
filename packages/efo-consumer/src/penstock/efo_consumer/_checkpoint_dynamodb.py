"""Checkpoints in DynamoDB, for consumers that may start on any machine."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from penstock.aws import AwsError, BackoffPolicy, retry
from penstock.efo_consumer._positions import StreamPositions
from penstock.efo_consumer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable


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

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`; what was saved last is read, whoever saved it."""
        answer = await self._call(name, self._client.get_item, Key={"name": {"S": name}}, ConsistentRead=True)
        item = answer.get("Item")
        try:
            return None if item is None else StreamPositions.from_json(json.loads(item["positions"]["S"]))
        except (KeyError, ValueError) as error:
            raise CheckpointError(name=name, reason=f"the item holds no positions: {error}") from error

    async def save(self, name: str, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`."""
        item = {"name": {"S": name}, "positions": {"S": json.dumps(positions.to_json())}}
        await self._call(name, self._client.put_item, Item=item)

    async def _call(self, name: str, method: Callable[..., dict[str, Any]], **request: Any) -> dict[str, Any]:
        call = partial(asyncio.to_thread, method, TableName=self._table_name, **request)
        try:
            return await retry(call, BackoffPolicy())
        except (ClientError, BotoCoreError, AwsError) as error:
            raise CheckpointError(name=name, reason=str(error)) from error
