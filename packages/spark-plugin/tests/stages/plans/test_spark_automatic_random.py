"""Random queries: staged by themselves they give the rows that Spark gives in one piece."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # as everybody writes it

from penstock.spark_plugin import run_staged

Table = list[tuple[int | None, int]]
COLUMNS = "k int, v int"


def least(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values("v").head(1)


def counted(frame: DataFrame, other: DataFrame) -> DataFrame:
    return frame.join(other.groupBy("k").agg(F.max("v").alias("most")), "k").selectExpr("k", "most as v")


def sql(text: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def query(frame: DataFrame, other: DataFrame) -> DataFrame:
        return frame.sparkSession.sql(text, frame=frame, other=other)

    return query


# Of two tables `k, v` one. Nothing depends on the order of rows that are equal in part.
BOUNDED: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "where": lambda frame, _: frame.where("v > 0"),
    "aggregate": lambda frame, _: frame.groupBy("k").agg(F.sum("v").cast("int").alias("v")),
    "distinct": lambda frame, _: frame.distinct(),
    "limit": lambda frame, _: frame.sort("k", "v").limit(3),
    "window": lambda frame, _: frame.withColumn("v", F.row_number().over(Window.partitionBy("k").orderBy("v"))),
    "udf": lambda frame, _: frame.withColumn("v", F.udf(lambda value: value + 1, "int")("v")),
    "pandas": lambda frame, _: frame.where("k is not null").groupBy("k").applyInPandas(least, COLUMNS),
    "cache": lambda frame, _: frame.cache(),
    "union": lambda frame, other: frame.union(other),
    "intersect": lambda frame, other: frame.intersect(other),
    "except": lambda frame, other: frame.exceptAll(other),
    "join": counted,
    "semi": lambda frame, other: frame.join(other, "k", "left_semi"),
    "scalar": sql("select * from {frame} where v >= (select coalesce(min(v), 0) from {other})"),
    "in": sql("select * from {frame} where k in (select k from {other} group by k)"),
    "exists": sql("select * from {frame} f where not exists (select 1 from {other} o where o.k = f.k)"),
}


def joined(how: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def join(stream: DataFrame, rows: DataFrame) -> DataFrame:
        both = stream.alias("s").join(rows.alias("r"), F.col("s.k") == F.col("r.k"), how)
        return both.select("s.k", (F.col("s.v") + F.coalesce("r.v", F.lit(0))).alias("v"))

    return join


# A stream and a table together are one stream.
STREAMING: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "join": joined("inner"),
    "left": joined("left"),
    "anti": lambda stream, rows: stream.join(rows, "k", "left_anti"),
    "where": lambda stream, _: stream.where("v < 8"),
    "union": lambda stream, _: stream.union(stream),
    "scalar": BOUNDED["scalar"],
    "in": BOUNDED["in"],
}
Query = list[tuple[str, list[str]]]
"""What is done to a stream, step by step, each with what is done to its table first."""

tables = st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(-5, 5)), max_size=7)
queries = st.lists(
    st.tuples(st.sampled_from(sorted(STREAMING)), st.lists(st.sampled_from(sorted(BOUNDED)), max_size=3)),
    min_size=1,
    max_size=2,
)


def write(path: Path, rows: Table) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{'' if k is None else k},{v}\n" for k, v in rows))


def rows_of(start: Callable[[Any], None]) -> list[str]:
    batches: dict[int, list[str]] = {}

    def sink(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = [str(row) for row in frame.collect()]

    start(sink)
    return sorted(row for rows in batches.values() for row in rows)


@settings(
    max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(query=queries, first=tables, second=tables, live=tables)
@example(
    query=[("scalar", ["aggregate"]), ("left", ["exists", "aggregate", "scalar", "limit"])],
    first=[(0, 1), (0, 2), (None, 3), (1, -1)],
    second=[(1, 2), (3, 0)],
    live=[(0, 5), (1, 1), (None, 4), (2, 3)],
)
def test_a_random_query_gives_the_same_rows_staged(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    query: Query,
    first: Table,
    second: Table,
    live: Table,
) -> None:
    """Joins, unions, aggregates, windows, limits, functions, caches, and subqueries within expressions."""
    folder = tmp_path_factory.mktemp("random")
    write(folder / "first.csv", first)
    write(folder / "second.csv", second)
    for number, row in enumerate(live):
        write(folder / "live" / f"{number}.csv", [row])
    (folder / "live").mkdir(exist_ok=True)
    one, two = (spark.read.csv(str(folder / f"{name}.csv"), schema=COLUMNS) for name in ("first", "second"))
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 3).csv(str(folder / "live"))
    for step, preparations in query:
        rows = one
        for preparation in preparations:
            rows = BOUNDED[preparation](rows, two)
        stream = STREAMING[step](stream, rows)

    def naive(sink: Any) -> None:
        writer = stream.writeStream.foreachBatch(sink).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        assert query.awaitTermination(PATIENCE_SECONDS)

    def staged(sink: Any) -> None:
        writer = stream.writeStream.foreachBatch(sink).trigger(availableNow=True)
        run = run_staged(writer, store=folder / "store")
        try:
            assert run.await_termination(120)
        finally:
            run.stop()

    try:
        expected = rows_of(naive)
    except PySparkException:
        return  # not for streams, says Spark: there is nothing to compare with
    finally:
        spark.catalog.clearCache()
    try:
        assert rows_of(staged) == expected
    finally:
        spark.catalog.clearCache()
