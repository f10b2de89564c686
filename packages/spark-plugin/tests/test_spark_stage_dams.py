"""Operators of a pipeline that wait for the end of their input, and do not say so."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline

CURE = "with attributes=OperatorAttributes(output_only_after_end_of_stream=True) to compute it once"


def job(
    folder: Path,
    totals: Callable[[DataFrame], DataFrame],
    joined: Callable[[DataFrame, DataFrame], DataFrame],
    *,
    attributes: OperatorAttributes | None = None,
) -> Pipeline:
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=True, name="rates")(lambda spark: spark.range(5))
    pipeline.source(bounded=False, name="live")(lambda spark: spark.readStream.format("rate").load())
    pipeline.op(name="totals", attributes=attributes, inputs=["rates"])(totals)
    pipeline.op(name="joined", inputs=["live", "totals"])(joined)
    pipeline.op(name="last", inputs=["joined"])(lambda joined: joined.select("value"))
    pipeline.sink(name="out", inputs=["last"])(lambda last: last.writeStream.format("noop"))
    return pipeline


def test_an_undeclared_dam_is_told(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the operator that holds it and its line; not where it is declared."""

    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy((rates["id"] % 2).alias("value")).count()

    def joined(live: DataFrame, totals: DataFrame) -> DataFrame:
        return live.join(totals, "value")

    with caplog.at_level(logging.WARNING, logger="penstock.spark_plugin"):
        run = job(tmp_path, totals, joined).run(spark)
    run.stop()
    first = totals.__code__.co_firstlineno
    place = f"{totals.__code__.co_filename}:{first}"
    wanted = (
        f"operator 'totals' ({place}) holds an undeclared Aggregate at {totals.__code__.co_filename}:{first + 1}, "
        f"which waits for the end of a bounded input: each micro-batch computes it anew; declare it {CURE}"
    )
    assert [one.getMessage() for one in caplog.records if "undeclared" in one.getMessage()] == [wanted]
    assert run.explain().endswith(f"\n\nwarning: {wanted}\n")

    declared = OperatorAttributes(output_only_after_end_of_stream=True)
    run = job(tmp_path / "declared", totals, joined, attributes=declared).run(spark)
    run.stop()
    assert not run.warnings
    assert len(run.plan.stages) == 2


def test_a_resumed_run_saves_what_it_uses_again(spark: SparkSession, tmp_path: Path) -> None:
    """Its estimate goes by the seconds of the run that computed it, not by those that reading it took."""

    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy("id").count()

    def joined(live: DataFrame, totals: DataFrame) -> DataFrame:
        return live.join(totals, live["value"] == totals["id"])

    def saved() -> float:
        declared = OperatorAttributes(output_only_after_end_of_stream=True)
        run = job(tmp_path, totals, joined, attributes=declared).run(spark)
        run.stop()
        return run.estimate().slot_seconds

    first = saved()
    assert 0 < saved() <= first


def test_a_dam_beside_a_stream_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """It has to be an operator of its own; what Spark does on streams step by step is none."""

    def totals(rates: DataFrame) -> DataFrame:
        return rates

    def joined(live: DataFrame, totals: DataFrame) -> DataFrame:
        most = totals.groupBy((totals["id"] % 2).alias("value")).count()
        return live.dropDuplicates(["value"]).join(most, "value")

    run = job(tmp_path, totals, joined).run(spark)
    run.stop()
    first = joined.__code__.co_firstlineno
    file = joined.__code__.co_filename
    assert run.warnings == [
        f"operator 'joined' ({file}:{first}) holds an undeclared Aggregate at {file}:{first + 1}, which waits for the "
        f"end of a bounded input: each micro-batch computes it anew; declare it, in an operator of its own {CURE}"
    ]
