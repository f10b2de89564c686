import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes, StageProgress, StageState, VertexKind
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.run.loop import bar_line
from penstock.spark_plugin._stages.run.start import RunSettings, run_pipeline
from penstock.spark_plugin.errors import PipelineError, StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def meeting(folder: Path, me: str, other: str, *, seconds: float) -> Callable[..., Iterator[pd.DataFrame]]:
    """A task that leaves a file, and looks for the other's file for so long."""
    text = str(folder)

    def meet(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            (Path(text) / me).touch()
            deadline = time.monotonic() + seconds
            while not (Path(text) / other).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            frame["met"] = (Path(text) / other).exists()
            time.sleep(0.3)  # the other one looks, too
            (Path(text) / me).unlink()
            yield frame

    return meet


def two_branches(folder: Path, *, seconds: float) -> Pipeline:
    pipeline = Pipeline("branches", store=folder / "store")
    text = str(folder)

    @pipeline.source(bounded=True)
    def left(spark: SparkSession) -> DataFrame:
        return spark.range(1, numPartitions=1)

    @pipeline.source(bounded=True)
    def right(spark: SparkSession) -> DataFrame:
        return spark.range(1, numPartitions=1)

    @pipeline.op(attributes=FULL_DAM)
    def one(left: DataFrame) -> DataFrame:
        return left.mapInPandas(meeting(Path(text), "one", "two", seconds=seconds), "id long, met boolean")

    @pipeline.op(attributes=FULL_DAM)
    def two(right: DataFrame) -> DataFrame:
        return right.mapInPandas(meeting(Path(text), "two", "one", seconds=seconds), "id long, met boolean")

    @pipeline.sink()
    def out(one: DataFrame, two: DataFrame) -> Any:
        return one.union(two).write.format("parquet").option("path", f"{text}/out").mode("overwrite")

    return pipeline


def test_independent_stages_run_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    """Each sees the other at work; their jobs are found by the stages' names."""
    two_branches(tmp_path, seconds=30).run(spark)
    assert any(row["met"] for row in spark.read.parquet(str(tmp_path / "out")).collect())
    for group in ("one", "two", "out"):
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(group)


def test_the_slot_budget_holds_stages_back(spark: SparkSession, tmp_path: Path) -> None:
    """With one slot neither ever sees the other."""
    two_branches(tmp_path, seconds=0.5).run(spark, slots=1)
    assert not any(row["met"] for row in spark.read.parquet(str(tmp_path / "out")).collect())


def test_a_failure_runs_only_its_own_stage_again(spark: SparkSession, tmp_path: Path) -> None:
    """The stage that fails once is tried again; what it reads is not."""
    pipeline = Pipeline("flaky", store=tmp_path / "store")
    text = str(tmp_path)

    def fail_once(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        if not (Path(text) / "failed").exists():
            (Path(text) / "failed").touch()
            raise OSError("the machine")
        yield from frames

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.range(3)

    @pipeline.op(attributes=FULL_DAM)
    def sound(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy("id").count()

    @pipeline.op(attributes=FULL_DAM)
    def flaky(sound: DataFrame) -> DataFrame:
        return sound.coalesce(1).mapInPandas(fail_once, sound.schema)

    @pipeline.sink()
    def out(flaky: DataFrame) -> Any:
        return flaky.write.format("noop").mode("overwrite")

    run = pipeline.run(spark, max_attempts=2)
    attempts = {stage.name: run.progress[stage.id].attempts for stage in run.plan.stages}
    assert attempts == {"sound": 1, "flaky": 2, "out": 1}


@pytest.mark.parametrize(("regions", "attempts"), [("per-result", [1, 3]), ("merge", [3])])
def test_a_sink_is_written_once_though_another_one_of_its_stage_fails(
    spark: SparkSession, tmp_path: Path, regions: str, attempts: list[int]
) -> None:
    """The stage is tried again; rows that are appended would be there twice. By default each sink is a stage."""
    pipeline = Pipeline("sinks", store=tmp_path / "store", cyclic_regions=regions)
    text = str(tmp_path)
    tries: list[str] = []

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.range(3)

    def flaky(numbers: DataFrame) -> Any:
        tries.append("flaky")
        if len(tries) < 3:
            raise OSError("the machine")
        return numbers.write.format("parquet").mode("append").option("path", f"{text}/flaky")

    def appended(numbers: DataFrame) -> Any:
        return numbers.write.format("parquet").mode("append").option("path", f"{text}/appended")

    # What a test counts is not part of the code.
    for function in (appended, flaky):
        pipeline.declare(function.__name__, VertexKind.SINK, function, inputs=("numbers",), code="its own")
    run = pipeline.run(spark)
    assert [run.progress[stage.id].attempts for stage in run.plan.stages] == attempts
    for name in ("appended", "flaky"):
        assert spark.read.parquet(f"{text}/{name}").count() == 3
    again = pipeline.run(spark, resume=False)
    assert set(again.states.values()) == {StageState.FINISHED}
    assert spark.read.parquet(f"{text}/appended").count() == 6


def test_an_interrupt_ends_stages_that_had_not_begun_their_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """Whenever it comes: what is cancelled before there is a job would run on to its end."""
    pipeline = Pipeline("endless", store=tmp_path / "store")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.range(10**15, numPartitions=2)

    @pipeline.op(attributes=FULL_DAM)
    def total(numbers: DataFrame) -> DataFrame:
        started.append("total")
        return numbers.selectExpr("sum(hash(id)) as total")

    @pipeline.sink()
    def out(total: DataFrame) -> Any:
        return total.write.format("noop").mode("overwrite")

    started: list[str] = []

    def clock() -> float:
        if started:
            started.clear()
            raise KeyboardInterrupt
        return time.monotonic()

    settings = RunSettings(progress=True)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(pipeline, spark, settings, clock=clock)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def live(folder: Path, *, store: str = "store", shared: str | None = None, more: int = 0) -> Pipeline:
    """Totals of a file, and a stream joined with them."""
    text = str(folder)
    pipeline = Pipeline(f"live-{store}", store=folder / store, stages=folder / shared if shared else None)

    @pipeline.source(bounded=True)
    def rates(spark: SparkSession) -> DataFrame:
        return spark.read.csv(f"{text}/rates.csv", schema="k int, v int", header=True)

    @pipeline.op(attributes=FULL_DAM)
    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy("k").agg((F.sum("v") + more).alias("total"))

    @pipeline.source(bounded=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    @pipeline.op()
    def joined(numbers: DataFrame, totals: DataFrame) -> DataFrame:
        return numbers.join(totals, numbers["value"] == totals["k"])

    @pipeline.sink()
    def out(joined: DataFrame) -> Any:
        return joined.writeStream.format("noop")

    return pipeline


def test_a_resumed_stream_keeps_its_snapshot_until_refreshed(
    spark: SparkSession, tmp_path: Path, until: Callable[..., None]
) -> None:
    """New inputs are looked at by `refresh` alone, new code always; results that no run pins are removed."""

    def states(pipeline: Pipeline, **arguments: Any) -> StageState:
        run = pipeline.run(spark, **arguments)
        run.stop()
        return run.states["totals"]

    (tmp_path / "rates.csv").write_text("k,v\n0,1\n")
    # As a driver leaves it that was killed while it wrote the first offsets: Spark alone would not begin there.
    offsets = tmp_path / "store/live/out/checkpoint/offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.5b7e.tmp").touch()
    first = live(tmp_path).run(spark)
    until((offsets / "0").exists, "the query did not begin")
    first.stop()
    assert first.states["totals"] is StageState.FINISHED
    (kept,) = (tmp_path / "store/stages/totals").iterdir()
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n1,1\n")
    assert states(live(tmp_path)) is StageState.REUSED
    assert states(live(tmp_path), refresh=True) is StageState.FINISHED
    (fresh,) = (tmp_path / "store/stages/totals").iterdir()
    assert fresh != kept
    assert states(live(tmp_path), refresh=True) is StageState.REUSED
    assert states(live(tmp_path, more=1)) is StageState.FINISHED


def test_a_run_after_a_failure_names_the_sources_that_have_changed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its results are of what they held when the failed run began; the next run has what they hold now."""
    text = str(tmp_path)

    def run() -> tuple[StageState, list[str]]:
        pipeline = Pipeline("nightly", store=tmp_path / "store")

        @pipeline.source(bounded=True)
        def sales(spark: SparkSession) -> DataFrame:
            return spark.read.csv(f"{text}/sales.csv", schema="n int")

        @pipeline.op(attributes=FULL_DAM)
        def total(sales: DataFrame) -> DataFrame:
            return sales.agg(F.sum("n").alias("total"))

        @pipeline.sink(pure=True)
        def report(total: DataFrame) -> Any:
            if (Path(text) / "full").exists():
                raise OSError("no space left")
            return total.write.format("noop").mode("overwrite")

        found = pipeline.run(spark, max_attempts=1)
        return found.states["total"], [*found.warnings]

    (tmp_path / "sales.csv").write_text("1\n")
    (tmp_path / "full").touch()
    for _ in range(2):  # nothing has changed before the second one
        with pytest.raises(StageFailedError) as failed:
            run()
        assert failed.value.run.warnings == []
    (tmp_path / "full").unlink()
    (tmp_path / "sales.csv").write_text("20\n")
    state, warnings = run()
    assert state is StageState.REUSED
    assert [one.partition(") ")[2] for one in warnings] == [
        "has changed since the run that this one continues: the rows of 'total' are of what it held then; "
        "run(spark, refresh=True) computes them again"
    ]
    assert warnings[0].startswith("source 'sales' (")
    assert warnings[0] in caplog.text
    assert run() == (StageState.FINISHED, [])


def test_stores_share_the_results_of_equal_stages(spark: SparkSession, tmp_path: Path) -> None:
    """The second driver's stage is the first one's; neither cleans up what the other pins."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n")
    first = live(tmp_path, store="a", shared="shared").run(spark)
    second = live(tmp_path, store="b", shared="shared").run(spark)
    assert (first.states["totals"], second.states["totals"]) == (StageState.FINISHED, StageState.REUSED)
    second.stop()
    other = live(tmp_path, store="b", shared="shared", more=1).run(spark)
    other.stop()
    first.stop()
    assert len(list((tmp_path / "shared/totals").iterdir())) == 2
    (tmp_path / "shared/.pins").rename(tmp_path / "forgotten")
    assert live(tmp_path, store="a", shared="shared").clean_up() > 0
    assert not (tmp_path / "shared/totals").exists()


def test_the_lease_on_a_store_ends_with_its_driver(tmp_path: Path, until: Callable[..., None]) -> None:
    """Another process is refused while the driver lives, and let in as soon as it is killed."""
    text = (
        "import sys, time\nfrom pathlib import Path\n"
        "from penstock.spark_plugin._stages.store.opening import StorePlace\n"
        "store = StorePlace(store=Path(sys.argv[1]), stages=None).open().__enter__()\n"
        "open(sys.argv[1] + '/held', 'w').close()\ntime.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", text, str(tmp_path)])
    pipeline = Pipeline("second", store=tmp_path)
    try:
        until((tmp_path / "held").exists, "the store was not taken")
        with pytest.raises(PipelineError, match=f"STORE_IN_USE.*process {process.pid}"):
            pipeline.clean_up()
    finally:
        process.kill()
        process.wait()
    assert pipeline.clean_up() == 0
    assert os.path.exists(tmp_path / "lock")


def test_a_bar_says_how_far_a_stage_has_come() -> None:
    """Tasks while it runs, rows when it is committed."""
    half = bar_line("daily", StageProgress(state=StageState.RUNNING, seconds=1.5), 5, 10)
    assert "#" * 15 + "." * 15 in half
    assert "5/10 tasks" in half
    done = bar_line("daily", StageProgress(state=StageState.REUSED, rows=1095), 0, 0)
    assert "#" * 30 in done
    assert "1,095 rows" in done
