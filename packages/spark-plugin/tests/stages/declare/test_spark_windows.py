from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import GlobalWindows, SessionWindows, SlidingWindows, TumblingWindows
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import PipelineDefinitionError

AT_END = GlobalWindows.create_with_end_of_stream_trigger()
MINUTE = timedelta(minutes=1)
Rows = list[tuple[int, int, int]]


def write(folder: Path, name: str, rows: Rows) -> str:
    path = folder / f"{name}.csv"
    path.write_text("k,v,t\n" + "".join(f"{k},{v},{t}\n" for k, v, t in rows))
    return str(path)


def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    key = left["k"].iloc[0] if len(left) else right["k"].iloc[0]
    return pd.DataFrame({"k": [key], "l": [int(left["v"].sum())], "r": [int(right["v"].sum())]})


def spread(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "spread": [int(rows["v"].max() - rows["v"].min())]})


def more(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return max(one, other, key=lambda row: (row["v"], row["t"]))


def timed(frame: DataFrame) -> DataFrame:
    return frame.withColumn("at", F.timestamp_seconds("t"))


def collect(frame: DataFrame, *, in_order: bool = False) -> list[str]:
    rows = [str(row) for row in frame.select(*sorted(frame.columns)).collect()]
    return rows if in_order else sorted(rows)


some_rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-5, 5), st.integers(0, 400)), min_size=1, max_size=12, unique=True
)


@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(left=some_rows, right=some_rows)
def test_staged_results_are_sparks_own(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, left: Rows, right: Rows
) -> None:
    """Keyed windows, joins, coGroups and sorts give what Spark gives for the same rows in one piece."""
    folder = tmp_path_factory.mktemp("windows")
    schema, header = "k int, v int, t long", {"header": "true"}
    files = {"left": write(folder, "left", left), "right": write(folder, "right", right)}
    pipeline = Pipeline("windows", store=folder / "store")
    one, two = (
        pipeline.read(name, format="csv", bounded=True, schema=schema, options={**header, "path": path}).transform(
            timed, name=f"timed_{name}"
        )
        for name, path in files.items()
    )
    first, second = one.key_by("k").window(AT_END), two.key_by("k").window(AT_END)
    renamed = two.transform(
        lambda frame: frame.select("k", F.col("at").alias("at2"), F.col("v").alias("w")), name="ren"
    )
    slices = renamed.key_by("k").window(TumblingWindows(MINUTE), time="at2")
    results = {
        "total": first.aggregate("sum(v) as total", lambda: F.count("*").alias("n"), name="total"),
        "most": first.reduce(more, name="most"),
        "spread": first.apply(spread, "k int, spread long", name="spread"),
        "both": first.co_group(second, both, "k int, l long, r long", name="both"),
        "counts": first.co_group_aggregate(second, ["sum(v) as l"], ["sum(v) as r"], name="counts"),
        "per_minute": one.key_by("k").window(TumblingWindows(MINUTE), time="at").join(slices, name="per_minute"),
        "sliding": one.key_by("k")
        .window(SlidingWindows(2 * MINUTE, MINUTE), time="at")
        .aggregate("sum(v) as total", name="sliding"),
        "sessions": one.key_by("k")
        .window(SessionWindows(MINUTE), time="at")
        .aggregate("count(*) as n", name="sessions"),
        "sorted": one.sort("v desc", "k", "t", name="sorted"),
    }
    for name, stream in results.items():
        options = {"path": str(folder / "out" / name)}
        stream.write_to(f"{name}_out", format="parquet", mode="overwrite", options=options)
    run = pipeline.run(spark)
    assert all(state.committed for state in run.states.values())

    ours, theirs = (timed(spark.read.csv(path, schema=schema, header=True)) for path in files.values())
    minutes = F.window("at", "1 minute").alias("window")
    by_key, by_other = ours.groupBy("k"), theirs.groupBy("k")
    naive = {
        "total": by_key.agg(F.sum("v").alias("total"), F.count("*").alias("n")),
        "most": by_key.agg(F.max_by(F.struct("*"), F.struct("v", "t")).alias("row")).select("row.*"),
        "spread": by_key.agg((F.max("v") - F.min("v")).cast("long").alias("spread")),
        "both": by_key.cogroup(by_other).applyInPandas(both, "k int, l long, r long"),
        "counts": by_key.agg(F.sum("v").alias("l")).join(by_other.agg(F.sum("v").alias("r")), "k", "full"),
        "sliding": ours.groupBy("k", F.window("at", "2 minutes", "1 minute").alias("window")).agg(
            F.sum("v").alias("total")
        ),
        "sessions": ours.groupBy("k", F.session_window("at", "1 minute").alias("window")).agg(F.count("*").alias("n")),
    }
    for name, frame in naive.items():
        assert collect(spark.read.parquet(str(folder / "out" / name))) == collect(frame), name
    joined = ours.select("k", minutes, "v").join(theirs.select("k", minutes, "v"), ["k", "window"])
    assert spark.read.parquet(str(folder / "out" / "per_minute")).count() == joined.count()
    expected = sorted(left, key=lambda row: (-row[1], row[0], row[2]))
    parts = sorted((folder / "out" / "sorted").glob("part-*"))
    assert [tuple(row) for part in parts for row in pd.read_parquet(part)[["k", "v", "t"]].to_numpy()] == expected


