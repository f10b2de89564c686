"""Operators of a pipeline that wait for the end of their input, declared or not, and the operators after them."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import utils
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._for_stages import arriving_bytes_per_second
from penstock.spark_plugin._reading.reader_numbers import COUNTERS, GAUGES

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
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


def test_an_undeclared_dam_gives_a_warning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
        f"which waits for the end of a bounded input: each micro-batch computes it again; declare it {CURE}"
    )
    assert [one.getMessage() for one in caplog.records if "undeclared" in one.getMessage()] == [wanted]
    assert run.explain().endswith(f"\n\nwarning: {wanted}\n")

    declared = OperatorAttributes(output_only_after_end_of_stream=True)
    run = job(tmp_path / "declared", totals, joined, attributes=declared).run(spark)
    run.stop()
    assert not run.warnings
    assert len(run.plan.stages) == 2


def test_explain_names_undeclared_dams_before_anything_runs(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a session, in the words of the run. No job is started, and nothing is written or logged."""

    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy((rates["id"] % 2).alias("value")).count()

    def joined(live: DataFrame, totals: DataFrame) -> DataFrame:
        return live.join(totals, "value")

    pipeline = job(tmp_path, totals, joined)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    with caplog.at_level(logging.WARNING, logger="penstock"):
        text = pipeline.explain(spark)
    assert set(tracker.getJobIdsForGroup(None)) == before
    assert not (tmp_path / "store").exists()
    assert not caplog.records
    place = f"{totals.__code__.co_filename}:{totals.__code__.co_firstlineno}"
    (warning,) = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert warning.startswith(f"warning: operator 'totals' ({place}) holds an undeclared Aggregate at ")
    assert warning.endswith(f"declare it {CURE}")
    run = pipeline.run(spark)
    run.stop()
    assert [f"warning: {one}" for one in run.warnings] == [warning]


def test_explain_without_a_session_says_that_it_called_no_function(spark: SparkSession, tmp_path: Path) -> None:
    """And how to have them called; not where all is bounded, and nothing could be computed again."""

    def refuse(*frames: DataFrame) -> DataFrame:
        raise AssertionError("called")

    text = job(tmp_path, refuse, refuse).explain()
    assert "1 stage, 0 blocking edges" in text
    assert "pipeline.explain(spark)" in text
    with pytest.raises(AssertionError, match="called"):
        job(tmp_path, refuse, refuse).explain(spark)
    batch = Pipeline("batch", store=tmp_path / "store")
    batch.source(bounded=True, name="rates")(lambda spark: spark.range(5))
    batch.sink(name="out", inputs=["rates"])(lambda rates: rates.write)
    assert "note:" not in batch.explain()


def test_explain_knows_declared_dams_and_reads_their_columns_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A committed result is not a dam of the live stage, whose functions get an empty result with the same columns."""
    seen: list[list[str]] = []

    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy((rates["id"] % 2).alias("value")).count()

    def joined(live: DataFrame, totals: DataFrame) -> DataFrame:
        seen.append(totals.columns)
        return live.join(totals, "value")

    text = job(tmp_path, totals, joined, attributes=FULL_DAM).explain(spark)
    assert "2 stages, 1 blocking edge" in text
    assert "warning" not in text
    assert seen == [["value", "count"]]


@pytest.mark.parametrize("where", ["source", "sink"])
def test_undeclared_dams_of_sources_and_sinks_are_named(spark: SparkSession, tmp_path: Path, where: str) -> None:
    """They cannot be declared there: an operator of its own can."""

    def totals(spark: SparkSession) -> DataFrame:
        return spark.range(5).groupBy((F.col("id") % 2).alias("value")).count()

    def rates(spark: SparkSession) -> DataFrame:
        return totals(spark) if where == "source" else spark.range(5).withColumnRenamed("id", "value")

    def out(live: DataFrame, rates: DataFrame) -> Any:
        frame = rates if where == "source" else totals(rates.sparkSession)
        return live.join(frame, "value").writeStream.format("noop")

    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True)(rates)
    pipeline.source(bounded=False, name="live")(lambda spark: spark.readStream.format("rate").load())
    pipeline.sink()(out)
    run = pipeline.run(spark)
    run.stop()
    function: Callable[..., Any] = rates if where == "source" else out
    place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    (warning,) = run.warnings
    assert warning.startswith(f"{where} {function.__name__!r} ({place}) holds an undeclared Aggregate at ")
    assert "declare it, in an operator of its own" in warning
    assert (warning in pipeline.explain(spark)) == (where == "source")


def test_a_dams_line_is_shown_whatever_pyspark_did_before(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PySpark stops remembering lines when the first column is made in a thread without a session."""

    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy((rates["id"] % 2).alias("value")).count()

    def joined(live: DataFrame, totals: DataFrame) -> DataFrame:
        return live.join(totals, "value")

    def run_without_session() -> None:
        utils._enable_debugging_cache = None
        spark.range(1)["id"] + 1
        job(tmp_path, totals, joined).run(spark).stop()

    with caplog.at_level(logging.WARNING, logger="penstock.spark_plugin"), ThreadPoolExecutor(1) as thread:
        thread.submit(run_without_session).result()
    line = f"{totals.__code__.co_filename}:{totals.__code__.co_firstlineno + 1}"
    told = [one.getMessage() for one in caplog.records if "undeclared" in one.getMessage()]
    assert [f"holds an undeclared Aggregate at {line}," in one for one in told] == [True], told


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


