"""Frames of application/vnd.amazon.eventstream.

A frame is: total length, header length and the CRC32 of these eight bytes; headers; payload; the CRC32 of everything
before it. All numbers are big-endian. Headers here are strings only (type 7).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from ._subscription import RecordsEvent

if TYPE_CHECKING:
    from .errors import KinesisError

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_JSON = "application/json"
_STRING = 7


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
    encoded = _headers(*headers)
    prelude = struct.pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    prelude += struct.pack("!I", crc32(prelude))
    crc = crc32(payload, crc32(encoded, crc32(prelude)))
    return b"".join((prelude, encoded, payload, struct.pack("!I", crc)))


def initial_response() -> bytes:
    """The frame that opens every stream of the JSON protocol."""
    headers = ((":message-type", "event"), (":event-type", "initial-response"), (":content-type", _JSON))
    return encode_frame(headers, b"{}")


def encode_event(event: RecordsEvent | KinesisError) -> bytes:
    """The frame of an event, or of an exception inside the stream."""
    if isinstance(event, RecordsEvent):
        headers = (
            (":message-type", "event"),
            (":event-type", "SubscribeToShardEvent"),
            (":content-type", _JSON),
        )
        return encode_frame(headers, _payload(event))
    headers = ((":message-type", "exception"), (":exception-type", event.code), (":content-type", _JSON))
    return encode_frame(headers, msgspec.json.encode({"message": event.message}))


def _payload(event: RecordsEvent) -> bytes:
    rest: dict[str, object] = {}
    if event.continuation is not None:
        rest["ContinuationSequenceNumber"] = event.continuation
    rest["MillisBehindLatest"] = event.millis_behind_latest
    if event.child_shards:
        rest["ChildShards"] = event.child_shards
    records = b",".join(event.records.encoded)
    return b'{"Records":[' + records + b"]," + msgspec.json.encode(rest)[1:]
