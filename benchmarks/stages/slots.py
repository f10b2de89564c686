"""The cases of `hatch run bench slots`: a stream joined with a bounded input, all deployed at once, and staged."""

import time
from collections.abc import Iterator

from pyspark.sql import DataFrame

from benchmarks import _jobs as jobs
from benchmarks._harness import Case, interleave
from penstock.spark_plugin import PipelineRun, run_staged

_ROWS = 1_000_000
_SCHEMA = "k long, v long"


class _Naive:
    """One stream-stream join: the bounded input is read as a stream, and kept as state."""

    def __init__(self) -> None:
        self.state_bytes: list[float] = []

    def slot_seconds(self) -> float:
        """Slots of both inputs, for as long as the job runs."""
        bounded = jobs.stream(jobs.table(_ROWS, _ROWS), _SCHEMA)
        live = jobs.stream(jobs.stream_files(1_000, _ROWS))
        began = time.perf_counter()
        writer = live.join(bounded, "k").writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(jobs.fresh("checkpoint"))).start()
        query.awaitTermination()
        seconds = time.perf_counter() - began
        states = (one["memoryUsedBytes"] for batch in query.recentProgress for one in batch["stateOperators"])
        self.state_bytes.append(float(max(states, default=0)))
        return 2 * seconds


class _Staged:
    """The bounded input in a stage of its own, the stream deployed after it."""

    def __init__(self) -> None:
        self.held_bytes: list[float] = []
        self.estimates: list[float] = []
        self.measured: list[float] = []
        self._before: PipelineRun | None = None

    def slot_seconds(self) -> float:
        """The slot of the bounded stage until it has committed, then the slot of the live one."""
        began = time.perf_counter()
        run = run_staged(self._frame().writeStream.format("noop").trigger(availableNow=True), store=jobs.fresh("store"))
        deployed = time.perf_counter()
        run.await_termination()
        ended = time.perf_counter()
        run.stop()
        progress = run.progress
        self.held_bytes.append(float(sum(one.size_bytes or 0 for one in progress.values())))
        if self._before is not None:
            self.estimates.append(self._before.estimate().slot_seconds)
            self.measured.append(deployed - began)
        self._before = run
        return (deployed - began) + (ended - deployed)

    @staticmethod
    def _frame() -> DataFrame:
        bounded = jobs.session().read.parquet(jobs.table(_ROWS, _ROWS)).sort("v")
        return jobs.stream(jobs.stream_files(1_000, _ROWS)).join(bounded, "k")


def run(rounds: int) -> Iterator[Case]:
    """Slot-seconds, bytes that are held for the join, and the estimate of slot-seconds against the next run's."""
    naive, staged = _Naive(), _Staged()
    yield interleave(
        "slot-seconds-naive-over-staged",
        naive.slot_seconds,
        staged.slot_seconds,
        peer_name="staged",
        unit="slot-s",
        rounds=rounds,
    )
    yield Case(
        name="state-bytes-naive-over-staged",
        peer_name="committed-bytes",
        unit="bytes",
        ours=naive.state_bytes[-rounds:],
        peers=staged.held_bytes[-rounds:],
    )
    yield Case(
        name="estimated-over-measured",
        peer_name="measured",
        unit="slot-s",
        ours=staged.estimates[-rounds:],
        peers=staged.measured[-rounds:],
    )
