"""Committed results that are computed again while a live stage reads them, and swapped in between micro-batches."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from patience import PATIENCE_SECONDS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.plans.batches import NotByBatchError, batch_plan
from penstock.spark_plugin._stages.plans.plans import plans_of
from penstock.spark_plugin.errors import PipelineDefinitionError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
KEYS = 3


class Table:
    """An idempotent table: what a micro-batch has written takes the place of what it had written before."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.before: Callable[[], object] | None = None
        """Called before a micro-batch is looked at."""
        self.errors: list[Exception] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self.before is not None:
            self.before()
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
        self.errors: list[Exception | None] = []
        """What the sink's function raises each time that it is called, and nothing after that."""
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

    def job(self, *, refresh: Any = "1s", by_restart: bool = False) -> Pipeline:
        pipeline = Pipeline("rated", store=self.folder / "store")
        text = str(self.folder)

        @pipeline.source(bounded=True)
        def rates(spark: SparkSession) -> DataFrame:
            return spark.read.csv(f"{text}/rates.csv", schema="k int, v int", header=True)

        @pipeline.op(attributes=FULL_DAM, refresh=refresh)
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
            rows = numbers.join(totals, numbers["n"] % KEYS == totals["k"])
            if by_restart:
                rows = rows.withColumn("at", F.current_timestamp())
            return rows.select("n", "total")

        @pipeline.sink()
        def out(joined: DataFrame) -> Any:
            if (error := self.errors.pop(0) if self.errors else None) is not None:
                raise error
            return joined.writeStream.foreachBatch(self.table)

        return pipeline


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.set_rate(10)
    return made


@pytest.mark.parametrize("by_restart", [False, True])
def test_a_live_stage_reads_the_new_result(
    spark: SparkSession, world: World, until: Callable[..., None], *, by_restart: bool
) -> None:
    """After each swap; no row is lost or doubled, results that nobody reads are removed, and explain says how.

    The query runs on, unless its plan wants to be started with the result.
    """
    world.put(10, 0, 1, 2)
    pipeline = world.job(by_restart=by_restart)
    assert "refresh: 'totals' is computed again every 1 s" in pipeline.explain()
    run = pipeline.run(spark)
    query, cached = run.queries["out"], set(spark.sparkContext._jsc.getPersistentRDDs())
    for swaps, rate in enumerate((10, 200, 3000)):
        if swaps:
            old = world.results
            world.set_rate(rate)
            until(lambda: run.refreshes["totals"].swaps == swaps, run.explain)  # noqa: B023
            until(lambda: len(world.results) == 1, "an old result is there")
            assert world.results != old
        first = 100 * swaps
        world.put(rate, first + 3, first + 4)
        world.put(rate, first + 5, first + 6)
        until(lambda: world.all_came, lambda: f"{world.table.rows} of {world.came}", query=run.queries["out"])
        assert world.table.rows == sorted(world.came)
    assert "refresh: 'totals' every 1 s, swapped in 2 times, the last time after" in run.explain()
    assert "with 3 rows" in run.explain()
    reason = "the time of the micro-batch is used behind the join with the result"
    assert run.refreshes["totals"].by_restart == ({"out": reason} if by_restart else {})
    assert (f"\n  the query of 'out' is started again for it: {reason}\n" in run.explain()) is by_restart
    assert (run.queries["out"] is query) is not by_restart
    assert run.queries["out"].isActive
    run.stop()
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= cached


@pytest.mark.parametrize("by_restart", [False, True])
def test_a_swap_while_rows_stream_in(
    spark: SparkSession, world: World, until: Callable[..., None], *, by_restart: bool
) -> None:
    """There is always a next file: each row is there once, and from one micro-batch on with the new rate."""
    for number in range(12):
        world.put(10, number)
    run = world.job(by_restart=by_restart).run(spark)
    until(lambda: bool(world.table.batches), "no rows", query=run.queries["out"])
    world.set_rate(200)
    number = 12

    def swapped() -> bool:
        nonlocal number
        if number < len(world.table.rows) + 12:  # always some that wait
            world.put(10, number)
            number += 1
        return run.refreshes["totals"].swaps == 1

    until(swapped, run.explain)
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


