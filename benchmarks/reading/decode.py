"""Event-stream bytes to rows: Penstock's decoder to Arrow, against botocore's EventStream to dicts, and the floor.

The floor is what no decoder can leave out, each part alone and over all bytes at once in memory, by the libraries that
ours uses: the CRC of the frames, a scan of the JSON that keeps nothing, and the base64 of the data.
"""

from __future__ import annotations

import base64
import json
import random
import re
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pybase64
from botocore.eventstream import EventStream
from botocore.parsers import EventStreamJSONParser
from botocore.session import get_session
from isal import isal_zlib

from penstock.efo_consumer._wire.decode import decode_payload
from penstock.efo_consumer._wire.eventstream import FrameDecoder, frame_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# The size of the chunks that both peers get: that in which an HTTP/2 client hands over what it read.
CHUNK_BYTES = 8 * 1024
_FIRST_SEQUENCE_NUMBER = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
_FIRST_ARRIVAL_MILLIS = 1_750_000_000_123


def make_payloads(record_bytes: int, records: int, *, records_per_event: int | None = None) -> list[bytes]:
    """Whole event-stream frames with `records` records of random bytes.

    An event holds what the service puts in one: as many records as make about 200 kB, at most 500.
    """
    per_event = records_per_event or max(1, min(500, 200_000 // record_bytes))
    source = random.Random(record_bytes)
    frames = []
    for first in range(0, records, per_event):
        event = {
            "Records": [
                {
                    "SequenceNumber": str(_FIRST_SEQUENCE_NUMBER + index),
                    "ApproximateArrivalTimestamp": (_FIRST_ARRIVAL_MILLIS + index) / 1000,
                    "Data": base64.b64encode(source.randbytes(record_bytes)).decode(),
                    "PartitionKey": f"key-{index % 1000:04}",
                    "EncryptionType": "KMS",
                }
                for index in range(first, min(first + per_event, records))
            ],
            "ContinuationSequenceNumber": str(_FIRST_SEQUENCE_NUMBER + first + per_event),
            "MillisBehindLatest": 0,
        }
        frames.append(make_frame(json.dumps(event, separators=(",", ":")).encode()))
    return frames


def make_frame(payload: bytes, event_type: bytes = b"SubscribeToShardEvent") -> bytes:
    """One frame around a payload."""
    headers = b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value
        for name, value in (
            (b":event-type", event_type),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


def make_chunks(record_bytes: int, records: int) -> list[bytes]:
    """The frames of `make_payloads` as a connection brings them."""
    frames = make_payloads(record_bytes, records)
    return [frame[offset : offset + CHUNK_BYTES] for frame in frames for offset in range(0, len(frame), CHUNK_BYTES)]


def penstock(chunks: Sequence[bytes]) -> int:
    """Decode to Arrow record batches; the number of rows."""
    frames, rows = FrameDecoder(), 0
    for chunk in chunks:
        for frame in frames.feed(chunk):
            if frame_kind(frame.headers).event_type == "SubscribeToShardEvent":
                payload = decode_payload(frame.buffer, frame.payload_start, frame.payload_end)
                rows += payload.records.num_rows
    return rows


class _Nothing(msgspec.Struct):
    """Decodes a payload without creating values: each byte is checked."""


_scan = msgspec.json.Decoder(_Nothing).decode
_DATA = re.compile(rb'(?<="Data":")[^"]*')


@dataclass(frozen=True)
class FloorInput:
    """The bytes of `make_payloads`, cut for each part of the floor before it is measured."""

    frames: Sequence[bytes]
    payloads: Sequence[bytes]
    rests: Sequence[bytes]
    """The payloads without their data."""
    texts: Sequence[bytes]
    """Base64 of each record."""

    @classmethod
    def of(cls, chunks: Sequence[bytes]) -> FloorInput:
        """Cut."""
        decoder = FrameDecoder()
        frames = [frame for chunk in chunks for frame in decoder.feed(chunk)]
        payloads = [bytes(frame.payload) for frame in frames]
        texts = [text for payload in payloads for text in _DATA.findall(payload)]
        whole = [bytes(one.buffer[one.payload_end + 4 - one.frame_bytes : one.payload_end]) for one in frames]
        return cls(whole, payloads, [_DATA.sub(b"", one) for one in payloads], texts)

    def crc(self) -> None:
        """The check of each frame."""
        for frame in self.frames:
            isal_zlib.crc32(frame)

    def scan(self) -> None:
        """Each payload, from its first byte to its last."""
        for payload in self.payloads:
            _scan(payload)

    def cut_and_scan(self) -> None:
        """The same where the data is passed over by a search for its end, as ours does for large records."""
        for payload, rest in zip(self.payloads, self.rests, strict=True):
            position = 0
            while (key := payload.find(b'"Data":"', position)) >= 0:
                position = payload.find(b'"', key + 8)
            _scan(rest)

    def base64(self) -> None:
        """The data of each record."""
        decode = pybase64.b64decode
        for text in self.texts:
            decode(text, None, True)


def botocore_eventstream(chunks: Sequence[bytes]) -> int:
    """Decode to dicts as botocore's EventStream does; the number of rows."""
    parser, shape = _botocore_parser()
    events: Iterable[Any] = EventStream(_RawStream(chunks), shape, parser, "SubscribeToShard")
    return sum(len(event["SubscribeToShardEvent"]["Records"]) for event in events)


class _RawStream:
    """What botocore reads an event stream from."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    def stream(self) -> Iterator[bytes]:
        yield from self._chunks


@cache
def _botocore_parser() -> tuple[Any, Any]:
    model = get_session().get_service_model("kinesis")
    output = model.operation_model("SubscribeToShard").output_shape
    assert output is not None
    return EventStreamJSONParser(), output.members["EventStream"]
