import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import StageState, explain
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin import plan, run_staged
from penstock.spark_plugin._stages.fingerprints.stage import look_at_source
from penstock.spark_plugin._stages.plans.plan import plans_of
from penstock.spark_plugin.errors import PipelineDefinitionError


def plan_fingerprint(frame: DataFrame) -> str:
    return plans_of(frame).look(frame).fingerprint


def source_fingerprint(frame: DataFrame) -> str:
    return look_at_source(frame).fingerprint


class Table:
    """An idempotent table for `foreachBatch`."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches = {**self.batches, batch_id: [str(row) for row in frame.collect()]}

    @property
    def rows(self) -> list[str]:
        return sorted(row for rows in self.batches.values() for row in rows)


def numbers(spark: SparkSession, folder: Path, values: list[int]) -> DataFrame:
    (folder / "numbers").mkdir()
    for index, value in enumerate(values):
        (folder / "numbers" / f"{index}.csv").write_text(f"{value}\n")
    reader = spark.readStream.schema("n int").option("maxFilesPerTrigger", 2)
    return reader.csv(str(folder / "numbers"))


def job(spark: SparkSession, stream: DataFrame, rates: Path) -> DataFrame:
    """A stream joined with totals of a file, and with a list that is short enough to stay where it is."""
    rates_of = spark.read.csv(str(rates), schema="k int, v int", header=True)
    totals = rates_of.groupBy("k").agg(F.sum("v").alias("v"), F.max("v").alias("most"))
    names = spark.createDataFrame([(0, "zero"), (1, "one")], "k int, name string")
    both = totals.alias("a").join(rates_of.groupBy("k").count().alias("b"), F.col("a.k") == F.col("b.k"))
    return stream.join(both, stream["n"] % 3 == F.col("a.k")).join(names, F.col("a.k") == names["k"], "left")


@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    rates=st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), max_size=8),
    values=st.lists(st.integers(0, 20), min_size=1, max_size=4),
)
def test_a_staged_query_gives_the_rows_of_the_query(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rates: list[tuple[int, int]], values: list[int]
) -> None:
    """The same DataFrame, started as it is and staged, fills the same table; equal column names are no matter."""
    folder = tmp_path_factory.mktemp("automatic")
    (folder / "rates.csv").write_text("k,v\n" + "".join(f"{k},{v}\n" for k, v in rates))
    stream = numbers(spark, folder, values)
    frame = job(spark, stream, folder / "rates.csv")
    naive, staged = Table(), Table()
    query = frame.writeStream.foreachBatch(naive).trigger(availableNow=True)
    started = query.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert started.awaitTermination(PATIENCE_SECONDS)
    run = run_staged(frame.writeStream.foreachBatch(staged).trigger(availableNow=True), store=folder / "store")
    assert run.await_termination(60)
    run.stop()
    assert len(run.plan.stages) == 2
    assert run.estimate().slot_seconds > 0
    assert "<html" in run.html()
    assert staged.rows == naive.rows


def test_a_staged_query_is_resumed(spark: SparkSession, tmp_path: Path) -> None:
    """The second start computes nothing again, and continues in the stream; other Python code is another stage."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n1,2\n2,3\n")
    stream = numbers(spark, tmp_path, [1, 2])

    def start(step: int, table: Table) -> StageState:
        add = F.udf(lambda value: value + step, "int")
        rates = spark.read.csv(str(tmp_path / "rates.csv"), schema="k int, v int", header=True)
        totals = rates.groupBy("k").agg(F.sum("v").alias("v")).select("k", add("v").alias("v"))
        frame = stream.join(totals, stream["n"] == totals["k"])
        writer = frame.writeStream.foreachBatch(table).trigger(availableNow=True)
        run = run_staged(writer, store=tmp_path / "store")
        run.await_termination(60)
        run.stop()
        return next(state for name, state in run.states.items() if name != "output")

    first, second, third = Table(), Table(), Table()
    assert start(1, first) is StageState.FINISHED
    assert len(first.rows) == 2
    (tmp_path / "numbers" / "more.csv").write_text("0\n")
    assert start(1, second) is StageState.REUSED
    assert second.rows == ["Row(n=0, k=0, v=2)"]
    assert start(2, third) is StageState.FINISHED