def test_the_estimate_counts_what_arrives_while_a_live_stage_waits(
    spark: SparkSession, make_stream: Callable[[int], Any], until: Callable[..., None], tmp_path: Path
) -> None:
    """From when its query has caught up with the stream: before, records are read faster than they arrive."""
    source = make_stream(1)
    options = source.options(initialPosition="TRIM_HORIZON")
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="rates")(lambda spark: spark.range(5))
    pipeline.op(name="totals", inputs=["rates"], attributes=FULL_DAM)(lambda rates: rates.groupBy("id").count())
    pipeline.source(bounded=False, name="live")(
        lambda spark: spark.readStream.format("kinesis").options(**options).load()
    )
    pipeline.op(name="joined", inputs=["live", "totals"])(lambda live, totals: live.crossJoin(totals))
    pipeline.sink(name="out", inputs=["joined"])(lambda joined: joined.writeStream.format("noop"))
    run = pipeline.run(spark)

    def arriving() -> float:
        source.put(10)
        return run.estimate().stages[-1].arriving_bytes

    until(lambda: arriving() > 0, "nothing arrives", query=run.queries["out"])
    run.stop()
    saved = run.estimate().stages[-1]
    assert 0 < saved.arriving_bytes < saved.blocking_seconds * 1e6
    assert "bytes arriving meanwhile" in run.estimate().explain()


def test_what_arrives_is_counted_from_when_the_source_had_caught_up() -> None:
    """The bytes between its first progress without a lag and its last; unknown before, and of other sources."""

    def progress(second: int, size: int, *, caught_up: bool) -> dict[str, Any]:
        numbers = dict.fromkeys((*GAUGES, *COUNTERS), 0) | {"bytes": size, "shards": 2, "shardsCaughtUp": 2 * caught_up}
        source = {"latestOffset": {**numbers, "streams": ["s"], "reader": ""}}
        at = f"2024-11-23T10:00:{second:02}.000Z"
        return {"id": "1", "runId": "1", "batchId": 0, "timestamp": at, "sources": [{"latestOffset": None}, source]}

    behind, first = progress(0, 0, caught_up=False), progress(10, 90_000, caught_up=True)
    assert arriving_bytes_per_second([behind, first]) == 0
    last = progress(30, 91_000, caught_up=False)
    assert arriving_bytes_per_second([behind, first, progress(20, 90_800, caught_up=True), last]) == 50


def test_a_dam_beside_a_stream_gives_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    """It has to be an operator of its own; an operation that Spark runs on streams step by step does not count."""

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
        f"end of a bounded input: each micro-batch computes it again; declare it, in an operator of its own {CURE}"
    ]


