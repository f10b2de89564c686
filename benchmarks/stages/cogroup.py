"""The cases of `hatch run bench cogroup`: two bounded inputs of 5 M rows grouped, as streams and at their end."""

import sys
import time
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from penstock.operator_attributes import GlobalWindows
from penstock.spark_plugin import Pipeline

_ROWS, _WARM_UP_ROWS, _FILES = 5_000_000, 500_000, 8
_ROWS_OF_A_KEY = 5
_SCHEMA = "k long, v long"


def streaming(rows: int, *, one_batch: bool = False) -> float:
    """Seconds as Spark does it on streams: both inputs, tagged, in one aggregate that keeps every key as state.

    Each micro-batch takes a file of each input, an eighth of it; or the first one takes all, which writes each key's
    state only once and so is the best that it can be.
    """
    path = _table(rows)
    began = time.perf_counter()
    one, two = (
        _stream(path, one_batch=one_batch).select("k", *(F.lit(side == at).cast("int").alias(at) for at in "lr"), "v")
        for side in "lr"
    )
    sums = [F.sum(F.col("v") * F.col(at)).alias(f"{at}_sum") for at in "lr"]
    counts = [F.sum(at).alias(f"{at}_rows") for at in "lr"]
    query = (
        one.union(two)
        .groupBy("k")
        .agg(*sums, *counts)
        .writeStream.outputMode("update")
        .format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(jobs.fresh("checkpoint")))
        .start()
    )
    query.awaitTermination()
    return _said("streaming, one micro-batch" if one_batch else "streaming", rows, time.perf_counter() - began)


def at_end_of_stream(rows: int) -> float:
    """Seconds of the pipeline: a window per key that fires at the end of both inputs; its result is committed, too."""
    path = _table(rows)
    began = time.perf_counter()
    pipeline = Pipeline("cogroup", store=jobs.fresh("store"))
    window = GlobalWindows.create_with_end_of_stream_trigger()
    one, two = (
        pipeline.read(name, format="parquet", bounded=True, options={"path": path}).key_by("k").window(window)
        for name in ("left", "right")
    )
    both = one.co_group_aggregate(
        two,
        ["sum(v) as l_sum", "count(*) as l_rows"],
        ["sum(v) as r_sum", "count(*) as r_rows"],
        name="both",
    )
    both.write_to("out", format="noop", mode="overwrite")
    pipeline.run(jobs.session())
    return _said("end of stream", rows, time.perf_counter() - began)


def run(rounds: int) -> Iterator[Case]:
    """The streaming ways over the end-of-stream way. Warmed up on fewer rows: a round takes a minute or more."""
    for _ in range(2):
        at_end_of_stream(_WARM_UP_ROWS)
        streaming(_WARM_UP_ROWS)
    figures: dict[bool, tuple[list[float], list[float]]] = {False: ([], []), True: ([], [])}
    for _ in range(rounds):
        for one_batch, (ours, peers) in figures.items():
            ours.append(streaming(_ROWS, one_batch=one_batch))
            peers.append(at_end_of_stream(_ROWS))
    for one_batch, (ours, peers) in figures.items():
        name = f"{'one-batch-' if one_batch else ''}streaming-over-end-of-stream"
        yield Case(name=name, peer_name="end-of-stream", unit="s", ours=ours, peers=peers)


def _table(rows: int) -> str:
    return jobs.table(rows, rows // _ROWS_OF_A_KEY, _FILES)


def _stream(path: str, *, one_batch: bool) -> DataFrame:
    return jobs.session().readStream.schema(_SCHEMA).parquet(path) if one_batch else jobs.stream(path, _SCHEMA)


def _said(way: str, rows: int, seconds: float) -> float:
    print(f"{way}: 2 x {rows:,} rows in {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds
