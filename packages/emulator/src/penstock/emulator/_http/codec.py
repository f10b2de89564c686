"""JSON and CBOR of requests and answers, and the frames of application/vnd.amazon.eventstream."""

from __future__ import annotations

import inspect
import struct
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import msgspec
import pybase64
from botocore.model import ListShape, MapShape, StructureShape

from penstock.emulator._operations.validation import service_model
from penstock.emulator._state.subscription import RecordsEvent
from penstock.emulator.errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.model import Shape


try:
    import cbor2
except ImportError:
    # It has no wheels here.
    cbor2 = None  # type: ignore[assignment]


_EPOCH_TAG = 1


class Codec(Protocol):
    """One encoding."""

    content_type: str

    def decode(self, body: bytes) -> Any:
        """The parameters of a request.

        Raises:
            KinesisError: SerializationException.
        """

    def encode(self, operation: str, answer: dict[str, Any]) -> bytes:
        """The body of an answer."""

    def encode_error(self, error: KinesisError) -> bytes:
        """The body of an error's answer."""


class JsonCodec:
    """AWS JSON 1.1."""

    content_type = "application/x-amz-json-1.1"

    def decode(self, body: bytes) -> Any:
        """The parameters of a request."""
        try:
            return msgspec.json.decode(body) if body else {}
        except msgspec.DecodeError as error:
            raise KinesisError("SerializationException", "the body is not JSON") from error

    def encode(self, operation: str, answer: dict[str, Any]) -> bytes:
        """The body of an answer; nothing for an operation that answers nothing."""
        return msgspec.json.encode(answer) if answer else b""

    def encode_error(self, error: KinesisError) -> bytes:
        """The body of an error's answer."""
        return msgspec.json.encode({"__type": error.code, "message": error.message})


class CborCodec:
    """CBOR."""

    content_type = "application/x-amz-cbor-1.1"

    def decode(self, body: bytes) -> Any:
        """The parameters of a request; timestamps in seconds, blobs as bytes."""
        try:
            return cbor2.loads(body, semantic_decoders={_EPOCH_TAG: _seconds}) if body else {}
        except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
            raise KinesisError("SerializationException", "the body is not CBOR") from error

    def encode(self, operation: str, answer: dict[str, Any]) -> bytes:
        """The body of an answer; nothing for an operation that answers nothing."""
        return cbor2.dumps(_converter(operation)(answer)) if answer else b""

    def encode_error(self, error: KinesisError) -> bytes:
        """The body of an error's answer."""
        return cbor2.dumps({"__type": error.code, "message": error.message})


class NoCborCodec(JsonCodec):
    """For requests in CBOR where it cannot be read: they are refused, in JSON."""

    def decode(self, body: bytes) -> Any:
        """Refuse.

        Raises:
            KinesisError: always.
        """
        raise KinesisError(
            "SerializationException", "CBOR needs cbor2 6.1 or newer here: send application/x-amz-json-1.1"
        )


def _reads_cbor() -> bool:
    return cbor2 is not None and "semantic_decoders" in inspect.signature(cbor2.loads).parameters


_JSON = JsonCodec()
_CBOR = CborCodec() if _reads_cbor() else NoCborCodec()


def codec_for(content_type: str) -> Codec:
    """The codec of a request by its Content-Type: JSON for everything that is not CBOR."""
    return _CBOR if content_type.partition(";")[0].strip().lower() == CborCodec.content_type else _JSON


