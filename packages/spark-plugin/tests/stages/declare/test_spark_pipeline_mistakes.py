"""Mistakes in a pipeline are reported with their place, and with what to write, before anything runs."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.operator_attributes import OperatorAttributes, OperatorAttributesBuilder, StageState
from penstock.operator_attributes.errors import CompileError
from penstock.rpc import ClientSecurity
from penstock.spark_plugin import Pipeline, plan, run_staged
from penstock.spark_plugin.errors import PipelineDefinitionError, StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def here(offset: int = 0) -> str:
    """The caller's line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + offset}"


def place(function: Callable[..., Any]) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(PipelineDefinitionError) as caught:
        call()
    return str(caught.value)


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(1)


def same(a: DataFrame) -> DataFrame:
    return a


def write(a: DataFrame) -> Any:
    return a.write.format("noop").mode("overwrite")


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (
            OperatorAttributesBuilder().set_output_only_after_end_of_stream(True),
            "its attributes are a builder: call `.build()` on it",
        ),
        (
            {"output_only_after_end_of_stream": True},
            "its attributes are of type dict: give OperatorAttributes(output_only_after_end_of_stream=…, "
            "internal_sorter_supported=…)",
        ),
        (
            {},
            "its attributes are of type dict: give OperatorAttributes(output_only_after_end_of_stream=…, "
            "internal_sorter_supported=…)",
        ),
    ],
)
def test_invalid_attributes_are_refused(tmp_path: Path, attributes: Any, reason: str) -> None:
    """A builder that was not built, and a dict; in decorators and in streams."""
    pipeline = Pipeline("job", store=tmp_path)
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.op(attributes=attributes, name="b", inputs=["a"])(same)
    with pytest.raises(CompileError, match="INVALID_VERTEX") as caught:
        pipeline.compile()
    assert caught.value.facts["call_site"] == place(same)
    assert caught.value.facts["reason"] == reason
    pipeline = Pipeline("job", store=tmp_path)
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.stream("a").transform(same, attributes=attributes)
    line = here(-1)
    with pytest.raises(CompileError, match="INVALID_VERTEX") as caught:
        pipeline.compile()
    assert caught.value.facts["call_site"] == line


@pytest.mark.parametrize(
    ("decorator", "example"),
    [
        ("source", "@pipeline.source(bounded=True)"),
        ("op", "@pipeline.op()"),
        ("sink", "@pipeline.sink()"),
    ],
)
def test_a_decorator_without_parentheses(tmp_path: Path, decorator: str, example: str) -> None:
    """Python's own words would be of positional arguments."""
    pipeline: Any = Pipeline("job", store=tmp_path)
    assert refusal(lambda: getattr(pipeline, decorator)(same)) == (
        f"'same' ({place(same)}) is declared without parentheses: write `{example}`"
    )
    line = here(1)
    assert refusal(lambda: getattr(pipeline, decorator)("flights", name="a")) == (
        f"{line}: `{decorator}` takes arguments by name alone: write `{example}`"
    )


def test_a_source_says_whether_it_ends(tmp_path: Path) -> None:
    """There is no default."""
    pipeline = Pipeline("job", store=tmp_path)
    assert refusal(lambda: pipeline.source()(rows)) == (
        f"source 'rows' ({place(rows)}) does not say whether it ends: write `@pipeline.source(bounded=True)`, or False "
        "of a stream"
    )


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [
        ({"procesingTime": "1 second"}, "which Spark does not know: "),
        ("1 second", "which is not a mapping such as {'processingTime': '1 second'}: "),
    ],
)
def test_a_misspelt_trigger(tmp_path: Path, trigger: Any, reason: str) -> None:
    """It is refused when a sink is declared, whether it is live or not."""
    pipeline = Pipeline("job", store=tmp_path)
    known = [name for name in inspect.signature(DataStreamWriter.trigger).parameters if name != "self"]
    assert {"availableNow", "processingTime"} <= set(known)
    assert refusal(lambda: pipeline.sink(trigger=trigger)(write)) == (
        f"sink 'write' ({place(write)}) has the trigger {trigger!r}, {reason}give one of {', '.join(known)}"
    )


def test_a_trigger_of_a_batch_write(tmp_path: Path) -> None:
    """It would be ignored."""
    pipeline = Pipeline("job", store=tmp_path)
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.sink(trigger={"processingTime": "1 second"})(write)
    assert refusal(pipeline.compile) == (
        f"sink 'write' ({place(write)}) has the trigger {{'processingTime': '1 second'}}, but all that it reads is "
        "bounded, and a batch write has none: leave the trigger out, or declare its source with bounded=False"
    )


def test_pipelines_that_would_do_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """An empty one, and one without a sink, can be looked at but not run."""
    pipeline = Pipeline("job", store=tmp_path / "store")
    line = here(-1)
    assert refusal(lambda: pipeline.run(spark)) == (
        f"pipeline 'job' ({line}) is empty: declare its functions by @pipeline.source(…), @pipeline.op() and "
        "@pipeline.sink() before it is run"
    )
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.op(name="b", inputs=["a"])(same)
    assert "b" in pipeline.explain()
    assert refusal(lambda: pipeline.run(spark)) == (
        f"pipeline 'job' ({line}) has no sink, so that nothing would be written: declare one by @pipeline.sink()"
    )
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"lease_seconds": 5}, "lease_seconds has no effect without a stage scheduler: "),
        ({"scheduler_security": ClientSecurity()}, "scheduler_security has no effect without a stage scheduler: "),
        ({"restarts_per_hour": 5}, "restarts_per_hour=5 does nothing beside restart='never': "),
        ({"restart": "on-failure"}, "has restart='on-failure', which applies to live queries, and all of its sources "),
    ],
)
def test_what_would_do_nothing_in_a_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, reason: str
) -> None:
    """An option without effect is refused."""
    monkeypatch.delenv("PENSTOCK_STAGES_ENDPOINT", raising=False)
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.sink()(write)
    assert reason in refusal(lambda: pipeline.run(spark, **given))
    assert not (tmp_path / "store").exists()


