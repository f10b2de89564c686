"""Which parts of a pipeline are a stage: results apart, edges and circles as declared, and how many tasks they take."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import PipelineDefinitionError, StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
FINISHED, REUSED, SKIPPED = StageState.FINISHED, StageState.REUSED, StageState.SKIPPED


def noting(folder: Path, name: str, *, wait_for: str = "") -> Any:
    """A function over Arrow batches that leaves when it began and ended, and may wait for another to begin."""
    here, there = str(folder / name), str(folder / wait_for) if wait_for else ""

    def note(batches: Iterator[Any]) -> Iterator[Any]:
        import pathlib
        import time

        began = time.monotonic_ns()
        pathlib.Path(here).touch()
        while there and not pathlib.Path(there).exists():
            if time.monotonic_ns() - began > 60e9:
                raise TimeoutError(there)
            time.sleep(0.01)
        yield from batches
        pathlib.Path(here).write_text(f"{began} {time.monotonic_ns()}")

    return note


def siblings(folder: Path, *, fails: bool = False, together: bool = False, parallelism: int | None = None) -> Pipeline:
    """Two full-dam operators over one bounded source, each of one task, and a sink of both."""
    pipeline = Pipeline("siblings", store=folder / "store")
    pipeline.source(bounded=True, name="rates")(lambda spark: spark.range(4, numPartitions=1))

    def left(rates: DataFrame) -> DataFrame:
        return rates.mapInArrow(noting(folder, "left", wait_for="right" if together else ""), rates.schema)

    def right(rates: DataFrame) -> DataFrame:
        if fails:
            raise ValueError("made to fail")
        return rates.mapInArrow(noting(folder, "right", wait_for="left" if together else ""), rates.schema)

    for function in (left, right):
        pipeline.op(attributes=FULL_DAM, parallelism=parallelism, pure=True)(function)

    @pipeline.sink()
    def out(left: DataFrame, right: DataFrame) -> Any:
        return left.join(right, "id").write.format("parquet").mode("overwrite").option("path", str(folder / "out"))

    return pipeline


def test_results_of_one_source_are_committed_apart(spark: SparkSession, tmp_path: Path) -> None:
    """One that fails leaves the other's result, and the next run computes only what is missing."""
    with pytest.raises(StageFailedError) as failed:
        siblings(tmp_path, fails=True).run(spark, max_attempts=1)
    assert failed.value.run.states == {"left": FINISHED, "right": StageState.FAILED, "out": SKIPPED}
    again = siblings(tmp_path).run(spark)
    assert again.states == {"left": REUSED, "right": FINISHED, "out": FINISHED}
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4

    (marker,) = (tmp_path / "store" / "stages" / "left").glob("*/_COMMITTED.json")
    marker.unlink()
    assert siblings(tmp_path).run(spark).states == {"left": FINISHED, "right": REUSED, "out": REUSED}


def test_results_of_different_states_of_a_source_give_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    """A run continues after its source has changed: committed results stay, the rest reads the current rows."""
    rates = tmp_path / "rates.csv"

    def job(*, fails: bool = False) -> Pipeline:
        pipeline = Pipeline("job", store=tmp_path / "store")
        pipeline.source(bounded=True, name="rates")(lambda spark: spark.read.csv(str(rates), schema="id int"))
        pipeline.op(name="left", inputs=["rates"], attributes=FULL_DAM)(lambda frame: frame.distinct())

        def right(rates: DataFrame) -> DataFrame:
            if fails:
                raise ValueError("made to fail")
            return rates.distinct()

        pipeline.op(attributes=FULL_DAM)(right)
        pipeline.sink(name="out", inputs=["left", "right"])(
            lambda left, right: left.union(right).write.format("noop").mode("overwrite")
        )
        return pipeline

    rates.write_text("1\n")
    with pytest.raises(StageFailedError):
        job(fails=True).run(spark, max_attempts=1)
    rates.write_text("1\n2\n")
    run = job().run(spark)
    assert run.states == {"left": REUSED, "right": FINISHED, "out": FINISHED}
    place = run.plan.graph["rates"].call_site
    wanted = (
        f"source 'rates' ({place}) has changed between the stages that read it: the rows of 'left' and of 'right' are "
        "of different states; run(spark, refresh=True) computes them from one"
    )
    assert list(run.warnings) == [wanted]
    assert wanted in run.explain()
    again = job().run(spark, refresh=True)
    assert again.states == {"left": FINISHED, "right": REUSED, "out": FINISHED}
    assert not again.warnings


def test_results_of_one_source_are_computed_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    """Each waits for the other to begin: one after the other they would never end."""
    run = siblings(tmp_path, together=True).run(spark, max_attempts=1)
    assert run.states == {"left": FINISHED, "right": FINISHED, "out": FINISHED}


@pytest.mark.parametrize(("slots", "parallelism"), [(1, None), (2, 2), (3, 2)])
def test_no_more_stages_run_than_there_are_slots(
    spark: SparkSession, tmp_path: Path, slots: int, parallelism: int | None
) -> None:
    """A stage takes as many as its parallelism says, one if it says nothing."""
    siblings(tmp_path, parallelism=parallelism).run(spark, slots=slots)
    (_, first_ends), (second_begins, _) = sorted(
        tuple(map(int, (tmp_path / name).read_text().split())) for name in ("left", "right")
    )
    assert first_ends <= second_begins


