"""Record batches as entries, column by column."""

from array import array
from collections.abc import Sequence
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._columns import ColumnValues, byte_ends, first_row, integers, read_column
from penstock.async_sink._kinesis._entry import MAX_PARTITION_KEY_LENGTH, KinesisRequestEntry, check_hash_key
from penstock.async_sink._kinesis._partition_key import PartitionKey
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError

DATA = "data"
PARTITION_KEY = "partitionKey"
EXPLICIT_HASH_KEY = "explicitHashKey"
_KEY_COLUMN = PartitionKey.from_column(PARTITION_KEY)


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

    def cut(self, start: int, end: int) -> Self:
        """Some rows, copied out of the record batch."""
        hash_keys = None if self._hash_keys is None else self._hash_keys[start:end]
        ends = array("q", self.ends[start : end + 1].tobytes())
        return type(self)(self._data.cut(start, end), self._keys.cut(start, end), hash_keys, ends)


def check_rows(
    batch: pa.RecordBatch,
    *,
    first_number: int,
    max_record_size_in_bytes: int,
    partition_key: PartitionKey | None = None,
) -> KinesisRows:
    """Check a record batch as a whole.

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
    has_hash_keys = hash_keys is not None and any(key is not None for key in hash_keys)
    return KinesisRows(ColumnValues(data), ColumnValues(keys), hash_keys if has_hash_keys else None, integers(ends))


def _check_keys(keys: Any, first_number: int) -> None:
    lengths = pc.utf8_length(keys)
    bounds = cast("Any", pc.min_max(lengths)).as_py()
    if bounds["min"] < 1 or bounds["max"] > MAX_PARTITION_KEY_LENGTH:
        wrong = pc.or_(pc.less(lengths, 1), pc.greater(lengths, MAX_PARTITION_KEY_LENGTH))
        _refuse(first_number, wrong, f"its partition key has not 1 to {MAX_PARTITION_KEY_LENGTH} characters")


def _check_sizes(ends: Any, first_number: int, limit: int) -> None:
    sizes = pc.subtract(ends[1:], ends[:-1])
    row = first_row(pc.greater(sizes, limit))
    if row >= 0:
        raise RecordTooLargeError(first_number + row, sizes[row].as_py(), limit)


def _refuse(first_number: int, wrong: Any, reason: str) -> None:
    raise InvalidRecordError(first_number + first_row(wrong), reason)