def test_a_query_of_other_columns_or_files_is_staged_again(spark: SparkSession, tmp_path: Path) -> None:
    """Though all that is above them is the same: not joined with what the query of before has computed."""
    (tmp_path / "prices.json").write_text('{"price": 1, "cost": 100}\n')
    for name in ("new", "old"):
        (tmp_path / f"{name}.csv").write_text("3\n" if name == "old" else "1\n3\n")
    stream = numbers(spark, tmp_path, [1])

    def sums(column: str) -> DataFrame:
        read = spark.read.schema(f"{column} int").json(str(tmp_path / "prices.json"))
        return read.agg(F.sum(column).alias("total"))

    def more(one: str, other: str) -> DataFrame:
        sides = [spark.read.schema("k int").csv([f"{tmp_path}/{name}.csv"] * 2) for name in (one, other)]
        return sides[0].exceptAll(sides[1]).agg(F.count("*").alias("total"))

    def start(part: DataFrame, store: str) -> tuple[StageState, list[str]]:
        table = Table()
        writer = stream.crossJoin(part).select("total").writeStream.foreachBatch(table).trigger(availableNow=True)
        run = run_staged(writer, store=tmp_path / store)
        run.await_termination(60)
        run.stop()
        return next(state for name, state in run.states.items() if name != "output"), table.rows

    for store, one, other in (
        ("columns", sums("price"), sums("cost")),
        ("files", more("new", "old"), more("old", "new")),
    ):
        start(one, store)
        (tmp_path / f"numbers/{store}.csv").write_text("1\n")
        right = [str(row) for row in other.collect()]
        assert start(other, store) == (StageState.FINISHED, right)


def test_a_writer_is_staged_again(spark: SparkSession, tmp_path: Path) -> None:
    """As by a cell of a notebook that is run twice: it still has the plan that it was made with."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n1,2\n2,3\n")
    stream = numbers(spark, tmp_path, [1, 2])
    table = Table()
    writer = job(spark, stream, tmp_path / "rates.csv").writeStream.foreachBatch(table).trigger(availableNow=True)

    def states() -> list[StageState]:
        run = run_staged(writer, store=tmp_path / "store")
        assert run.await_termination(60)
        run.stop()
        return list(run.states.values())

    assert states() == [StageState.FINISHED, StageState.FINISHED]
    (tmp_path / "numbers" / "more.csv").write_text("0\n")
    assert states() == [StageState.REUSED, StageState.FINISHED]
    assert len(table.rows) == 3


def test_a_large_result_is_kept_by_the_key_of_its_join(spark: SparkSession, tmp_path: Path) -> None:
    """It is shuffled once, when it is read back, and not in every micro-batch."""
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        totals = spark.range(100).groupBy((F.col("id") % 50).alias("k")).agg(F.sum("id").alias("s"))
        stream = numbers(spark, tmp_path, [1, 2])
        table = Table()
        frame = stream.join(totals, stream["n"].cast("long") == totals["k"])
        writer = frame.writeStream.foreachBatch(table).trigger(availableNow=True)
        run = run_staged(writer, store=tmp_path / "store")
        run.await_termination(60)
        (query,) = run.queries.values()
        executed = str(query._jsq.streamingQuery().lastExecution().executedPlan().toString())
        run.stop()
        assert table.rows == ["Row(n=1, k=1, s=52)", "Row(n=2, k=2, s=54)"]
        # One exchange, of the stream; the other one lies below the cached rows.
        above = executed[: executed.index("InMemoryRelation")]
        assert above.count("Exchange hashpartitioning") == 1
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before or "10485760b")


def test_the_plan_names_what_blocks_and_where(spark: SparkSession, tmp_path: Path) -> None:
    """A stage is the largest bounded part with a full-dam operator in it; a bounded part without one is not a stage."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n")
    stream = numbers(spark, tmp_path, [1])
    text = explain(plan(job(spark, stream, tmp_path / "rates.csv")))
    assert "2 stages, 1 blocking edge" in text
    assert "test_spark_automatic.py:" in text
    names = spark.range(3)
    assert len(plan(stream.join(names, stream["n"] == names["id"])).stages) == 1


