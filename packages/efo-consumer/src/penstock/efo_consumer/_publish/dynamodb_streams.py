"""DynamoDB Streams behind those calls of Kinesis that readers make, as AWS's own adapter for the KCL has them.

So everything above is the same for both: the rule of continuity, lineage, offsets, replay, bounded reads. What
DynamoDB Streams has not is made of what it has:

| Kinesis | here |
| --- | --- |
| ListShards, its filters | DescribeStream; of the shards that were open then those without children |
| child shards at a shard's end | DescribeStream with the filter CHILD_SHARDS; of one that ignores it, all shards |
| AT_TIMESTAMP | TRIM_HORIZON, without the records before the first one that was made then or later |
| MillisBehindLatest | the age of an answer's last record; after some empty answers 0, as a guess: see `_at_tip` |
| the end of an open shard | `QuietSeconds` of empty answers: `read_once` ends after `TIP_SECONDS` of them |
| the end of a closed shard | a null iterator and child shards; `IsOver` where the stream was disabled |
| StreamCreationTimestamp, RetentionPeriodHours | CreationRequestDateTime, 24 |
| TrimmedDataAccessException | InvalidArgumentException, which refuses a position |

A record's data is the record itself, as JSON. What an iterator has to remember between two calls is part of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.aws import AwsServiceError, AwsSession, JsonClient
from penstock.efo_consumer.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence


_log = logging.getLogger(__name__)

DYNAMODB_STREAMS = "dynamodbstreams"
"""boto3's name of DynamoDB Streams, for `AwsOptions.stream_service`."""

MAX_RECORDS = 1000
"""Records that GetRecords of DynamoDB Streams gives at most (API reference)."""

_RETENTION_HOURS = 24
_MAX_SHARDS = 100

# "It might take multiple calls to get to a portion of the shard that contains stream records" (API reference, which
# gives no number). The KCL's adapter and Flink take the first empty answer for the tip. Here this many in a row only
# mean that the lag is shown as 0.
_EMPTY_ANSWERS = 10
_EMPTY_SECONDS = 30.0

# DescribeStream is known for lists that are not complete yet. For children that are older this was never seen.
_YOUNG_CHILD_SECONDS = 10.0
# Until the second look at children whose ids do not contain the time of their creation.
_LOOK_AGAIN_SECONDS = 1.0
# How often a stream that was disabled is asked whether a shard of it has children after all.
_REST_SECONDS = 60.0
_MADE_AT = re.compile(r"shardId-(\d{20})-")


class _Range(msgspec.Struct, gc=False):
    starting: str = msgspec.field(name="StartingSequenceNumber")
    ending: str | None = msgspec.field(name="EndingSequenceNumber", default=None)


class _Shard(msgspec.Struct, gc=False):
    shard_id: str = msgspec.field(name="ShardId")
    numbers: _Range = msgspec.field(name="SequenceNumberRange")
    parent: str | None = msgspec.field(name="ParentShardId", default=None)


class _Description(msgspec.Struct):
    arn: str = msgspec.field(name="StreamArn")
    status: str = msgspec.field(name="StreamStatus")
    label: str = msgspec.field(name="StreamLabel", default="")
    table: str = msgspec.field(name="TableName", default="")
    created: float | None = msgspec.field(name="CreationRequestDateTime", default=None)
    shards: list[_Shard] = msgspec.field(name="Shards", default_factory=list)
    last_shard: str | None = msgspec.field(name="LastEvaluatedShardId", default=None)


class _Described(msgspec.Struct):
    stream: _Description = msgspec.field(name="StreamDescription")


class _IteratorAnswer(msgspec.Struct):
    value: str | None = msgspec.field(name="ShardIterator", default=None)


class _Page(msgspec.Struct):
    records: list[msgspec.Raw] = msgspec.field(name="Records", default_factory=list)
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)


class _Facts(msgspec.Struct, gc=False):
    number: str = msgspec.field(name="SequenceNumber")
    made: float = msgspec.field(name="ApproximateCreationDateTime")


class _Record(msgspec.Struct, gc=False):
    facts: _Facts = msgspec.field(name="dynamodb")


