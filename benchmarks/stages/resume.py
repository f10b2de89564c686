"""The cases of `hatch run bench resume`: from a restart to the first live row, with and without committed stages."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _jobs as jobs
from benchmarks._harness import Case, interleave
from benchmarks.stages import _statistics as aggregates
from penstock.spark_plugin import run_staged


def run(rounds: int) -> Iterator[Case]:
    """A driver whose session is up, with rows waiting in the stream; usual statistics, and the lightest ones."""
    yield _case(aggregates.by_name, "", rounds)
    yield _case(aggregates.light, "light-", rounds)


def _case(joined: aggregates.Joined, prefix: str, rounds: int) -> Case:
    store, incoming = jobs.fresh("store"), jobs.fresh("incoming")
    jobs.session().range(1_000).select(F.col("id").alias("k")).coalesce(1).write.parquet(str(incoming))
    (part,) = incoming.glob("part-*")

    def first_row(*, resume: bool) -> float:
        (incoming / f"more-{time.monotonic_ns()}.parquet").write_bytes(Path(part).read_bytes())
        seen = threading.Event()

        def write(frame: DataFrame, _: int) -> None:
            if frame.take(1):
                seen.set()

        rows = joined(jobs.session().readStream.schema("k long").parquet(str(incoming)))
        began = time.perf_counter()
        run = run_staged(rows.writeStream.foreachBatch(write), store=store, resume=resume)
        if not seen.wait(300):
            raise RuntimeError("no live row came")
        seconds = time.perf_counter() - began
        run.stop()
        return seconds

    return interleave(
        f"{prefix}fresh-over-resumed",
        lambda: first_row(resume=False),
        lambda: first_row(resume=True),
        peer_name="resumed",
        unit="s",
        rounds=rounds,
    )
