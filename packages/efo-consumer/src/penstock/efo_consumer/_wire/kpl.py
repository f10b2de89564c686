"""Aggregated records of the Kinesis Producer Library in Arrow batches: user records in, aggregates out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._model.events import WIRE_SCHEMA
from penstock.efo_consumer._model.schema import ZERO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16

_MAX_HASH_KEY = 2**128 - 1
_MAX_HASH_KEY_DIGITS = 39
_MAX_PARTITION_KEY_CHARACTERS = 256

# A key is stored once in its table but repeated in every row that names it: a forged table must not fill the memory.
# The library's own aggregates stay below: 43 for records without data and ASCII keys of the greatest length.
_MAX_EXPANSION = 64

_PART_BYTES = 1024 * 1024

_NO_KEY = -1
_MAX_VARINT_BITS = 64


class MalformedAggregateError(ValueError):
    """Bytes that begin like an aggregate but are not one; the caller delivers them unchanged."""


@dataclass(frozen=True, slots=True)
class HashKeyRange:
    """A shard's hash keys, both bounds inclusive, 0 to 2^128 - 1."""

    starting: int
    ending: int

    @classmethod
    def of(cls, starting_hash_key: str, ending_hash_key: str) -> HashKeyRange:
        """Parse the decimal bounds that the service sends."""
        return cls(int(starting_hash_key), int(ending_hash_key))

    @property
    def is_whole(self) -> bool:
        """Whether it holds every key."""
        return self.starting <= 0 and self.ending >= _MAX_HASH_KEY


@dataclass(slots=True)
class Aggregate:
    """The user records of one aggregate, column by column, in the order in which they were written.

    Attributes:
        data: one entry per user record.
        partition_keys: one entry per user record.
        explicit_hash_keys: one entry per user record; None for a record without one.
        indexes: each record's place in the aggregate, from 0; with gaps where records belong to other shards.
        records: how many records the aggregate holds, whichever shard they belong to.
    """

    data: list[bytes]
    partition_keys: list[str]
    explicit_hash_keys: list[str | None]
    indexes: range | list[int]
    records: int


def parse_aggregate(record: bytes, hash_key_range: HashKeyRange | None = None) -> Aggregate:
    """The user records of an aggregate whose keys are in the range; all of them without a range.

    Raises:
        MalformedAggregateError: the checksum is wrong, the body cannot be parsed, or it holds no record.
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
        raise MalformedAggregateError(f"cannot parse the body: {error}") from error


class _Fields:
    """The body's fields, unresolved: protobuf lets a table follow the records that refer to it."""

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
            # Nearly every number here has one byte: a function call for each would double the time.
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
        raise MalformedAggregateError("it holds no record")
    keys = [_partition_key(key) for key in fields.partition_keys]
    hash_keys = [_hash_key(key) for key in fields.hash_keys]
    lengths = [len(key) for key in fields.partition_keys]
    if sum([lengths[index] for index in fields.key_indexes]) > _MAX_EXPANSION * record_bytes:
        raise MalformedAggregateError("its keys need too much room")
    # An index beyond a table is an IndexError; _NO_KEY (-1) picks the last entry, None.
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
    # bytes.isdigit accepts ASCII digits only, as the service does.
    if not key.isdigit() or len(key) > _MAX_HASH_KEY_DIGITS or int(key) > _MAX_HASH_KEY:
        raise MalformedAggregateError("an explicit hash key that is not a number below 2^128")
    return key.decode()


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Decode a varint: its value, and where it ends.

    Raises:
        IndexError: it ends beyond the body.
        MalformedAggregateError: it has more than 64 bits.
    """
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
    """Skip an unknown field: tags, and what later versions may add."""
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
        raise MalformedAggregateError("a field that cannot be skipped")
    return position


USER_RECORD_SCHEMA = pa.schema(
    [*WIRE_SCHEMA, pa.field("subSequenceNumber", pa.int64()), pa.field("explicitHashKey", pa.string())]
)
"""WIRE_SCHEMA with the columns of aggregated records; 0 and null for a record that was not aggregated."""


@dataclass(slots=True)
class DeaggregationCounts:
    """Counts of `deaggregate`, summed over calls.

    Attributes:
        aggregates: aggregates unpacked.
        user_records: user records they contained, without foreign ones.
        foreign_user_records: user records left out because their keys belong to other shards.
        malformed: records that begin like an aggregate but are not one; each was kept unchanged.
    """

    aggregates: int = 0
    user_records: int = 0
    foreign_user_records: int = 0
    malformed: int = 0


def deaggregate(
    batch: pa.RecordBatch, hash_key_range: HashKeyRange | None = None, *, counts: DeaggregationCounts | None = None
) -> pa.RecordBatch:
    """Replace aggregates by their user records; the result has USER_RECORD_SCHEMA.

    The user records of an aggregate share its sequence number, arrival time and encryption type, and are numbered from
    0 in `subSequenceNumber`. A batch without aggregates is not copied.

    Args:
        batch: WIRE_SCHEMA.
        hash_key_range: the shard's range. User records outside of it were written during a reshard and belong to
            another shard, which delivers them too; they are left out. Without a range, all are kept.
        counts: incremented if given.
    """
    begins_like_one = pc.starts_with(batch.column("data"), pattern=MAGIC)
    if not pc.any(begins_like_one).as_py():
        rows = batch.num_rows
        columns = [*batch.columns, pa.repeat(ZERO, rows), pa.nulls(rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=USER_RECORD_SCHEMA)
    found = _Rows(batch, hash_key_range, DeaggregationCounts() if counts is None else counts)
    for row, candidate in enumerate(begins_like_one.to_pylist()):
        found.add(row, bool(candidate))
    return found.to_batch()


def divide_aggregates(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch (WIRE_SCHEMA) to be taken apart one by one; the batch itself where no record is an aggregate.

    Each has about a MiB of data, or one record: what ten MiB of aggregates become could fill the memory.
    """
    if not pc.any(pc.starts_with(batch.column("data"), pattern=MAGIC)).as_py():
        yield batch
        return
    begin = nbytes = 0
    # One more row than any part can take ends the last part, also one of records without bytes.
    for row, size in enumerate([*pc.binary_length(batch.column("data")).to_pylist(), _PART_BYTES + 1]):
        if row > begin and nbytes + size > _PART_BYTES:
            yield batch.slice(begin, row - begin)
            begin, nbytes = row, 0
        nbytes += size


class _Rows:
    """The rows of the result, column by column; shared columns are taken from the source rows at the end."""

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
        """Add a row of the batch: its user records if it is an aggregate, else the row itself."""
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
