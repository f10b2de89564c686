"""The columns of what a reader gives, and how wire records become them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    class RecordBatch(pa.RecordBatch):  # type: ignore[misc]  # pyarrow has no types of its own
        """A `pyarrow.RecordBatch`, with the types of what is used most."""

        num_rows: int
        num_columns: int
        nbytes: int
        column_names: list[str]

        def to_pylist(self) -> list[dict[str, Any]]: ...
        def to_pydict(self) -> dict[str, list[Any]]: ...
        def slice(self, offset: int = 0, length: int | None = None) -> RecordBatch: ...
        def select(self, columns: Sequence[str | int]) -> RecordBatch: ...


READ_SCHEMA = pa.schema(
    [
        pa.field("data", pa.binary()),
        pa.field("partitionKey", pa.string()),
        pa.field("streamName", pa.string()),
        pa.field("shardId", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("subSequenceNumber", pa.int64()),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of a range; `subSequenceNumber` is 0 for a record that is not part of an aggregate."""

READ_SCHEMA_WITH_ENCRYPTION = pa.schema(
    [*READ_SCHEMA, pa.field("encryptionType", pa.string()), pa.field("explicitHashKey", pa.string())]
)
"""READ_SCHEMA and the columns on request; `explicitHashKey` is known of records of aggregates only."""

MAX_BATCH_ROWS = 10_000
"""Rows of a batch at most: Spark takes 1,000 to 10,000 rows best."""

DEFAULT_MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of a batch at most, about."""


_SHARE_NOT_WORTH_JOINING = 8
"""Joining copies: batches of this part of the most are given as they are."""


def read_schema(*, with_encryption_type: bool) -> pa.Schema:
    """Give the schema of a range."""
    return READ_SCHEMA_WITH_ENCRYPTION if with_encryption_type else READ_SCHEMA


def to_read_batch(
    records: pa.RecordBatch, stream_name: str, shard_id: str, *, with_encryption_type: bool = False
) -> pa.RecordBatch:
    """Give wire or user records the columns of a range; the data is not copied.

    Args:
        records: WIRE_SCHEMA, as the events of a shard have it, or WIRE_SCHEMA and what tells the user records of an
            aggregate apart, as `deaggregate` gives it.
        stream_name: for the column `streamName`.
        shard_id: for the column `shardId`.
        with_encryption_type: give READ_SCHEMA_WITH_ENCRYPTION instead of READ_SCHEMA.
    """
    return ReadColumns(stream_name, shard_id, with_encryption_type=with_encryption_type).of(records)


class ReadColumns:
    """`to_read_batch` for the batches of one shard, which share the columns that are the same in each row.

    Args:
        stream_name: for the column `streamName`.
        shard_id: for the column `shardId`.
        with_encryption_type: give READ_SCHEMA_WITH_ENCRYPTION instead of READ_SCHEMA.
    """

    def __init__(self, stream_name: str, shard_id: str, *, with_encryption_type: bool = False) -> None:
        self._stream_names = _Repeated(string_scalar(stream_name.rpartition(":stream/")[2]))
        self._shard_ids = _Repeated(string_scalar(shard_id))
        self._zeros = _Repeated(ZERO)
        self._with_encryption_type = with_encryption_type
        self._schema = read_schema(with_encryption_type=with_encryption_type)

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Give the batch; see `to_read_batch`."""
        rows = records.num_rows
        data, keys, numbers, times, encryption_types, *of_user_records = records.columns
        columns = [
            data,
            keys,
            self._stream_names.give(rows),
            self._shard_ids.give(rows),
            numbers,
            of_user_records[0] if of_user_records else self._zeros.give(rows),
            times,
        ]
        if self._with_encryption_type:
            columns += [encryption_types, of_user_records[1] if of_user_records else pa.nulls(rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


# Not by `pa.scalar`, nor by `from_pylist`: they import pandas where it is installed, which holds up a start for 0.3 s.
ZERO = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])[0]


def string_scalar(text: str) -> pa.Scalar[Any]:
    """Give the text as a scalar, without pandas."""
    value = text.encode()
    offsets = pa.py_buffer(array("i", [0, len(value)]))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(value)])[0]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Give a batch without rows, without pandas."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


class _Repeated:
    """A value, as often as asked; the longest answer so far is kept."""

    def __init__(self, value: pa.Scalar[Any]) -> None:
        self._value = value
        self._longest = pa.repeat(value, 0)

    def give(self, rows: int) -> pa.Array[Any]:
        """Give the value `rows` times."""
        if len(self._longest) < rows:
            self._longest = pa.repeat(self._value, rows)
        return self._longest if len(self._longest) == rows else self._longest.slice(0, rows)


class Rebatcher:
    """Joins small batches and cuts large ones: at most MAX_BATCH_ROWS rows, and about `max_batch_bytes` bytes.

    Args:
        max_batch_bytes: bytes of a batch at most; a single row may exceed it.
    """

    def __init__(self, max_batch_bytes: int) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._group: list[pa.RecordBatch] = []
        self._rows = 0
        self._nbytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch; give those that are full."""
        rows, nbytes = batch.num_rows, batch.nbytes
        is_whole = rows <= MAX_BATCH_ROWS and nbytes <= self._max_batch_bytes
        fitting = self._max_batch_bytes // max(1, nbytes // max(1, rows))
        step = max(1, rows if is_whole else min(MAX_BATCH_ROWS, fitting))
        for offset in range(0, rows, step):
            part = batch if is_whole else batch.slice(offset, step)
            # Arrow counts them again on each access.
            nbytes = nbytes if is_whole else part.nbytes
            if nbytes >= self._max_batch_bytes // _SHARE_NOT_WORTH_JOINING:
                yield from self.flush()
                yield part
                continue
            if self._rows + part.num_rows > MAX_BATCH_ROWS or self._nbytes + nbytes > self._max_batch_bytes:
                yield from self.flush()
            self._group.append(part)
            self._rows += part.num_rows
            self._nbytes += nbytes

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give what is left, if anything."""
        group, self._group, self._rows, self._nbytes = self._group, [], 0, 0
        if group:
            yield group[0] if len(group) == 1 else pa.concat_batches(group)