class _Iterator(msgspec.Struct, array_like=True, gc=False):
    """An iterator of DynamoDB Streams, and what was found on the way to it."""

    value: str | None
    """None: behind the shard's last record."""
    shard_id: str
    since: float | None = None
    """What was made before this time, and comes before the first record that was not, is left out."""
    made: float | None = None
    """When the last record was made that was passed."""
    empty_answers: int = 0
    """In a row, up to this iterator."""
    empty_since: float = 0.0
    """When the first of these was asked for."""
    looks_at: float = 0.0
    """Behind the last record: when children are looked for again; 0 before that was done."""
    is_over: bool = False
    """Behind the last record: nothing follows, as the stream was disabled."""


class _KinesisRecord(msgspec.Struct, gc=False):
    number: str = msgspec.field(name="SequenceNumber")
    made: float = msgspec.field(name="ApproximateArrivalTimestamp")
    data: bytes = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey", default="")


_encode = msgspec.json.encode
_described = msgspec.json.Decoder(_Described).decode
_page = msgspec.json.Decoder(_Page).decode
_record = msgspec.json.Decoder(_Record).decode
_iterator = msgspec.json.Decoder(_Iterator).decode


def stream_client(session: AwsSession, *, connections: int = 50) -> JsonClient:
    """The client of the session's streams, which answers as Kinesis does whatever they are. Close it.

    Raises:
        AwsOptionError: `session` is not an `AwsSession`.
    """
    if AwsSession.of(session).options.stream_service == DYNAMODB_STREAMS:
        return DynamoDbStreamsClient(session, connections=connections)
    return JsonClient(session, connections=connections)