def called_by(folder: Path, *, chained: bool | None = None, twice: bool = False) -> tuple[Pipeline, Path]:
    """A udf behind a full-dam operator over three rows, joined with a stream of two files; and who calls it."""
    calls = folder / "calls"
    calls.mkdir()
    (folder / "live").mkdir()
    for number in range(2):
        (folder / "live" / f"{number}.json").write_text('{"k": 1}\n')
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=True, name="rates")(lambda spark: spark.range(30))

    @pipeline.op(attributes=FULL_DAM)
    def totals(rates: DataFrame) -> DataFrame:
        name = str(calls)

        def note(key: int) -> int:
            import pathlib
            import uuid

            (pathlib.Path(name) / f"dam-{uuid.uuid4()}").touch()
            return key

        keys = rates.groupBy((F.col("id") % 3).alias("k")).agg(F.sum("id").alias("total"))
        return keys.withColumn("k", F.udf(note, "long")("k"))

    @pipeline.op(chained=chained)
    def scaled(totals: DataFrame) -> DataFrame:
        name = str(calls)

        def twofold(total: int) -> int:
            import pathlib
            import uuid

            (pathlib.Path(name) / f"udf-{uuid.uuid4()}").touch()
            return 2 * total

        return totals.withColumn("total", F.udf(twofold, "long")("total"))

    @pipeline.source(bounded=False)
    def live(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).json(str(folder / "live"))

    @pipeline.op(inputs=["live", "scaled", "totals"] if twice else ["live", "scaled"])
    def joined(live: DataFrame, scaled: DataFrame, *others: DataFrame) -> DataFrame:
        found = live.join(scaled, "k")
        for other in others:
            found = found.join(other.withColumnRenamed("total", "single"), "k")
        return found

    @pipeline.sink(trigger={"availableNow": True})
    def out(joined: DataFrame) -> Any:
        return joined.writeStream.format("parquet").option("path", str(folder / "out"))

    return pipeline, calls


def test_what_stands_behind_a_dam_is_committed_with_it(spark: SparkSession, tmp_path: Path) -> None:
    """As Flink chains it: its functions are called once for each row, not in each micro-batch; unless it opts out."""
    pipeline, calls = called_by(tmp_path)
    assert [stage.vertices for stage in pipeline.compile().stages] == [
        ("rates", "totals", "scaled"),
        ("live", "joined", "out"),
    ]
    run = pipeline.run(spark)
    run.await_termination()
    run.stop()
    assert len(list(calls.glob("udf-*"))) == 3
    assert [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == 2 * [(1, 290)]

    (tmp_path / "apart").mkdir()
    pipeline, calls = called_by(tmp_path / "apart", chained=False)
    run = pipeline.run(spark)
    run.await_termination()
    run.stop()
    assert [stage.vertices for stage in run.plan.stages] == [("rates", "totals"), ("live", "scaled", "joined", "out")]
    assert len(list(calls.glob("udf-*"))) > 3


def test_a_dam_that_is_read_twice_is_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    """By what is chained with it, and by the live stage: both are committed, of the same rows."""
    before = set(spark.sparkContext._jsc.getPersistentRDDs())
    pipeline, calls = called_by(tmp_path, twice=True)
    run = pipeline.run(spark)
    run.await_termination()
    run.stop()
    assert run.plan.stages[0].outputs == ("totals", "scaled")
    assert len(list(calls.glob("dam-*"))) == 3
    rows = spark.read.parquet(str(tmp_path / "out")).select("k", "total", "single").collect()
    assert [tuple(row) for row in rows] == 2 * [(1, 290, 145)]
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) == before


def test_what_stands_behind_a_sort_reads_it_back_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """It is not chained with it by default: what it would commit is read in any order."""
    pipeline = Pipeline("sorted", store=tmp_path / "store")
    pipeline.source(bounded=True, name="rates")(lambda spark: spark.range(100, numPartitions=5))
    ordered = pipeline.stream("rates").sort("id desc", name="ordered")
    ordered.transform(lambda frame: frame, name="same").write_to(
        "out", format="csv", options={"path": str(tmp_path / "out")}
    )
    run = pipeline.run(spark)
    assert [stage.vertices for stage in run.plan.stages] == [("rates", "ordered"), ("same", "out")]
    files = sorted((tmp_path / "out").glob("part-*"))
    assert [int(line) for file in files for line in file.read_text().split()] == list(range(99, -1, -1))
