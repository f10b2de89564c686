"""JSON payloads of SubscribeToShard events and GetRecords answers, decoded to Arrow. No I/O.

Both carry the same records and the same end of a shard; only the name of what to resume from differs, and each
has its own function here.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pybase64

from penstock.efo_consumer._publisher import WIRE_SCHEMA, ChildShard
from penstock.efo_consumer.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

# msgspec's own base64 writes each record's bytes once and wins while records are small; above this many bytes of
# JSON a record, the vector code of pybase64 wins although the text is kept for a moment.
_SMALL_RECORD_JSON_BYTES = 1200
_COUNT_MARK = b'"PartitionKey"'

_UTC_MICROSECONDS = WIRE_SCHEMA.field("approximateArrivalTimestamp").type


class _HashKeyRange(msgspec.Struct, gc=False):
    starting: str = msgspec.field(name="StartingHashKey")
    ending: str = msgspec.field(name="EndingHashKey")


class _ChildShard(msgspec.Struct, gc=False):
    shard_id: str = msgspec.field(name="ShardId")
    parents: tuple[str, ...] = msgspec.field(name="ParentShards")
    hash_keys: _HashKeyRange = msgspec.field(name="HashKeyRange")


class _SmallRecord(msgspec.Struct, gc=False):
    data: bytes = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey")
    sequence: str = msgspec.field(name="SequenceNumber")
    arrival: float | None = msgspec.field(name="ApproximateArrivalTimestamp", default=None)
    encryption: str | None = msgspec.field(name="EncryptionType", default=None)


class _LargeRecord(msgspec.Struct, gc=False):
    data: str = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey")
    sequence: str = msgspec.field(name="SequenceNumber")
    arrival: float | None = msgspec.field(name="ApproximateArrivalTimestamp", default=None)
    encryption: str | None = msgspec.field(name="EncryptionType", default=None)


class _SmallPayload(msgspec.Struct, gc=False):
    records: list[_SmallRecord] = msgspec.field(name="Records")
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    behind: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: tuple[_ChildShard, ...] | None = msgspec.field(name="ChildShards", default=None)


class _LargePayload(msgspec.Struct, gc=False):
    records: list[_LargeRecord] = msgspec.field(name="Records")
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    behind: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: tuple[_ChildShard, ...] | None = msgspec.field(name="ChildShards", default=None)


_decode_small = msgspec.json.Decoder(_SmallPayload).decode
_decode_large = msgspec.json.Decoder(_LargePayload).decode


class DecodedPayload(msgspec.Struct, frozen=True):
    """What a payload holds.

    Attributes:
        records: WIRE_SCHEMA, in the order of the payload, which is that of the sequence numbers.
        continuation: SubscribeToShard's `ContinuationSequenceNumber`; None where absent or null.
        next_iterator: GetRecords' `NextShardIterator`; None where absent or null.
        last_sequence_number: the last record's; None without records.
        millis_behind_latest: 0 where absent.
        child_shards: empty where absent, null, or empty.
        nbytes: data and partition keys (UTF-8), in bytes.
    """

    records: pa.RecordBatch
    continuation: str | None
    next_iterator: str | None
    last_sequence_number: str | None
    millis_behind_latest: int
    child_shards: tuple[ChildShard, ...]
    nbytes: int


EMPTY_RECORDS = pa.RecordBatch.from_pylist([], schema=WIRE_SCHEMA)


def decode_payload(payload: bytes | bytearray | memoryview) -> DecodedPayload:
    """Decode one SubscribeToShardEvent or one GetRecords answer.

    Raises:
        PayloadDecodeError: it is not JSON, lacks a required member, or holds data that is not base64.
    """
    try:
        decoded = _decode(payload)
        records, nbytes = _to_arrow(decoded.records)
    # binascii.Error, which pybase64 raises, is a ValueError; so are msgspec's and Arrow's own errors.
    except (ValueError, OverflowError) as error:
        raise PayloadDecodeError(f"not a payload of records: {error}") from error
    return DecodedPayload(
        records=records,
        continuation=decoded.continuation,
        next_iterator=decoded.next_iterator,
        last_sequence_number=decoded.records[-1].sequence if decoded.records else None,
        millis_behind_latest=decoded.behind or 0,
        child_shards=tuple(_child_shard(child) for child in decoded.children or ()),
        nbytes=nbytes,
    )


def _decode(payload: bytes | bytearray | memoryview) -> _SmallPayload | _LargePayload:
    size = len(payload)
    if size <= _SMALL_RECORD_JSON_BYTES:
        return _decode_small(payload)
    # The distance from the first record's key to the end says how long the first record is: a cheap guess that costs
    # speed where it is wrong, never a wrong result.
    head = bytes(payload[: 2 * _SMALL_RECORD_JSON_BYTES])
    if head.count(_COUNT_MARK) >= 2:
        return _decode_small(payload)
    return _decode_large(payload)


def _to_arrow(records: Sequence[_SmallRecord] | Sequence[_LargeRecord]) -> tuple[pa.RecordBatch, int]:
    if not records:
        return EMPTY_RECORDS, 0
    if isinstance(records[0], _LargeRecord):
        decode = pybase64.b64decode
        blobs = [decode(record.data, validate=True) for record in records]
    else:
        blobs = [record.data for record in records]  # type: ignore[misc]  # one list holds one class
    data = pa.array(blobs, pa.binary())
    keys = pa.array([record.key for record in records], pa.string())
    columns = [
        data,
        keys,
        pa.array([record.sequence for record in records], pa.string()),
        _arrivals([record.arrival for record in records]),
        _encryption_types([record.encryption for record in records]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA), _value_bytes(data) + _value_bytes(keys)


def _value_bytes(column: pa.Array) -> int:
    """Bytes of the values alone: the last offset, as columns built here begin at 0."""
    offsets = memoryview(column.buffers()[1]).cast("i")
    return int(offsets[len(column)])


def _arrivals(seconds: list[float | None]) -> pa.Array:
    try:
        # The service sends milliseconds as a fraction of a second: rounding undoes what the float did to them.
        micros = array("q", [round(second * 1000.0) * 1000 for second in seconds])  # type: ignore[operator]  # None: below
    except TypeError:
        some = [None if second is None else round(second * 1000.0) * 1000 for second in seconds]
        return pa.array(some, pa.int64()).cast(_UTC_MICROSECONDS)
    return pa.Array.from_buffers(_UTC_MICROSECONDS, len(micros), [None, pa.py_buffer(micros)])


def _encryption_types(types: list[str | None]) -> pa.Array:
    if types.count(None) == len(types):
        return pa.nulls(len(types), pa.string())
    return pa.array([None if name == "NONE" else name for name in types], pa.string())


def _child_shard(child: _ChildShard) -> ChildShard:
    return ChildShard(
        shard_id=child.shard_id,
        parent_shard_ids=child.parents,
        starting_hash_key=child.hash_keys.starting,
        ending_hash_key=child.hash_keys.ending,
    )
