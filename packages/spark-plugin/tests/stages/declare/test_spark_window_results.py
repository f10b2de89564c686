"""Windows of time over bounded inputs, against plain Python."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import SessionWindows, SlidingWindows, TumblingWindows
from penstock.spark_plugin import Pipeline

MINUTE = timedelta(minutes=1)
BEGIN = 1_710_054_000  # in New York an hour is left out in the minute that follows
Row = tuple[int | None, int, int]
"""Key, value, and seconds after BEGIN."""
Window = tuple[int | None, int, int]
"""Key, first second, and the one after the last."""

TUMBLING = TumblingWindows(MINUTE, timedelta(seconds=-15))
SLIDING = SlidingWindows(3 * MINUTE, MINUTE)
SESSIONS = SessionWindows(MINUTE)

some_rows = st.lists(
    st.tuples(st.none() | st.integers(0, 1), st.integers(-5, 5), st.integers(-200, 200)), max_size=10, unique=True
)


def windows(rows: list[Row], assigner: TumblingWindows | SlidingWindows) -> dict[Window, list[Row]]:
    size, slide = (int(one.total_seconds()) for one in (assigner.size, getattr(assigner, "slide", assigner.size)))
    offset = int(assigner.offset.total_seconds())
    found: dict[Window, list[Row]] = defaultdict(list)
    for row in rows:
        at = BEGIN + row[2]
        start = (at - offset) // slide * slide + offset
        while start + size > at:
            found[row[0], start, start + size].append(row)
            start -= slide
    return found


def sessions(rows: list[Row]) -> dict[Window, list[Row]]:
    found: dict[Window, list[Row]] = {}
    for key in {row[0] for row in rows}:
        current: list[Row] = []
        for row in sorted((row for row in rows if row[0] == key), key=lambda row: row[2]):
            if current and row[2] > current[-1][2] + 60:
                found[key, BEGIN + current[0][2], BEGIN + current[-1][2] + 60] = current
                current = []
            current.append(row)
        found[key, BEGIN + current[0][2], BEGIN + current[-1][2] + 60] = current
    return found


def sums(found: dict[Window, list[Row]]) -> list[tuple[Any, ...]]:
    return ordered((*window, sum(row[1] for row in rows)) for window, rows in found.items())


def ordered(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def most(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return max(one, other, key=lambda row: (row["v"], row["at"]))


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"spread": [int(rows["v"].max() - rows["v"].min())]})


def counts(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"l": [len(left)], "r": [len(right)]})


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose clock leaves hours out."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@settings(
    max_examples=1, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(left=some_rows, right=some_rows)
@example(
    left=[(0, 1, 199), (0, 2, -200), (None, 3, 0), (0, 4, 60), (None, -5, 59), (1, 2, 45), (1, 3, 44), (0, 5, 120)],
    right=[(0, 7, 61), (None, 8, 0), (1, 9, 44)],
)
def test_windows_of_time_hold_what_plain_python_puts_there(
    new_york: SparkSession, tmp_path_factory: pytest.TempPathFactory, left: list[Row], right: list[Row]
) -> None:
    """Every window, the last one too, with late rows, null keys, and across a change of the local clock."""
    spark, folder = new_york, tmp_path_factory.mktemp("results")
    pipeline = Pipeline("results", store=folder / "store")

    def source(name: str, rows: list[Row]) -> None:
        def read(spark: SparkSession) -> DataFrame:
            frame = spark.createDataFrame(rows, "k int, v int, t int")
            return frame.select("k", "v", F.timestamp_seconds(F.col("t") + BEGIN).alias("at"))

        pipeline.source(bounded=True, name=name)(read)

    source("left", left)
    source("right", right)
    one = pipeline.stream("left").key_by("k")
    two = pipeline.stream("right").transform(lambda rows: rows.withColumnsRenamed({"v": "w", "at": "at2"}), name="ren")
    # Over a stream the watermark would leave the late rows out.
    tumbling = one.window(TUMBLING, time="at", watermark="1 second")
    other = two.key_by("k").window(TUMBLING, time="at2")
    results = {
        "tumbling": tumbling.aggregate("sum(v) as total", name="tumbling"),
        "sliding": one.window(SLIDING, time="at").aggregate("sum(v) as total", name="sliding"),
        "sessions": one.window(SESSIONS, time="at").aggregate("sum(v) as total", name="sessions"),
        "most": tumbling.reduce(most, name="most"),
        "spread": tumbling.apply(spread, "spread long", name="spread"),
        "counts": tumbling.co_group(other, counts, "l long, r long", name="counts"),
        "sums": tumbling.co_group_aggregate(other, ["count(*) as l"], ["count(*) as r"], name="sums"),
        "pairs": tumbling.join(other, name="pairs"),
    }
    for name, result in results.items():
        path = str(folder / "out" / name)
        result.write_to(f"{name}_out", format="parquet", mode="overwrite", options={"path": path})
    pipeline.run(spark)

    def found(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return ordered(spark.read.parquet(str(folder / "out" / name)).selectExpr(*columns).collect())

    window = ("k", "cast(window.start as long)", "cast(window.end as long)")
    ours, theirs = windows(left, TUMBLING), windows(right, TUMBLING)
    sizes = ordered((len(ours.get(one, [])), len(theirs.get(one, []))) for one in {*ours, *theirs})
    assert found("tumbling", *window, "total") == sums(ours)
    assert found("sliding", *window, "total") == sums(windows(left, SLIDING))
    assert found("sessions", *window, "total") == sums(sessions(left))
    assert found("most", "k", "v", f"cast(at as long) - {BEGIN}") == ordered(
        max(rows, key=lambda row: row[1:]) for rows in ours.values()
    )
    values = ([row[1] for row in rows] for rows in ours.values())
    assert found("spread", "spread") == ordered((max(one) - min(one),) for one in values)
    assert found("counts", "l", "r") == sizes
    assert found("sums", "coalesce(l, 0)", "coalesce(r, 0)") == sizes
    assert found("pairs", *window, "v", "w") == ordered(
        (*one, mine[1], its[1])
        for one, rows in ours.items()
        if one[0] is not None
        for mine in rows
        for its in theirs.get(one, [])
    )
