"""A failed stage shows the exception of the user's own code, and where it was raised."""

import logging
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from patience import PATIENCE_SECONDS
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline, PipelineRun
from penstock.spark_plugin.errors import StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def divider() -> Callable[[int], int]:
    def divide(value: int) -> int:  # one of a module would be looked for where Spark's workers have no tests
        return 1 // (value - value)

    return divide


def line_of(function: Callable[..., Any], offset: int = 1) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno + offset}, in {function.__name__}"


def batch(folder: Path, function: Callable[[DataFrame], DataFrame]) -> Pipeline:
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=True, name="a")(lambda spark: spark.range(3))
    pipeline.op(attributes=FULL_DAM, name="b", inputs=["a"])(function)
    pipeline.sink(name="c", inputs=["b"])(lambda b: b.write.format("noop").mode("overwrite"))
    return pipeline


def live(folder: Path, sink: Callable[[DataFrame], Any]) -> Pipeline:
    (folder / "in").mkdir()
    (folder / "in" / "0.csv").write_text("0\n")
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=False, name="a")(lambda spark: spark.readStream.schema("n int").csv(str(folder / "in")))
    pipeline.sink(name="out", inputs=["a"])(sink)
    return pipeline


def failed(run: PipelineRun) -> str:
    with pytest.raises(StreamingQueryException):
        run.await_termination(PATIENCE_SECONDS)
    assert run.states == {"out": StageState.FAILED}
    (state,) = [line.strip() for line in run.explain().splitlines() if "state:" in line]
    run.stop()
    return state.partition(" s, ")[2]


@contextmanager
def room_for(spark: SparkSession, size_bytes: int) -> Iterator[None]:
    """Let the JVM write no more than this into a file, as on a disk that is full."""
    pid = java(spark).lang.ProcessHandle.current().pid()
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def java(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return gateway.jvm.java


FULL = "java.io.IOException: File too large"


def test_a_full_disk_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The batch job's own error says only that rows could not be written."""
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(lambda spark: spark.range(100_000))
    pipeline.sink(name="b", inputs=["a"])(lambda a: a.write.format("csv").option("path", str(tmp_path / "out")))
    with room_for(spark, 1_000), pytest.raises(StageFailedError) as caught:
        pipeline.run(spark, max_attempts=1)
    assert caught.value.reason.startswith("org.apache.spark.SparkException: [TASK_WRITE_FAILED]")
    assert caught.value.reason.endswith(f"; caused by: {FULL}")
    assert caught.value.reason in caught.value.run.explain()


def test_a_full_disk_below_a_sinks_own_write_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A function for micro-batches writes on its own: its place is shown, too."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.sparkSession.range(100_000).write.csv(str(tmp_path / "out"))

    with room_for(spark, 10_000):
        reason = failed(live(tmp_path, lambda a: a.writeStream.foreachBatch(write)).run(spark))
    assert reason.startswith("org.apache.spark.SparkException: [TASK_WRITE_FAILED]")
    assert reason.endswith(f" ({line_of(write)}); caused by: {FULL}")


def test_a_full_disk_below_a_shuffle_is_named_once(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own error holds it already."""
    with room_for(spark, 1_000), pytest.raises(StageFailedError) as caught:
        batch(tmp_path, lambda a: a.sparkSession.range(100_000).repartition(3)).run(spark, max_attempts=1)
    assert caught.value.reason.count(FULL) == 1
    assert "; caused by" not in caught.value.reason


def test_a_failed_batch_stage_shows_the_users_exception(spark: SparkSession, tmp_path: Path) -> None:
    """That of a udf, not that something was thrown; and has it as its cause."""
    divide = divider()
    with pytest.raises(StageFailedError) as caught:
        batch(tmp_path, lambda a: a.select(F.udf(divide, "int")("id").alias("x"))).run(spark, max_attempts=1)
    wanted = f"ZeroDivisionError: integer division or modulo by zero ({line_of(divide)})"
    assert str(caught.value) == f"stage 'b' failed: {wanted}"
    assert wanted in caught.value.run.explain()
    assert "ZeroDivisionError" in str(caught.value.__cause__)


def test_all_lines_of_a_message_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    """Notes are lines, too."""

    def check(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        error = ValueError("bad value\nin row 3")
        error.add_note("look at the file")
        raise error

    with pytest.raises(StageFailedError) as caught:
        batch(tmp_path, lambda a: a.mapInPandas(check, "id long")).run(spark, max_attempts=1)
    assert caught.value.reason == f"ValueError: bad value; in row 3; look at the file ({line_of(check, 3)})"


def test_a_mistake_in_a_definition_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """Before the error itself, whose traceback is the only one."""
    wrong: Any = lambda a: 3  # noqa: E731  # by its line
    with pytest.raises(StageFailedError) as caught:
        batch(tmp_path, wrong).run(spark)
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert lines[0] == (
        "penstock.spark_plugin.errors.PipelineDefinitionError: "
        f"'b' ({wrong.__code__.co_filename}:{wrong.__code__.co_firstlineno}) must give a DataFrame, not int"
    )
    assert sum(line.startswith("Traceback") for line in lines) == 1


@pytest.mark.parametrize("wrong", [lambda a: 3, lambda a: a.select("absent")], ids=["no frame", "no column"])
def test_a_mistake_in_a_definition_is_logged_without_a_traceback(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    """Whether we refuse it or Spark does: the words say where it is."""
    with caplog.at_level(logging.WARNING, logger="penstock.spark_plugin"), pytest.raises(StageFailedError):
        batch(tmp_path, wrong).run(spark)
    (logged,) = [one for one in caplog.records if one.getMessage().startswith("stage ")]
    assert f"{wrong.__code__.co_filename}:{wrong.__code__.co_firstlineno}" in logged.getMessage()
    assert not logged.exc_info


def test_an_error_of_spark_is_shown_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Without the plan and the frames of the JVM."""
    with pytest.raises(StageFailedError) as caught:
        batch(tmp_path, lambda a: a.select(F.raise_error(F.lit("no such rate")).alias("x"))).run(spark, max_attempts=1)
    assert caught.value.reason == "[USER_RAISED_EXCEPTION] no such rate SQLSTATE: P0001"


def test_a_failed_live_stage_shows_the_users_exception(spark: SparkSession, tmp_path: Path) -> None:
    """In explain, for a UDF."""
    divide = divider()
    pipeline = live(tmp_path, lambda a: a.select(F.udf(divide, "int")("n")).writeStream.format("noop"))
    run = pipeline.run(spark)
    assert failed(run) == f"ZeroDivisionError: integer division or modulo by zero ({line_of(divide)})"


def test_a_failed_sink_shows_the_users_exception(spark: SparkSession, tmp_path: Path) -> None:
    """In explain, for a function for micro-batches, without a line of the bridge to the JVM."""

    def write(frame: DataFrame, batch_id: int) -> None:
        raise KeyError(batch_id)

    run = live(tmp_path, lambda a: a.writeStream.foreachBatch(write)).run(spark)
    assert failed(run) == f"KeyError: 0 ({line_of(write)})"
