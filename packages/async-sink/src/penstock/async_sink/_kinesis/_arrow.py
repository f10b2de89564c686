"""Record batches as entries, column by column."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._columns import binary_values, first_row, read_column, string_values
from penstock.async_sink._kinesis._entry import MAX_PARTITION_KEY_LENGTH, KinesisRequestEntry, check_hash_key
from penstock.async_sink._kinesis._partition_key import PartitionKey
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError

DATA = "data"
PARTITION_KEY = "partitionKey"
EXPLICIT_HASH_KEY = "explicitHashKey"
_KEY_COLUMN = PartitionKey.from_column(PARTITION_KEY)


class EntryBatch:
    """A record batch that is checked as a whole, and becomes entries slice by slice as they are needed.

    Columns: `data` binary, `partitionKey` string (or what the partition key is made of), and `explicitHashKey` string
    where wanted (null for none).

    Raises:
        SinkOptionError: a column is missing or of a type that cannot be read.
        InvalidRecordError: a value is null, or breaks a rule of PutRecords.
        RecordTooLargeError: a record is larger than the limit.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        *,
        first_number: int,
        max_record_size_in_bytes: int,
        partition_key: PartitionKey | None = None,
    ) -> None:
        self._first_number = first_number
        self._data = read_column(batch, DATA, pa.binary())
        keys = partition_key or _KEY_COLUMN
        self._keys = keys.of_rows(batch)
        self._hash_keys: Any = None
        if EXPLICIT_HASH_KEY in batch.schema.names:
            hash_keys = read_column(batch, EXPLICIT_HASH_KEY, pa.string())
            self._hash_keys = hash_keys if hash_keys.null_count < len(hash_keys) else None
        self.sizes: Sequence[int] = ()
        """Bytes of each record: data and partition key."""
        self._check(max_record_size_in_bytes)

    def __len__(self) -> int:
        return len(self._data)

    def _check(self, max_record_size_in_bytes: int) -> None:
        if len(self) == 0:
            return
        for name, column in ((DATA, self._data), (PARTITION_KEY, self._keys)):
            if column.null_count:
                self._refuse(pc.is_null(column), f"its {name} is null")
        lengths = pc.utf8_length(self._keys)
        bounds = cast("Any", pc.min_max(lengths)).as_py()
        if bounds["min"] < 1 or bounds["max"] > MAX_PARTITION_KEY_LENGTH:
            wrong = pc.or_(pc.less(lengths, 1), pc.greater(lengths, MAX_PARTITION_KEY_LENGTH))
            self._refuse(wrong, f"its partition key has not 1 to {MAX_PARTITION_KEY_LENGTH} characters")
        if self._hash_keys is not None:
            for row, key in enumerate(self._hash_keys.to_pylist()):
                if key is not None:
                    check_hash_key(key, self._first_number + row)
        self.sizes = pc.add(pc.binary_length(self._data), pc.binary_length(self._keys)).to_pylist()
        largest = max(self.sizes)
        if largest > max_record_size_in_bytes:
            row = next(row for row, size in enumerate(self.sizes) if size > max_record_size_in_bytes)
            raise RecordTooLargeError(self._first_number + row, self.sizes[row], max_record_size_in_bytes)

    def _refuse(self, wrong: Any, reason: str) -> None:
        raise InvalidRecordError(self._first_number + first_row(wrong), reason)

    def slices(self, rows: int) -> Iterator[tuple[int, list[KinesisRequestEntry]]]:
        """(first row, entries) for each run of at most that many rows."""
        for start in range(0, len(self), rows):
            end = min(start + rows, len(self))
            data = binary_values(self._data, start, end)
            keys = string_values(self._keys, start, end)
            if self._hash_keys is None:
                yield start, list(map(KinesisRequestEntry, data, keys))
            else:
                hash_keys = self._hash_keys.slice(start, rows).to_pylist()
                yield start, list(map(KinesisRequestEntry, data, keys, hash_keys))
