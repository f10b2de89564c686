"""JSON payloads of SubscribeToShard events and GetRecords answers, decoded to Arrow. No I/O.

Both carry the same records and the same end of a shard; only the name of what to resume from differs.

Small records are decoded whole by msgspec, base64 included. Those of some hundred bytes leave msgspec as text, which
vector code decodes. Where records are large, the text of their data is cut out of the JSON first, found by its closing
quote, and decoded in place: the rest is a few hundred bytes.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pybase64

from penstock.efo_consumer._model.schema import empty_batch, string_scalar
from penstock.efo_consumer._model.shards import WIRE_SCHEMA, Shard
from penstock.efo_consumer.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Characters of base64 a record, measured: from here on a call of the vector code wins over msgspec's own base64, and
# from there on cutting wins over a text that is made and thrown away.
_TEXT_CHARACTERS = 400
_CUT_CHARACTERS = 2000
# Far enough for what may stand before the first record's data.
_FIRST_DATA_WITHIN = 4096
_Data = TypeVar("_Data", bytes, str)
_DATA_KEY = b'"Data":"'


class HashKeys(msgspec.Struct, gc=False):
    """The hash keys of a shard, as the service writes them."""

    starting: str = msgspec.field(name="StartingHashKey")
    ending: str = msgspec.field(name="EndingHashKey")


class _ChildShard(msgspec.Struct, gc=False):
    shard_id: str = msgspec.field(name="ShardId")
    parents: tuple[str, ...] = msgspec.field(name="ParentShards")
    hash_keys: HashKeys = msgspec.field(name="HashKeyRange")


# Members in the order in which the service writes them: msgspec looks for each behind the last.
class _Record(msgspec.Struct, Generic[_Data], gc=False, kw_only=True):
    sequence: str = msgspec.field(name="SequenceNumber")
    arrival: float | None = msgspec.field(name="ApproximateArrivalTimestamp", default=None)
    data: _Data = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey")
    encryption: str | None = msgspec.field(name="EncryptionType", default=None)


class _Payload(msgspec.Struct, Generic[_Data], gc=False, kw_only=True):
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    behind: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: tuple[_ChildShard, ...] | None = msgspec.field(name="ChildShards", default=None)
    # These two are not Kinesis' own: see `_publish/dynamodb_streams.py`.
    quiet: float | None = msgspec.field(name="QuietSeconds", default=None)
    is_over: bool = msgspec.field(name="IsOver", default=False)
    records: list[_Record[_Data]] = msgspec.field(name="Records")


_decode_bytes = msgspec.json.Decoder(_Payload[bytes]).decode
_decode_text = msgspec.json.Decoder(_Payload[str]).decode


class DecodedPayload(msgspec.Struct, frozen=True):
    """What a payload holds.

    Attributes:
        records: WIRE_SCHEMA, in the order of the payload, which is the order of the sequence numbers.
        continuation: SubscribeToShard's `ContinuationSequenceNumber`; None where absent or null.
        next_iterator: GetRecords' `NextShardIterator`; None where absent or null.
        last_sequence_number: the last record's; None without records.
        millis_behind_latest: None where absent, which says nothing about the tip.
        child_shards: empty where absent, null, or empty.
        nbytes: data and partition keys (UTF-8), in bytes.
        quiet_seconds: see `ShardEvent.quiet_seconds`.
        is_over: see `ShardEvent.is_over`.
    """

    records: pa.RecordBatch
    continuation: str | None
    next_iterator: str | None
    last_sequence_number: str | None
    millis_behind_latest: int | None
    child_shards: tuple[Shard, ...]
    nbytes: int
    quiet_seconds: float | None = None
    is_over: bool = False


EMPTY_RECORDS = empty_batch(WIRE_SCHEMA)


def decode_payload(buffer: bytes | bytearray, start: int = 0, end: int | None = None) -> DecodedPayload:
    """Decode one SubscribeToShardEvent or one GetRecords answer, which is `buffer[start:end]`.

    Raises:
        PayloadDecodeError: the payload is not JSON, lacks a required member, or holds data that is not base64.
    """
    end = len(buffer) if end is None else end
    try:
        payload, blobs = _decode(buffer, start, end)
        records, nbytes = _to_arrow(payload.records, blobs)
    # binascii.Error, which pybase64 raises, is a ValueError; so are msgspec's and Arrow's own errors.
    except (ValueError, OverflowError) as error:
        raise PayloadDecodeError(f"not a payload of records: {error}") from error
    return DecodedPayload(
        records=records,
        continuation=payload.continuation,
        next_iterator=payload.next_iterator,
        last_sequence_number=payload.records[-1].sequence if payload.records else None,
        millis_behind_latest=payload.behind,
        child_shards=tuple(_child_shard(child) for child in payload.children or ()),
        nbytes=nbytes,
        quiet_seconds=payload.quiet,
        is_over=payload.is_over,
    )


def _decode(buffer: bytes | bytearray, start: int, end: int) -> tuple[_Payload[bytes] | _Payload[str], list[bytes]]:
    # The size of records, by the first; a wrong guess costs time, never a wrong result.
    key = buffer.find(_DATA_KEY, start, min(end, start + _FIRST_DATA_WITHIN))
    text = key + len(_DATA_KEY)
    characters = 0 if key < 0 else buffer.find(b'"', text, end) - text
    if characters >= _CUT_CHARACTERS and (cut := _cut(buffer, start, end)) is not None:
        return cut
    view = memoryview(buffer)[start:end]
    if characters >= _TEXT_CHARACTERS:
        texts = _decode_text(view)
        decode = pybase64.b64decode
        return texts, [decode(record.data, None, True) for record in texts.records]
    payload = _decode_bytes(view)
    return payload, [record.data for record in payload.records]


def _cut(buffer: bytes | bytearray, start: int, end: int) -> tuple[_Payload[str], list[bytes]] | None:
    """Decode with the data cut out; None if the JSON is written in a way that only a whole decode can read.

    A quote inside a JSON string is escaped, so `"Data":"` begins a member, and the next quote ends its value: base64
    has neither quotes nor escapes.
    """
    view = memoryview(buffer)
    find = buffer.find
    rest: list[bytes | bytearray] = []
    texts: list[memoryview] = []
    position = start
    while (key := find(_DATA_KEY, position, end)) >= 0:
        text_start = key + len(_DATA_KEY)
        text_end = find(b'"', text_start, end)
        if text_end < 0:
            return None
        rest.append(buffer[position:text_start])
        texts.append(view[text_start:text_end])
        position = text_end
    rest.append(buffer[position:end])
    # Every record still has to have its member, now empty: else a text could come to the wrong record.
    payload = _decode_text(b"".join(rest))
    if len(payload.records) != len(texts):
        return None
    decode = pybase64.b64decode
    try:
        return payload, [decode(text, None, True) for text in texts]
    except ValueError:
        # Perhaps a slash was escaped: JSON allows it.
        return None


def _to_arrow(records: Sequence[_Record[Any]], blobs: list[bytes]) -> tuple[pa.RecordBatch, int]:
    if not records:
        return EMPTY_RECORDS, 0
    data, data_bytes = binary_column(blobs)
    keys, key_bytes = string_column([record.key for record in records])
    sequences, _ = string_column([record.sequence for record in records])
    columns = [
        data,
        keys,
        sequences,
        arrival_column([record.arrival for record in records]),
        encryption_column([record.encryption for record in records]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA), data_bytes + key_bytes


def _child_shard(child: _ChildShard) -> Shard:
    return Shard(
        shard_id=child.shard_id,
        parent_shard_ids=child.parents,
        starting_hash_key=child.hash_keys.starting,
        ending_hash_key=child.hash_keys.ending,
    )


# Below this, the fixed costs of Arrow's functions outweigh what they save.
_VECTOR_ROWS = 150
# From here on, joining wins over Arrow also where each value has a length of its own.
_JOIN_BYTES = 1500
# The first columns of a process are joined whatever their values: `pa.array` would import pandas where that is
# installed, and hold up a start for 0.3 s.
_JOINED_AT_FIRST = 200
_columns_of_lists = count()

# Arrow's functions as they are: what stands around them in `compute` costs more than 200 rows do.
_multiply, _to_integers = pc.get_function("multiply"), pc.get_function("cast")
_INTEGERS = pc.CastOptions(pa.int64())
_MILLION = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(array("d", [1e6]))])[0]

_BINARY, _STRING, _DOUBLE = pa.binary(), pa.string(), pa.float64()
_UTC_MICROSECONDS = WIRE_SCHEMA.field("approximateArrivalTimestamp").type


def binary_column(values: list[bytes]) -> tuple[pa.Array, int]:
    """At least one value; also their bytes."""
    size = _common_size(values)
    if not size and len(values[0]) < _JOIN_BYTES and _is_under_way():
        column = pa.array(values, _BINARY)
        return column, _value_bytes(column)
    joined = b"".join(values)
    # More than 2 GiB would not fit: a frame has 24 MiB.
    offsets = _even_offsets(size, len(values)) if size else _offsets(values)
    return pa.Array.from_buffers(_BINARY, len(values), [None, offsets, pa.py_buffer(joined)]), len(joined)


def string_column(values: list[str]) -> tuple[pa.Array, int]:
    """At least one value; also their bytes in UTF-8."""
    size = _common_size(values)
    if size and (joined := "".join(values)).isascii():
        buffers = [None, _even_offsets(size, len(values)), pa.py_buffer(joined.encode())]
        return pa.Array.from_buffers(_STRING, len(values), buffers), len(joined)
    if not _is_under_way():
        encoded = [value.encode() for value in values]
        buffers = [None, _offsets(encoded), pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(_STRING, len(values), buffers), sum(map(len, encoded))
    column = pa.array(values, _STRING)
    return column, _value_bytes(column)


def _is_under_way() -> bool:
    """Whether a process has made so many columns that its start is over."""
    return next(_columns_of_lists) >= _JOINED_AT_FIRST


def arrival_column(seconds: list[float | None]) -> pa.Array:
    """Times as the service writes them, in seconds.

    Raises:
        ValueError, OverflowError: a time that no timestamp holds.
    """
    # Up to the year 2106 a float holds microseconds: rounding undoes what it did to them.
    try:
        # Looking for None first would cost more than all the rest.
        floats = array("d", cast("list[float]", seconds))
    except TypeError:
        return pa.array([None if one is None else round(one * 1e6) for one in seconds], _UTC_MICROSECONDS)
    if len(floats) >= _VECTOR_ROWS:
        column = pa.Array.from_buffers(_DOUBLE, len(floats), [None, pa.py_buffer(floats)])
        try:
            # Milliseconds come out whole, as long as the product's float is as fine as they are: nearly always.
            return _to_integers.call([_multiply.call([column, _MILLION])], _INTEGERS).view(_UTC_MICROSECONDS)
        except pa.ArrowInvalid:
            pass
    micros = array("q", [round(one * 1e6) for one in floats])
    return pa.Array.from_buffers(_UTC_MICROSECONDS, len(micros), [None, pa.py_buffer(micros)])


def encryption_column(types: list[str | None]) -> pa.Array:
    """At least one value; null where it is `NONE`."""
    # Nearly always all records of a stream have the same encryption type.
    if types.count(types[0]) == len(types):
        return _same_type(None if types[0] == "NONE" else types[0], len(types))
    return pa.array([None if name == "NONE" else name for name in types], _STRING)


@lru_cache(maxsize=32)
def _same_type(name: str | None, rows: int) -> pa.Array:
    return pa.nulls(rows, _STRING) if name is None else pa.repeat(string_scalar(name), rows)


def _common_size(values: Sequence[bytes] | Sequence[str]) -> int:
    """The length of each value; 0 if they differ, or are empty."""
    size = len(values[0])
    return size if size == len(values[-1]) and len(set(map(len, values))) == 1 else 0


def _even_offsets(size: int, rows: int) -> pa.Buffer:
    # Rounded up, so that few are kept: a column may have more offsets than rows.
    return _even_offsets_of(size, 1 << (rows - 1).bit_length())


@lru_cache(maxsize=32)
def _even_offsets_of(size: int, rows: int) -> pa.Buffer:
    return pa.py_buffer(array("i", [min(row * size, 0x7FFFFFFF) for row in range(rows + 1)]))


def _offsets(values: list[bytes]) -> pa.Buffer:
    return pa.py_buffer(array("i", list(accumulate(map(len, values), initial=0))))


def _value_bytes(column: pa.Array) -> int:
    """Bytes of the values alone: the last offset, as columns built here begin at 0."""
    offsets = memoryview(column.buffers()[1]).cast("i")
    return int(offsets[len(column)])
