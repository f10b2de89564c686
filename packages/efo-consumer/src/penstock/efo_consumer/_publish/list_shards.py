"""ListShards: the shards of a stream, over all pages; and answers that the shards of a stream share.

What is asked about a stream that Kinesis is still creating waits, as it does for a stream consumer.

By the client that reads records: aiobotocore would cost each process that reads half a second at its start and 22 MB,
and 2.8 times as much of the processor for a page.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.aws import AwsError, AwsServiceError, BackoffPolicy, ErrorKind, JsonClient, classify, retry
from penstock.efo_consumer._model.shards import Shard, StreamIdentity
from penstock.efo_consumer._publish.condition import unnoted
from penstock.efo_consumer._publish.retries import bear
from penstock.efo_consumer._wire.decode import HashKeys
from penstock.efo_consumer.errors import (
    EfoConsumerError,
    PayloadDecodeError,
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import timedelta


_T = TypeVar("_T")
_log = logging.getLogger(__name__)

STILL_SECONDS = 15.0
"""How long a shard's answers lead nowhere before ListShards is asked whether the shard is closed.

An idle subscription of Kinesis has an event every 5 s, each with a later continuation.
"""
# Long lists take many calls, which others need too: listing takes at most this share of the time.
_LISTING_SHARE = 0.05


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


CREATING = "CREATING"
IN_USE = "ResourceInUseException"
# Kinesis answers calls about a stream that it is creating, or deleting, with either of them.
_REFUSALS = (IN_USE, "ResourceNotFoundException")
# DescribeStreamSummary allows 20 calls/s per account. A stream takes some tens of seconds.
_LOOK_SECONDS = 2.0
_LOG_SECONDS = 60.0


async def once_created(
    call: Callable[[], Awaitable[_T]],
    client: JsonClient,
    stream: StreamIdentity,
    *,
    operation: str,
    patience_seconds: float,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> _T:
    """Make a call about a stream, and repeat it while Kinesis refuses it because the stream is being created.

    The wait is logged at its beginning and then once a minute. Without permission for DescribeStreamSummary the call
    fails at once.

    Args:
        call: makes one attempt.
        client: asks for the stream's status.
        stream: the stream.
        operation: what the call does, for the error.
        patience_seconds: the longest wait; 0 for no limit.
        sleep: waits for so many seconds.

    Raises:
        RecordPublisherRetriesError: the stream is still being created after the longest wait.
        RecordPublisherFatalError: the stream is being deleted.
        AwsServiceError: Kinesis refuses the call for another reason. So do the call's other errors.
    """
    waited, log_at, is_coming = 0.0, 0.0, False
    while True:
        try:
            return await call()
        except AwsServiceError as error:
            if error.code not in _REFUSALS:
                raise
            status = await _status(client, stream)
            facts = {"stream": stream.name, "shard_id": "", "code": error.code}
            if status == "DELETING":
                raise RecordPublisherFatalError(f"{operation}: the stream is DELETING", **facts) from error
            # A call that was on its way may be refused right after the stream has become ACTIVE.
            is_coming = status == CREATING or (status is not None and (is_coming or error.code == IN_USE))
            if not is_coming:
                raise
            if patience_seconds and waited >= patience_seconds:
                reason = f"{operation}: the stream is still {status} after {waited:.0f} s (retryPatience)"
                raise RecordPublisherRetriesError(reason, attempts=int(waited / _LOOK_SECONDS) + 1, **facts) from error
        if waited >= log_at:
            log_at += _LOG_SECONDS
            limit = f"for up to {patience_seconds:g} s" if patience_seconds else "for as long as it takes"
            _log.warning("stream %s is %s: waiting until it is ACTIVE, %s", stream.name, status, limit)
        await sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS


async def _status(client: JsonClient, stream: StreamIdentity) -> str | None:
    """The status of a stream; None if it does not exist, or may not be asked for. Text in parentheses if it is unknown.

    An outage does not end a wait.
    """
    try:
        answer = await retry(lambda: client.call("DescribeStreamSummary", stream.request), BackoffPolicy())
    except AwsError as error:
        _log.info("cannot ask for the status of %s: %s", stream.name, error)
        return None if classify(error) is ErrorKind.FATAL else "(unknown)"
    return str(answer["StreamDescriptionSummary"]["StreamStatus"])


async def call_patiently(
    client: JsonClient,
    operation: str,
    request: dict[str, Any],
    *,
    stream: StreamIdentity,
    retry_patience: timedelta,
) -> dict[str, Any]:
    """The answer to a call about a stream; errors that may pass are retried as errors of reading are.

    ListShards waits for a stream that is being created.

    Args:
        client: the client.
        operation: the call, such as `DescribeStreamSummary`.
        request: its fields.
        stream: the stream, for the error.
        retry_patience: from the first error on; zero for no limit. After 30 s a warning is logged.

    Raises:
        RecordPublisherRetriesError: every attempt failed for as long; with since when, the last error and the cure. Or
            the stream is still being created.
        RecordPublisherFatalError: the stream is being deleted.
        AwsError: the service refused, and a retry would not help.
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
            is being created is waited for; zero for no limit.

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
        # The token includes the stream and the filter, and must be sent without them.
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


