"""Aggregated records of the Kinesis Producer Library in Arrow batches: user records in, aggregates out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._model.hash_keys import MAX_HASH_KEY, ShardKeys
from penstock.efo_consumer._model.schema import ZERO
from penstock.efo_consumer._model.shards import WIRE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16

_MAX_HASH_KEY_DIGITS = 39
_MAX_PARTITION_KEY_CHARACTERS = 256

# A key is stored once in its table but repeated in every row that names it: a forged table must not fill the memory.
# The library's own aggregates stay below: 43 for records without data and ASCII keys of the greatest length.
_MAX_EXPANSION = 64

_PART_BYTES = 1024 * 1024

_NO_KEY = -1
_MAX_VARINT_BITS = 64

# Where a user record belongs.
_OWN, _OUTSIDE, _OF_SIBLING, _MALFORMED = range(4)


class MalformedAggregateError(ValueError):
    """Bytes that begin like an aggregate but are not one; the caller delivers them unchanged."""


@dataclass(slots=True)
class Aggregate:
    """The user records of one aggregate, column by column, in the order in which they were written.

    Attributes:
        data: one entry per user record.
        partition_keys: one entry per user record; empty for a record that refers to no entry of the table.
        explicit_hash_keys: one entry per user record; None for a record without one, or with an invalid one.
        indexes: each record's place in the aggregate, from 0; with gaps where records were dropped.
        of_siblings: how many user records were dropped, because a producer sends them again to another shard.
        outside_shard: how many user records are outside of the shard's hash keys, and are here all the same.
        malformed: how many user records have a key that Kinesis would not accept. Their hash keys are unknown, so none
            of them is dropped.
    """

    data: list[bytes]
    partition_keys: list[str]
    explicit_hash_keys: list[str | None]
    indexes: range | list[int]
    of_siblings: int = 0
    outside_shard: int = 0
    malformed: int = 0


def parse_aggregate(record: bytes, keys: ShardKeys | None = None) -> Aggregate:
    """The user records of an aggregate, without those that a producer sends again to another shard.

    Without `keys` all of them are returned, and none is counted as outside of the shard.

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
        return _resolve(fields, len(record), keys)
    except IndexError as error:
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


def _resolve(fields: _Fields, record_bytes: int, keys: ShardKeys | None) -> Aggregate:
    if not fields.data:
        raise MalformedAggregateError("it holds no record")
    key_indexes, hash_key_indexes = fields.key_indexes, fields.hash_key_indexes
    # A faulty entry matters only to the records that refer to it.
    names, faulty_keys = _partition_keys(fields.partition_keys)
    hash_names, faulty_hash_keys = _hash_keys(fields.hash_keys)
    if max(key_indexes) >= len(names):
        key_indexes = _within(key_indexes, len(names))
        faulty_keys.add(len(names))
        names.append("")
    if max(hash_key_indexes) >= len(hash_names):
        hash_key_indexes = _within(hash_key_indexes, len(hash_names))
        faulty_hash_keys.add(len(hash_names))
        hash_names.append(None)
    # A byte that is not UTF-8 becomes a character of three.
    lengths = [len(name.encode()) for name in names] if faulty_keys else [len(key) for key in fields.partition_keys]
    if sum([lengths[index] for index in key_indexes]) > _MAX_EXPANSION * record_bytes:
        raise MalformedAggregateError("its keys need too much room")
    # _NO_KEY (-1) picks the last entry, None.
    hash_names.append(None)
    aggregate = Aggregate(
        data=fields.data,
        partition_keys=[names[index] for index in key_indexes],
        explicit_hash_keys=[hash_names[index] for index in hash_key_indexes],
        indexes=range(len(fields.data)),
    )
    if keys is not None and not keys.own.is_whole:
        # Each key is hashed once, however many records share it.
        by_key = _places(
            [int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest()) for key in fields.partition_keys], keys
        )
        by_hash_key = _places([keys.own.starting if name is None else int(name) for name in hash_names], keys)
    elif faulty_keys or faulty_hash_keys:
        by_key, by_hash_key = [_OWN] * len(names), [_OWN] * len(hash_names)
    else:
        return aggregate
    pairs = zip(key_indexes, hash_key_indexes, strict=True)
    if faulty_keys or faulty_hash_keys:
        places = [
            _MALFORMED
            if key in faulty_keys or hash_key in faulty_hash_keys
            else (by_key[key] if hash_key < 0 else by_hash_key[hash_key])
            for key, hash_key in pairs
        ]
    else:
        places = [by_key[key] if hash_key < 0 else by_hash_key[hash_key] for key, hash_key in pairs]
    return _sorted_out(aggregate, places) if any(places) else aggregate


def _sorted_out(aggregate: Aggregate, places: list[int]) -> Aggregate:
    """Count where the records belong, and drop those that come again in another shard."""
    aggregate.of_siblings = places.count(_OF_SIBLING)
    aggregate.outside_shard = places.count(_OUTSIDE)
    aggregate.malformed = places.count(_MALFORMED)
    if aggregate.of_siblings:
        kept = [index for index, place in enumerate(places) if place != _OF_SIBLING]
        aggregate.data = [aggregate.data[index] for index in kept]
        aggregate.partition_keys = [aggregate.partition_keys[index] for index in kept]
        aggregate.explicit_hash_keys = [aggregate.explicit_hash_keys[index] for index in kept]
        aggregate.indexes = kept
    return aggregate


