"""Where a time falls among the records of a shard, and the position after one of them."""

from array import array
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
