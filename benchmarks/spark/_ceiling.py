"""The ceiling of Spark's Python data sources: streams that are invented where they are read.

They do what any streaming source has to do, and nothing else: no reader, no fetching, no decoding, and no module but
PySpark and Arrow. What Spark and its Python workers take is all that is left.
"""

import functools
import gc
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from benchmarks.spark._floor import RECORD_BYTES, SCHEMA, STAMP, rows_of

PAUSE_SECONDS = (0.15, 0.35)
"""Between two records: at random, longer than a micro-batch."""
_WAIT_SECONDS = 0.5
_ARROW_ROWS = 5_000


def pauses(seed: int) -> Iterator[float]:
    """The same pauses for whoever has the same seed."""
    chance = random.Random(seed)
    while True:
        yield chance.uniform(*PAUSE_SECONDS)


@functools.cache
def _ready_batch() -> pa.RecordBatch:
    return rows_of([b"x" * RECORD_BYTES] * _ARROW_ROWS)


@functools.cache
def _freeze_garbage() -> None:
    """As ours does: else Spark's daemon looks at all that is loaded after every task."""
    gc.collect()
    gc.freeze()


class Rows(InputPartition):
    """Rows to invent: as many, or one for each stamp."""

    def __init__(self, rows: int, stamps: Sequence[int] = ()) -> None:
        super().__init__(None)
        self.rows = rows
        self.stamps = stamps


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        """See Spark."""
        return {"rows": 0, "stamps": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        """See Spark."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One, as ours has on two cores."""
        return [Rows(end["rows"] - start["rows"], end["stamps"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Ready Arrow batches, from memory."""
        assert isinstance(partition, Rows)
        _freeze_garbage()
        if partition.stamps:
            yield rows_of([STAMP.pack(stamp).ljust(RECORD_BYTES, b".") for stamp in partition.stamps])
            return
        for left in range(partition.rows, 0, -_ARROW_ROWS):
            yield _ready_batch().slice(0, min(left, _ARROW_ROWS))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept."""


class BulkReader(_Reader):
    """As many rows as asked for in each micro-batch, in one partition, until all are given."""

    def __init__(self, batch_rows: int, rows: int) -> None:
        self._batch_rows = batch_rows
        self._rows = rows

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Always at once, but at the end."""
        if start["rows"] >= self._rows:
            time.sleep(_WAIT_SECONDS)
            return start
        return {"rows": min(self._rows, start["rows"] + self._batch_rows), "stamps": []}


class PacedReader(_Reader):
    """Returns a row after each pause, and none with the seed 0. Without a row, it waits as long as our source does."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pauses: Iterator[float] | None = None  # this object is pickled
        self._due = 0.0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """As soon as a row is due: it is made at that moment, whether Spark asks for it then or later."""
        now = time.monotonic()
        if self._pauses is None:
            self._pauses = pauses(self._seed) if self._seed else itertools.repeat(math.inf)
            self._due = now + next(self._pauses)
        time.sleep(max(0.0, min(self._due - now, _WAIT_SECONDS)))
        stamps = []
        while self._due <= time.monotonic():
            stamps.append(int(self._due * 1e9))
            self._due += next(self._pauses)
        return {"rows": start["rows"] + len(stamps), "stamps": stamps} if stamps else start


class CeilingSource(DataSource):
    """`batchRows` and `rows` for a `BulkReader`, `seed` for a `PacedReader`."""

    @classmethod
    def name(cls) -> str:
        """For `format(…)`."""
        return "bench_ceiling"

    def schema(self) -> str:
        """As our own source has it."""
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """See Spark."""
        if "rows" in self.options:
            return BulkReader(int(self.options["batchRows"]), int(self.options["rows"]))
        return PacedReader(int(self.options["seed"]))
