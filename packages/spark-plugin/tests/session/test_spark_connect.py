import re
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_SECONDS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # as everybody writes it

from penstock.emulator.testing import RunningEmulator
from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin import (
    KinesisProgress,
    KinesisProgressListener,
    Pipeline,
    kinesis_progress,
    plan,
    register,
    run_staged,
)
from penstock.spark_plugin._stages.fingerprints.stage import look_at_source
from penstock.spark_plugin._stages.plans.jobs import jobs_of
from penstock.spark_plugin._stages.plans.plan import find_cuts, plans_of
from penstock.spark_plugin.errors import PipelineDefinitionError, StageFailedError
from penstock.spark_plugin.testing import endpoint_options

_CONNECT = "SPARK_CONNECT_MODE_ENABLED"
"""What `SparkSession.builder.remote` sets: functions make columns of Spark Connect from then on."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the server in the JVM of the classic session."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    jvm: Any = spark.sparkContext._jvm
    service = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    url = f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"
    session: Any = ConnectSession.builder.remote(url).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def connect(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session, and functions that make columns for it."""
    monkeypatch.setenv(_CONNECT, "1")
    return session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rates, which are bounded, and numbers, which come in two files."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n0,5\n1,2\n2,3\n")
    (tmp_path / "numbers").mkdir()
    for number in (1, 2):
        (tmp_path / "numbers" / f"{number}.csv").write_text(f"{number}\n{number + 3}\n")
    return tmp_path