def test_a_picture_names_what_is_read_and_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    """By formats, and the ends of paths; a place is in the user's code, or empty if Spark does not know it."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n")
    rates = spark.read.csv(str(tmp_path / "rates.csv"), schema="k int, v int", header=True)
    stream = numbers(spark, tmp_path, [1])
    totals = F.broadcast(rates.groupBy("k").count())
    most = rates.groupBy(F.col("k").alias("j")).agg(F.max("v").alias("most"))
    first = test_a_picture_names_what_is_read_and_what_waits.__code__.co_firstlineno
    place, join = f"{__file__}:{first + 6}", f"{__file__}:{first + 9}"
    joined = stream.join(totals, stream["n"] == totals["k"]).join(most, stream["n"] == most["j"])
    assert (
        explain(plan(joined))
        == f"""dataframe: 3 stages, 2 blocking edges

stage-1  Aggregate of csv rates.csv (3)  [batch, 1 slot]
  blocks: 'Aggregate of csv rates.csv (3)' emits only after the end of its input
  source csv rates.csv (5)  (bounded)
  operator Aggregate of csv rates.csv (3) <- csv rates.csv (5)  (full-dam, batch mode)

stage-2  Aggregate of csv rates.csv (6)  [batch, 1 slot]
  blocks: 'Aggregate of csv rates.csv (6)' emits only after the end of its input ({place})
  source csv rates.csv (7)  (bounded)
  operator Aggregate of csv rates.csv (6) <- csv rates.csv (7)  (full-dam, batch mode, at {place})

stage-3  output  [stream, 1 slot]
  after: stage-1 (Aggregate of csv rates.csv (3)), stage-2 (Aggregate of csv rates.csv (6))
  source csv numbers  (unbounded)
  operator Join-1 <- csv numbers, Aggregate of csv rates.csv (3) [blocking, stage-1]  (at {join})
  operator Join-0 <- Join-1, Aggregate of csv rates.csv (6) [blocking, stage-2]  (at {join})
  sink output <- Join-0
"""
    )
    run = run_staged(joined.writeStream.format("noop").trigger(availableNow=True), store=tmp_path / "store")
    run.await_termination(60)
    run.stop()
    assert {name for stage in run.plan.stages for name in stage.vertices} == {
        *("csv rates.csv (5)", "Aggregate of csv rates.csv (3)", "csv rates.csv (7)"),
        *("Aggregate of csv rates.csv (6)", "csv numbers", "staged", "output"),
    }


def test_a_hint_for_the_join_is_kept(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part with a broadcast hint is broadcast, also below a projection, and with automatic broadcasts off."""
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        totals = F.broadcast(spark.range(100).groupBy((F.col("id") % 50).alias("k")).count()).where("count > 1")
        stream = numbers(spark, tmp_path, [1])
        frame = stream.join(totals, stream["n"].cast("long") == totals["k"])
        run = run_staged(frame.writeStream.format("noop").trigger(availableNow=True), store=tmp_path / "store")
        run.await_termination(60)
        run.queries["output"].explain()
        run.stop()
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before or "10485760b")
    assert "BroadcastHashJoin" in capsys.readouterr().out