def _seconds(value: Any, _immutable: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("a timestamp has to be a number")
    return value / 1000


@cache
def _converter(operation: str) -> Callable[[Any], Any]:
    shape = service_model().operation_model(operation).output_shape
    return _compile(shape) if shape is not None else lambda value: value


def _compile(shape: Shape) -> Callable[[Any], Any]:
    if isinstance(shape, StructureShape):
        members = {name: _compile(member) for name, member in shape.members.items()}

        def structure(value: Any) -> Any:
            # A null is left out: readers of CBOR take it for a value.
            return {name: members[name](item) for name, item in _plain(value).items() if item is not None}

        return structure
    if isinstance(shape, ListShape):
        item = _compile(shape.member)
        return lambda value: [item(element) for element in _plain(value)]
    if isinstance(shape, MapShape):
        entry = _compile(shape.value)
        return lambda value: {key: entry(element) for key, element in value.items()}
    match shape.type_name:
        case "timestamp":
            return lambda value: cbor2.CBORTag(_EPOCH_TAG, round(value * 1000))
        case "blob":
            return pybase64.b64decode
    return lambda value: value


def _plain(value: Any) -> Any:
    # Records are kept as the JSON in which they are sent.
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


CONTENT_TYPE = "application/vnd.amazon.eventstream"
_JSON_TYPE = "application/json"
_STRING = 7
_CRC = struct.Struct("!I")
_EVENT = ((":message-type", "event"), (":event-type", "SubscribeToShardEvent"), (":content-type", _JSON_TYPE))


@lru_cache
def _headers(*pairs: tuple[str, str]) -> bytes:
    encoded = bytearray()
    for name, value in pairs:
        name_bytes, value_bytes = name.encode(), value.encode()
        encoded += struct.pack("!B", len(name_bytes)) + name_bytes
        encoded += struct.pack("!BH", _STRING, len(value_bytes)) + value_bytes
    return bytes(encoded)


def encode_frame(headers: tuple[tuple[str, str], ...], payload: bytes) -> bytes:
    """Put headers and payload into a frame."""
    opening = _opening(headers, len(payload))
    crc = crc32(payload, crc32(opening))
    return b"".join((opening, payload, _CRC.pack(crc)))


def _opening(headers: tuple[tuple[str, str], ...], payload_bytes: int) -> bytes:
    encoded = _headers(*headers)
    prelude = struct.pack("!II", 16 + len(encoded) + payload_bytes, len(encoded))
    return b"".join((prelude, _CRC.pack(crc32(prelude)), encoded))


def initial_response() -> bytes:
    """The frame that opens every stream of the JSON protocol."""
    headers = ((":message-type", "event"), (":event-type", "initial-response"), (":content-type", _JSON_TYPE))
    return encode_frame(headers, b"{}")


def encode_event(event: RecordsEvent | KinesisError) -> bytes:
    """The frame of an event, or of an exception inside the stream."""
    if isinstance(event, RecordsEvent):
        return _records_frame(event) if event.records else encode_frame(_EVENT, _payload_without_records(event))
    headers = ((":message-type", "exception"), (":exception-type", event.code), (":content-type", _JSON_TYPE))
    return encode_frame(headers, msgspec.json.encode({"message": event.message}))


def _records_frame(event: RecordsEvent) -> bytes:
    # The bytes up to the end of the records are the same for all subscribers. The rest differs, but has a fixed length
    # (JSON allows the blanks), so that the prelude and the CRC up to there are computed once.
    assert event.continuation is not None
    tail = b'],"ContinuationSequenceNumber":"%b","MillisBehindLatest":%-15d}' % (
        event.continuation.encode(),
        event.millis_behind_latest,
    )
    key = (event.records.first_counter, event.records.last_counter)
    shared = event.frames.get(key) if event.frames is not None else None
    if shared is None:
        records = b'{"Records":[' + b",".join(event.records.encoded)
        opening = b"".join((_opening(_EVENT, len(records) + len(tail)), records))
        shared = opening, crc32(opening), len(tail)
        if event.frames is not None:
            event.frames.put(key, shared)
    opening, crc, tail_bytes = shared
    assert tail_bytes == len(tail)
    return b"".join((opening, tail, _CRC.pack(crc32(tail, crc))))


def _payload_without_records(event: RecordsEvent) -> bytes:
    payload: dict[str, object] = {"Records": [], "MillisBehindLatest": event.millis_behind_latest}
    if event.continuation is not None:
        payload["ContinuationSequenceNumber"] = event.continuation
    if event.child_shards:
        payload["ChildShards"] = event.child_shards
    return msgspec.json.encode(payload)
