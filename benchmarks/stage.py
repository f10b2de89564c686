"""The cases of `hatch run bench stage`: a stream joined with an aggregate of 20 M rows, as it is and staged."""

import statistics
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _spark_jobs as jobs
from benchmarks._harness import Case, interleave
from penstock.spark_plugin import run_staged

_ROWS, _KEYS = 20_000_000, 10_000


def frame() -> DataFrame:
    """The job: rows of a stream with the totals of their key."""
    totals = jobs.session().read.parquet(jobs.table(_ROWS, _KEYS)).groupBy("k").agg(F.avg("v"), F.max("v"))
    return jobs.stream(jobs.stream_files(1_000, _KEYS)).join(totals, "k")


def naive() -> float:
    """Median milliseconds of micro-batches 2 to 8, as Spark runs the query."""
    writer = frame().writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(jobs.fresh("checkpoint"))).start()
    query.awaitTermination()
    return statistics.median(jobs.batch_millis(query))


def run(rounds: int) -> Iterator[Case]:
    """Time per micro-batch, and after how many of them the stage has paid for itself."""
    stage_millis: list[float] = []

    def staged() -> float:
        run = run_staged(frame().writeStream.format("noop").trigger(availableNow=True), store=jobs.fresh("store"))
        run.await_termination()
        (query,) = run.queries.values()
        stage_millis.append(1000 * sum(seconds for name, seconds in run.seconds.items() if name != "output"))
        run.stop()
        return statistics.median(jobs.batch_millis(query))

    case = interleave("naive-over-staged", naive, staged, peer_name="staged", unit="ms/batch", rounds=rounds)
    yield case
    saved = [ours - peer for ours, peer in zip(case.ours, case.peers, strict=True)]
    yield Case(
        name="break-even-batches",
        peer_name="saved-per-batch",
        unit="ms",
        ours=stage_millis[-rounds:],
        peers=saved,
    )