def test_the_last_window_of_a_bounded_input_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    """All ten windows are there; as a stream with a watermark the same rows lose the last one."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "rows", [(0, 1, 60 * number) for number in range(10)])
    schema = "k int, v int, t long"
    options = {"header": "true", "path": str(tmp_path / "in")}

    def windows(bounded: bool, target: str) -> Pipeline:
        pipeline = Pipeline(f"last-{bounded}", store=tmp_path / f"store-{bounded}")
        rows = pipeline.read("rows", format="csv", bounded=bounded, schema=schema, options=options)
        window = TumblingWindows(MINUTE)
        keyed = rows.transform(timed).key_by("k").window(window, time="at", watermark="0 seconds")
        trigger = None if bounded else {"availableNow": True}
        counts = keyed.aggregate("count(*) as n", name="counts")
        counts.write_to("out", format="parquet", options={"path": target}, trigger=trigger)
        return pipeline

    windows(True, str(tmp_path / "batch")).run(spark)
    assert spark.read.parquet(str(tmp_path / "batch")).count() == 10
    run = windows(False, str(tmp_path / "stream")).run(spark)
    assert run.await_termination(60)
    run.stop()
    assert spark.read.parquet(str(tmp_path / "stream")).count() == 9


def test_windows_that_cannot_give_rows_are_refused(tmp_path: Path) -> None:
    """Never firing, endless, without a time, or of sessions that nothing merges."""
    pipeline = Pipeline("refused", store=tmp_path)
    keyed = pipeline.read("rows", format="rate", bounded=False).key_by("value")
    with pytest.raises(PipelineDefinitionError, match="never fires"):
        keyed.window(GlobalWindows.create())
    with pytest.raises(PipelineDefinitionError, match="time"):
        keyed.window(TumblingWindows(MINUTE))
    with pytest.raises(PipelineDefinitionError, match="session"):
        keyed.window(SessionWindows(MINUTE), time="timestamp").reduce(more, name="sessions")
    keyed.window(AT_END).aggregate("count(*) as n", name="endless").write_to("out", format="noop")
    with pytest.raises(FullDamOverUnboundedError, match=r"test_spark_windows\.py:\d+"):
        pipeline.compile()


def test_what_is_built_on_streams_is_used_again(spark: SparkSession, tmp_path: Path) -> None:
    """SQL and functions are compared over runs: an equal pipeline runs nothing, a changed expression its own stage."""

    path = write(tmp_path, "rows", [(0, 1, 0)])

    def states(expression: str | Callable[[], Any]) -> dict[str, str]:
        pipeline = Pipeline("again", store=tmp_path / "store")
        options = {"header": "true", "path": path}
        rows = pipeline.read("rows", format="csv", bounded=True, schema="k int, v int, t long", options=options)
        totals = rows.key_by("k").window(AT_END).aggregate(expression, name="totals")
        totals.write_to("out", format="noop", mode="overwrite")
        return {name: state.value for name, state in pipeline.run(spark).states.items()}

    assert states("sum(v) as s") == {"totals": "finished", "out": "finished"}
    assert states("sum(v) as s") == {"totals": "reused", "out": "reused"}
    assert states("max(v) as s") == {"totals": "finished", "out": "finished"}
    assert states(lambda: F.sum("v").alias("s"))["totals"] == "finished"
    assert states(lambda: F.sum("v").alias("s"))["totals"] == "reused"


def test_what_python_computes_of_a_window_waits_for_the_end(tmp_path: Path) -> None:
    """Over a stream Spark would hand it the rows of one micro-batch: refused, with the line."""
    minutes = TumblingWindows(MINUTE)
    for number in range(3):
        pipeline = Pipeline("python", store=tmp_path)
        one, two = (
            pipeline.read(name, format="rate", bounded=False)
            .key_by("value")
            .window(minutes, time="timestamp", watermark="1 second")
            for name in ("one", "two")
        )
        if number == 0:
            one.reduce(more, name="result")
        elif number == 1:
            one.apply(spread, "k int, spread long", name="result")
        else:
            one.co_group(two, both, "k int, l long, r long", name="result")
        pipeline.stream("result").write_to("out", format="noop")
        with pytest.raises(FullDamOverUnboundedError, match=r"'result' \(.*test_spark_windows\.py:\d+\)"):
            pipeline.compile()


def test_streams_are_joined_by_their_windows(spark: SparkSession, tmp_path: Path) -> None:
    """Live, with a watermark on each: the pairs of each window that both have reached."""
    pipeline = Pipeline("pairs", store=tmp_path / "store")
    sides = []
    for name in ("v", "w"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "rows", [(0, 1, 5), (0, 2, 65), (1, 3, 5)])
        options = {"header": "true", "path": str(tmp_path / name)}
        rows = pipeline.read(name, format="csv", bounded=False, schema="k int, v int, t long", options=options)
        columns = ("k", f"v as {name}", f"timestamp_seconds(t) as at_{name}")
        timed_rows = rows.transform(lambda frame, columns=columns: frame.selectExpr(*columns), name=f"timed_{name}")
        window = TumblingWindows(MINUTE)
        sides.append(timed_rows.key_by("k").window(window, time=f"at_{name}", watermark="10 minutes"))
    path = str(tmp_path / "out")
    joined = sides[0].join(sides[1], name="joined")
    joined.write_to("out", format="parquet", options={"path": path}, trigger={"availableNow": True})
    run = pipeline.run(spark)
    assert run.await_termination(120)
    run.stop()
    found = spark.read.parquet(path).select("k", "v", "w").collect()
    assert sorted(map(tuple, found)) == [(0, 1, 1), (0, 2, 2), (1, 3, 3)]
