"""The columns of what a reader gives, and how wire records become them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

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
"""The columns of a range; `subSequenceNumber` is 0 for a record that is no part of an aggregate."""

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
    records: pa.RecordBatch, stream_name: str, shard_id: str, *, with_encryption_type: bool
) -> pa.RecordBatch:
    """Give wire or user records the columns of READ_SCHEMA; the data is not copied."""
    rows = records.num_rows
    has_user_records = records.schema.names[-1] == "explicitHashKey"
    sub = records.column("subSequenceNumber") if has_user_records else pa.repeat(pa.scalar(0, pa.int64()), rows)
    columns = [
        records.column("data"),
        records.column("partitionKey"),
        pa.repeat(stream_name, rows),
        pa.repeat(shard_id, rows),
        records.column("sequenceNumber"),
        sub,
        records.column("approximateArrivalTimestamp"),
    ]
    if with_encryption_type:
        hash_keys = records.column("explicitHashKey") if has_user_records else pa.nulls(rows, pa.string())
        columns += [records.column("encryptionType"), hash_keys]
    return pa.RecordBatch.from_arrays(columns, schema=read_schema(with_encryption_type=with_encryption_type))


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
        for part in self._cut(batch):
            if part.nbytes >= self._max_batch_bytes // _SHARE_NOT_WORTH_JOINING:
                yield from self.flush()
                yield part
                continue
            rows, nbytes = self._rows + part.num_rows, self._nbytes + part.nbytes
            if rows > MAX_BATCH_ROWS or nbytes > self._max_batch_bytes:
                yield from self.flush()
            self._group.append(part)
            self._rows += part.num_rows
            self._nbytes += part.nbytes

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give what is left, if anything."""
        group, self._group, self._rows, self._nbytes = self._group, [], 0, 0
        if group:
            yield group[0] if len(group) == 1 else pa.concat_batches(group)

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        if batch.num_rows <= MAX_BATCH_ROWS and batch.nbytes <= self._max_batch_bytes:
            yield batch
            return
        row_bytes = max(1, batch.nbytes // batch.num_rows)
        step = max(1, min(MAX_BATCH_ROWS, self._max_batch_bytes // row_bytes))
        for offset in range(0, batch.num_rows, step):
            yield batch.slice(offset, step)
