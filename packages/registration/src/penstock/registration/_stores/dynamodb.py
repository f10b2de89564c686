"""Records in a DynamoDB table, shared by registries anywhere."""

from __future__ import annotations

import asyncio
import builtins
import random as random_module
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from penstock.aws import AwsError, AwsServiceError, BackoffPolicy, DynamoDbTable, Item
from penstock.registration._lease.record import ConsumerRecord, Renewal, from_columns, to_columns
from penstock.registration._registrar import AwsClients
from penstock.registration.errors import LeaseStoreError

_PARTITION_KEY: Final = "stream"
"""Namespace and stream ARN: the consumers of a stream lie together, and streams spread over partitions."""
_SORT_KEY: Final = "consumer_name"
_KEY_SCHEMA: Final = (
    {"AttributeName": _PARTITION_KEY, "KeyType": "HASH"},
    {"AttributeName": _SORT_KEY, "KeyType": "RANGE"},
)
_KEY_TYPES: Final = tuple({"AttributeName": name, "AttributeType": "S"} for name in (_PARTITION_KEY, _SORT_KEY))
_RETRIES: Final = BackoffPolicy(
    base=timedelta(milliseconds=50), maximum=timedelta(seconds=1), exponent=2.0, max_attempts=8
)
_TABLE_SECONDS: Final = 120.0
_TABLE_PAUSE_SECONDS: Final = 0.5
_NO_TABLE: Final = "ResourceNotFoundException"


class DynamoDbLeaseStore:
    """A LeaseStore in a table: one item per consumer, conditional writes, consistent reads.

    Any number of registries, on any machines, may use one table. It is made on demand, billed per request. A throttled
    or unanswered request is sent again; a write that was carried out although its answer was lost is recognised.

    `namespace` keeps apart what shares a table: registries for different endpoints or regions do not see each other's
    records. With `read_only` a table that is not there is an error.
    """

    def __init__(
        self,
        session: AwsClients,
        table_name: str,
        *,
        namespace: str = "",
        read_only: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._client = session.aio_client("dynamodb")
        self._table = _LeaseTable(self._client, table_name, backoff=_RETRIES, sleep=sleep, random=random)
        self._table.makes_itself = not read_only
        self._namespace = namespace

    async def get(self, stream_arn: str, consumer_name: str) -> ConsumerRecord | None:
        """See LeaseStore."""
        key = _key_of(self._namespace, stream_arn, consumer_name)
        with self._typed("get_item"):
            item = await self._table.get(key)
        return None if item is None else _from_item(item)

    async def list(self) -> list[ConsumerRecord]:
        """See LeaseStore. Reads the whole table."""
        parameters: dict[str, Any] = {
            "FilterExpression": "#name = :value",
            "ExpressionAttributeNames": {"#name": "namespace"},
            "ExpressionAttributeValues": {":value": {"S": self._namespace}},
            "ConsistentRead": True,
        }
        items: builtins.list[Item] = []
        while True:
            with self._typed("scan"):
                answer = await self._table.call("scan", **parameters)
            items += answer["Items"]
            if not answer.get("LastEvaluatedKey"):
                return sorted(map(_from_item, items), key=lambda record: record.key)
            parameters["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def close(self) -> None:
        """See LeaseStore."""
        await self._client.close()

    async def write(self, record: ConsumerRecord) -> bool:
        """See LeaseStore."""
        item = _to_item(record, self._namespace, uuid.uuid4().hex)
        with self._typed("put_item"):
            _, in_the_way = await self._table.change(
                "put_item",
                Item=item,
                unless_changed={"version": _number(record.version) if record.version > 0 else None},
            )
        # A request that was carried out, but not answered, is in its own way when it is made again.
        return in_the_way is None or in_the_way.get("write_id") == item["write_id"]

    async def renew(self, renewal: Renewal) -> float | None:
        """See LeaseStore."""
        with self._typed("update_item"):
            answer, in_the_way = await self._table.change(
                "update_item",
                unless_changed={"job_id": {"S": renewal.job_id}, "holding_token": _number(renewal.fencing_token)},
                Key=_key_of(self._namespace, renewal.stream_arn, renewal.consumer_name),
                UpdateExpression="SET renewed_at = :at, #version = #version + :one",
                ExpressionAttributeNames={"#version": "version"},
                ExpressionAttributeValues={":at": _number(renewal.at), ":one": _number(1)},
                ReturnValues="ALL_NEW",
            )
        return None if in_the_way is not None else float(answer["Attributes"]["time_to_live_seconds"]["N"])

    @contextmanager
    def _typed(self, operation: str) -> Iterator[None]:
        try:
            yield
        except AwsError as error:
            raise self._table.error(f"{operation}: {error}") from error


class _LeaseTable(DynamoDbTable):
    """A table that is made when it is used for the first time, unless it is only read."""

    makes_itself = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._making = asyncio.Lock()

    def error(self, reason: str) -> LeaseStoreError:
        return LeaseStoreError(store=f"dynamodb://{self.name}", reason=reason)

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        try:
            return await super().call(operation, **parameters)
        except AwsServiceError as error:
            if error.code != _NO_TABLE or not self.makes_itself:
                raise
        await self._make()
        return await super().call(operation, **parameters)

    async def _make(self) -> None:
        """Make the table, unless another registry does, and wait until it can be used."""
        async with self._making:
            try:
                await super().call(
                    "create_table",
                    KeySchema=_KEY_SCHEMA,
                    AttributeDefinitions=_KEY_TYPES,
                    BillingMode="PAY_PER_REQUEST",
                )
            except AwsServiceError as error:
                if error.code != "ResourceInUseException":
                    raise
            waited = 0.0
            while not await self._is_active():
                if waited >= _TABLE_SECONDS:
                    raise self.error(f"the table is not ACTIVE after {waited:g} s")
                await self._sleep(_TABLE_PAUSE_SECONDS)
                waited += _TABLE_PAUSE_SECONDS

    async def _is_active(self) -> bool:
        try:
            answer = await super().call("describe_table")
        except AwsServiceError as error:
            # A table that was made a moment ago may not be known everywhere yet.
            if error.code == _NO_TABLE:
                return False
            raise
        return bool(answer["Table"]["TableStatus"] == "ACTIVE")


def _partition_of(namespace: str, stream_arn: str) -> str:
    """The partition key. An ARN or a name contains no blank, so both parts can be read from the key."""
    return f"{stream_arn} {namespace}"


def _key_of(namespace: str, stream_arn: str, consumer_name: str) -> Item:
    """The primary key."""
    return {_PARTITION_KEY: {"S": _partition_of(namespace, stream_arn)}, _SORT_KEY: {"S": consumer_name}}


def _to_item(record: ConsumerRecord, namespace: str, write_id: str) -> Item:
    """With the id of the attempt to write it."""
    columns = to_columns(record) | {"namespace": namespace, "write_id": write_id}
    key = _key_of(namespace, *record.key)
    return key | {name: _attribute(value) for name, value in columns.items() if value is not None}


def _from_item(item: Mapping[str, Mapping[str, Any]]) -> ConsumerRecord:
    """The record as it was written."""
    return from_columns({name: next(iter(value.values())) for name, value in item.items()})


def _attribute(value: str | float) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    return {"S": value} if isinstance(value, str) else _number(value)


def _number(value: float) -> dict[str, str]:
    # The shortest text that reads back as the same number: DynamoDB keeps 38 digits, a float needs 17 at most.
    return {"N": repr(value)}
