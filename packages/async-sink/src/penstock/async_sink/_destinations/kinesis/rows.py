"""Record batches as entries, column by column."""

from array import array
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Self, TypeAlias

import msgspec
import pyarrow as pa

from penstock.async_sink._core.runs import BatchEntries, EntryRun, Rows, made
from penstock.async_sink._destinations.columns import (
    ColumnValues,
    RowFault,
    byte_ends,
    compute,
    integers,
    null_faults,
    read_column,
    refuse,
    size_faults,
    text_faults,
)
from penstock.async_sink._destinations.kinesis.cbor import CborRows
from penstock.async_sink._destinations.kinesis.entry import (
    HASH_KEY_PATTERN,
    HASH_KEY_RULE,
    KEY_RULE,
    MAX_HASH_KEY,
    MAX_PARTITION_KEY_LENGTH,
    KinesisRequestEntry,
    PartitionKey,
    Plain,
    measure,
    size_in_bytes,
)
from penstock.async_sink._destinations.writer import RowContext

DATA = "data"
PARTITION_KEY = "partitionKey"
EXPLICIT_HASH_KEY = "explicitHashKey"
_data_of = attrgetter("data")
_partition_key_of = attrgetter("partition_key")
_explicit_hash_key_of = attrgetter("explicit_hash_key")
_KEY_COLUMN = PartitionKey.from_column(PARTITION_KEY)


Columns: TypeAlias = tuple[list[bytes], list[str], list[str | None]]
"""Data, partition keys and explicit hash keys."""


class KinesisRows:
    """Rows of columns, which become entries when they are read."""

    are_entries = False

    def __init__(
        self,
        data: ColumnValues,
        keys: ColumnValues,
        hash_keys: Sequence[str | None] | None,
        ends: "memoryview[int] | array[int]",
    ) -> None:
        self._data = data
        self._keys = keys
        self._hash_keys = hash_keys
        self.ends = ends
        """Bytes of data and partition keys up to each row, and to the end of the last one."""

    def entries(self, start: int, end: int) -> list[KinesisRequestEntry]:
        """The entries, created for each call."""
        data, keys = self._data.values(start, end), self._keys.values(start, end)
        if self._hash_keys is None:
            return list(map(KinesisRequestEntry, data, keys))
        return list(map(KinesisRequestEntry, data, keys, self._hash_keys[start:end]))

    def columns(self, start: int, end: int) -> Columns:
        """Fields of some rows, without their entries."""
        hash_keys = [None] * (end - start) if self._hash_keys is None else self._hash_keys[start:end]
        return self._data.values(start, end), self._keys.values(start, end), list(hash_keys)

    def cut(self, start: int, end: int) -> Self:
        """Some rows, copied out of the record batch."""
        hash_keys = None if self._hash_keys is None else self._hash_keys[start:end]
        ends = array("q", self.ends[start : end + 1].tobytes())
        return type(self)(self._data.cut(start, end), self._keys.cut(start, end), hash_keys, ends)


def columns_of(entries: Sequence[KinesisRequestEntry]) -> Columns:
    """The fields of a request's entries, without creating entries of rows."""
    parts = entries.parts if isinstance(entries, BatchEntries) else ()
    data: list[bytes] = []
    keys: list[str] = []
    hash_keys: list[str | None] = []
    for part in parts:
        if not isinstance(part, EntryRun) or not isinstance(part.rows, KinesisRows):
            break
        more = part.rows.columns(part.start, part.start + part.count)
        data += more[0]
        keys += more[1]
        hash_keys += more[2]
    else:
        if parts:
            return data, keys, hash_keys
    if not isinstance(entries, list):
        entries = made(entries)
    return (
        list(map(_data_of, entries)),
        list(map(_partition_key_of, entries)),
        list(map(_explicit_hash_key_of, entries)),
    )


