"""ListShards: the shards of a stream, over all pages.

By the client that reads records: aiobotocore would cost each process that reads half a second at its start and 22 MB,
and 2.8 times as much of the processor for a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.aws import BackoffPolicy, retry
from penstock.efo_consumer._model.shards import Shard, StreamIdentity
from penstock.efo_consumer._publish.condition import unnoted
from penstock.efo_consumer._publish.creating import once_created
from penstock.efo_consumer._publish.retries import bear
from penstock.efo_consumer._wire.decode import HashKeys
from penstock.efo_consumer.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from penstock.aws import JsonClient

_T = TypeVar("_T")


class _Sequence(msgspec.Struct):
    starting: str = msgspec.field(name="StartingSequenceNumber")
    ending: str | None = msgspec.field(name="EndingSequenceNumber", default=None)


class _Shard(msgspec.Struct):
    shard_id: str = msgspec.field(name="ShardId")
    hash_keys: HashKeys = msgspec.field(name="HashKeyRange")
    sequence: _Sequence = msgspec.field(name="SequenceNumberRange")
    parent: str | None = msgspec.field(name="ParentShardId", default=None)
    adjacent_parent: str | None = msgspec.field(name="AdjacentParentShardId", default=None)


class _Page(msgspec.Struct):
    shards: list[_Shard] = msgspec.field(name="Shards")
    next_token: str | None = msgspec.field(name="NextToken", default=None)


_decode = msgspec.json.Decoder(_Page).decode


@dataclass(frozen=True)
class ShardFilter:
    """Which shards to list (API reference, ShardFilter).

    Attributes:
        type: such as `AT_TRIM_HORIZON`, `FROM_TRIM_HORIZON`, `AT_LATEST`, `AT_TIMESTAMP`, `AFTER_SHARD_ID`.
        shard_id: with AFTER_SHARD_ID.
        timestamp_millis: with AT_TIMESTAMP and FROM_TIMESTAMP.
    """

    type: str
    shard_id: str | None = None
    timestamp_millis: int | None = None

    def to_request(self) -> dict[str, Any]:
        """The request's `ShardFilter`."""
        request: dict[str, Any] = {"Type": self.type}
        if self.shard_id is not None:
            request["ShardId"] = self.shard_id
        if self.timestamp_millis is not None:
            request["Timestamp"] = self.timestamp_millis / 1000
        return request


async def call_patiently(
    client: JsonClient,
    operation: str,
    request: dict[str, Any],
    *,
    stream: StreamIdentity,
    retry_patience: timedelta,
) -> dict[str, Any]:
    """The answer to a call about a stream; errors that may pass are retried as those of reading are.

    ListShards waits for a stream that is being created.

    Args:
        client: the client.
        operation: the call, such as `DescribeStreamSummary`.
        request: its fields.
        stream: the stream, for the error.
        retry_patience: from the first error on; zero for ever. After 30 s a warning is logged.

    Raises:
        RecordPublisherRetriesError: every attempt failed for as long; with since when, the last error and the cure. Or
            the stream is still being created.
        RecordPublisherFatalError: the stream is being deleted.
        AwsError: the service refused for good.
    """
    return await _patiently(client, operation, lambda: client.call(operation, request), stream, retry_patience)


async def _patiently(
    client: JsonClient,
    operation: str,
    call: Callable[[], Awaitable[_T]],
    stream: StreamIdentity,
    retry_patience: timedelta,
) -> _T:
    seconds = retry_patience.total_seconds()

    async def borne() -> _T:
        return await bear(
            call, stream=stream.name, shard_id="", operation=operation, patience_seconds=seconds, note=unnoted
        )

    if operation != "ListShards":
        return await borne()
    return await once_created(borne, client, stream, operation=operation, patience_seconds=seconds)


async def list_shards(
    client: JsonClient,
    stream: StreamIdentity | str,
    *,
    filter: ShardFilter | None = None,
    page_shards: int = 1000,
    backoff: BackoffPolicy | None = None,
    retry_patience: timedelta | None = None,
) -> list[Shard]:
    """The stream's shards in the service's order, all pages; without a filter, also closed ones that hold records.

    Args:
        retry_patience: how long errors that may pass are retried, instead of by `backoff`, and how long a stream that
            is being created is waited for; zero for ever.

    Raises:
        RecordPublisherRetriesError: every attempt failed for as long as `retry_patience`.
        RecordPublisherFatalError: the stream is being deleted, with `retry_patience`.
        AwsServiceError: the service refused, or every attempt was throttled or failed.
        AwsConnectionError: no answer came in any attempt.
        PayloadDecodeError: the answer is not one of ListShards.
    """
    identity = StreamIdentity(stream) if isinstance(stream, str) else stream
    request: dict[str, Any] = {**identity.request, "MaxResults": page_shards}
    if filter is not None:
        request["ShardFilter"] = filter.to_request()
    shards: list[Shard] = []
    while True:
        call = partial(client.call_raw, "ListShards", msgspec.json.encode(request))
        if retry_patience is None:
            answer = await retry(call, backoff or BackoffPolicy())
        else:
            answer = await _patiently(client, "ListShards", call, identity, retry_patience)
        try:
            page = _decode(answer)
        except msgspec.MsgspecError as error:
            raise PayloadDecodeError(f"not an answer of ListShards: {error}") from error
        shards.extend(_to_shard(shard) for shard in page.shards)
        if page.next_token is None:
            return shards
        # The token stands for the stream and the filter, and must come without them.
        request = {"NextToken": page.next_token, "MaxResults": page_shards}


def _to_shard(shard: _Shard) -> Shard:
    parents = (shard.parent, shard.adjacent_parent)
    return Shard(
        shard_id=shard.shard_id,
        parent_shard_ids=tuple(parent for parent in parents if parent is not None),
        starting_hash_key=shard.hash_keys.starting,
        ending_hash_key=shard.hash_keys.ending,
        starting_sequence_number=shard.sequence.starting,
        ending_sequence_number=shard.sequence.ending,
    )