@dataclass(frozen=True)
class ShardListing:
    """Which shards of a stream are open, by one answer of ListShards.

    Attributes:
        open: the ids of the shards that were open then.
        closed: the ids of the other shards: those with an ending sequence number, or with children.
        asked_at: when ListShards was asked, in monotonic seconds.
    """

    open: frozenset[str]
    closed: frozenset[str]
    asked_at: float = 0.0

    @classmethod
    def of(cls, shards: Sequence[Shard], asked_at: float = 0.0) -> ShardListing:
        """The listing of these shards."""
        parents = {parent for shard in shards for parent in shard.parent_shard_ids}
        found = frozenset(shard.shard_id for shard in shards if shard.is_open and shard.shard_id not in parents)
        return cls(found, frozenset(shard.shard_id for shard in shards) - found, asked_at)

    def is_open(self, shard_id: str) -> bool | None:
        """Whether the shard is open; None if it is not listed, as ListShards may show a shard late."""
        if shard_id in self.open:
            return True
        return False if shard_id in self.closed else None


@dataclass
class _Listed:
    """What is known of one stream."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    listing: ShardListing | None = None
    again_at: float = -math.inf
    """When `recent` may ask again."""
    is_failing: bool = False
    asking: asyncio.Task[None] | None = None


class ShardListings:
    """Answers of ListShards, one for all shards of a stream that ask at about the same time. For one event loop.

    Args:
        list_shards: lists the shards of a stream, which is given by its name or ARN.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        list_shards: Callable[[str], Awaitable[Sequence[Shard]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_shards = list_shards
        self._clock = clock
        self._streams: dict[str, _Listed] = defaultdict(_Listed)

    async def since(self, stream: str, asked_at: float) -> ShardListing:
        """Give a listing that was asked for at a time, in monotonic seconds, or later.

        Raises:
            EfoConsumerError, AwsError: as `list_shards`.
        """
        known = self._streams[stream]
        async with known.lock:
            # Another shard may have asked while this one waited.
            if known.listing is None or known.listing.asked_at < asked_at:
                known.listing = await self._ask(stream)
            return known.listing

    def recent(self, stream: str) -> ShardListing | None:
        """Give the last listing, or None before the first one. Ask for the next one if that is due.

        A new listing is due `STILL_SECONDS` after the last one, or 20 times as long as the last one took. After a
        failure the last listing stays; the first failure in a row is logged.
        """
        known, now = self._streams[stream], self._clock()
        if now >= known.again_at and (known.asking is None or known.asking.done()):
            known.asking = asyncio.create_task(self._refresh(stream, known), name=f"list the shards of {stream}")
        return known.listing

    async def aclose(self) -> None:
        """End what asks in the background."""
        tasks = [one.asking for one in self._streams.values() if one.asking is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh(self, stream: str, known: _Listed) -> None:
        began = self._clock()
        known.again_at = began + STILL_SECONDS
        try:
            known.listing = await self._ask(stream)
        except (AwsError, EfoConsumerError) as error:
            if not known.is_failing:
                known.is_failing = True
                _log.warning("cannot check whether idle shards of %s are closed, asking again: %s", stream, error)
        else:
            known.is_failing = False
            known.again_at = max(known.again_at, began + (self._clock() - began) / _LISTING_SHARE)

    async def _ask(self, stream: str) -> ShardListing:
        asked_at = self._clock()
        return ShardListing.of(await self._list_shards(stream), asked_at)
