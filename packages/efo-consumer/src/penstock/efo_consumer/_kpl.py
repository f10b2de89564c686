"""Aggregated records of the Kinesis Producer Library in Arrow batches: user records in, aggregates out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._kpl_format import MAGIC, HashKeyRange, MalformedAggregateError, parse_aggregate
from penstock.efo_consumer._publisher import WIRE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

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