def _places(hash_keys: list[int], keys: ShardKeys) -> list[int]:
    """Where user records with these hash keys belong."""
    first, last = keys.own.starting, keys.own.ending
    parent = keys.parent or keys.own
    parent_first, parent_last = parent.starting, parent.ending
    return [
        _OWN if first <= key <= last else _OF_SIBLING if parent_first <= key <= parent_last else _OUTSIDE
        for key in hash_keys
    ]


def _within(indexes: list[int], end: int) -> list[int]:
    """Replace indexes that are larger than `end` by `end`."""
    return [min(index, end) for index in indexes]


def _partition_keys(table: list[bytes]) -> tuple[list[str], set[int]]:
    """The keys as text, and the indexes of those that Kinesis would not accept.

    A key that is too long is returned as it stands. Bytes that are not UTF-8 become U+FFFD.
    """
    try:
        names = [key.decode() for key in table]
        faulty = set[int]()
    except UnicodeDecodeError:
        names = [key.decode(errors="replace") for key in table]
        faulty = {index for index, key in enumerate(table) if names[index].encode() != key}
    if max(map(len, names), default=0) > _MAX_PARTITION_KEY_CHARACTERS:
        faulty |= {index for index, name in enumerate(names) if len(name) > _MAX_PARTITION_KEY_CHARACTERS}
    return names, faulty


def _hash_keys(table: list[bytes]) -> tuple[list[str | None], set[int]]:
    """The explicit hash keys, with None for those that are no hash keys, and the indexes of those."""
    names = [key.decode() if _is_hash_key(key) else None for key in table]
    return names, {index for index, name in enumerate(names) if name is None}


def _is_hash_key(key: bytes) -> bool:
    # bytes.isdigit accepts ASCII digits only, as the service does.
    return key.isdigit() and len(key) <= _MAX_HASH_KEY_DIGITS and int(key) <= MAX_HASH_KEY


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
        aggregates: aggregates that were unpacked.
        user_records: user records that were returned.
        user_records_of_siblings: user records that were dropped, because a producer sends them again to another shard.
        user_records_outside_shard: of `user_records`, those whose key belongs to another shard.
        malformed_user_records: of `user_records`, those with a partition key or explicit hash key that Kinesis would
            not accept.
        malformed: records that begin like an aggregate but are not one; each was returned unchanged.
    """

    aggregates: int = 0
    user_records: int = 0
    user_records_of_siblings: int = 0
    user_records_outside_shard: int = 0
    malformed_user_records: int = 0
    malformed: int = 0

    def add(self, other: DeaggregationCounts) -> None:
        """Add the counts of other calls."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def deaggregate(
    batch: pa.RecordBatch, keys: ShardKeys | None = None, *, counts: DeaggregationCounts | None = None
) -> pa.RecordBatch:
    """Replace aggregates by their user records; the result has USER_RECORD_SCHEMA.

    The user records of an aggregate share its sequence number, arrival time and encryption type, and are numbered from
    0 in `subSequenceNumber`. A batch without aggregates is not copied.

    A user record with a key that Kinesis would not accept is returned with what is known of the key: a partition key of
    any length as it stands, U+FFFD for bytes that are not UTF-8, an empty text if the record refers to no key of the
    aggregate, and null for an explicit hash key that is not one.

    Args:
        batch: WIRE_SCHEMA.
        keys: the keys of the shard. User records with a key of the shard's parent, but not of the shard, are dropped: a
            producer with an old list of shards sends them again to another shard. All others are returned. Without
            `keys` nothing is dropped.
        counts: incremented if given.
    """
    begins_like_one = pc.starts_with(batch.column("data"), pattern=MAGIC)
    if not pc.any(begins_like_one).as_py():
        rows = batch.num_rows
        columns = [*batch.columns, pa.repeat(ZERO, rows), pa.nulls(rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=USER_RECORD_SCHEMA)
    found = _Rows(batch, keys, DeaggregationCounts() if counts is None else counts)
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

    def __init__(self, batch: pa.RecordBatch, shard_keys: ShardKeys | None, counts: DeaggregationCounts) -> None:
        self._batch = batch
        self._shard_keys = shard_keys
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
        found = parse_aggregate(blob, self._shard_keys)
        given = len(found.data)
        self._sources += [row] * given
        self._data += found.data
        self._partition_keys += found.partition_keys
        self._sub_sequence_numbers += found.indexes
        self._hash_keys += found.explicit_hash_keys
        self._counts.aggregates += 1
        self._counts.user_records += given
        self._counts.user_records_of_siblings += found.of_siblings
        self._counts.user_records_outside_shard += found.outside_shard
        self._counts.malformed_user_records += found.malformed

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