class DynamoDbStreamsClient(JsonClient):
    """Answers ListShards, DescribeStreamSummary, GetShardIterator and GetRecords of Kinesis by DynamoDB Streams.

    Streams are named by their ARNs. ListStreams lists DynamoDB Streams. Errors name the permission that a call
    needs, such as `dynamodb:DescribeStream`, as their operation.

    Args:
        session: credentials, region and endpoint.
        connections: at most.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        connections: int = 50,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(
            session,
            service=DYNAMODB_STREAMS,
            signing_name="dynamodb",
            target_prefix="DynamoDBStreams_20120810",
            json_version="1.0",
            connections=connections,
        )
        self._clock = session.service_clock(DYNAMODB_STREAMS)
        self._sleep = sleep
        self._calls: dict[str, Callable[[dict[str, Any]], Awaitable[bytes]]] = {
            "ListStreams": lambda request: self._ask("ListStreams", request),
            "ListShards": self._list_shards,
            "DescribeStreamSummary": self._describe_stream_summary,
            "GetShardIterator": self._get_shard_iterator,
            "GetRecords": self._get_records,
        }

    async def call_raw(self, operation: str, body: Any, *, content_type: str | None = None) -> bytes:
        """See `JsonClient.call_raw`; the operation is one of Kinesis, and JSON.

        Raises:
            PayloadDecodeError: the answer is not one of DynamoDB Streams.
            KeyError: an operation that no reader needs, or a stream without its ARN.
        """
        call = self._calls[operation]
        request = msgspec.json.decode(body if isinstance(body, bytes) else b"".join(body))
        try:
            return await call(request)
        except msgspec.MsgspecError as error:
            raise PayloadDecodeError(f"not an answer of DynamoDB Streams: {error}") from error

    async def _ask(self, operation: str, request: dict[str, Any]) -> bytes:
        try:
            return await super().call_raw(operation, _encode(request))
        except AwsServiceError as error:
            is_trimmed = error.code == "TrimmedDataAccessException"
            raise AwsServiceError(
                code="InvalidArgumentException" if is_trimmed else error.code,
                message=f"{error.code}: {error.message}" if is_trimmed else error.message,
                status=error.status,
                operation=f"dynamodb:{operation}",
                request_id=error.request_id,
            ) from error

    async def _describe(self, arn: str, *, limit: int = _MAX_SHARDS, of: str | None = None) -> _Description:
        """The stream with all of its shards, or with the first `limit` of them; `of` one shard, its children alone."""
        request: dict[str, Any] = {"StreamArn": arn, "Limit": limit}
        if of is not None:
            request["ShardFilter"] = {"Type": "CHILD_SHARDS", "ShardId": of}
        found = _described(await self._ask("DescribeStream", request)).stream
        last = found.last_shard if limit == _MAX_SHARDS else None
        while last is not None:
            page = _described(await self._ask("DescribeStream", {**request, "ExclusiveStartShardId": last})).stream
            found.shards += page.shards
            last = page.last_shard
        if of is not None:
            found.shards = [one for one in found.shards if one.parent == of]
        return found

    async def _describe_stream_summary(self, request: dict[str, Any]) -> bytes:
        stream = await self._describe(request["StreamARN"], limit=1)
        created = stream.created
        if created is None:
            # A label is the creation time of the stream, and distinguishes it from others of the table.
            label = datetime.fromisoformat(stream.label or stream.arn.rpartition("/stream/")[2])
            created = label.replace(tzinfo=label.tzinfo or UTC).timestamp()
        summary = {
            "StreamName": stream.table,
            "StreamARN": stream.arn,
            "StreamStatus": stream.status,
            "RetentionPeriodHours": _RETENTION_HOURS,
            "StreamCreationTimestamp": created,
        }
        return _encode({"StreamDescriptionSummary": summary})

    async def _list_shards(self, request: dict[str, Any]) -> bytes:
        # A caller that asks for a single shard only wants any answer.
        limit = 1 if request.get("MaxResults") == 1 else _MAX_SHARDS
        shards = (await self._describe(request["StreamARN"], limit=limit)).shards
        halved = {one.parent for one in shards if one.parent is not None and self._youth_seconds([one])}
        if halved and limit == _MAX_SHARDS:
            await self._sleep(self._youth_seconds(one for one in shards if one.parent in halved))
            again = (await self._describe(request["StreamARN"])).shards
            # Whatever else it shows now would be young in turn.
            shards = [one for one in shards if one.parent not in halved]
            shards += [one for one in again if one.parent in halved]
        parents = {one.parent for one in shards}
        if request.get("ShardFilter", {}).get("Type") in ("AT_LATEST", "AT_TIMESTAMP"):
            # What is closed and has no child that is listed yet is as good as open: its children follow.
            listed = [one for one in shards if one.shard_id not in parents]
        else:
            listed = shards
        return _encode({"Shards": [_as_kinesis(one, is_parent=one.shard_id in parents) for one in listed]})

    async def _get_shard_iterator(self, request: dict[str, Any]) -> bytes:
        kind = request["ShardIteratorType"]
        at_time = kind == "AT_TIMESTAMP"
        asked = {
            "StreamArn": request["StreamARN"],
            "ShardId": request["ShardId"],
            "ShardIteratorType": "TRIM_HORIZON" if at_time else kind,
        }
        if "StartingSequenceNumber" in request:
            asked["SequenceNumber"] = request["StartingSequenceNumber"]
        answer = msgspec.json.decode(await self._ask("GetShardIterator", asked), type=_IteratorAnswer)
        if answer.value is None:
            return b"{}"
        since = float(request["Timestamp"]) if at_time else None
        return _encode({"ShardIterator": _text(_Iterator(answer.value, request["ShardId"], since))})

    async def _get_records(self, request: dict[str, Any]) -> bytes:
        at = _iterator(request["ShardIterator"])
        if at.value is None:
            return await self._end(request["StreamARN"], at)
        # On the way to a time each record costs a part of a call.
        limit = MAX_RECORDS if at.since is not None else min(request.get("Limit", MAX_RECORDS), MAX_RECORDS)
        asked_at = self._clock.latest()
        page = _page(await self._ask("GetRecords", {"ShardIterator": at.value, "Limit": limit}))
        found = [(_record(raw).facts, raw) for raw in page.records]
        after = _Iterator(page.next_iterator, at.shard_id, at.since, at.made)
        if found:
            after.made = found[-1][0].made
        else:
            after.empty_answers = at.empty_answers + 1
            after.empty_since = at.empty_since if at.empty_answers else asked_at
        if at.since is not None:
            first = next((row for row, (facts, _) in enumerate(found) if facts.made >= at.since), None)
            found = found if first is None else found[first:]
            if first is None:
                found = []
            else:
                after.since = None
        records = [_KinesisRecord(facts.number, facts.made, bytes(raw)) for facts, raw in found]
        now = self._clock.latest()
        if page.next_iterator is not None:
            behind = 0 if _at_tip(after, now) else _behind_millis(after, now)
            quiet = max(0.0, now - after.empty_since) if after.empty_answers else None
            return _answer(records, after, behind_millis=behind, quiet_seconds=quiet)
        after = _Iterator(None, at.shard_id, made=after.made)
        if records:
            # They do not wait for the children.
            return _answer(records, after, behind_millis=_behind_millis(after, now))
        return await self._end(request["StreamARN"], after)

    async def _end(self, arn: str, at: _Iterator) -> bytes:
        """What follows on a shard's last record: its children, once lists are sure to show all of them.

        None as long as no list shows any; of a stream that was disabled nothing, or a child that was shown late. Until
        it is time to look again no call is made, and no caller waits in one: room is kept for its answer.
        """
        now = self._clock.earliest()
        behind = 0 if at.is_over else _behind_millis(at, self._clock.latest())
        if now < at.looks_at:
            return _answer([], at, behind_millis=behind, is_over=at.is_over)
        stream = await self._describe(arn, of=at.shard_id)
        is_first_look = at.is_over or not at.looks_at
        if is_first_look and (seconds := self._youth_seconds(stream.shards)):
            at = _Iterator(None, at.shard_id, made=at.made, looks_at=now + seconds)
            return _answer([], at, behind_millis=_behind_millis(at, self._clock.latest()))
        if stream.shards or not (at.is_over or stream.status in ("DISABLING", "DISABLED")):
            return _answer([], None, behind_millis=behind or None, children=stream.shards)
        if not at.is_over:
            _log.warning("%s was disabled: nothing comes after what shard %s holds", arn, at.shard_id)
        at = _Iterator(None, at.shard_id, looks_at=now + _REST_SECONDS, is_over=True)
        return _answer([], at, behind_millis=0, is_over=True)

    def _youth_seconds(self, children: Iterable[_Shard]) -> float:
        """How long a list may still lack siblings of these: one child may be shown before the other.

        There are no hash keys that would show it, and the other child's records would be missed without notice.
        """
        now, seconds = self._clock.earliest(), 0.0
        for child in children:
            made_at = _MADE_AT.match(child.shard_id)
            left = _LOOK_AGAIN_SECONDS if made_at is None else _YOUNG_CHILD_SECONDS - now + int(made_at[1]) / 1000
            seconds = max(seconds, min(left, _YOUNG_CHILD_SECONDS))
        return seconds


def _at_tip(after: _Iterator, now: float) -> bool:
    """Whether so many answers were empty that the lag is shown as 0. This is a guess, and never the end of a read."""
    is_long = after.empty_answers > 1 and now - after.empty_since >= _EMPTY_SECONDS
    return after.empty_answers >= _EMPTY_ANSWERS or is_long


def _behind_millis(after: _Iterator, now: float) -> int | None:
    return None if after.made is None else max(1, round((now - after.made) * 1000))


def _as_kinesis(shard: _Shard, *, is_parent: bool) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": shard.numbers.starting}
    # A parent is closed, whatever the list says of it.
    ending = shard.numbers.ending or (shard.numbers.starting if is_parent else None)
    if ending is not None:
        numbers["EndingSequenceNumber"] = ending
    return {
        "ShardId": shard.shard_id,
        # There are no hash keys: each child covers its parent.
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "0"},
        "SequenceNumberRange": numbers,
        **({"ParentShardId": shard.parent} if shard.parent is not None else {}),
    }


def _answer(
    records: list[_KinesisRecord],
    after: _Iterator | None,
    *,
    behind_millis: int | None,
    children: Sequence[_Shard] = (),
    quiet_seconds: float | None = None,
    is_over: bool = False,
) -> bytes:
    answer: dict[str, Any] = {"Records": records, "MillisBehindLatest": behind_millis}
    if quiet_seconds is not None:
        answer["QuietSeconds"] = quiet_seconds
    if is_over:
        answer["IsOver"] = True
    if after is not None:
        answer["NextShardIterator"] = _text(after)
    if children:
        answer["ChildShards"] = [
            {
                "ShardId": one.shard_id,
                "ParentShards": [one.parent],
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "0"},
            }
            for one in children
        ]
    return _encode(answer)


def _text(iterator: _Iterator) -> str:
    return _encode(iterator).decode()