def faults_of(columns: tuple[Any, Any, Any], max_record_size_in_bytes: int) -> Iterator[RowFault]:
    """The rules of PutRecords that rows with these columns break."""
    data, keys, hash_keys = columns
    yield from null_faults(data, "its data")
    yield from null_faults(keys, "its partition key")
    yield from text_faults(keys, "its partition key")
    key_bytes = compute.binary_length(keys)
    bounds = compute.min_max(key_bytes).as_py()
    # Characters are at most bytes: they are counted only where that does not settle it.
    if bounds["min"] == 0 or (bounds["max"] or 0) > MAX_PARTITION_KEY_LENGTH:
        lengths = compute.utf8_length(keys)
        wrong = compute.or_(compute.less(lengths, 1), compute.greater(lengths, MAX_PARTITION_KEY_LENGTH))
        yield RowFault(wrong, KEY_RULE, lengths)
    if hash_keys is not None:
        yield from text_faults(hash_keys, "its explicit hash key")
        # Digits of equal length sort like numbers.
        too_high = compute.greater(compute.utf8_lpad(hash_keys, len(MAX_HASH_KEY), "0"), MAX_HASH_KEY)
        wrong = compute.invert(compute.match_substring_regex(hash_keys, f"^({HASH_KEY_PATTERN})$"))
        yield RowFault(compute.or_(wrong, too_high), HASH_KEY_RULE, hash_keys)
    yield from size_faults(compute.add(compute.binary_length(data), key_bytes), max_record_size_in_bytes)


def check_rows(
    batch: pa.RecordBatch,
    *,
    first_number: int,
    max_record_size_in_bytes: int,
    partition_key: PartitionKey | None = None,
    in_cbor: bool = False,
) -> KinesisRows | CborRows:
    """Check a record batch as a whole; `in_cbor` says that its rows are to be sent so.

    Columns: `data` binary, `partitionKey` string (or what the partition key is made of), and `explicitHashKey` string
    where wanted (null for none).

    Raises:
        SinkOptionError: a column is missing or of a type that cannot be read.
        RecordError: a value is null, or breaks a rule of PutRecords, or a record is larger than the limit.
    """
    columns = data, keys, hash_column = columns_of_batch(batch, partition_key)
    refuse(faults_of(columns, max_record_size_in_bytes), first_number, max_record_size_in_bytes)
    hash_keys = None if hash_column is None else hash_column.to_pylist()
    ends = integers(byte_ends(data, keys))
    if in_cbor:
        return CborRows(data, keys, hash_keys, ends)
    return KinesisRows(ColumnValues(data), ColumnValues(keys), hash_keys, ends)


def columns_of_batch(batch: pa.RecordBatch, partition_key: PartitionKey | None = None) -> tuple[Any, Any, Any]:
    """Data, partition keys, and explicit hash keys if there are some.

    Raises:
        SinkOptionError: a column is missing or of a type that cannot be read.
    """
    data = read_column(batch, DATA, pa.binary())
    keys = (partition_key or _KEY_COLUMN).of_rows(batch)
    if EXPLICIT_HASH_KEY not in batch.schema.names:
        return data, keys, None
    hash_keys = read_column(batch, EXPLICIT_HASH_KEY, pa.string())
    return data, keys, None if hash_keys.null_count == len(hash_keys) else hash_keys


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Plain)


class KinesisEntries:
    """The entries of PutRecords; an `EntryKind`."""

    name = "kinesis"
    version = 1

    def __init__(self, partition_key: PartitionKey | None = None) -> None:
        self._partition_key = partition_key
        self.leave_in_cbor = False
        """Whether rows are encoded in CBOR when they are written."""

    measure = staticmethod(measure)
    get_size_in_bytes = staticmethod(size_in_bytes)

    def order_key(self, entry: KinesisRequestEntry) -> Hashable:
        """The partition key."""
        return entry.partition_key

    def rows_of(self, batch: pa.RecordBatch, context: RowContext) -> Iterator[Rows[KinesisRequestEntry]]:
        """The columns `data`, `partitionKey` and perhaps `explicitHashKey`. Entries are made slice by slice, as the
        buffer has room."""
        yield check_rows(
            batch,
            first_number=context.first_number,
            max_record_size_in_bytes=context.config.max_record_size_in_bytes,
            partition_key=self._partition_key,
            in_cbor=self.leave_in_cbor and context.in_runs,
        )

    def encode(self, entry: KinesisRequestEntry) -> bytes:
        """The entry as bytes; strings are UTF-8, whatever the machine's locale is."""
        return _encoder.encode((entry.data, entry.partition_key, entry.explicit_hash_key))

    def decode(self, raw: bytes, version: int) -> KinesisRequestEntry:
        """The entry of these bytes."""
        return KinesisRequestEntry(*_decoder.decode(raw))
