from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes, StageState, explain, mermaid
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import PipelineDefinitionError, PipelineError, StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def staged(folder: Path, live: dict[str, str], sink: Any, *, factor: int = 1) -> Pipeline:
    """Totals of a file, which wait for its end, joined with a stream."""
    pipeline = Pipeline("job", store=folder / "store")

    @pipeline.source(bounded=True)
    def rates(spark: SparkSession) -> DataFrame:
        return spark.read.csv(str(folder / "rates.csv"), schema="k int, v int", header=True)

    @pipeline.op(attributes=FULL_DAM)
    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy("k").agg((F.sum("v") * factor).alias("total"))

    @pipeline.source(bounded=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("kinesis").options(**live).load()

    @pipeline.op()
    def joined(numbers: DataFrame, totals: DataFrame) -> DataFrame:
        key = (F.col("data").cast("string").cast("int") % 3).alias("k")
        return numbers.select("data", "shardId", "sequenceNumber", key).join(totals, "k")

    @pipeline.sink()
    def out(joined: DataFrame) -> Any:
        return joined.writeStream.foreachBatch(sink)

    return pipeline


def write_rates(folder: Path, rows: list[tuple[int, int]]) -> None:
    (folder / "rates.csv").write_text("k,v\n" + "".join(f"{k},{v}\n" for k, v in rows))


def test_the_blocking_stage_is_committed_before_the_live_one_and_used_again(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, until: Callable[..., None], tmp_path: Path
) -> None:
    """A second run reuses the committed stage and continues in the stream; new data or code runs it again."""
    source = make_stream(1)
    live = source.options(initialPosition="TRIM_HORIZON")
    write_rates(tmp_path, [(0, 1), (0, 2), (1, 10), (2, 100)])
    source.put(30)
    pipeline = staged(tmp_path, live, collected)
    plan = pipeline.compile()
    assert "totals" in explain(plan)
    assert "==>|blocking|" in mermaid(plan)

    run = pipeline.run(spark)
    assert run.states == {"totals": StageState.FINISHED, "out": StageState.RUNNING}
    assert run.seconds["totals"] > 0
    until(lambda: len(collected.keys) >= 30, "no rows", query=run.queries["out"])
    with pytest.raises(PipelineError, match="STORE_IN_USE"):
        pipeline.run(spark)
    run.stop()
    assert run.states["out"] is StageState.FINISHED
    totals = {row["k"]: row["total"] for rows in collected.batches.values() for row in rows}
    assert totals == {0: 3, 1: 10, 2: 100}

    source.put(30)
    again = staged(tmp_path, live, collected).run(spark)
    assert again.states == {"totals": StageState.REUSED, "out": StageState.RUNNING}
    until(lambda: len(collected.keys) >= 60, "no rows after the restart", query=again.queries["out"])
    again.stop()
    assert sorted(collected.keys) == sorted(source.put_keys)
    assert "REUSED" in again.explain()

    changed_code = staged(tmp_path, live, collected, factor=2).run(spark)
    changed_code.stop()
    assert changed_code.states["totals"] is StageState.FINISHED
    write_rates(tmp_path, [(0, 5)])
    changed_data = staged(tmp_path, live, collected).run(spark)
    changed_data.stop()
    assert changed_data.states["totals"] is StageState.FINISHED


def test_a_failed_stage_skips_only_what_waits_for_it(spark: SparkSession, tmp_path: Path) -> None:
    """The other branch continues; the error names the stage, and carries the run."""
    pipeline = Pipeline("failing", store=tmp_path / "store")

    @pipeline.source(bounded=True)
    def rates(spark: SparkSession) -> DataFrame:
        return spark.range(3)

    @pipeline.source(bounded=True)
    def others(spark: SparkSession) -> DataFrame:
        return spark.range(4)

    @pipeline.op(attributes=FULL_DAM)
    def broken(rates: DataFrame) -> DataFrame:
        return rates.select(F.raise_error(F.lit("no such rate")).alias("x"))

    @pipeline.op(attributes=FULL_DAM)
    def sound(others: DataFrame) -> DataFrame:
        return others.groupBy("id").count()

    @pipeline.sink()
    def from_broken(broken: DataFrame) -> Any:
        return broken.write.format("noop").mode("overwrite")

    @pipeline.sink()
    def from_sound(sound: DataFrame) -> Any:
        return sound.write.format("noop").mode("overwrite")

    with pytest.raises(StageFailedError, match="broken") as caught:
        pipeline.run(spark, max_attempts=2)
    assert caught.value.run.states == {
        "broken": StageState.FAILED,
        "from_broken": StageState.SKIPPED,
        "sound": StageState.FINISHED,
        "from_sound": StageState.FINISHED,
    }


def test_a_full_dam_over_a_stream_is_refused_with_its_place(tmp_path: Path) -> None:
    """An end that never comes is an error of compiling, and names the line."""
    pipeline = Pipeline("endless", store=tmp_path)

    @pipeline.source(bounded=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    @pipeline.op(attributes=FULL_DAM)
    def totals(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy("value").count()

    @pipeline.sink()
    def out(totals: DataFrame) -> Any:
        return totals.writeStream.format("noop")

    with pytest.raises(FullDamOverUnboundedError, match=r"test_spark_pipeline\.py:\d+"):
        pipeline.compile()


def test_a_source_must_be_what_it_is_declared_as(spark: SparkSession, tmp_path: Path) -> None:
    """A stream that is declared bounded would lose its last rows: it is refused."""
    pipeline = Pipeline("mistaken", store=tmp_path)

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    @pipeline.sink()
    def out(numbers: DataFrame) -> Any:
        return numbers.write.format("noop").mode("overwrite")

    with pytest.raises(StageFailedError, match="declared bounded") as failed:
        pipeline.run(spark)
    assert isinstance(failed.value.__cause__, PipelineDefinitionError)


def test_functions_are_pure_only_if_they_are_declared_so(tmp_path: Path) -> None:
    """Sources, operators and sinks."""
    pipeline = Pipeline("rates", store=tmp_path)
    for pure in (False, True):
        pipeline.source(bounded=True, name=f"source {pure}", pure=pure)(lambda spark: spark.range(1))
        pipeline.op(name=f"operator {pure}", inputs=[f"source {pure}"], pure=pure)(lambda frame: frame)
        pipeline.sink(name=f"sink {pure}", inputs=[f"operator {pure}"], pure=pure)(lambda frame: frame.write)
    assert {name: one.pure for name, one in pipeline.declared.items()} == {
        f"{kind} {pure}": pure for pure in (False, True) for kind in ("source", "operator", "sink")
    }


def test_names_are_unique_and_inputs_are_named(tmp_path: Path) -> None:
    """Both mistakes are found when the function is declared."""
    pipeline = Pipeline("names", store=tmp_path)
    pipeline.source(bounded=True)(lambda spark: spark.range(1))
    with pytest.raises(PipelineDefinitionError, match="declared already"):
        pipeline.source(bounded=True)(lambda spark: spark.range(2))
    with pytest.raises(PipelineDefinitionError, match="reads nothing"):
        pipeline.op()(lambda: None)
