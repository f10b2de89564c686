"""The floor of a start: a source of Spark's own kind, which imports nothing but PySpark and Arrow.

So nothing of Penstock is loaded where it runs, nor pandas, which `pa.array` would import.
"""

import functools
import itertools
import struct
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

STAMP = struct.Struct("<q")
"""At the front of a stamped row's data."""
RECORD_BYTES = 1000
SCHEMA = (
    "data binary, partitionKey string, streamName string, shardId string, sequenceNumber string, "
    "subSequenceNumber bigint, approximateArrivalTimestamp timestamp"
)
_ARROW_ROWS = 1_000
_WAIT_SECONDS = 0.5


def rows_of(data: Sequence[bytes]) -> pa.RecordBatch:
    """The columns of the data source `kinesis`, filled as its own are."""
    rows = len(data)
    numbers = [str(10**55 + row).encode() for row in range(rows)]
    columns: Mapping[str, tuple[pa.DataType, Sequence[bytes] | array[int]]] = {
        "data": (pa.binary(), data),
        "partitionKey": (pa.string(), numbers),
        "streamName": (pa.string(), [b"stream"] * rows),
        "shardId": (pa.string(), [b"shardId-000000000000"] * rows),
        "sequenceNumber": (pa.string(), numbers),
        "subSequenceNumber": (pa.int64(), array("q", [0] * rows)),
        "approximateArrivalTimestamp": (pa.timestamp("us", tz="UTC"), array("q", [time.time_ns() // 1000] * rows)),
    }
    arrays = [_array(kind, values) for kind, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _array(kind: pa.DataType, values: "Sequence[bytes] | array[int]") -> pa.Array:
    if isinstance(values, array):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    offsets = array("i", itertools.accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])


@functools.cache
def _ready_rows() -> pa.RecordBatch:
    return rows_of([b"x" * RECORD_BYTES] * _ARROW_ROWS)


class _Range(InputPartition):
    """Some rows, of which the last is stamped with the number of all rows so far."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"]) if "rows" in options else None
        self._rate = float(options.get("rate", "0"))
        self._waits = True

    def initialOffset(self) -> dict[str, Any]:
        """See Spark."""
        return {"rows": 0, "began": time.monotonic()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """See Spark."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let a run end at once where all rows are given."""
        self._waits = False

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """All rows, or all that are due by now."""
        due = int((time.monotonic() - start["began"]) * self._rate) if self._rows is None else self._rows
        if due > start["rows"]:
            return {**start, "rows": due}
        time.sleep(_WAIT_SECONDS if self._waits else 0.0)
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One, as ours has on two cores."""
        return [_Range(start["rows"], end["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Ready batches, from memory, then the row that is stamped."""
        assert isinstance(partition, _Range)
        for left in range(partition.end - partition.start - 1, 0, -_ARROW_ROWS):
            yield _ready_rows().slice(0, min(left, _ARROW_ROWS))
        yield rows_of([STAMP.pack(partition.end).ljust(RECORD_BYTES, b"x")])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept."""


class FloorSource(DataSource):
    """`rows` that lie ready, or as many a second as `rate` says, whether a query runs or not."""

    @classmethod
    def name(cls) -> str:
        """For `format(…)`."""
        return "bench_floor"

    def schema(self) -> str:
        """As our own source has it."""
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """See Spark."""
        return _Reader(self.options)