def rates(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.csv(str(folder / "rates.csv"), schema="k int, v int", header=True)


def totals(spark: SparkSession, folder: Path) -> DataFrame:
    return rates(spark, folder).groupBy("k").agg(F.sum("v").alias("v"))


def numbers(spark: SparkSession, folder: Path, *, streaming: bool = True) -> DataFrame:
    reader: Any = spark.readStream if streaming else spark.read
    found: DataFrame = reader.schema("n int").csv(str(folder / "numbers"))
    return found


def blocking(spark: SparkSession, folder: Path) -> list[DataFrame]:
    """Bounded DataFrames, with operators that block and without, and with some that only look like it."""
    one = rates(spark, folder)
    ranked = F.row_number().over(Window.partitionBy("k").orderBy("v"))
    return [
        one,
        totals(spark, folder),
        one.sort("v"),
        one.sortWithinPartitions("v"),
        one.limit(1).filter("v > 0"),
        one.offset(1),
        one.distinct(),
        one.dropDuplicates(["k"]),
        one.intersect(one),
        one.exceptAll(one.filter("v > 1")),
        one.union(one),
        one.withColumn("r", ranked),
        one.select("k", (ranked + 1).alias("r")),
        one.select(F.max("k").alias("k")),
        one.selectExpr("max(k) as k"),
        one.selectExpr("k", "'max(k)' as text"),
        one.selectExpr("k", "row_number() over (partition by k order by v) as r"),
        one.groupBy("k").applyInPandas(lambda rows: rows, "k int, v int"),
        one.groupBy("k").cogroup(one.groupBy("k")).applyInPandas(lambda left, _: left, "k int, v int"),
        one.mapInPandas(lambda batches: batches, "k int, v int"),
        totals(spark, folder).alias("t").join(one.withColumnRenamed("k", "j"), F.col("j") == F.col("t.k")),
    ]


def cuts(spark: SparkSession, folder: Path) -> list[list[str]]:
    """What blocks, for each of the DataFrames joined with a stream."""
    found = []
    for frame in blocking(spark, folder):
        joined = numbers(spark, folder).join(frame, F.col("n") == F.col("k"))
        dams = [cut.dam() for cut in find_cuts(plans_of(joined).read(joined))]
        assert len(plan(joined).stages) == len(dams) + 1
        found.append([dam.kind for dam in dams if dam is not None])
    return found


def test_plans_are_cut_as_in_a_classic_session(
    spark: SparkSession, session: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same DataFrames block for the same reasons, though the client's plans are not analyzed."""
    classic = cuts(spark, folder)
    monkeypatch.setenv(_CONNECT, "1")
    assert cuts(session, folder) == classic


def test_sql_texts_are_asked_of_the_server(connect: SparkSession, folder: Path) -> None:
    """Whether a text, a table or a view blocks, or is a stream, is what the server makes of it."""
    rates(connect, folder).createOrReplaceTempView("rates")
    totals(connect, folder).createOrReplaceTempView("totals")
    numbers(connect, folder).createOrReplaceTempView("numbers")
    stages = {
        text: len(plan(connect.table("numbers").join(frame, F.col("n") == F.col("k"))).stages)
        for text, frame in {
            "aggregate": connect.sql("select k, sum(v) as v from rates group by k"),
            "filter": connect.sql("select k from rates where v > 1"),
            "view": connect.table("totals"),
            "table": connect.table("rates"),
        }.items()
    }
    assert stages == {"aggregate": 2, "filter": 1, "view": 2, "table": 1}


def test_a_full_dam_over_a_stream_is_an_error_with_its_line(connect: SparkSession, folder: Path) -> None:
    """Expressions know where they were made."""
    stream = numbers(connect, folder)
    with pytest.raises(FullDamOverUnboundedError, match=r"Aggregate.*test_spark_connect\.py:\d+"):
        plan(stream.groupBy("n").agg(F.count("*").alias("c")))
    assert len(plan(stream.groupBy("n").count(), output_mode="complete").stages) == 1


def by_alias(spark: SparkSession, folder: Path, stream: DataFrame) -> DataFrame:
    counts = rates(spark, folder).groupBy("k").count()
    both = totals(spark, folder).alias("a").join(counts.alias("b"), F.col("a.k") == F.col("b.k"))
    names = spark.createDataFrame([(0, "zero"), (1, "one")], "k int, name string")
    joined = stream.join(both, stream["n"] % 3 == F.col("a.k")).join(names, F.col("a.k") == names["k"], "left")
    return joined.select("n", "b.count", F.col("a.v").alias("w"), "name", F.col("a.k"))


def by_column(spark: SparkSession, folder: Path, stream: DataFrame) -> DataFrame:
    found, counts = totals(spark, folder), rates(spark, folder).groupBy("k").count()
    both = found.join(counts, found["k"] == counts["k"])
    return stream.join(both, stream["n"] == counts["k"]).drop(counts["k"]).select("*", (counts["count"] + 1).alias("c"))


def by_name(spark: SparkSession, folder: Path, stream: DataFrame) -> DataFrame:
    return stream.withColumnRenamed("n", "k").join(totals(spark, folder).filter("v > 1"), "k")


def with_itself(spark: SparkSession, folder: Path, stream: DataFrame) -> DataFrame:
    found = totals(spark, folder)
    joined = stream.join(found.alias("x"), F.col("n") == F.col("x.k")).join(
        found.alias("y"), F.col("n") == F.col("y.k")
    )
    return joined.select("x.*", F.col("y.v").alias("w"))


@pytest.mark.parametrize("job", [by_alias, by_column, by_name, with_itself])
def test_a_staged_query_gives_the_rows_of_the_query(connect: SparkSession, folder: Path, job: Any) -> None:
    """However columns refer to what was committed: by alias, by DataFrame, by name, twice."""
    naive = job(connect, folder, numbers(connect, folder, streaming=False))
    staged = job(connect, folder, numbers(connect, folder))
    rows = run_to_files(staged, folder)[1]
    assert rows == sorted(str(row) for row in naive.collect())
    assert rows


def run_to_files(frame: DataFrame, folder: Path) -> tuple[dict[str, StageState], list[str]]:
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out")).trigger(availableNow=True)
    run = run_staged(writer, store=folder / "store", progress=True)
    try:
        assert run.await_termination(60)
        return run.states, sorted(str(row) for row in frame.sparkSession.read.parquet(str(folder / "out")).collect())
    finally:
        run.stop()


def test_a_hint_for_the_join_is_kept(connect: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And pictures name what is read, as in a classic session."""
    before = connect.conf.get("spark.sql.autoBroadcastJoinThreshold")
    connect.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        frame = (
            numbers(connect, folder).withColumnRenamed("n", "k").join(totals(connect, folder).hint("broadcast"), "k")
        )
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        run = run_staged(writer, store=folder / "store")
        assert run.await_termination(60)
        run.queries["output"].explain()
        run.stop()
    finally:
        connect.conf.set("spark.sql.autoBroadcastJoinThreshold", before or "10485760b")
    assert "BroadcastHashJoin" in capsys.readouterr().out
    assert [stage.vertices for stage in run.plan.stages] == [
        ("csv rates.csv", "Aggregate of csv rates.csv"),
        ("csv numbers", "staged", "output"),
    ]


def test_two_columns_of_one_name_are_refused(connect: SparkSession, folder: Path) -> None:
    """Once committed they cannot be distinguished; the error says what to do."""
    found, counts = totals(connect, folder), rates(connect, folder).groupBy("k").count()
    both = found.join(counts, found["k"] == counts["k"])
    stream = numbers(connect, folder)
    with pytest.raises(PipelineDefinitionError, match="rename one"):
        run_to_files(stream.join(both, (stream["n"] == found["k"]) & (stream["n"] == counts["k"])).select("n"), folder)


def test_a_pipeline_runs_and_is_resumed(connect: SparkSession, folder: Path) -> None:
    """The second run uses what is committed and continues in the stream; a changed file is computed again."""

    def make() -> Pipeline:
        pipeline = Pipeline("job", store=folder / "store")
        pipeline.source(bounded=True, name="weather")(lambda spark: rates(spark, folder))
        pipeline.source(bounded=False, name="flights")(lambda spark: numbers(spark, folder))

        @pipeline.op(attributes=OperatorAttributes(output_only_after_end_of_stream=True))
        def daily(weather: DataFrame) -> DataFrame:
            return weather.groupBy("k").agg(F.max("v").alias("v"))

        @pipeline.op()
        def with_weather(flights: DataFrame, daily: DataFrame) -> DataFrame:
            return flights.join(daily, flights["n"] == daily["k"])

        @pipeline.sink(trigger={"availableNow": True})
        def delays(with_weather: DataFrame) -> Any:
            return with_weather.writeStream.format("parquet").option("path", str(folder / "delays"))

        return pipeline

    def run() -> tuple[StageState, int]:
        found = make().run(connect)
        assert found.await_termination(60)
        found.stop()
        return found.states["daily"], connect.read.parquet(str(folder / "delays")).count()

    assert run() == (StageState.FINISHED, 2)
    (folder / "numbers" / "more.csv").write_text("0\n")
    assert run() == (StageState.REUSED, 3)


def test_fingerprints_are_of_what_is_done(connect: SparkSession, folder: Path) -> None:
    """The same plan, made again, has the same one: other functions, columns, or contents of files have others."""

    def plus(step: int) -> DataFrame:
        return rates(connect, folder).select(F.udf(lambda value: value + step, "int")("k").alias("x"))

    def typed(type_: str) -> DataFrame:
        halves = rates(connect, folder).select(F.udf(lambda value: value / 2, type_)("k").cast("string").alias("x"))
        return halves.agg(F.max("x").alias("x"))

    def column(name: str) -> DataFrame:
        return connect.read.csv(str(folder / "rates.csv"), schema=f"{name} int").agg(F.max(name).alias("x"))

    def side(left: bool) -> DataFrame:
        one, two = totals(connect, folder), totals(connect, folder)
        return one.join(two, one["k"] == two["k"]).select((one if left else two)["v"])

    def plan_fingerprint(frame: DataFrame) -> str:
        return plans_of(frame).look(frame).fingerprint

    assert plan_fingerprint(plus(1)) == plan_fingerprint(plus(1))
    assert plan_fingerprint(plus(1)) != plan_fingerprint(plus(2))
    assert plan_fingerprint(typed("int")) == plan_fingerprint(typed("int"))
    assert plan_fingerprint(typed("int")) != plan_fingerprint(typed("double"))
    assert plan_fingerprint(column("p")) != plan_fingerprint(column("q"))
    assert plan_fingerprint(side(True)) == plan_fingerprint(side(True))
    assert plan_fingerprint(side(True)) != plan_fingerprint(side(False))
    frame = rates(connect, folder)
    before = look_at_source(frame)
    assert look_at_source(rates(connect, folder)) == before
    (folder / "rates.csv").write_text("k,v\n7,7\n")
    assert look_at_source(frame) != before
    text = connect.sql("select 1")
    assert look_at_source(text).fingerprint != look_at_source(text).fingerprint


def test_what_is_read_beside_the_inputs_is_seen(connect: SparkSession, folder: Path) -> None:
    """Files, and what only the server knows: tables, views and texts of SQL."""

    def beside(make: Callable[[DataFrame], DataFrame]) -> list[str]:
        source = rates(connect, folder)
        return [*plans_of(source).look(make(source), [source]).world]

    assert beside(lambda source: source.join(source.alias("again"), "k").join(connect.range(5), F.expr("k = id"))) == []
    (folder / "other.csv").write_text("1\n")
    other = connect.read.schema("k int").csv(str(folder / "other.csv"))
    other.createOrReplaceTempView("names")
    assert beside(lambda source: source.join(other, "k")) == ["csv other.csv"]
    assert beside(lambda source: source.join(connect.table("names"), "k")) == ["table names"]
    assert beside(lambda source: connect.sql("SELECT * FROM {source}", source=source)) == ["SQL text"]
    connect.udf.register("unseen_twice", lambda value: value * 2, "int")
    assert beside(lambda source: source.select(F.expr("unseen_twice(k)"))) == ["the registered function 'unseen_twice'"]
    assert beside(lambda source: source.select(F.call_udf("unseen_twice", "k"))) == [
        "the registered function 'unseen_twice'"
    ]
    assert beside(lambda source: source.select("*", F.current_timestamp())) == ["current_timestamp()"]
    assert beside(lambda source: source.selectExpr("*", "now()")) == ["now()"]


def test_what_the_client_puts_into_a_plan_is_seen(connect: SparkSession, folder: Path) -> None:
    """A variable of the session, rows, a value; the inputs' own plans are left out."""

    def looked(make: Callable[[DataFrame], DataFrame], schema: str = "k int, v int") -> str:
        source = connect.read.csv(str(folder / "rates.csv"), schema=schema, header=True)
        look = plans_of(source).look(make(source), [source])
        assert look.world == ()
        return look.fingerprint

    def variable(value: int) -> str:
        connect.sql(f"DECLARE OR REPLACE VARIABLE unseen INT DEFAULT {value}").collect()
        return looked(lambda source: source.where(F.expr("k > unseen")))

    def rows(value: int) -> str:
        return looked(lambda source: source.join(connect.createDataFrame([(1, value)], "k int, w int"), "k"))

    for put in (variable, rows, lambda value: looked(lambda source: source.where(F.col("k") > value))):
        assert put(1) == put(1)
        assert put(1) != put(2)
    assert looked(lambda source: source.where("k > 1")) == looked(lambda source: source.where("k > 1"))
    twice = [looked(lambda source: source.join(source.alias("a"), "k").agg(F.sum("a.v"))) for _ in range(2)]
    assert twice[0] == twice[1]


def test_jobs_are_ended_by_the_name_of_their_stage(
    connect: SparkSession, until: Callable[..., None], tmp_path: Path
) -> None:
    """A stage's jobs are tagged; ending them leaves the others alone."""
    jobs = jobs_of(connect)
    errors: list[PySparkException] = []

    def work() -> None:
        with jobs.group("slow stage", "", None):
            try:
                # It sleeps, so that other tests have the processors.
                slow = connect.range(0, 10**6, 1, 1).selectExpr(
                    "java_method('java.lang.Thread', 'sleep', 50L) AS slept"
                )
                slow.write.parquet(str(tmp_path / "slow"))
            except PySparkException as error:
                errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: any((tmp_path / "slow").rglob("*.parquet")), "no job has begun")
    jobs.cancel("slow stage")
    thread.join(30)
    assert "CANCELED" in str(errors[0])
    assert connect.range(3).count() == 3


def test_a_failed_stage_shows_the_deepest_cause(connect: SparkSession, tmp_path: Path) -> None:
    """The server's error names the file only; its causes come with the details of the error."""
    (tmp_path / "rates.parquet").write_text("not Parquet")
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(lambda spark: spark.read.schema("k int").parquet(str(tmp_path)))
    pipeline.sink(name="b", inputs=["a"])(lambda a: a.write.format("noop").mode("overwrite"))
    with pytest.raises(StageFailedError) as caught:
        pipeline.run(connect, max_attempts=1)
    assert caught.value.reason.startswith("[FAILED_READ_FILE")
    assert "; caused by: java.lang.RuntimeException: " in caught.value.reason
    assert "is not a Parquet file" in caught.value.reason
    assert caught.value.reason in caught.value.run.explain()


class Heard:
    """What a listener heard."""

    def __init__(self) -> None:
        self.progress: list[KinesisProgress] = []
        self.over: set[str] = set()

    def __call__(self, progress: KinesisProgress) -> None:
        self.progress.append(progress)

    def ended(self, run_id: str) -> None:
        self.over.add(run_id)


def test_kinesis_is_read_and_written(
    connect: SparkSession,
    kinesis: RunningEmulator,
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    folder: Path,
) -> None:
    """The server finds the formats by their names: the package is installed where its Python is; progress comes too."""
    source, target = make_stream(2), make_stream(1)
    source.put(20)
    stream = connect.readStream.format("kinesis").options(**source.options(initialPosition="TRIM_HORIZON")).load()
    writer = stream.select("data", "partitionKey").writeStream.format("kinesis").options(**target.options())
    heard = Heard()
    listener = KinesisProgressListener(heard)
    connect.streams.addListener(listener)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()

    delivery = f"delivery-{uuid.uuid4().hex[:8]}"
    kinesis.client("firehose").create_delivery_stream(DeliveryStreamName=delivery)
    options = endpoint_options(kinesis.endpoints["firehose"], delivery, recordDelimiter="\\n")
    archive = stream.select("data").writeStream.format("firehose").options(**options).trigger(availableNow=True)
    archiving = archive.option("checkpointLocation", str(folder / "archived")).start()

    assert query.awaitTermination(PATIENCE_SECONDS)
    assert sorted(target.held()) == sorted(source.put_keys.values())
    assert archiving.awaitTermination(PATIENCE_SECONDS)
    delivered = b"".join(file.read_bytes() for file in (kinesis.firehose_folder / delivery).iterdir())
    assert sorted(delivered.splitlines()) == sorted(source.put_keys.values())
    # Spark's client hangs when the last listener is removed while an event is on its way to it.
    until(lambda: {query.runId, archiving.runId} <= heard.over, "the listener does not hear of the end")
    connect.streams.removeListener(listener)
    seen = {one.query_id for one in heard.progress}
    (last,) = kinesis_progress(query)
    assert (last.streams, last.numbers.records) == ((source.name,), 20)
    # Two queries poll the shards: while one is throttled its lag grows.
    assert 0 <= last.numbers.max_millis_behind_latest < 1000 * PATIENCE_SECONDS
    assert query.id in seen
    assert seen <= {query.id, archiving.id}


def test_sql_reads_a_stream(connect: SparkSession, make_stream: Callable[[int], Any]) -> None:
    """The client registers `read_kinesis`, the server's Python reads."""
    source = make_stream(2)
    source.put(20)
    register(connect)
    options = ", ".join(f"{name} => '{value}'" for name, value in source.options().items() if name != "streamName")
    counted = connect.sql(f"SELECT count(*) AS n FROM read_kinesis('{source.name}', {options})")
    assert [row["n"] for row in counted.collect()] == [20]


def test_a_wrong_option_is_told_to_the_client(connect: SparkSession) -> None:
    """With the nearest one, for an option of this source and for another connector's; on `load`, before any job."""
    for name, meant in (("initialPositoin", "initialPosition"), ("kinesis.consumerTyp", "kinesis.consumerType")):
        with pytest.raises(Exception, match=f"unknown option.*{meant}"):
            connect.readStream.format("kinesis").options(**{"streamName": "s", name: "LATEST"}).load().schema  # noqa: B018


def test_an_error_is_short_where_the_server_keeps_its_stack(connect: SparkSession) -> None:
    """A client shows the server's stack unless its session says no; what is left begins and ends with our words."""
    setting = "spark.sql.connect.serverStacktrace.enabled"
    wrong = connect.readStream.format("kinesis").options(streamName="s", initialPositoin="LATEST")
    connect.conf.set(setting, "false")
    try:
        with pytest.raises(Exception, match="did you mean 'initialPosition'") as caught:
            wrong.load().schema  # noqa: B018
    finally:
        connect.conf.unset(setting)
    assert len(str(caught.value)) < 700
    assert "JVM stacktrace" not in str(caught.value)


def test_each_row_of_the_page_has_a_test() -> None:
    """The page on Spark Connect names an existing test for each row of its table."""
    folder = Path(__file__).parents[1]
    page = (folder.parents[2] / "docs" / "pages" / "how-to" / "spark-connect.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    rows = [re.findall(r"<!-- (test_\w+) -->", line) for line in lines if not line.startswith("| on Spark Connect")]
    there = {name for file in folder.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(rows) > 10
    assert all(names and set(names) <= there for names in rows), rows
