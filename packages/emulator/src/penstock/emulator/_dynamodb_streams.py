"""DynamoDB Streams, as a reader sees it: streams of tables whose shards split, end after some hours and expire.

There is no DynamoDB behind it: changes are put into a stream by `DynamoDbStreams.change` or the control API. What the
service decides by itself is done on request: shards that roll over or split, streams that are disabled, lists that are
late, answers that are empty before there are records.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from penstock.emulator._faults import Target
from penstock.emulator._http.dispatch import whole_response
from penstock.emulator._operations.validation import validate_request
from penstock.emulator.errors import EmulatorConfigError, KinesisError, limit_exceeded, not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.emulator._clock import Clock
    from penstock.emulator._http.dispatch import Request, Response
    from penstock.emulator._state.kinesis import Kinesis

_logger = logging.getLogger(__name__)
_JSON = "application/x-amz-json-1.0"
_NAMESPACE = "com.amazonaws.dynamodb.v20120810#"
_RETENTION_SECONDS = 24 * 3600
_ITERATOR_SECONDS = 15 * 60
_MAX_RECORDS = 1000
_MAX_ANSWER_BYTES = 1024 * 1024
_MAX_SHARDS = _MAX_STREAMS = 100
_FIRST_NUMBER = 100_000_000_000_000_000_000
_NUMBER_STEP = 1000
_VIEWS = {
    "KEYS_ONLY": (False, False),
    "NEW_IMAGE": (True, False),
    "OLD_IMAGE": (False, True),
    "NEW_AND_OLD_IMAGES": (True, True),
}
"""Whether records have the new and the old image."""


@dataclass(slots=True)
class _Record:
    number: int
    made: float
    body: dict[str, Any]
    nbytes: int


@dataclass(slots=True)
class _Shard:
    shard_id: str
    parent: str | None
    place: int
    """Among its siblings."""
    made: float
    starting: int
    ending: int | None = None
    closed: float | None = None
    trimmed: int = 0
    """The last number that has expired."""
    records: list[_Record] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    arn: str
    label: str
    table: str
    view: str
    made: float
    status: str = "ENABLED"
    disabled: float | None = None
    shards: list[_Shard] = field(default_factory=list)

    @property
    def open_shards(self) -> list[_Shard]:
        return [shard for shard in self.shards if shard.ending is None]


class _Iterator(msgspec.Struct, array_like=True):
    arn: str
    shard_id: str
    number: int
    """The number of the first record that may be given."""
    issued: float
    empty: int
    """Answers without records that come before."""


class DynamoDbStreams:
    """The streams of an account's tables."""

    def __init__(self, kinesis: Kinesis, clock: Clock) -> None:
        self._kinesis = kinesis
        self._clock = clock
        self._number = _FIRST_NUMBER
        self._streams: dict[str, _Stream] = {}
        self.list_delay = 0.0
        """How many seconds pass before DescribeStream shows a child; twice as many for a second one of its parent."""
        self._operations: dict[str, Callable[[dict[str, Any], float], dict[str, Any]]] = {
            "ListStreams": self._list_streams,
            "DescribeStream": self._describe_stream,
            "GetShardIterator": self._get_shard_iterator,
            "GetRecords": self._get_records,
        }
        self._controls: dict[str, Callable[..., Any]] = {
            "enable": self.enable,
            "disable": self.disable,
            "change": self.change,
            "split": self.split,
        }

    def reset(self) -> None:
        """Forget all streams, and answer at once."""
        self._streams.clear()
        self.list_delay = 0.0

    def enable(self, table: str, *, view: str = "NEW_AND_OLD_IMAGES", shards: int = 1) -> str:
        """Enable the stream of a table, a new one each time; gives its ARN.

        Raises:
            EmulatorConfigError: the table has an enabled stream already, or the view is unknown.
        """
        if view not in _VIEWS:
            raise EmulatorConfigError(option="view", reason=f"must be one of {', '.join(_VIEWS)}")
        if any(one.status == "ENABLED" for one in self._of(table)):
            raise EmulatorConfigError(option="table", reason=f"the stream of {table} is enabled already")
        now, config = self._clock.time(), self._kinesis.config
        label = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        arn = f"arn:aws:dynamodb:{config.region}:{config.account_id}:table/{table}/stream/{label}"
        if arn in self._streams:
            raise EmulatorConfigError(option="table", reason=f"the stream of {table} was enabled a moment ago")
        stream = self._streams[arn] = _Stream(arn, label, table, view, now)
        for _ in range(shards):
            self._add_shard(stream, None, 0)
        return arn

    def disable(self, table: str) -> None:
        """Disable the table's stream: its shards end, and can be read for a day.

        Raises:
            EmulatorConfigError: the table has no enabled stream.
        """
        stream = self._enabled(table)
        stream.status, stream.disabled = "DISABLED", self._clock.time()
        for shard in stream.open_shards:
            self._close(shard)

    def change(
        self,
        table: str,
        keys: Mapping[str, Any],
        *,
        new: Mapping[str, Any] | None = None,
        old: Mapping[str, Any] | None = None,
        user_identity: Mapping[str, str] | None = None,
    ) -> str:
        """Put a change into the table's stream, into the open shard that its keys belong to; gives its number.

        It is an INSERT without an old image, a REMOVE without a new one, and a MODIFY with both. Keys and images are in
        DynamoDB's JSON. `user_identity` is what a deletion by TTL has: `PrincipalId` and `Type`.

        Raises:
            EmulatorConfigError: the table has no stream that is enabled.
        """
        stream = self._enabled(table)
        shards = stream.open_shards
        shard = shards[crc32(msgspec.json.encode(keys, order="sorted")) % len(shards)]
        now, with_images = self._clock.time(), _VIEWS[stream.view]
        self._number += _NUMBER_STEP
        body: dict[str, Any] = {
            # The service gives whole seconds.
            "ApproximateCreationDateTime": int(now),
            "Keys": keys,
            "SequenceNumber": str(self._number),
            "StreamViewType": stream.view,
        }
        for name, image, is_wanted in zip(("NewImage", "OldImage"), (new, old), with_images, strict=True):
            if image is not None and is_wanted:
                body[name] = image
        body["SizeBytes"] = len(msgspec.json.encode(body))
        record: dict[str, Any] = {
            "eventID": uuid.uuid4().hex,
            "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": self._kinesis.config.region,
            "dynamodb": body,
        }
        if user_identity is not None:
            record["userIdentity"] = user_identity
        shard.records.append(_Record(self._number, now, record, len(msgspec.json.encode(record))))
        return str(self._number)

    def split(self, table: str, shard: str | None = None, *, children: int = 2) -> list[str]:
        """Close an open shard, by default the first, and let others follow; one child is a roll-over. Gives their ids.

        Raises:
            EmulatorConfigError: the table has no stream that is enabled, or no such shard that is open.
        """
        stream = self._enabled(table)
        found = next((one for one in stream.open_shards if shard in (None, one.shard_id)), None)
        if found is None:
            raise EmulatorConfigError(option="shard", reason=f"no shard {shard} of {table} is open")
        self._close(found)
        return [self._add_shard(stream, found.shard_id, place) for place in range(children)]

    def control(self, params: dict[str, Any]) -> dict[str, Any]:
        """What `POST /_emulator/dynamodb-streams` does: `{"do": "split", "table": …}`, or the settings of this class.

        Raises:
            EmulatorConfigError: the action is unknown, or is not possible now.
        """
        fields = dict(params)
        do = fields.pop("do", None)
        if do is None:
            for name in fields:
                if name != "list_delay":
                    raise EmulatorConfigError(option=name, reason="is not a setting; or give what to `do`")
                setattr(self, name, fields[name])
            return {"list_delay": self.list_delay}
        action = self._controls.get(do)
        if action is None:
            raise EmulatorConfigError(option="do", reason=f"must be one of {', '.join(self._controls)}")
        try:
            return {"result": action(**fields)}
        except TypeError as error:
            raise EmulatorConfigError(option="do", reason=f"{do} does not take these fields: {error}") from error

    def handle(self, operation: str, request: Request) -> Response:
        """Answer a request; never raises for what a client can send."""
        try:
            handler = self._operations.get(operation)
            if handler is None:
                raise KinesisError("UnknownOperationException", f"DynamoDB Streams' {operation} is not emulated.")
            try:
                params = msgspec.json.decode(request.body) if request.body else {}
            except msgspec.DecodeError as error:
                raise KinesisError("SerializationException", "the body is not JSON") from error
            checked = validate_request(operation, params, service="dynamodbstreams")
            now = self._clock.time()
            self._expire(now)
            self._fail(operation, checked)
            status, answer = 200, handler(checked, now)
        except KinesisError as error:
            status, answer = error.status, {"__type": _NAMESPACE + error.code, "message": error.message}
        except Exception:
            # A bug of the emulator must look like a fault of the service, not like a broken connection.
            _logger.exception("internal failure")
            status, answer = 500, {"__type": "InternalServerError", "message": "internal failure"}
        return whole_response(self._clock, status, _JSON, msgspec.json.encode(answer))

    def _fail(self, operation: str, params: dict[str, Any]) -> None:
        if not self._kinesis.faults:
            return
        arn, shard_id = params.get("StreamArn"), params.get("ShardId")
        if "ShardIterator" in params:
            iterator = _iterator(params["ShardIterator"])
            arn, shard_id = iterator.arn, iterator.shard_id
        stream = self._streams.get(arn or "")
        target = Target(operation, stream=None if stream is None else stream.table, shard=shard_id)
        for fault in self._kinesis.faults.on_call(target):
            if fault.kind == "throttle":
                raise limit_exceeded("Rate exceeded.") if fault.code is None else fault.error(operation)
            if fault.kind == "error":
                raise fault.error(operation)

    def _expire(self, now: float) -> None:
        horizon = now - _RETENTION_SECONDS
        for arn, stream in list(self._streams.items()):
            for shard in stream.shards:
                kept = [one for one in shard.records if one.made > horizon]
                if len(kept) < len(shard.records):
                    shard.trimmed = shard.records[len(shard.records) - len(kept) - 1].number
                    shard.records = kept
            stream.shards = [one for one in stream.shards if one.closed is None or one.closed > horizon]
            if stream.disabled is not None and stream.disabled <= horizon:
                del self._streams[arn]

    def _of(self, table: str) -> Iterator[_Stream]:
        return (stream for stream in self._streams.values() if stream.table == table)

    def _enabled(self, table: str) -> _Stream:
        for stream in self._of(table):
            if stream.status == "ENABLED":
                return stream
        raise EmulatorConfigError(option="table", reason=f"the stream of {table} is not enabled")

    def _add_shard(self, stream: _Stream, parent: str | None, place: int) -> str:
        now = self._clock.time()
        self._number += _NUMBER_STEP
        shard_id = f"shardId-{int(now * 1000):020d}-{self._number % 2**32:08x}"
        stream.shards.append(_Shard(shard_id, parent, place, now, self._number))
        return shard_id

    def _close(self, shard: _Shard) -> None:
        self._number += _NUMBER_STEP
        shard.ending, shard.closed = self._number, self._clock.time()

    def _find(self, arn: str) -> _Stream:
        stream = self._streams.get(arn)
        if stream is None:
            raise not_found(f"Requested resource not found: Stream: {arn} not found")
        return stream

    def _find_shard(self, arn: str, shard_id: str) -> _Shard:
        for shard in self._find(arn).shards:
            if shard.shard_id == shard_id:
                return shard
        raise not_found(f"Requested resource not found: Shard: {shard_id} in Stream: {arn} not found")

    def _list_streams(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        table, limit = params.get("TableName"), params.get("Limit", _MAX_STREAMS)
        arns = sorted(one.arn for one in self._streams.values() if table in (None, one.table))
        after = params.get("ExclusiveStartStreamArn", "")
        left = [arn for arn in arns if arn > after]
        page = [self._streams[arn] for arn in left[:limit]]
        streams = [{"StreamArn": one.arn, "StreamLabel": one.label, "TableName": one.table} for one in page]
        more = {"LastEvaluatedStreamArn": page[-1].arn} if len(left) > limit else {}
        return {"Streams": streams, **more}

    def _describe_stream(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self._find(params["StreamArn"])
        parent = params.get("ShardFilter", {}).get("ShardId")
        shards = [one for one in stream.shards if self._is_listed(one, now) and parent in (None, one.parent)]
        ids = [one.shard_id for one in shards]
        after = params.get("ExclusiveStartShardId")
        left = shards[ids.index(after) + 1 if after in ids else 0 :]
        limit = min(params.get("Limit", _MAX_SHARDS), _MAX_SHARDS)
        page = left[:limit]
        description: dict[str, Any] = {
            "StreamArn": stream.arn,
            "StreamLabel": stream.label,
            "StreamStatus": stream.status,
            "StreamViewType": stream.view,
            "CreationRequestDateTime": stream.made,
            "TableName": stream.table,
            "Shards": [_described(shard) for shard in page],
        }
        if len(left) > limit:
            description["LastEvaluatedShardId"] = page[-1].shard_id
        return {"StreamDescription": description}

    def _is_listed(self, shard: _Shard, now: float) -> bool:
        return shard.parent is None or now - shard.made >= self.list_delay * (shard.place + 1)

    def _get_shard_iterator(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        arn, shard = params["StreamArn"], self._find_shard(params["StreamArn"], params["ShardId"])
        kind, given = params["ShardIteratorType"], params.get("SequenceNumber")
        if given is not None and (not given.isdigit() or kind in ("TRIM_HORIZON", "LATEST")):
            raise KinesisError("ValidationException", f"Invalid SequenceNumber {given} for {kind}")
        if kind == "TRIM_HORIZON":
            number = shard.trimmed + 1
        elif kind == "LATEST":
            number = self._number + 1
        elif given is None:
            raise KinesisError("ValidationException", f"{kind} needs a SequenceNumber")
        elif int(given) <= shard.trimmed:
            raise _trimmed()
        else:
            number = int(given) + (kind == "AFTER_SEQUENCE_NUMBER")
        return {"ShardIterator": _text(_Iterator(arn, shard.shard_id, number, now, self._empty_answers))}

    def _get_records(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        at = _iterator(params["ShardIterator"])
        limit = params.get("Limit", _MAX_RECORDS)
        if limit > _MAX_RECORDS:
            raise limit_exceeded(f"Limit {limit} is more than {_MAX_RECORDS}")
        shard = self._find_shard(at.arn, at.shard_id)
        if now - at.issued > _ITERATOR_SECONDS:
            raise KinesisError("ExpiredIteratorException", "The shard iterator has expired.")
        if at.number <= shard.trimmed:
            raise _trimmed()
        if at.empty:
            return {
                "Records": [],
                "NextShardIterator": _text(_Iterator(at.arn, at.shard_id, at.number, now, at.empty - 1)),
            }
        given: list[_Record] = []
        nbytes = 0
        left = [one for one in shard.records if one.number >= at.number]
        for one in left[:limit]:
            nbytes += one.nbytes
            if given and nbytes > _MAX_ANSWER_BYTES:
                break
            given.append(one)
        answer: dict[str, Any] = {"Records": [one.body for one in given]}
        empty = self._empty_answers if given else 0
        if shard.ending is None or len(given) < len(left) or empty:
            number = given[-1].number + 1 if given else at.number
            answer["NextShardIterator"] = _text(_Iterator(at.arn, at.shard_id, number, now, empty))
        return answer

    @property
    def _empty_answers(self) -> int:
        return self._kinesis.behaviour.empty_answers


def _described(shard: _Shard) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": str(shard.starting)}
    if shard.ending is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending)
    parent = {} if shard.parent is None else {"ParentShardId": shard.parent}
    return {"ShardId": shard.shard_id, "SequenceNumberRange": numbers, **parent}


def _text(iterator: _Iterator) -> str:
    return msgspec.json.encode(iterator).hex()


def _iterator(text: str) -> _Iterator:
    try:
        return msgspec.json.decode(bytes.fromhex(text), type=_Iterator)
    except ValueError as error:
        raise KinesisError("ValidationException", "Invalid ShardIterator") from error


def _trimmed() -> KinesisError:
    return KinesisError("TrimmedDataAccessException", "The operation attempted to read past the oldest record.")
