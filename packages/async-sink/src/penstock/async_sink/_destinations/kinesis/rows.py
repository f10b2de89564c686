"""Record batches as entries, column by column."""

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Self, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._core.batches import BatchEntries, made
from penstock.async_sink._core.runs import EntryRun
from penstock.async_sink._destinations.columns import ColumnValues, byte_ends, first_row, integers, read_column
from penstock.async_sink._destinations.kinesis.cbor import CborRows
from penstock.async_sink._destinations.kinesis.entry import (
    MAX_PARTITION_KEY_LENGTH,
    KinesisRequestEntry,
    check_hash_key,
)
from penstock.async_sink._destinations.kinesis.partition_key import PartitionKey
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError

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
    """Rows of columns, which become entries when somebody looks at them."""

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
        """Entries, made anew."""
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
    """The fields of a request's entries; rows of record batches do not become entries for it."""
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
    entries = made(entries)
    return (
        list(map(_data_of, entries)),
        list(map(_partition_key_of, entries)),
        list(map(_explicit_hash_key_of, entries)),
    )


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
        InvalidRecordError: a value is null, or breaks a rule of PutRecords.
        RecordTooLargeError: a record is larger than the limit.
    """
    data = read_column(batch, DATA, pa.binary())
    keys = (partition_key or _KEY_COLUMN).of_rows(batch)
    hash_keys: list[str | None] | None = None
    if EXPLICIT_HASH_KEY in batch.schema.names:
        hash_keys = read_column(batch, EXPLICIT_HASH_KEY, pa.string()).to_pylist()
    if len(data) > 0:
        for name, column in ((DATA, data), (PARTITION_KEY, keys)):
            if column.null_count:
                _refuse(first_number, pc.is_null(column), f"its {name} is null")
        _check_keys(keys, first_number)
        for row, key in enumerate(hash_keys or ()):
            if key is not None:
                check_hash_key(key, first_number + row)
    ends = byte_ends(data, keys)
    _check_sizes(ends, first_number, max_record_size_in_bytes)
    if hash_keys is not None and all(key is None for key in hash_keys):
        hash_keys = None
    if in_cbor:
        return CborRows(data, keys, hash_keys, integers(ends))
    return KinesisRows(ColumnValues(data), ColumnValues(keys), hash_keys, integers(ends))


def _check_keys(keys: Any, first_number: int) -> None:
    # Characters are at most bytes: they are counted only where that does not settle it.
    bounds = cast("Any", pc.min_max(pc.binary_length(keys))).as_py()
    if bounds["min"] >= 1 and bounds["max"] <= MAX_PARTITION_KEY_LENGTH:
        return
    lengths = pc.utf8_length(keys)
    bounds = cast("Any", pc.min_max(lengths)).as_py()
    if bounds["min"] < 1 or bounds["max"] > MAX_PARTITION_KEY_LENGTH:
        wrong = pc.or_(pc.less(lengths, 1), pc.greater(lengths, MAX_PARTITION_KEY_LENGTH))
        _refuse(first_number, wrong, f"its partition key must be 1 to {MAX_PARTITION_KEY_LENGTH} characters")


def _check_sizes(ends: Any, first_number: int, limit: int) -> None:
    sizes = pc.subtract(ends[1:], ends[:-1])
    row = first_row(pc.greater(sizes, limit))
    if row >= 0:
        raise RecordTooLargeError(first_number + row, sizes[row].as_py(), limit)


def _refuse(first_number: int, wrong: Any, reason: str) -> None:
    raise InvalidRecordError(first_number + first_row(wrong), reason)
