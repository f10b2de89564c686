"""What takes whole partitions, and windows without keys, against plain Python."""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import GlobalWindows, TumblingWindows
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin import DataStream, Pipeline
from penstock.spark_plugin.errors import PipelineDefinitionError

AT_END = GlobalWindows.create_with_end_of_stream_trigger()
MINUTE = timedelta(minutes=1)
PARTITIONS = 3
BIG = 2**53 + 1  # no float holds it
Row = tuple[int | None, int | None]

keys = st.none() | st.integers(0, 2)
values = st.none() | st.integers(-9, 9) | st.just(BIG)
some_rows = st.lists(st.tuples(keys, values), max_size=12)


def add(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"k": one["k"], "v": (one["v"] or 0) + (other["v"] or 0)}


def count(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"n": [sum(len(rows) for rows in batches)]})


def source(pipeline: Pipeline, rows: list[Row]) -> DataStream:
    """The rows in three partitions, cut as Spark cuts a list."""

    @pipeline.source(bounded=True)
    def rows_of(spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(spark.sparkContext.parallelize(rows, PARTITIONS), "k int, v long")

    return pipeline.stream("rows_of")


def slices(rows: list[Row]) -> list[list[Row]]:
    ends = [len(rows) * number // PARTITIONS for number in range(PARTITIONS + 1)]
    return [rows[begin:end] for begin, end in itertools.pairwise(ends)]


def by_key(rows: list[Row]) -> list[list[Row]]:
    found: dict[int | None, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return list(found.values())


def ordered(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def aggregated(groups: list[list[Row]]) -> list[tuple[int | None, int]]:
    found = ((group, [v for _, v in group if v is not None]) for group in groups if group)
    return [(max(vs) if vs else None, len(group)) for group, vs in found]


def reduced(groups: list[list[Row]]) -> list[tuple[Any, ...]]:
    rows = ([{"k": k, "v": v} for k, v in group] for group in groups if group)
    return [tuple(functools.reduce(add, group).values()) for group in rows]


def descending(row: Row) -> tuple[bool, int]:
    return row[1] is None, -(row[1] or 0)


@settings(
    max_examples=1, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(rows=some_rows)
@example(rows=[(None, BIG), (None, None), (1, 3), (1, None), (1, -BIG), (1, 5), (2, 7)])
def test_partitions_are_taken_as_plain_python_takes_them(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    """Aggregate, reduce, sort and map, of the input's own partitions and of each key's partitions; with nulls."""
    folder = tmp_path_factory.mktemp("partitions")
    pipeline = Pipeline("partitions", store=folder / "store")
    stream = source(pipeline, rows)
    own, of_key = stream.full_window_partition(), stream.key_by("k").full_window_partition()
    results = {
        "own_most": own.aggregate("max(v) as most", "count(*) as n", name="own_most"),
        "own_sum": own.reduce(add, name="own_sum"),
        "own_sorted": own.sort_partition("v desc", name="own_sorted"),
        "own_count": own.map_partition(count, "n long", name="own_count"),
        "key_most": of_key.aggregate("max(v) as most", "count(*) as n", name="key_most"),
        "key_sum": of_key.reduce(add, name="key_sum"),
        "key_sorted": of_key.sort_partition("v desc", name="key_sorted"),
        "key_count": of_key.map_partition(count, "n long", name="key_count"),
        "all_most": stream.window_all(AT_END).aggregate("max(v) as most", "count(*) as n", name="all_most"),
        "all_sum": stream.window_all(AT_END).reduce(add, name="all_sum"),
        "window_sum": stream.key_by("k").window(AT_END).reduce(add, name="window_sum"),
    }
    for name, result in results.items():
        result.write_to(f"{name}_out", format="parquet", mode="overwrite", options={"path": str(folder / "out" / name)})
    plan = pipeline.compile()
    assert {edge.source for edge in plan.blocking_edges} == set(results)
    run = pipeline.run(spark)
    assert all(state.committed for state in run.states.values())

    def found(name: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.read.parquet(str(folder / "out" / name)).collect()]

    parts, groups = slices(rows), by_key(rows)
    everything = [rows] if rows else []
    assert ordered(found("own_most")) == ordered(aggregated(parts))
    assert ordered(found("own_sum")) == ordered(reduced(parts))
    assert ordered(found("own_sorted")) == ordered(rows)
    assert ordered(found("own_count")) == ordered((len(part),) for part in parts)
    assert ordered(row[1:] for row in found("key_most")) == ordered(aggregated(groups))
    assert ordered(found("key_sum")) == ordered(found("window_sum")) == ordered(reduced(groups))
    assert ordered(found("key_sorted")) == ordered(rows)
    assert ordered(found("key_count")) == ordered((len(group),) for group in groups)
    assert ordered(found("all_most")) == ordered(aggregated(everything))
    assert [v for _, v in found("all_sum")] == [v for _, v in reduced(everything)]
    # In a file the rows of a key are neighbours, and sorted.
    for path in sorted((folder / "out" / "key_sorted").glob("part-*")):
        written: list[Row] = [tuple(row.values()) for row in read(path)]
        assert written == [row for group in by_key(written) for row in sorted(group, key=descending)]
    for path in sorted((folder / "out" / "own_sorted").glob("part-*")):
        written = [tuple(row.values()) for row in read(path)]
        assert written == sorted(written, key=descending)


def read(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def test_all_rows_share_windows_of_time_without_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """One row for each window that has any, with the window; a reduction keeps the columns as they are."""
    pipeline = Pipeline("all", store=tmp_path / "store")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        times = [datetime(2024, 1, 1, 0, minute) for minute in (0, 0, 1, 5)]
        return spark.createDataFrame([(number, at) for number, at in enumerate(times)], "v long, at timestamp")

    windows = pipeline.stream("rows").window_all(TumblingWindows(MINUTE), time="at")
    per_minute = windows.aggregate("sum(v) as total", name="per_minute")
    last = windows.reduce(lambda one, other: max(one, other, key=lambda row: row["v"]), name="last")
    for stream in (per_minute, last):
        path = str(tmp_path / stream.name)
        stream.write_to(f"{stream.name}_out", format="parquet", mode="overwrite", options={"path": path})
    pipeline.run(spark)
    found = spark.read.parquet(str(tmp_path / "per_minute"))
    assert found.columns == ["window", "total"]
    assert sorted(row["total"] for row in found.collect()) == [1, 2, 3]
    kept = spark.read.parquet(str(tmp_path / "last"))
    assert kept.columns == ["v", "at"]
    assert sorted(row["v"] for row in kept.collect()) == [1, 2, 3]


def test_partitions_of_a_stream_are_refused(tmp_path: Path) -> None:
    """They are never whole; the error names the line."""
    for keyed in (False, True):
        pipeline = Pipeline("endless", store=tmp_path)
        rows = pipeline.read("rows", format="rate", bounded=False)
        whole = rows.key_by("value").full_window_partition() if keyed else rows.full_window_partition()
        whole.sort_partition("timestamp", name="sorted").write_to("out", format="noop")
        with pytest.raises(FullDamOverUnboundedError, match=r"test_spark_partition_windows\.py:\d+"):
            pipeline.compile()


def test_inputs_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    """Other windows, other numbers or names of keys, no key at all: said when it is written, with what to do."""
    pipeline = Pipeline("apart", store=tmp_path)
    one, two = (pipeline.read(name, format="csv", bounded=True) for name in ("one", "two"))
    left = one.key_by("k").window(AT_END)
    minutes = two.key_by("k").window(TumblingWindows(MINUTE), time="at")
    with pytest.raises(PipelineDefinitionError, match="same windows"):
        left.join(minutes, name="joined")
    with pytest.raises(PipelineDefinitionError, match=r"same names.*rename"):
        left.join(two.key_by("l").window(AT_END), name="joined")
    with pytest.raises(PipelineDefinitionError, match="same number of keys"):
        left.co_group(two.key_by("k", "l").window(AT_END), both, "k int", name="grouped")
    with pytest.raises(PipelineDefinitionError, match="at least one"):
        one.window_all(AT_END).join(two.window_all(AT_END), name="joined")
    with pytest.raises(PipelineDefinitionError, match="window_all"):
        one.key_by()


def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    key = left["k"].iloc[0] if len(left) else right["k"].iloc[0]
    return pd.DataFrame({"k": [None if pd.isna(key) else int(key)], "l": [len(left)], "r": [len(right)]})


@settings(
    max_examples=1, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(left=some_rows, right=some_rows)
@example(left=[(None, 1), (None, 2), (0, 3)], right=[(None, 4), (1, 5), (1, 6)])
@example(left=[], right=[(2, 1)] * 9)
def test_both_ways_to_group_two_inputs_agree(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, left: list[Row], right: list[Row]
) -> None:
    """With and without Python: a null key is one key, of both inputs; empty inputs, one key, a heavy key."""
    folder = tmp_path_factory.mktemp("grouped")
    pipeline = Pipeline("grouped", store=folder / "store")
    for name, rows in (("one", left), ("two", right)):
        pipeline.source(bounded=True, name=name)(lambda spark, rows=rows: spark.createDataFrame(rows, "k int, v long"))
    first, second = (pipeline.stream(name).key_by("k").window(AT_END) for name in ("one", "two"))
    results = [
        first.co_group(second, both, "k int, l long, r long", name="pandas"),
        first.co_group_aggregate(second, ["count(*) as l"], ["count(*) as r"], name="counts"),
    ]
    for stream in results:
        path = str(folder / stream.name)
        stream.write_to(f"{stream.name}_out", format="parquet", mode="overwrite", options={"path": path})
    pipeline.run(spark)
    expected = ordered(
        (key, sum(k == key for k, _ in left), sum(k == key for k, _ in right))
        for key in {k for k, _ in (*left, *right)}
    )
    for stream in results:
        rows_found = spark.read.parquet(str(folder / stream.name)).collect()
        assert ordered((row["k"], row["l"] or 0, row["r"] or 0) for row in rows_found) == expected


def test_rows_are_reduced_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """Dates, decimals, times in any zone, and what is nested, go through Python and back."""
    spark.conf.set("spark.sql.session.timeZone", "GMT+02:00")
    try:
        values = [
            "1 as k",
            "timestamp'2024-03-10 08:00:00' as at",
            "timestamp_ntz'2024-03-10 08:00:00' as clock",
            "date'2024-01-01' as day",
            "1.25bd as price",
            "'a' as word",
            "X'00ff' as bytes",
            "array(1, null) as numbers",
            "map('b', timestamp'2024-01-01 00:00:00') as times",
            "struct(timestamp'2024-01-01 00:00:00' as at) as nested",
        ]
        pipeline = Pipeline("kinds", store=tmp_path / "store")

        @pipeline.source(bounded=True)
        def rows(spark: SparkSession) -> DataFrame:
            return spark.range(0, 2, 1, 1).selectExpr(*values)

        stream = pipeline.stream("rows")
        results = [
            stream.key_by("k").window(AT_END).reduce(lambda one, other: other, name="window"),
            stream.full_window_partition().reduce(lambda one, other: other, name="partition"),
        ]
        for result in results:
            path = str(tmp_path / result.name)
            result.write_to(f"{result.name}_out", format="parquet", mode="overwrite", options={"path": path})
        pipeline.run(spark)
        expected = spark.range(1).selectExpr(*values).collect()
        assert spark.read.parquet(str(tmp_path / "window")).collect() == expected
        assert spark.read.parquet(str(tmp_path / "partition")).collect() == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