def test_parallelism_bounds_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Files show the tasks of a source, of an operator with what runs in its tasks, and of a sink."""
    pipeline = Pipeline("narrow", store=tmp_path / "store")
    pipeline.source(bounded=True, name="eight")(lambda spark: spark.range(100, numPartitions=8))
    pipeline.source(bounded=True, name="three", parallelism=3)(lambda spark: spark.range(100, numPartitions=8))
    pipeline.op(name="all", inputs=["eight"], attributes=FULL_DAM)(lambda frame: frame)
    pipeline.op(name="two", inputs=["eight"], attributes=FULL_DAM, parallelism=2)(lambda frame: frame)

    def write(frame: DataFrame) -> Any:
        return frame.write.format("parquet").option("path", str(tmp_path / "one"))

    pipeline.sink(name="one", inputs=["eight"], parallelism=1)(write)

    def write_three(frame: DataFrame) -> Any:
        return frame.write.format("parquet").option("path", str(tmp_path / "three"))

    pipeline.sink(name="of three", inputs=["three"])(write_three)
    pipeline.sink(name="rest", inputs=["all", "two"])(
        lambda one, other: one.union(other).write.format("noop").mode("overwrite")
    )
    run = pipeline.run(spark)
    stages = tmp_path / "store" / "stages"
    assert {name: len(list((stages / name).glob("*/*/*/part-*"))) for name in ("all", "two")} == {"all": 8, "two": 2}
    assert [len(list((tmp_path / name).glob("part-*"))) for name in ("one", "three")] == [1, 3]
    assert {stage.name: stage.slots for stage in run.plan.stages} == {
        "all": 1,
        "two": 2,
        "one": 1,
        "of three": 3,
        "rest": 1,
    }


def live_job(folder: Path, **how: Any) -> Pipeline:
    """Totals of three rows, and the rows themselves, joined with a stream of one file."""
    live = folder / "live"
    live.mkdir()
    (live / "0.json").write_text('{"id": 1}\n')
    pipeline = Pipeline("job", store=folder / "store", cyclic_regions=how.pop("cyclic_regions", "per-result"))
    pipeline.source(bounded=True, name="rates")(lambda spark: spark.range(3))
    pipeline.op(name="clean", inputs=["rates"])(lambda rates: rates.where("id > 0"))
    pipeline.op(name="totals", inputs=["clean"], attributes=FULL_DAM)(lambda clean: clean.groupBy("id").count())
    pipeline.source(bounded=False, name="live")(lambda spark: spark.readStream.schema("id long").json(str(live)))
    pipeline.op(name="joined", inputs=["live", "clean", "totals"], **how)(
        lambda live, clean, totals: live.join(clean, "id").join(totals, "id")
    )
    pipeline.sink(name="out", inputs=["joined"], trigger={"availableNow": True})(
        lambda joined: joined.writeStream.format("parquet").option("path", str(folder / "out"))
    )
    return pipeline


@pytest.mark.parametrize(
    ("how", "stages"),
    [
        ({}, [("rates", "clean", "totals"), ("rates", "live", "clean", "joined", "out")]),
        ({"exchange": {"clean": "blocking"}}, [("rates", "clean", "totals"), ("live", "joined", "out")]),
        ({"exchange": "pipelined"}, [("rates", "live", "clean", "totals", "joined", "out")]),
        ({"exchange": {"totals": "pipelined"}}, [("rates", "live", "clean", "totals", "joined", "out")]),
        ({"cyclic_regions": "hand-over"}, [("rates", "clean", "totals"), ("live", "joined", "out")]),
        ({"cyclic_regions": "merge"}, [("rates", "live", "clean", "totals", "joined", "out")]),
    ],
)
def test_edges_and_circles_are_as_declared(
    spark: SparkSession, tmp_path: Path, how: dict[str, Any], stages: list[tuple[str, ...]]
) -> None:
    """However the job is cut, its rows are the same; and an edge that declares recomputing gives no warning."""
    run = live_job(tmp_path, **how).run(spark)
    run.await_termination()
    run.stop()
    assert [set(stage.vertices) for stage in run.plan.stages] == [set(stage) for stage in stages]
    assert [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [(1, 1)]
    assert not run.warnings


def test_a_mode_or_rule_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """With the place, and those that there are."""
    with pytest.raises(PipelineDefinitionError) as refused:
        live_job(tmp_path, exchange={"cleen": "blocking"})
    place = f"{__file__}:{live_job.__code__.co_firstlineno + 11}"
    assert str(refused.value) == (
        f"operator 'joined' ({place}) has the exchange {{'cleen': 'blocking'}}: give 'pipelined' or 'blocking', or "
        "either by one of its inputs, 'live', 'clean', 'totals'"
    )
    pipeline = Pipeline("job", store=tmp_path)
    batch: Any = lambda rates: rates  # noqa: E731  # by its line
    with pytest.raises(PipelineDefinitionError) as mode:
        pipeline.sink(inputs=["rates"], exchange="batch", name="out")(batch)
    place = f"{__file__}:{batch.__code__.co_firstlineno}"
    assert str(mode.value) == (
        f"sink 'out' ({place}) has the exchange 'batch': give 'pipelined' or 'blocking', or either by one of its "
        "inputs, 'rates'"
    )
    line = f"{__file__}:{batch.__code__.co_firstlineno + 10}"
    with pytest.raises(PipelineDefinitionError) as rule:
        Pipeline("job", store=tmp_path, cyclic_regions="twice")
    assert str(rule.value) == (
        f"pipeline 'job' ({line}) has cyclic_regions='twice': give one of 'merge', 'read-twice', 'per-result', "
        "'hand-over'"
    )
