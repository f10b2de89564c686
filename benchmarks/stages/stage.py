"""The cases of `hatch run bench stage`: a stream joined with an aggregate of 20 M rows, as it is and staged."""

import statistics
import time
import uuid
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _jobs as jobs
from benchmarks._harness import Case, interleave
from benchmarks._processes import processor_seconds, seconds_between
from benchmarks.stages import _s3 as s3
from benchmarks.stages import _statistics as aggregates
from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline, run_staged

_GIGABYTE_ROWS = 7_500_000
"""Each row has a number and two texts of 64 characters."""
_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def run(rounds: int) -> Iterator[Case]:
    """Time per micro-batch and when the stage has paid for itself, with usual statistics and with the lightest ones."""
    yield from _cases(aggregates.by_name, "", rounds)
    yield from _cases(aggregates.light, "light-", rounds)
    yield from _store_cases(rounds)


def _store_cases(rounds: int) -> Iterator[Case]:
    """A run whose one stage commits 1 GB of rows, and whose sink reads them, on S3 and in a folder.

    By the clock; and by the processor without the S3 server, which would stand elsewhere, and here takes as much of two
    cores as the rest.
    """
    path = str(jobs.fresh("gigabyte"))
    texts = (F.sha2(F.concat(F.col("id"), F.lit(salt)), 256).alias(salt) for salt in "ab")
    jobs.session().range(_GIGABYTE_ROWS, numPartitions=4).select("id", *texts).write.parquet(path)
    processor: dict[bool, list[float]] = {True: [], False: []}

    def seconds(store: str, options: Mapping[str, str] | None) -> float:
        pipeline = Pipeline("bench", store=store, store_options=options)
        pipeline.read("rows", format="parquet", bounded=True, options={"path": path})
        pipeline.op(attributes=_FULL_DAM, inputs=["rows"], name="kept")(lambda rows: rows)
        pipeline.sink(inputs=["kept"], name="out", exchange="blocking")(
            lambda kept: kept.write.format("noop").mode("overwrite")
        )
        began, before = time.perf_counter(), processor_seconds()
        pipeline.run(jobs.session())
        took = time.perf_counter() - began
        processor[options is not None].append(sum(seconds_between(before, processor_seconds()).values()))
        return took

    yield interleave(
        "s3-over-folder",
        lambda: seconds(f"s3://{s3.BUCKET}/{uuid.uuid4().hex}", s3.store_options()),
        lambda: seconds(str(jobs.fresh("store")), None),
        peer_name="folder",
        unit="s",
        rounds=rounds,
    )
    # Without the warm-up.
    ours, peers = (processor[is_s3][-rounds:] for is_s3 in (True, False))
    yield Case(name="s3-over-folder-processor-time", peer_name="folder", unit="s", ours=ours, peers=peers)


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
