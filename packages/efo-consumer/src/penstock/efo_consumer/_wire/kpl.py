"""Aggregated records of the Kinesis Producer Library in Arrow batches: user records in, aggregates out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._model.events import WIRE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16

_MAX_HASH_KEY = 2**128 - 1
_MAX_HASH_KEY_DIGITS = 39
_MAX_PARTITION_KEY_CHARACTERS = 256

# A key stands once in its table and in every row that names it: forged tables must not fill the memory. The library's
# own aggregates stay far below, with ASCII keys of the greatest length and records without data at 43.
_MAX_EXPANSION = 64

_NO_KEY = -1
_MAX_VARINT_BITS = 64


class MalformedAggregateError(ValueError):
    """Bytes that begin like an aggregate and are none; the caller delivers them whole."""


@dataclass(frozen=True, slots=True)
class HashKeyRange:
    """The keys that a shard takes, both inclusive, 0 to 2^128 - 1."""

    starting: int
    ending: int

    @classmethod
    def of(cls, starting_hash_key: str, ending_hash_key: str) -> HashKeyRange:
        """The range that the service writes in decimal."""
        return cls(int(starting_hash_key), int(ending_hash_key))

    @property
    def is_whole(self) -> bool:
        """Whether every key is in it."""
        return self.starting <= 0 and self.ending >= _MAX_HASH_KEY


@dataclass(slots=True)
class Aggregate:
    """The user records of one aggregate, column by column, in the order in which they were written.

    Attributes:
        data: one entry per user record.
        partition_keys: one entry per user record.
        explicit_hash_keys: one entry per user record; None where it has none.
        indexes: the place of each within the aggregate, from 0; with gaps where records belong to other shards.
        records: how many the aggregate holds, whichever shard they belong to.
    """

    data: list[bytes]
    partition_keys: list[str]
    explicit_hash_keys: list[str | None]
    indexes: range | list[int]
    records: int


def parse_aggregate(record: bytes, hash_key_range: HashKeyRange | None = None) -> Aggregate:
    """The user records of an aggregate whose keys are in the range; all of them without a range.

    Raises:
        MalformedAggregateError: the checksum is wrong, the body cannot be read, or no record is in it.
    """
    body_end = len(record) - _DIGEST_BYTES
    if body_end < len(MAGIC) or not record.startswith(MAGIC):
        raise MalformedAggregateError("too short, or without the magic number")
    body = record[len(MAGIC) : body_end]
    if hashlib.md5(body, usedforsecurity=False).digest() != record[body_end:]:
        raise MalformedAggregateError("the checksum is wrong")
    try:
        fields = _Fields(body)
        return _resolve(fields, len(record), hash_key_range)
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedAggregateError(f"the body cannot be read: {error}") from error


class _Fields:
    """What the body holds, unresolved: protobuf lets a table follow the records that refer to it."""

    def __init__(self, body: bytes) -> None:
        self.partition_keys: list[bytes] = []
        self.hash_keys: list[bytes] = []
        self.data: list[bytes] = []
        self.key_indexes: list[int] = []
        self.hash_key_indexes: list[int] = []
        self._read(body)

    def _read(self, body: bytes) -> None:
        position, end = 0, len(body)
        while position < end:
            tag = body[position]
            if tag not in (0x0A, 0x12, 0x1A):
                position = _skip(body, position, end)
                continue
            length, position = _varint(body, position + 1)
            stop = position + length
            if stop > end:
                raise MalformedAggregateError("a field ends beyond the body")
            if tag == 0x1A:
                self._record(body, position, stop)
            elif tag == 0x0A:
                self.partition_keys.append(body[position:stop])
            else:
                self.hash_keys.append(body[position:stop])
            position = stop

    def _record(self, body: bytes, position: int, stop: int) -> None:
        key = hash_key = data_start = data_end = _NO_KEY
        while position < stop:
            tag = body[position]
            # Nearly every number here has one byte: the call of a function for it would double the time.
            if tag == 0x1A:
                length = body[position + 1]
                data_start = position + 2
                if length > 0x7F:
                    length, data_start = _varint(body, position + 1)
                position = data_end = data_start + length
            elif tag == 0x08:
                key = body[position + 1]
                position += 2
                if key > 0x7F:
                    key, position = _varint(body, position - 1)
            elif tag == 0x10:
                hash_key = body[position + 1]
                position += 2
                if hash_key > 0x7F:
                    hash_key, position = _varint(body, position - 1)
            else:
                position = _skip(body, position, stop)
        if position != stop:
            raise MalformedAggregateError("a field ends beyond its record")
        if key < 0 or data_end < 0:
            raise MalformedAggregateError("a record without key or data")
        self.data.append(body[data_start:data_end])
        self.key_indexes.append(key)
        self.hash_key_indexes.append(hash_key)


def _resolve(fields: _Fields, record_bytes: int, hash_key_range: HashKeyRange | None) -> Aggregate:
    if not fields.data:
        raise MalformedAggregateError("no record is in it")
    keys = [_partition_key(key) for key in fields.partition_keys]
    hash_keys = [_hash_key(key) for key in fields.hash_keys]
    lengths = [len(key) for key in fields.partition_keys]
    if sum([lengths[index] for index in fields.key_indexes]) > _MAX_EXPANSION * record_bytes:
        raise MalformedAggregateError("its keys take too much room")
    # An index beyond a table is an IndexError; _NO_KEY is the last entry of this one, which stands for none.
    names: list[str | None] = [*hash_keys, None]
    if max(fields.hash_key_indexes) >= len(hash_keys):
        raise MalformedAggregateError("a record names a hash key that is not in the table")
    aggregate = Aggregate(
        data=fields.data,
        partition_keys=[keys[index] for index in fields.key_indexes],
        explicit_hash_keys=[names[index] for index in fields.hash_key_indexes],
        indexes=range(len(fields.data)),
        records=len(fields.data),
    )
    if hash_key_range is None or hash_key_range.is_whole:
        return aggregate
    return _within(aggregate, fields, hash_key_range)


def _within(aggregate: Aggregate, fields: _Fields, hash_key_range: HashKeyRange) -> Aggregate:
    starting, ending = hash_key_range.starting, hash_key_range.ending
    # Each key is hashed once, however many records share it.
    by_key = [
        starting <= int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest()) <= ending
        for key in fields.partition_keys
    ]
    by_hash_key = [starting <= int(key) <= ending for key in fields.hash_keys]
    chosen = [
        index
        for index, (key, hash_key) in enumerate(zip(fields.key_indexes, fields.hash_key_indexes, strict=True))
        if (by_key[key] if hash_key < 0 else by_hash_key[hash_key])
    ]
    if len(chosen) == aggregate.records:
        return aggregate
    return Aggregate(
        data=[aggregate.data[index] for index in chosen],
        partition_keys=[aggregate.partition_keys[index] for index in chosen],
        explicit_hash_keys=[aggregate.explicit_hash_keys[index] for index in chosen],
        indexes=chosen,
        records=aggregate.records,
    )


def _partition_key(key: bytes) -> str:
    text = key.decode()
    if len(text) > _MAX_PARTITION_KEY_CHARACTERS:
        raise MalformedAggregateError(f"a partition key of {len(text)} characters")
    return text


def _hash_key(key: bytes) -> str:
    # bytes.isdigit knows ASCII only, as does the service.
    if not key.isdigit() or len(key) > _MAX_HASH_KEY_DIGITS or int(key) > _MAX_HASH_KEY:
        raise MalformedAggregateError("an explicit hash key that is no number below 2^128")
    return key.decode()


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends; beyond the body is an IndexError."""
    value = shift = 0
    while shift < _MAX_VARINT_BITS:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedAggregateError("a number of more than 64 bits")