def failed(pipeline: Pipeline, spark: SparkSession) -> str:
    """Why the only stage that fails does; it was refused before any job, and is not tried again."""
    with pytest.raises(StageFailedError) as caught:
        pipeline.run(spark)
    assert isinstance(caught.value.__cause__, PipelineDefinitionError)
    (progress,) = [one for one in caught.value.run.progress.values() if one.state is StageState.FAILED]
    assert progress.attempts == 1
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(caught.value.stage)
    return caught.value.reason


@pytest.mark.parametrize("second", ["id", "ID"])
def test_two_columns_of_one_name_in_a_committed_result(spark: SparkSession, tmp_path: Path, second: str) -> None:
    """Spark's own error comes after the rows were computed, and names neither operator nor line."""

    def twice(a: DataFrame) -> DataFrame:
        return a.selectExpr("id", f"id AS {second}", "1 AS one")

    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.op(name="first", inputs=["a"], attributes=FULL_DAM)(lambda a: a.selectExpr("id AS one"))
    pipeline.op(name=f"twice {second}", inputs=["a"], attributes=FULL_DAM)(twice)
    pipeline.sink(name="b", inputs=["first", f"twice {second}"])(lambda first, twice: write(first.crossJoin(twice)))
    reason = failed(pipeline, spark)
    assert reason.startswith(
        f"operator 'twice {second}' ({place(twice)}) gives several columns of one name, 'id', '{second}', "
    )
    assert "rename or drop all but one" in reason


def test_two_columns_of_one_name_that_are_not_committed(spark: SparkSession, tmp_path: Path) -> None:
    """An operator within a stage may give them, as Spark allows."""
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(rows)
    pipeline.op(name="twice", inputs=["a"])(lambda a: a.selectExpr("id", "id"))
    pipeline.op(name="once", inputs=["twice"], attributes=FULL_DAM)(lambda twice: twice.toDF("a", "b"))
    pipeline.sink(name="b", inputs=["once"])(write)
    assert pipeline.run(spark).states["b"] is StageState.FINISHED


@pytest.mark.parametrize("where", ["operator", "sink"])
def test_a_stream_that_is_read_in_a_bounded_stage(spark: SparkSession, tmp_path: Path, where: str) -> None:
    """What it reads has to be declared; Spark says only that a stream cannot be written."""

    def with_stream(a: DataFrame) -> DataFrame:
        return a.join(a.sparkSession.readStream.format("rate").load(), F.col("value") == F.col("id"))

    def written(a: DataFrame) -> Any:
        return write(with_stream(a))

    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(rows)
    function: Any = with_stream if where == "operator" else written
    if where == "operator":
        pipeline.op(name="stream in it", inputs=["a"], attributes=FULL_DAM)(function)
        pipeline.sink(name="b", inputs=["stream in it"])(write)
    else:
        pipeline.sink(name="stream in it", inputs=["a"])(function)
    reason = failed(pipeline, spark)
    assert reason.startswith(f"{where} 'stream in it' ({place(function)}) reads a stream, ")
    assert "@pipeline.source(bounded=False)" in reason


def test_a_fingerprint_of_a_stream(tmp_path: Path) -> None:
    """What reads a stream is never used again."""
    pipeline = Pipeline("job", store=tmp_path)
    assert refusal(lambda: pipeline.source(bounded=False, name="a", fingerprint="v1")(rows)) == (
        f"source 'a' ({place(rows)}) has a fingerprint, and no stage that reads a stream is used again: leave it out"
    )


def test_seams_that_would_be_one(tmp_path: Path) -> None:
    """A back-fill would end, and a stream begin, at another one's time."""
    pipeline = Pipeline("job", store=tmp_path)
    line = here(-1)
    assert pipeline.seam("a/b") == pipeline.seam("a/b")
    assert refusal(lambda: pipeline.seam("a_b")) == (
        f"the seams 'a_b' and 'a/b' of pipeline 'job' ({line}) would have one file, 'a_b': give one of them another "
        "name"
    )


def test_inputs_that_are_one_text(tmp_path: Path) -> None:
    """Its letters are not names."""
    pipeline: Any = Pipeline("job", store=tmp_path)
    assert refusal(lambda: pipeline.op(inputs="rates")(same)) == (
        f"'same' ({place(same)}) has inputs='rates', which is one text: write inputs=['rates']"
    )


def test_run_staged_takes_a_writer(spark: SparkSession, tmp_path: Path) -> None:
    """That is not started; and plan a DataFrame."""
    frame = spark.readStream.format("rate").load()
    staged: Any = run_staged

    def told(writer: Any) -> str:
        return refusal(lambda: staged(writer, store=tmp_path / "store"))

    wanted = "run_staged takes a DataStreamWriter that is not started (`df.writeStream…`), not"
    line = here(-3)
    assert told(frame) == f"{line}: {wanted} a DataFrame: write `run_staged(df.writeStream.format(…), store=…)`"
    assert told(rows(spark).write) == f"{line}: {wanted} a DataFrameWriter: a batch job is one stage already"
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.stop()
    assert told(query) == f"{line}: {wanted} a StreamingQuery: leave `.start()` out"
    assert told(None) == f"{line}: {wanted} a NoneType"
    plan_of: Any = plan
    line = here(1)
    assert refusal(lambda: plan_of(frame.writeStream)) == (f"{line}: plan takes a DataFrame, not a DataStreamWriter")
