"""The cases of `hatch run bench stage`: a stream joined with an aggregate of 20 M rows, as it is and staged."""

import statistics
from collections.abc import Iterator

from pyspark.sql import DataFrame

from benchmarks._harness import Case, interleave
from benchmarks.spark import _jobs as jobs
from benchmarks.spark import _statistics as aggregates
from penstock.spark_plugin import run_staged


def run(rounds: int) -> Iterator[Case]:
    """Time per micro-batch and when the stage has paid for itself, with usual statistics and with the lightest ones."""
    yield from _cases(aggregates.by_name, "", rounds)
    yield from _cases(aggregates.light, "light-", rounds)


def _cases(joined: aggregates.Joined, prefix: str, rounds: int) -> Iterator[Case]:
    stage_millis: list[float] = []

    def frame() -> DataFrame:
        return joined(jobs.stream(jobs.stream_files(1_000, aggregates.KEYS)))

    def naive() -> float:
        """Median milliseconds of micro-batches 2 to 8, as Spark runs the query."""
        writer = frame().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(jobs.fresh("checkpoint"))).start()
        query.awaitTermination()
        return statistics.median(jobs.batch_millis(query))

    def staged() -> float:
        run = run_staged(frame().writeStream.format("noop").trigger(availableNow=True), store=jobs.fresh("store"))
        run.await_termination()
        (query,) = run.queries.values()
        stage_millis.append(1000 * sum(seconds for name, seconds in run.seconds.items() if name != "output"))
        run.stop()
        return statistics.median(jobs.batch_millis(query))

    case = interleave(f"{prefix}naive-over-staged", naive, staged, peer_name="staged", unit="ms/batch", rounds=rounds)
    yield case
    saved = [ours - peer for ours, peer in zip(case.ours, case.peers, strict=True)]
    yield Case(
        name=f"{prefix}break-even-batches",
        peer_name="saved-per-batch",
        unit="ms",
        ours=stage_millis[-rounds:],
        peers=saved,
    )
