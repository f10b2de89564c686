"""The cases of `hatch run bench sorted`: an operator that wants each key's rows together, in order."""

import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame

from benchmarks import _jobs as jobs
from benchmarks._harness import Case, interleave
from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline

_ROWS, _KEYS, _FILES = 5_000_000, 50_000, 4
_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
_SUMS = "k long, rows long"
_Operator = Callable[[DataFrame], DataFrame]


def run(rounds: int) -> Iterator[Case]:
    """Sorting in the user's function over the inputs that Penstock sorts, each with its result committed."""
    yield interleave(
        "in-the-function-over-keyed",
        lambda: _seconds(_in_the_function, keyed=True),
        lambda: _seconds(_on_sorted, keyed="k"),
        peer_name="keyed",
        unit="s",
        rounds=rounds,
    )


def _seconds(operator: _Operator, *, keyed: bool | str) -> float:
    pipeline = Pipeline("sorted", store=jobs.fresh("store"))
    pipeline.read("rows", format="parquet", bounded=True, options={"path": jobs.table(_ROWS, _KEYS, _FILES)})
    pipeline.op(attributes=_FULL_DAM, inputs=["rows"], name="runs", keyed=keyed)(operator)
    pipeline.sink(inputs=["runs"], name="out")(lambda runs: runs.write.format("noop").mode("overwrite"))
    began = time.perf_counter()
    pipeline.run(jobs.session())
    return time.perf_counter() - began


def _on_sorted(rows: DataFrame) -> DataFrame:
    """Each key's rows come one after the other: a run ends where the key changes."""
    return rows.mapInArrow(_runs, _SUMS)


def _in_the_function(rows: DataFrame) -> DataFrame:
    """All rows of a partition are held and sorted first, as functions do that are given them in no order."""

    def sort(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _runs(pa.Table.from_batches(list(batches)).sort_by("k").to_batches())

    return rows.repartition("k").mapInArrow(sort, _SUMS)


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last, count = None, 0
    for batch in batches:
        encoded = pa.compute.run_end_encode(batch.column("k"))
        keys, begin = [], 0
        counts = []
        for key, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            if key == last:
                count += end - begin
            else:
                if last is not None:
                    keys.append(last)
                    counts.append(count)
                last, count = key, end - begin
            begin = end
        yield pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64()), "rows": pa.array(counts, pa.int64())})
    if last is not None:
        yield pa.RecordBatch.from_pydict({"k": pa.array([last], pa.int64()), "rows": pa.array([count], pa.int64())})
