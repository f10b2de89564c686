"""Committed results that are computed again; live queries that read them restart from their checkpoints."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import PipelineDefinitionError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
KEYS = 3


class Table:
    """An idempotent table: what a micro-batch has written takes the place of what it had written before."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.errors: list[Exception] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.batches = {**self.batches, batch_id: [(row["n"], row["total"]) for row in frame.collect()]}

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


class World:
    """Rates in a file, numbers in files that arrive, and a job that joins each number with its rate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = Table()
        self.errors: list[Exception] = []
        """Raised by the next calls of the sink's function."""
        self.came: list[tuple[int, int]] = []
        (folder / "numbers").mkdir()

    def set_rate(self, value: int) -> None:
        """Whole, or not at all: it may be read at any moment."""
        text = "k,v\n" + "".join(f"{key},{value + key}\n" for key in range(KEYS))
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / "rates.csv")

    def put(self, rate: int, *numbers: int) -> None:
        """Numbers arrive that are to be seen with a rate."""
        text = "".join(f"{number}\n" for number in numbers)
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / "numbers" / f"{numbers[0]}.csv")
        self.came += [(number, rate + number % KEYS) for number in numbers]

    @property
    def all_came(self) -> bool:
        return len(self.table.rows) >= len(self.came)

    @property
    def results(self) -> list[str]:
        return [folder.name for folder in (self.folder / "store/stages/totals").iterdir()]

    def job(self, *, refresh: Any = "1s") -> Pipeline:
        pipeline = Pipeline("rated", store=self.folder / "store")
        text = str(self.folder)

        @pipeline.source(bounded=True)
        def rates(spark: SparkSession) -> DataFrame:
            return spark.read.csv(f"{text}/rates.csv", schema="k int, v int", header=True)

        @pipeline.op(attributes=FULL_DAM, refresh=refresh, pure=True)
        def totals(rates: DataFrame) -> DataFrame:
            def look(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
                for frame in frames:
                    if (Path(text) / "broken").exists():
                        raise ZeroDivisionError("no rates today")
                    yield frame

            checked = rates.mapInPandas(look, rates.schema)
            name = Path(f"{text}/column").read_text() if Path(f"{text}/column").exists() else "total"
            return checked.groupBy("k").agg(F.sum("v").alias(name))

        @pipeline.source(bounded=False)
        def numbers(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).csv(f"{text}/numbers")

        @pipeline.op()
        def joined(numbers: DataFrame, totals: DataFrame) -> DataFrame:
            return numbers.join(totals, numbers["n"] % KEYS == totals["k"]).select("n", "total")

        @pipeline.sink()
        def out(joined: DataFrame) -> Any:
            if self.errors:
                raise self.errors.pop(0)
            return joined.writeStream.foreachBatch(self.table)

        return pipeline


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.set_rate(10)
    return made


def test_live_query_restarts_with_each_new_result(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """No row is lost or doubled, unused results are removed, and nothing stays in Spark's cache."""
    world.put(10, 0, 1, 2)
    pipeline = world.job()
    assert "refresh: 'totals' is computed again every 1 s" in pipeline.explain()
    cached = set(spark.sparkContext._jsc.getPersistentRDDs())
    run = pipeline.run(spark)
    for refreshed, rate in enumerate((10, 200, 3000)):
        if refreshed:
            old, query = world.results, run.queries["out"]
            world.set_rate(rate)
            until(lambda: run.refreshes["totals"].refreshed == refreshed, run.explain)  # noqa: B023
            until(lambda: len(world.results) == 1, "an old result is there")
            assert world.results != old
            assert run.queries["out"] is not query
            assert not query.isActive
        first = 100 * refreshed
        world.put(rate, first + 3, first + 4)
        world.put(rate, first + 5, first + 6)
        until(lambda: world.all_came, lambda: f"{world.table.rows} of {world.came}", query=run.queries["out"])
        assert world.table.rows == sorted(world.came)
    assert run.refreshes["totals"].rows == 3
    assert "refresh: 'totals' every 1 s, refreshed 2 times, last in" in run.explain()
    run.stop()
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) == cached


def test_refresh_while_rows_stream_in(spark: SparkSession, world: World, until: Callable[..., None]) -> None:
    """There is always a next file: each row is there once, and has the new rate from one micro-batch on."""
    for number in range(12):
        world.put(10, number)
    run = world.job().run(spark)
    until(lambda: bool(world.table.batches), "no rows", query=run.queries["out"])
    world.set_rate(200)
    number = 12

    def refreshed() -> bool:
        nonlocal number
        if number < len(world.table.rows) + 12:  # always some that wait
            world.put(10, number)
            number += 1
        return run.refreshes["totals"].refreshed == 1

    until(refreshed, run.explain)
    last = max(world.table.batches)
    world.put(200, number)
    until(lambda: world.all_came, "not all rows", query=run.queries["out"])
    assert [n for n, _ in world.table.rows] == [n for n, _ in sorted(world.came)]
    rates = [rate for batch in sorted(world.table.batches) for rate in _rates(world.table.batches[batch])]
    assert rates == sorted(rates)
    assert set(rates) == {10, 200}
    assert all(rate == 200 for batch, rows in world.table.batches.items() if batch > last + 1 for rate in _rates(rows))
    run.stop()


def _rates(rows: list[tuple[int, int]]) -> list[int]:
    return [total - n % KEYS for n, total in rows]


def test_query_that_fails_after_a_refresh_restarts_with_the_new_result(
    spark: SparkSession, world: World, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it fails in a micro-batch, or does not even start: both are failures of a live query."""
    run = world.job().run(spark, restart="on-failure")
    start, errors = DataStreamWriter.start, [OSError("no checkpoint")]

    def start_or_fail(writer: DataStreamWriter) -> Any:
        if errors:
            raise errors.pop()
        return start(writer)

    monkeypatch.setattr(DataStreamWriter, "start", start_or_fail)
    world.set_rate(200)
    until(lambda: run.refreshes["totals"].refreshed == 1, run.explain)
    until(lambda: run.queries["out"].isActive, run.explain)
    assert "again after: no checkpoint" in run.explain()
    world.table.errors = [ConnectionError("no table")]
    world.put(200, 0)
    until(lambda: world.all_came, run.explain)
    place = f"{Table.__call__.__code__.co_filename}:{Table.__call__.__code__.co_firstlineno + 2}, in __call__"
    assert f"again after: ConnectionError: no table ({place})" in run.explain()
    assert world.table.rows == sorted(world.came)
    run.stop()


def test_unchanged_sources_do_not_restart_the_query(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """The query runs on, and its result stays."""
    run = world.job(refresh=timedelta(milliseconds=100)).run(spark)
    query, results = run.queries["out"], world.results
    until(lambda: run.refreshes["totals"].unchanged >= 2, run.explain)
    assert run.queries["out"] is query
    assert query.isActive
    assert world.results == results
    run.stop()


def break_source(world: World) -> Callable[[], object]:
    (world.folder / "broken").touch()
    return (world.folder / "broken").unlink


def rename_column(world: World) -> Callable[[], object]:
    """The live stage cannot read the new result."""
    (world.folder / "column").write_text("sum")
    return (world.folder / "column").unlink


def break_sink(world: World) -> Callable[[], object]:
    world.errors = [OSError("no table")] * 1000
    return world.errors.clear


@pytest.mark.parametrize(
    ("fail", "error"),
    [(break_source, "ZeroDivisionError: no rates today ("), (rename_column, "`total`"), (break_sink, "no table")],
)
def test_failed_refresh_leaves_result_and_query_in_place(
    spark: SparkSession,
    world: World,
    until: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[World], Callable[[], object]],
    error: str,
) -> None:
    """The query is not even stopped. A warning and `explain` show the cause; a later refresh succeeds."""
    run = world.job().run(spark)
    query = run.queries["out"]
    repair = fail(world)
    world.set_rate(200)
    until(lambda: error in run.refreshes["totals"].error, run.explain)
    assert "; FAILED, the old result is still in use: " in run.explain()
    assert "the refresh of 'totals' failed, its old result is still in use" in caplog.text
    world.put(10, 0, 1)
    until(lambda: world.all_came, "not all rows", query=query)
    assert run.queries["out"] is query
    repair()
    world.set_rate(200)  # no fingerprint covers what the function of `totals` reads itself
    until(lambda: run.refreshes["totals"].refreshed == 1, run.explain)
    assert run.refreshes["totals"].error == ""
    world.put(200, 2, 3)
    until(lambda: world.all_came, "not all rows", query=run.queries["out"])
    assert world.table.rows == sorted(world.came)
    run.stop()


def test_a_resumed_run_refreshes_what_has_grown_old(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """The result's age counts from when it was committed, not from when the driver was started."""
    run = world.job().run(spark)
    world.put(10, 0)
    until(lambda: world.all_came, "not all rows", query=run.queries["out"])
    run.stop()
    again = world.job(refresh="6h").run(spark)
    assert again.explain().count("refresh: 'totals' every 6 h\n") == 1
    again.stop()
    world.set_rate(200)
    third = world.job(refresh=timedelta(milliseconds=1)).run(spark)
    until(lambda: third.refreshes["totals"].refreshed == 1, third.explain)
    world.put(200, 1)
    until(lambda: world.all_came, "not all rows", query=third.queries["out"])
    assert world.table.rows == sorted(world.came)
    third.stop()


@pytest.mark.parametrize("refresh", ["often", "0s", timedelta(0), 6])
def test_an_invalid_interval_is_refused(world: World, refresh: Any) -> None:
    """Is refused with its place."""
    pipeline = world.job(refresh=refresh)
    with pytest.raises(PipelineDefinitionError) as caught:
        pipeline.compile()
    assert str(caught.value) == (
        f"operator 'totals' ({pipeline.declared['totals'].call_site}) has refresh={refresh!r}: give a positive "
        "timedelta, or a text such as '6h' or '30 minutes'"
    )


def test_a_refresh_without_readers_is_refused(tmp_path: Path) -> None:
    """Is refused, as is one of what a batch sink writes once."""
    pipeline = Pipeline("job", store=tmp_path)
    pipeline.source(bounded=True, name="a")(lambda spark: spark.range(3))
    pipeline.op(name="b", inputs=["a"], refresh="6h", attributes=FULL_DAM)(lambda a: a.groupBy("id").count())
    pipeline.sink(name="out", inputs=["b"])(lambda b: b.write.format("noop"))
    place = {name: one.call_site for name, one in pipeline.declared.items()}
    with pytest.raises(PipelineDefinitionError) as caught:
        pipeline.compile()
    assert str(caught.value) == (
        f"operator 'b' ({place['b']}) has refresh='6h', but no live stage reads a committed result of it: declare it "
        "full-dam with attributes=OperatorAttributes(output_only_after_end_of_stream=True), or leave refresh out"
    )
    pipeline.source(bounded=False, name="s")(lambda spark: spark.readStream.format("rate").load())
    pipeline.sink(name="live", inputs=["s", "b"])(lambda s, b: s.join(b, s["value"] == b["id"]).writeStream)
    with pytest.raises(PipelineDefinitionError) as caught:
        pipeline.compile()
    assert str(caught.value) == (
        f"operator 'b' ({place['b']}) has refresh='6h', but what is computed again with it is also written by the "
        f"batch sink 'out' ({place['out']}), once in a run: write that by a pipeline of its own, or leave refresh out"
    )
