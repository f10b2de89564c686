"""The case of `hatch run bench cogroup`: two bounded inputs of 5 M rows grouped together, as streams and at the end."""

import time
from collections.abc import Iterator

from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _spark_jobs as jobs
from benchmarks._harness import Case, interleave
from penstock.operator_attributes import GlobalWindows
from penstock.spark_plugin import Pipeline

_ROWS, _KEYS, _FILES = 5_000_000, 1_000_000, 8


def streaming() -> float:
    """Seconds as Spark does it on streams: both inputs, tagged, in one aggregate that keeps every key as state."""
    path = jobs.table(_ROWS, _KEYS, _FILES)
    began = time.perf_counter()
    one, two = (
        jobs.stream(path, "k long, v long").select("k", *(F.lit(side == at).cast("int").alias(at) for at in "lr"), "v")
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
    return time.perf_counter() - began


def at_end_of_stream() -> float:
    """Seconds of the pipeline: a window per key that fires at the end of both inputs."""
    path = jobs.table(_ROWS, _KEYS, _FILES)
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
    return time.perf_counter() - began


def run(rounds: int) -> Iterator[Case]:
    """The streaming way over the end-of-stream way."""
    yield interleave(
        "streaming-over-end-of-stream",
        streaming,
        at_end_of_stream,
        peer_name="end-of-stream",
        unit="s",
        rounds=rounds,
    )
