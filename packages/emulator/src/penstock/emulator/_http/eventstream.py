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

from penstock.emulator._state.subscription import RecordsEvent

if TYPE_CHECKING:
    from penstock.emulator.errors import KinesisError

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_JSON = "application/json"
_STRING = 7
_CRC = struct.Struct("!I")
_EVENT = ((":message-type", "event"), (":event-type", "SubscribeToShardEvent"), (":content-type", _JSON))


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
    headers = ((":message-type", "event"), (":event-type", "initial-response"), (":content-type", _JSON))
    return encode_frame(headers, b"{}")


def encode_event(event: RecordsEvent | KinesisError) -> bytes:
    """The frame of an event, or of an exception inside the stream."""
    if isinstance(event, RecordsEvent):
        return _records_frame(event) if event.records else encode_frame(_EVENT, _payload_without_records(event))
    headers = ((":message-type", "exception"), (":exception-type", event.code), (":content-type", _JSON))
    return encode_frame(headers, msgspec.json.encode({"message": event.message}))


def _records_frame(event: RecordsEvent) -> bytes:
    # What stands before and in the records is the same for all subscribers. What stands behind is not, but has a fixed
    # length (JSON does not mind the blanks), so that neither the prelude nor the CRC up to there has to be made anew.
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
