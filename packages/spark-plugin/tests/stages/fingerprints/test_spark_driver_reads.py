"""What an operator's function puts into its DataFrame on the driver: a result is reused only if that is the same."""

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.fingerprints.stage import session_fingerprint

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
REUSED, FINISHED = StageState.REUSED, StageState.FINISHED


def by_the_environment(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    os.environ["PENSTOCK_TEST_FACTOR"] = str(value)
    return lambda numbers: numbers.agg(F.sum(F.col("k") * int(os.environ["PENSTOCK_TEST_FACTOR"])))


def by_a_file(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    (folder / "factor").write_text(str(value))
    path = folder / "factor"
    return lambda numbers: numbers.agg(F.sum(F.col("k") * int(path.read_text())))


class Model:
    """Multiplies."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: int) -> int:
        return value * self.factor


def by_a_model(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    path = folder / "model.pickle"
    path.write_bytes(pickle.dumps(value))

    def daily(numbers: DataFrame) -> DataFrame:
        model = Model(pickle.loads(path.read_bytes()))
        return numbers.agg(F.sum(F.udf(lambda k: model(k), "int")("k")))

    return daily


def by_a_view_of_rows(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    spark = SparkSession.active()
    spark.createDataFrame([(1, value), (2, value)], "k int, factor int").createOrReplaceTempView("driver_rates")
    return lambda numbers: numbers.join(spark.table("driver_rates"), "k").agg(F.expr("sum(k * factor)"))


def by_a_view_of_values(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    spark = SparkSession.active()
    rows = f"VALUES (1, {value}), (2, {value})"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW driver_values AS SELECT * FROM {rows} AS v(k, f)")
    return lambda numbers: numbers.join(spark.table("driver_values"), "k").agg(F.expr("sum(k * f)"))


def by_a_variable(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    SparkSession.active().sql(f"DECLARE OR REPLACE VARIABLE driver_factor INT DEFAULT {value}")
    return lambda numbers: numbers.agg(F.expr("sum(k * driver_factor)"))


def by_a_sql_function(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    head = "CREATE OR REPLACE TEMPORARY FUNCTION driver_scale(x INT) RETURNS INT"
    SparkSession.active().sql(f"{head} RETURN x * {value}")
    return lambda numbers: numbers.agg(F.expr("sum(driver_scale(CAST(k AS INT)))"))


def by_a_setting(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    SparkSession.active().conf.set("my.job.factor", str(value))
    return lambda numbers: numbers.agg(F.sum(F.col("k") * int(numbers.sparkSession.conf.get("my.job.factor") or 0)))


def by_a_registered_function(folder: Path, value: int) -> Callable[[DataFrame], DataFrame]:
    SparkSession.active().udf.register("driver_registered", lambda k: k * value, "int")
    return lambda numbers: numbers.agg(F.expr("sum(driver_registered(k))"))


KINDS = [
    by_the_environment,
    by_a_file,
    by_a_model,
    by_a_view_of_rows,
    by_a_view_of_values,
    by_a_variable,
    by_a_sql_function,
    by_a_setting,
    by_a_registered_function,
]


@pytest.fixture(autouse=True)
def as_before(spark: SparkSession) -> Iterator[None]:
    yield
    os.environ.pop("PENSTOCK_TEST_FACTOR", None)
    spark.conf.unset("my.job.factor")


def test_what_the_driver_reads_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    """A result is used again as long as that is the same, and computed where it has changed."""

    def totals(value: int) -> dict[str, tuple[StageState, int]]:
        pipeline = Pipeline("nightly", store=tmp_path / "store")
        pipeline.source(bounded=True, name="numbers")(lambda spark: spark.range(1, 3).withColumnRenamed("id", "k"))
        for kind in KINDS:
            name = kind.__name__
            pipeline.op(name=name, inputs=["numbers"], attributes=FULL_DAM)(kind(tmp_path, value))
            write = "lambda rows: rows.write.format('parquet').mode('overwrite').option('path', '{}/{}')"
            pipeline.sink(name=f"{name} out", inputs=[name])(eval(write.format(tmp_path, name)))
        run = pipeline.run(spark)
        assert run.warnings == []
        return {
            name: (run.states[name], int(spark.read.parquet(f"{tmp_path}/{name}").collect()[0][0]))
            for name in (kind.__name__ for kind in KINDS)
        }

    for value, state in ((1, FINISHED), (1, REUSED), (100, FINISHED)):
        assert totals(value) == {kind.__name__: (state, 3 * value) for kind in KINDS}


@pytest.mark.parametrize(
    ("setting", "value"),
    [("spark.sql.json.enablePartialResults", "false"), ("spark.sql.columnNameOfCorruptRecord", "bad"), ("my.own", "1")],
)
def test_settings_count_unless_they_are_known_to_be_of_speed(
    spark: SparkSession, tmp_path: Path, setting: str, value: str
) -> None:
    """Whatever changes rows in a version of Spark that is still to come does."""
    before = session_fingerprint(spark)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        assert session_fingerprint(spark) == before
        spark.conf.set(setting, value)
        assert session_fingerprint(spark) != before
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        spark.conf.unset(setting)
    assert session_fingerprint(spark) == before


@pytest.mark.parametrize(
    ("daily", "reason"),
    [
        (lambda numbers: numbers.withColumn("t", F.current_timestamp()).agg(F.sum("k")), "current_timestamp()"),
        (lambda numbers: numbers.where("current_date() > '2000-01-01'").agg(F.sum("k")), "current_date()"),
        (
            lambda numbers: numbers.join(numbers.sparkSession.range(9).rdd.toDF(["k"]), "k").agg(F.sum("k")),
            "the rows of an RDD",
        ),
    ],
)
def test_what_no_plan_shows_is_computed_by_each_new_run(
    spark: SparkSession, tmp_path: Path, daily: Callable[[DataFrame], DataFrame], reason: str
) -> None:
    """The run names what it reads."""
    pipeline = Pipeline("nightly", store=tmp_path / "store")
    pipeline.source(bounded=True, name="numbers")(lambda spark: spark.range(1, 3).withColumnRenamed("id", "k"))
    pipeline.op(name="daily", inputs=["numbers"], attributes=FULL_DAM)(daily)
    pipeline.sink(name="none", inputs=["daily"])(lambda daily: daily.write.format("noop").mode("overwrite"))
    for _ in range(2):
        run = pipeline.run(spark)
        assert run.states["daily"] is FINISHED
    assert [f"reads {reason}:" in warning for warning in run.warnings] == [True]
    assert f"reads {reason}:" in run.explain()
