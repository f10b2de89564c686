"""Event-stream bytes to rows: Penstock's decoder to Arrow against botocore's EventStream to dicts."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.eventstream import EventStream
from botocore.parsers import EventStreamJSONParser
from botocore.session import get_session

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
