"""What operators of bounded stages use beside their inputs: no result is used again whose rows may be others by now."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.pandas.functions import pandas_udf

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def job(folder: Path, daily: Callable[[DataFrame], DataFrame], *, variable: str = "") -> Pipeline:
    """Totals of a file, which a variable may name, to a file; while there is a file `full`, it cannot be written."""
    text = str(folder)
    pipeline = Pipeline("nightly", store=folder / "store")

    @pipeline.source(bounded=True)
    def sales(spark: SparkSession) -> DataFrame:
        return spark.read.csv(f"{text}/{os.environ.get(variable, 'sales')}.csv", schema="k int")

    pipeline.op(name="daily", inputs=["sales"], attributes=FULL_DAM)(daily)

    @pipeline.sink(pure=True)
    def report(daily: DataFrame) -> Any:
        if (Path(text) / "full").exists():
            raise OSError("no space left")
        return daily.write.format("parquet").mode("overwrite").option("path", f"{text}/out")

    return pipeline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sales.csv").write_text("1\n2\n")
    (tmp_path / "rates.csv").write_text("1,10\n2,10\n")
    return tmp_path


def reads_a_file(folder: Path) -> Callable[[DataFrame], DataFrame]:
    text = str(folder)

    def daily(sales: DataFrame) -> DataFrame:
        rates = sales.sparkSession.read.csv(f"{text}/rates.csv", schema="k int, rate int")
        return sales.join(rates, "k").agg(F.sum("rate").alias("total"))

    return daily


def run(spark: SparkSession, pipeline: Pipeline, **arguments: Any) -> tuple[StageState, list[str]]:
    found = pipeline.run(spark, **arguments)
    return found.states["daily"], [*found.warnings]


def total(spark: SparkSession, folder: Path) -> int:
    ((found,),) = spark.read.parquet(str(folder / "out")).collect()
    return int(found)


@pytest.mark.parametrize("arguments", [{}, {"refresh": True}])
def test_a_file_that_an_operator_reads_itself_is_read_by_each_new_run(
    spark: SparkSession, folder: Path, arguments: dict[str, Any]
) -> None:
    """Its changes are in no fingerprint; a warning says what to declare."""
    daily = reads_a_file(folder)
    state, warnings = run(spark, job(folder, daily))
    assert (state, total(spark, folder)) == (StageState.FINISHED, 20)
    place = f"{daily.__code__.co_filename}:{daily.__code__.co_firstlineno}"
    assert warnings == [
        f"operator 'daily' ({place}) reads csv rates.csv: whether that changes is not seen, so that each new run "
        "computes its stage again, and writes the sinks again that it reaches; declare what it reads as a source, or "
        "declare it with pure=True if its rows do not depend on that"
    ]
    for rate in (1000, 2000, 3000):
        (folder / "rates.csv").write_text(f"1,{rate}\n2,{rate}\n")
        assert run(spark, job(folder, daily), **arguments)[0] is StageState.FINISHED
        assert total(spark, folder) == 2 * rate


def test_the_code_of_a_registered_aggregate_counts(spark: SparkSession, folder: Path) -> None:
    """One of pandas, which Spark has a class of its own for."""
    make: Any = pandas_udf

    def register(factor: int) -> None:
        def scaled(values: pd.Series) -> float:
            return float(values.sum() * factor)

        spark.udf.register("unseen_sum", make(scaled, "double"))

    def daily(sales: DataFrame) -> DataFrame:
        return sales.agg(F.expr("unseen_sum(k)").alias("total"))

    for factor in (1, 100):
        register(factor)
        assert run(spark, job(folder, daily)) == (StageState.FINISHED, [])
        assert total(spark, folder) == 3 * factor
        assert run(spark, job(folder, daily)) == (StageState.REUSED, [])


def test_a_run_that_continues_keeps_what_an_operator_has_read(spark: SparkSession, folder: Path) -> None:
    """A snapshot, as for a source."""
    (folder / "full").touch()
    with pytest.raises(StageFailedError):
        run(spark, job(folder, reads_a_file(folder)), max_attempts=1)
    (folder / "full").unlink()
    (folder / "rates.csv").write_text("1,1000\n2,1000\n")
    assert run(spark, job(folder, reads_a_file(folder)))[0] is StageState.REUSED
    assert total(spark, folder) == 20


def test_a_run_that_continues_reads_what_its_source_asks_for_now(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that come later are not in its snapshot, but another path is another query."""

    def daily(sales: DataFrame) -> DataFrame:
        return sales.agg(F.sum("k").alias("total"))

    (folder / "monday.csv").write_text("1\n2\n")
    (folder / "tuesday.csv").write_text("100\n200\n")
    monkeypatch.setenv("PENSTOCK_TEST_DAY", "monday")
    (folder / "full").touch()
    with pytest.raises(StageFailedError):
        run(spark, job(folder, daily, variable="PENSTOCK_TEST_DAY"), max_attempts=1)
    (folder / "full").unlink()
    monkeypatch.setenv("PENSTOCK_TEST_DAY", "tuesday")
    assert run(spark, job(folder, daily, variable="PENSTOCK_TEST_DAY"))[0] is StageState.FINISHED
    assert total(spark, folder) == 300


def test_what_a_sink_reads_itself_is_read_by_each_new_run(spark: SparkSession, folder: Path) -> None:
    """A sink of a bounded stage has a result, too: that it was written."""
    text = str(folder)

    def write() -> StageState:
        pipeline = Pipeline("nightly", store=folder / "store")
        pipeline.source(bounded=True, name="sales")(lambda spark: spark.read.csv(f"{text}/sales.csv", schema="k int"))

        def report(sales: DataFrame) -> Any:
            rates = sales.sparkSession.read.csv(f"{text}/rates.csv", schema="k int, rate int")
            joined = sales.join(rates, "k").agg(F.sum("rate"))
            return joined.write.format("parquet").mode("overwrite").option("path", f"{text}/out")

        pipeline.sink(name="report", inputs=["sales"])(report)
        return pipeline.run(spark).states["report"]

    assert (write(), total(spark, folder)) == (StageState.FINISHED, 20)
    (folder / "rates.csv").write_text("1,1000\n2,1000\n")
    assert (write(), total(spark, folder)) == (StageState.FINISHED, 2000)


def test_what_an_operator_makes_of_its_inputs_and_its_own_rows_is_used_again(spark: SparkSession, folder: Path) -> None:
    """Twice the same input, a view and a subquery of it, a function that it names, rows that it names."""
    triple = spark.udf.register("unseen_triple", lambda value: value * 3, "int")

    def daily(sales: DataFrame) -> DataFrame:
        sales.createOrReplaceTempView("unseen_sales")
        names = sales.sparkSession.createDataFrame([(1, "one")], "k int, name string")
        again = sales.join(sales.alias("again"), "k").join(names, "k", "left")
        above = again.where("k >= (SELECT min(k) FROM unseen_sales)").join(
            sales.sparkSession.range(5), F.expr("k = id")
        )
        return above.agg(F.sum(triple("k")).alias("total"))

    assert run(spark, job(folder, daily)) == (StageState.FINISHED, [])
    assert total(spark, folder) == 9
    assert run(spark, job(folder, daily)) == (StageState.REUSED, [])