def test_a_micro_batch_that_has_begun_ends_with_the_result_it_began_with(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """That result stays until then, whatever it is asked for again; the next micro-batch has the new one."""
    begun, goes_on = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        goes_on.wait(PATIENCE_SECONDS)

    world.table.before = before
    run = world.job().run(spark)
    query, (old,) = run.queries["out"], world.results
    world.put(10, 0, 1)
    until(begun.is_set, "no micro-batch", query=query)
    world.set_rate(200)
    # It is committed, and waits for the micro-batch.
    until(lambda: len(world.results) == 2 and run._swapping, run.explain)
    assert run.refreshes["totals"].swaps == 0
    world.put(200, 2)
    world.table.before = None
    goes_on.set()
    until(lambda: run.refreshes["totals"].swaps == 1, run.explain)
    until(lambda: world.all_came, "not all rows", query=query)
    until(lambda: old not in world.results, "the old result is there")
    assert world.table.rows == sorted(world.came)
    assert run.queries["out"] is query
    run.stop()


def test_a_query_that_goes_on_and_fails_is_started_again(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """With the result that it has come to; the error is the user's own, and the next refresh finds it running."""
    run = world.job().run(spark, restart="on-failure")
    world.set_rate(200)
    until(lambda: run.refreshes["totals"].swaps == 1, run.explain)
    query = run.queries["out"]
    world.table.errors = [ConnectionError("no table")]
    world.put(200, 0)
    until(lambda: world.all_came, run.explain)
    assert run.queries["out"] is not query
    place = f"{Table.__call__.__code__.co_filename}:{Table.__call__.__code__.co_firstlineno + 4}, in __call__"
    assert f"again after: ConnectionError: no table ({place})" in run.explain()
    world.set_rate(3000)
    until(lambda: run.refreshes["totals"].swaps == 2, run.explain)
    world.put(3000, 1)
    until(lambda: world.all_came, run.explain)
    assert world.table.rows == sorted(world.came)
    run.stop()


def test_queries_that_are_started_again_say_why(spark: SparkSession) -> None:
    """Whatever keeps state, or would be another thing in a batch job, behind the join with a result."""
    live = spark.readStream.format("rate").load().withColumn("k", F.col("value") % 3)
    totals = spark.range(3).withColumnRenamed("id", "k").hint("broadcast")
    joined = live.join(totals, "k")

    def reason(frame: DataFrame) -> str:
        plans = plans_of(frame)
        try:
            batch_plan(frame, plans, lambda node: plans.holds(node, totals))
        except NotByBatchError as error:
            return str(error)
        return ""

    def line(offset: int) -> str:
        return f"{__file__}:{reason.__code__.co_firstlineno + offset}"

    counted = joined.groupBy((F.col("k") + 1).alias("k")).count()
    assert (
        reason(counted)
        == f"Aggregate, for which Spark keeps state, at {line(11)} stands behind the join with the result"
    )
    assert reason(joined.dropDuplicates(["k"])) == (
        "Deduplicate, for which Spark keeps state, stands behind the join with the result"
    )
    assert reason(joined.withWatermark("timestamp", "1 minute")) == "a watermark stands behind the join with the result"
    assert reason(joined.where("timestamp < now()")) == (
        "the time of the micro-batch is used behind the join with the result"
    )
    assert reason(joined.join(live.select("value"), "value")) == "it joins the result with 2 streams"
    assert reason(totals.join(live, "k", "left")) == "Spark has no LEFT OUTER join with a stream on that side"
    assert reason(live) == "the plan of its query does not hold the result as it was handed over"
    live.createOrReplaceTempView("live_numbers")
    spark.range(2).createOrReplaceTempView("two")
    asked = spark.sql("select * from live_numbers where k in (select id from two)")
    assert reason(asked.join(totals, "k")) == "a subquery stands before the join with the result"

    before = live.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"), "k").count()
    for goes_on in (
        joined.where("value > 1").select("k", F.explode(F.array("value", "k")).alias("x")),
        joined.mapInPandas(lambda frames: frames, joined.schema),
        live.join(totals, "k", "left_anti"),
        totals.join(live, "k", "right"),
        before.join(totals, "k"),
    ):
        assert reason(goes_on) == ""


def test_a_query_that_does_not_start_goes_on_as_before(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """With the result of before, from its checkpoint; the next refresh is swapped in."""
    run = world.job(by_restart=True).run(spark)
    query = run.queries["out"]
    world.put(10, 0)
    until(lambda: world.all_came, "not all rows", query=query)
    world.errors = [None, OSError("no table")]  # it is looked at before the query is stopped
    world.set_rate(200)
    until(lambda: run.queries["out"] is not query and not world.errors, run.explain)
    until(lambda: run.refreshes["totals"].swaps == 1, run.explain)
    world.put(200, 1)
    until(lambda: world.all_came, "not all rows", query=run.queries["out"])
    assert world.table.rows == sorted(world.came)
    run.stop()


def test_what_has_not_changed_is_not_swapped(spark: SparkSession, world: World, until: Callable[..., None]) -> None:
    """The query runs on, and its result stays."""
    run = world.job(refresh=timedelta(milliseconds=100)).run(spark)
    query, results = run.queries["out"], world.results
    until(lambda: run.refreshes["totals"].unchanged >= 2, run.explain)
    assert run.queries["out"] is query
    assert query.isActive
    assert world.results == results
    run.stop()


def test_a_refresh_that_fails_keeps_the_result(
    spark: SparkSession, world: World, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its cause is told, the query runs on with the old rows, and the next refresh that succeeds is swapped in."""
    run = world.job().run(spark)
    query = run.queries["out"]
    (world.folder / "broken").touch()
    world.set_rate(200)
    until(lambda: bool(run.refreshes["totals"].error), run.explain)
    told = "; FAILED, and the result of before is still read: ZeroDivisionError: no rates today ("
    assert told in run.explain()
    assert "the refresh of 'totals' failed, and the result of before is still read; it is tried again in" in caplog.text
    world.put(10, 0, 1)
    until(lambda: world.all_came, "not all rows", query=query)
    assert run.queries["out"] is query
    (world.folder / "broken").unlink()
    until(lambda: run.refreshes["totals"].swaps == 1, run.explain)
    assert run.refreshes["totals"].error == ""
    world.put(200, 2, 3)
    until(lambda: world.all_came, "not all rows", query=run.queries["out"])
    assert world.table.rows == sorted(world.came)
    run.stop()


def test_a_result_that_the_live_stage_cannot_read_is_not_swapped_in(
    spark: SparkSession, world: World, until: Callable[..., None]
) -> None:
    """A column is missing in it: the query is not even stopped for it."""
    run = world.job().run(spark)
    query = run.queries["out"]
    (world.folder / "column").write_text("sum")
    world.set_rate(200)
    until(lambda: "`total`" in run.refreshes["totals"].error, run.explain)
    world.put(10, 0, 1)
    until(lambda: world.all_came, "not all rows", query=query)
    assert run.queries["out"] is query
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
    until(lambda: third.refreshes["totals"].swaps == 1, third.explain)
    world.put(200, 1)
    until(lambda: world.all_came, "not all rows", query=third.queries["out"])
    assert world.table.rows == sorted(world.came)
    third.stop()


@pytest.mark.parametrize("refresh", ["often", "0s", timedelta(0), 6])
def test_an_interval_that_is_none(world: World, refresh: Any) -> None:
    """Is refused with its place."""
    pipeline = world.job(refresh=refresh)
    with pytest.raises(PipelineDefinitionError) as caught:
        pipeline.compile()
    assert str(caught.value) == (
        f"operator 'totals' ({pipeline.declared['totals'].call_site}) has refresh={refresh!r}: give a positive "
        "timedelta, or a text such as '6h' or '30 minutes'"
    )


def test_a_refresh_that_nobody_would_see(tmp_path: Path) -> None:
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