def test_a_full_dam_over_a_stream_is_an_error_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark can do on a stream is let through: it asks for an end as little as Spark does."""
    stream = numbers(spark, tmp_path, [1])
    counts = stream.groupBy("n").agg(F.count("*").alias("c"))
    with pytest.raises(FullDamOverUnboundedError, match=r"Aggregate.*test_spark_automatic\.py:\d+"):
        plan(counts)
    with pytest.raises(FullDamOverUnboundedError, match="Sort"):
        run_staged(stream.sort("n").writeStream.format("noop"), store=tmp_path / "store")
    assert len(plan(counts, output_mode="complete").stages) == 1
    assert len(plan(stream.dropDuplicates(["n"])).stages) == 1
    with pytest.raises(PipelineDefinitionError, match="batch job"):
        run_staged(spark.range(3).write, store=tmp_path / "store")  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("field", [0, 25, 29])
def test_wide_plans_differ_in_every_column(spark: SparkSession, field: int) -> None:
    """Spark's text of a plan leaves out what comes after the 25th; the fingerprint does not."""

    def wide(changed: int | None) -> DataFrame:
        columns = [(F.col("id") + index + (100 if index == changed else 0)).alias(f"c{index}") for index in range(30)]
        return spark.range(3).select(*columns)

    assert plan_fingerprint(wide(None)) == plan_fingerprint(wide(None))
    assert plan_fingerprint(wide(None)) != plan_fingerprint(wide(field))


def test_equal_files_of_other_paths_differ(spark: SparkSession, tmp_path: Path) -> None:
    """A plan's text leaves paths out; the fingerprint of what is read does not."""
    frames = []
    for name in ("a", "b"):
        (tmp_path / name).write_text("1\n")
        frames.append(spark.read.csv(str(tmp_path / name), schema="k int"))
    assert source_fingerprint(frames[0]) == source_fingerprint(frames[0])
    assert source_fingerprint(frames[0]) != source_fingerprint(frames[1])


def lambdas(frame: DataFrame, step: int) -> list[DataFrame]:
    def rows(batches: Any) -> Any:
        for batch in batches:
            batch["id"] += step
            yield batch

    def group(batch: Any) -> Any:
        return batch + step

    return [
        frame.select(F.udf(lambda value: value + step, "long")("id").alias("x")),
        frame.mapInPandas(rows, "id long"),
        frame.groupBy("id").applyInPandas(group, "id long"),
        frame.groupBy("id").cogroup(frame.groupBy("id")).applyInPandas(lambda one, other: one + step, "id long"),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_two_lambdas_differ(spark: SparkSession, kind: int) -> None:
    """Both have the same text in a plan; what they do, and close over, counts."""
    frame = spark.range(3)
    assert plan_fingerprint(lambdas(frame, 1)[kind]) == plan_fingerprint(lambdas(frame, 1)[kind])
    assert plan_fingerprint(lambdas(frame, 1)[kind]) != plan_fingerprint(lambdas(frame, 2)[kind])


def test_fingerprints_are_those_of_another_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """Unlike Spark's own semantic hash: what one driver has committed, the next one finds."""

    csv = f"spark.read.schema('id int').csv('{tmp_path}/a.csv')"
    text = (
        "import json, sys\nfrom pyspark.sql import SparkSession, functions as F\n"
        "from penstock.spark_plugin import ensure_java\n"
        "from penstock.spark_plugin._stages.fingerprints.stage import look_at_source\n"
        "ensure_java()\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        f"files = {csv}.select(F.udf(abs, 'bigint')('id').alias('id'))\n"
        "frame = files.union(spark.range(9)).groupBy((F.col('id') % 2).alias('k')).agg(F.sum('id').alias('s'))\n"
        "print(json.dumps(look_at_source(frame).fingerprint))\n"
    )
    (tmp_path / "a.csv").write_text("1\n")
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    files = spark.read.schema("id int").csv(f"{tmp_path}/a.csv").select(F.udf(abs, "bigint")("id").alias("id"))
    frame = files.union(spark.range(9)).groupBy((F.col("id") % 2).alias("k")).agg(F.sum("id").alias("s"))
    assert json.loads(found.stdout.splitlines()[-1]) == source_fingerprint(frame)
