"""The columns of a read as other connectors name and order them."""

from array import array
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer import ShardPosition

# Scalars of buffers: `pa.scalar` would import pandas where it is installed, and hold up a start for 0.3 s.
_TRUE = pc.IndexOptions(pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\x01")])[0])


def rows_before(records: pa.RecordBatch, micros: int) -> int:
    """How many records come before the first one that arrived at a time or later."""
    arrived = records.column("approximateArrivalTimestamp")
    time = pa.Array.from_buffers(arrived.type, 1, [None, pa.py_buffer(array("q", [micros]))])[0]
    found = pc.call_function("index", [pc.call_function("greater_equal", [arrived, time])], _TRUE).as_py()
    return int(found) if found >= 0 else records.num_rows


def position_after(records: pa.RecordBatch, row: int) -> ShardPosition:
    """The position after a record, which knows when that one arrived."""
    number = records.column("sequenceNumber")[row].as_py()
    arrived_millis = records.column("approximateArrivalTimestamp")[row].value // 1000
    return replace(ShardPosition.after(number), record=number, arrived_millis=arrived_millis)


_DATABRICKS = (
    ("partitionKey", "partitionKey"),
    ("data", "data"),
    ("stream", "streamName"),
    ("shardId", "shardId"),
    ("sequenceNumber", "sequenceNumber"),
    ("approximateArrivalTimestamp", "approximateArrivalTimestamp"),
)
_AWS = tuple(
    (name, name) for name in ("data", "streamName", "partitionKey", "sequenceNumber", "approximateArrivalTimestamp")
)
CHANGES = "dynamodb-streams"
"""The layout of format dynamodb-streams, whose rows are changes of items; users cannot choose it."""

_LAYOUTS = {"databricks": _DATABRICKS, "aws": _AWS}


def columns_of(layout: str) -> tuple[tuple[str, str], ...] | None:
    """Each column's name and its name in this package; None for the columns of this package."""
    return _LAYOUTS.get(layout)


def in_layout(batches: Iterator[pa.RecordBatch], layout: str) -> Iterator[pa.RecordBatch]:
    """Batches in the columns of a layout; only changes of items are copied."""
    if layout == CHANGES:
        # Tasks that read Kinesis are spared it.
        from penstock.efo_consumer import to_change_batch

        return map(to_change_batch, batches)
    names = columns_of(layout)
    if names is None:
        return batches
    return (
        pa.RecordBatch.from_arrays([batch.column(ours) for _, ours in names], names=[name for name, _ in names])
        for batch in batches
    )
