"""Compare-and-set on S3 and in DynamoDB: values that several processes may replace without losing an update."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from botocore.exceptions import ClientError

from penstock.aws._backoff import BackoffPolicy, retry
from penstock.aws._classify import ErrorKind, classify
from penstock.aws._service_clock import date_seconds
from penstock.aws.errors import AwsConnectionError, AwsError, AwsServiceError

Item = dict[str, dict[str, Any]]
"""An item or a key of DynamoDB, as boto3's client has it: `{"name": {"S": "x"}}`."""

_BACKOFF: Final = BackoffPolicy()


class AwsCalls(Protocol):
    """The part of `AwsClient` that the stores use."""

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """See `AwsClient.call`."""
        ...

    async def close(self) -> None:
        """See `AwsClient.close`."""
        ...


class StoredValue(NamedTuple):
    """A value as it was read."""

    data: bytes
    version: str
    """A different version for each content."""
    age_seconds: float = 0.0
    """Seconds since it was written, by the store's clock; 0 if unknown."""


class ConditionalStore(Protocol):
    """Bytes by key. A writer replaces a value only if it knows its newest version, so no update is lost."""

    async def read(self, key: str) -> StoredValue | None:
        """The latest value; None if the key has no value."""
        ...

    async def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        """Write a value if its version is still `if_version`; None means that the key has no value.

        A write whose answer was lost is repeated, and recognised by its content. Use data that no other writer has.

        Returns:
            The new version; None if another writer was faster and nothing was written.
        """
        ...


class S3Store:
    """A `ConditionalStore` in one bucket, with `If-Match` and `If-None-Match`. Retryable errors are retried.

    Args:
        client: of S3.
        bucket: its name.
        prefix: of all keys.
        backoff: between attempts.

    Raises:
        AwsError: the service refuses a call, or does not answer in any attempt.
    """

    def __init__(self, client: AwsCalls, bucket: str, prefix: str = "", *, backoff: BackoffPolicy = _BACKOFF) -> None:
        self._client = client
        self._bucket = bucket
        self.prefix = prefix
        self._backoff = backoff

    async def read(self, key: str) -> StoredValue | None:
        """See `ConditionalStore.read`."""

        async def read(answer: dict[str, Any]) -> StoredValue:
            async with answer["Body"] as body:
                data = await body.read()
            written = answer["LastModified"].timestamp()
            now = date_seconds(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
            return StoredValue(data, answer["ETag"], max(0.0, now - written) if now is not None else 0.0)

        try:
            found: StoredValue = await self.call("get_object", read, Key=self.prefix + key)
        except AwsServiceError as error:
            if error.status == 404 and error.code != "NoSuchBucket":
                return None
            raise
        return found

    async def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        """See `ConditionalStore.write`."""
        condition = {"IfNoneMatch": "*"} if if_version is None else {"IfMatch": if_version}
        try:
            return str((await self.call("put_object", Key=self.prefix + key, Body=data, **condition))["ETag"])
        except AwsServiceError as error:
            # 404: the object that was to be replaced is gone.
            if error.status != 412 and not (error.status == 404 and if_version is not None):
                raise
        # The answer of an earlier attempt may have been lost.
        found = await self.read(key)
        return found.version if found is not None and found.data == data else None

    async def call(
        self, operation: str, read: Callable[[dict[str, Any]], Awaitable[Any]] | None = None, /, **parameters: Any
    ) -> Any:
        """Make a call on the bucket, with retries; `read` reads the body of the answer."""

        async def call() -> Any:
            answer = await self._client.call(operation, Bucket=self._bucket, **parameters)
            if read is None:
                return answer
            try:
                return await read(answer)
            except AwsError:
                raise
            except Exception as error:  # a body that breaks off raises errors of any layer below
                raise AwsConnectionError(
                    operation=operation, endpoint=self._bucket, reason=str(error) or type(error).__name__
                ) from error

        return await retry(call, self._backoff, is_retryable=_may_pass)


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, AwsServiceError) and error.code == "ConditionalRequestConflict":
        return True  # another writer writes at the same moment
    return classify(error) is not ErrorKind.FATAL


class DynamoDbTable:
    """Items of one table with conditional writes. Retryable errors are retried.

    Raises:
        AwsError: the service refuses a call, or does not answer in any attempt.
    """

    def __init__(
        self,
        client: AwsCalls,
        name: str,
        *,
        backoff: BackoffPolicy = _BACKOFF,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._client = client
        self.name = name
        self._backoff = backoff
        self._sleep = sleep
        self._random = random

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Make a call on the table, with retries."""
        return await retry(
            lambda: self._client.call(operation, TableName=self.name, **parameters),
            self._backoff,
            sleep=self._sleep,
            random=self._random,
        )

    async def get(self, key: Item) -> Item | None:
        """The latest item of a key; None if it does not exist."""
        answer = await self.call("get_item", Key=key, ConsistentRead=True)
        found: Item | None = answer.get("Item")
        return found

    async def change(
        self, operation: str, /, *, unless_changed: Mapping[str, dict[str, Any] | None], **parameters: Any
    ) -> tuple[dict[str, Any], Item | None]:
        """Make a `put_item` or `update_item` if some attributes are unchanged; None means absent.

        Compare the returned item with your own: a write whose answer was lost is repeated and finds its own item.

        Returns:
            The answer and None; or, if the condition does not hold, an empty answer and the existing item.
        """
        names, values, conditions = {}, {}, []
        for number, (attribute, value) in enumerate(unless_changed.items()):
            names[f"#if{number}"] = attribute
            if value is None:
                conditions.append(f"attribute_not_exists(#if{number})")
            else:
                conditions.append(f"#if{number} = :if{number}")
                values[f":if{number}"] = value
        values |= parameters.pop("ExpressionAttributeValues", {})
        if values:
            parameters["ExpressionAttributeValues"] = values
        parameters["ExpressionAttributeNames"] = names | parameters.get("ExpressionAttributeNames", {})
        try:
            answer = await self.call(
                operation,
                ConditionExpression=" AND ".join(conditions),
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **parameters,
            )
        except AwsServiceError as error:
            if error.code != "ConditionalCheckFailedException":
                raise
            below = error.__cause__
            assert isinstance(below, ClientError)
            found: Item = dict(below.response).get("Item", {})  # type: ignore[assignment]  # not in the stubs
            return {}, found
        return answer, None