def _skip(body: bytes, position: int, stop: int) -> int:
    """Pass over a field that is not known (tags, and what later versions add)."""
    tag, position = _varint(body, position)
    match tag & 7:
        case 0:
            _, position = _varint(body, position)
        case 1:
            position += 8
        case 2:
            length, position = _varint(body, position)
            position += length
        case 5:
            position += 4
        case kind:
            raise MalformedAggregateError(f"a field of type {kind}")
    if position > stop or tag < 8:
        raise MalformedAggregateError("a field that cannot be passed over")
    return position


__all__ = ["USER_RECORD_SCHEMA", "DeaggregationCounts", "HashKeyRange", "deaggregate"]

USER_RECORD_SCHEMA = pa.schema(
    [*WIRE_SCHEMA, pa.field("subSequenceNumber", pa.int64()), pa.field("explicitHashKey", pa.string())]
)
"""WIRE_SCHEMA and what tells user records of one aggregate apart; 0 and null for a record that is no aggregate."""

_ZERO = pa.scalar(0, pa.int64())


@dataclass(slots=True)
class DeaggregationCounts:
    """What `deaggregate` met, to be added up over calls.

    Attributes:
        aggregates: aggregates that were taken apart.
        user_records: user records that they gave.
        foreign_user_records: user records that were left out: their keys belong to other shards.
        malformed: records that begin like an aggregate and are none; each was given whole.
    """

    aggregates: int = 0
    user_records: int = 0
    foreign_user_records: int = 0
    malformed: int = 0


def deaggregate(
    batch: pa.RecordBatch, hash_key_range: HashKeyRange | None = None, *, counts: DeaggregationCounts | None = None
) -> pa.RecordBatch:
    """Put user records in place of the aggregates that hold them; USER_RECORD_SCHEMA.

    All user records of an aggregate have its sequence number, arrival time and encryption type, and count from 0 in
    `subSequenceNumber`. A batch without aggregates is not copied.

    Args:
        batch: WIRE_SCHEMA.
        hash_key_range: the shard's: user records outside of it were written while the stream was resharded, come by
            another shard again, and are left out here. Without a range, all are given.
        counts: added to.
    """
    begins_like_one = pc.starts_with(batch.column("data"), pattern=MAGIC)
    if not pc.any(begins_like_one).as_py():
        return _as_they_are(batch)
    rows = _Rows(batch, hash_key_range, DeaggregationCounts() if counts is None else counts)
    for row, candidate in enumerate(begins_like_one.to_pylist()):
        rows.add(row, bool(candidate))
    return rows.to_batch()


def _as_they_are(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = [*batch.columns, pa.repeat(_ZERO, rows), pa.nulls(rows, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=USER_RECORD_SCHEMA)


class _Rows:
    """The rows of the result, column by column; what an aggregate's rows share is taken from its row at the end."""

    def __init__(self, batch: pa.RecordBatch, hash_key_range: HashKeyRange | None, counts: DeaggregationCounts) -> None:
        self._batch = batch
        self._hash_key_range = hash_key_range
        self._counts = counts
        self._blobs: Sequence[bytes | None] = batch.column("data").to_pylist()
        self._keys: Sequence[str | None] = batch.column("partitionKey").to_pylist()
        self._sources: list[int] = []
        self._data: list[bytes | None] = []
        self._partition_keys: list[str | None] = []
        self._sub_sequence_numbers: list[int] = []
        self._hash_keys: list[str | None] = []

    def add(self, row: int, candidate: bool) -> None:
        """Add a row of the batch: what it holds if it is an aggregate, else itself."""
        blob = self._blobs[row]
        if candidate and blob is not None:
            try:
                self._add_aggregate(row, blob)
                return
            except MalformedAggregateError:
                self._counts.malformed += 1
        self._sources.append(row)
        self._data.append(blob)
        self._partition_keys.append(self._keys[row])
        self._sub_sequence_numbers.append(0)
        self._hash_keys.append(None)

    def _add_aggregate(self, row: int, blob: bytes) -> None:
        found = parse_aggregate(blob, self._hash_key_range)
        given = len(found.data)
        self._sources += [row] * given
        self._data += found.data
        self._partition_keys += found.partition_keys
        self._sub_sequence_numbers += found.indexes
        self._hash_keys += found.explicit_hash_keys
        self._counts.aggregates += 1
        self._counts.user_records += given
        self._counts.foreign_user_records += found.records - given

    def to_batch(self) -> pa.RecordBatch:
        """The rows so far."""
        sources = pa.array(self._sources, pa.int32())
        shared = {
            name: self._batch.column(name).take(sources)
            for name in ("sequenceNumber", "approximateArrivalTimestamp", "encryptionType")
        }
        columns = {
            **shared,
            "data": pa.array(self._data, pa.binary()),
            "partitionKey": pa.array(self._partition_keys, pa.string()),
            "subSequenceNumber": pa.array(self._sub_sequence_numbers, pa.int64()),
            "explicitHashKey": pa.array(self._hash_keys, pa.string()),
        }
        arrays = [columns[field.name] for field in USER_RECORD_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=USER_RECORD_SCHEMA)
