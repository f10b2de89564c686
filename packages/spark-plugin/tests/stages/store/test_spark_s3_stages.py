"""Stages with results on S3, in a session that has no file system for it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from s3_servers import options, running_s3, s3_client

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline, run_staged
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._stages.store.rows import nullable, read_rows, write_rows
from penstock.spark_plugin.errors import PipelineDefinitionError, StageFailedError, StoreLostError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
TYPES = {
    "b": "true",
    "y": "cast(1 as byte)",
    "l": "1L",
    "d": "1.5D",
    "dec": "cast(1.25 as decimal(38,18))",
    "text": "'é'",
    "bin": "x'00ff'",
    "day": "date'1500-01-01'",
    "ts": "timestamp'1700-01-01 00:00:00'",
    "ntz": "timestamp_ntz'2020-01-01 01:02:03.123456'",
    "dt": "interval '1' day",
    "array": "array(1, null)",
    "map": "map('a', named_struct('x', 1))",
    "a struct": "named_struct('a b', array(named_struct('c', 1)))",
    "none": "null",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as endpoint_url:
        yield endpoint_url


@pytest.fixture
def bucket(s3: str) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3_client(s3).create_bucket(Bucket=name)
    return name


def create_pipeline(
    bucket: str, s3: str, folder: Path, *, checkpoint: bool = True, trigger: Any = None, **given: str
) -> Pipeline:
    text = str(folder)
    pipeline = Pipeline("job", store=f"s3://{bucket}/store", store_options=options(s3, **given))

    @pipeline.source(bounded=True)
    def keys(spark: SparkSession) -> DataFrame:
        return spark.read.csv(f"{text}/keys.csv", schema="k long")

    @pipeline.op(attributes=FULL_DAM)
    def counts(keys: DataFrame) -> DataFrame:
        return keys.groupBy("k").count()

    @pipeline.source(bounded=False)
    def live(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("value long").csv(f"{text}/live")

    @pipeline.sink(trigger=trigger or {"availableNow": True})
    def out(live: DataFrame, counts: DataFrame) -> Any:
        writer = live.join(counts, live["value"] == counts["k"]).select("k", "count").writeStream.format("json")
        if checkpoint:
            writer = writer.option("checkpointLocation", f"{text}/checkpoint")
        return writer.option("path", f"{text}/out")

    return pipeline


def rows(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    found = spark.read.schema("k long, count long").json(f"{folder}/out").collect()
    return sorted((row["k"], row["count"]) for row in found)


def test_a_pipeline_keeps_its_results_on_s3(spark: SparkSession, s3: str, bucket: str, tmp_path: Path) -> None:
    """Computed once, read by the live stage and reused by the next run, which continues from its checkpoint."""
    (tmp_path / "keys.csv").write_text("1\n1\n2\n")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "0.csv").write_text("1\n2\n3\n")
    states = []
    for number in (1, 2):
        run = create_pipeline(bucket, s3, tmp_path).run(spark)
        assert run.await_termination(120)
        run.stop()
        states.append(run.states)
        (tmp_path / "live" / f"{number}.csv").write_text("2\n")
    finished, reused = StageState.FINISHED, StageState.REUSED
    assert states == [{"counts": finished, "out": finished}, {"counts": reused, "out": finished}]
    assert rows(spark, tmp_path) == [(1, 2), (2, 1), (2, 1)]
    keys = [one["Key"] for one in s3_client(s3).list_objects_v2(Bucket=bucket)["Contents"]]
    assert "store/live/out/adopted.json" in keys
    assert any(key.startswith("store/stages/counts/") and key.endswith(".parquet") for key in keys)


def test_a_live_stage_without_a_place_for_its_checkpoint_is_refused(
    spark: SparkSession, s3: str, bucket: str, tmp_path: Path
) -> None:
    """By its name, with the cure: the store's own place is beyond Spark's reach."""
    (tmp_path / "keys.csv").write_text("1\n")
    (tmp_path / "live").mkdir()
    pipeline = create_pipeline(bucket, s3, tmp_path, checkpoint=False)
    with pytest.raises(StageFailedError) as caught:
        pipeline.run(spark)
    site = pipeline.declared["out"].call_site
    assert str(caught.value.__cause__) == (
        f"sink 'out' ({site}) has no checkpointLocation, and Spark cannot put one into the store s3://{bucket}/store, "
        "for whose scheme this session has no file system: give its writer a checkpointLocation that Spark reaches"
    )


def test_a_driver_that_loses_its_store_stops_its_queries(
    spark: SparkSession, s3: str, bucket: str, tmp_path: Path
) -> None:
    """Another one has taken it over, and may run them by now: this run says so, and writes nothing more."""
    (tmp_path / "keys.csv").write_text("1\n")
    (tmp_path / "live").mkdir()
    trigger = {"processingTime": "200 milliseconds"}
    run = create_pipeline(bucket, s3, tmp_path, trigger=trigger, claimSeconds="10").run(spark)
    s3_client(s3).put_object(Bucket=bucket, Key="store/claim.json", Body=b"another's")
    with pytest.raises(StoreLostError) as caught:
        run.await_termination(120)
    assert str(caught.value) == (
        f"the claim on the store s3://{bucket}/store is lost (another driver has taken it over): this run has ended; "
        "if no other driver is meant to run on that store, run the pipeline again, and it continues where this run "
        "ended"
    )
    assert run.states == {"counts": StageState.FINISHED, "out": StageState.FAILED}
    assert run.queries["out"].awaitTermination(60)
    run.stop()
    held = s3_client(s3).get_object(Bucket=bucket, Key="store/claim.json")["Body"].read()
    assert held == b"another's"


def test_a_checkpoint_lies_in_the_store_where_spark_reaches_it(
    spark: SparkSession, s3: str, bucket: str, tmp_path: Path
) -> None:
    """By a file system of Spark's own for `s3a`; the next run finds it there. Here it leads to a folder."""
    (tmp_path / "keys.csv").write_text("1\n")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "0.csv").write_text("1\n")
    (tmp_path / "reached").mkdir()
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"fs.viewfs.mounttable.{bucket}.link./store": f"file://{tmp_path}/reached",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        for number in (1, 2):
            run = create_pipeline(bucket, s3, tmp_path, checkpoint=False).run(spark)
            assert run.await_termination(120)
            run.stop()
            (tmp_path / "live" / f"{number}.csv").write_text("1\n")
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert rows(spark, tmp_path) == [(1, 1), (1, 1)]
    commits = tmp_path / "reached" / "live" / "out" / "checkpoint" / "commits"
    assert {one.name for one in commits.iterdir() if not one.name.startswith(".")} == {"0", "1"}


@pytest.mark.parametrize("leads_elsewhere", [False, True])
def test_a_store_that_spark_does_not_reach_is_written_by_arrow(
    spark: SparkSession, s3: str, bucket: str, tmp_path: Path, *, leads_elsewhere: bool
) -> None:
    """With `stageFormat=auto`; with `spark` it is refused, with what was found for each name of the place."""
    (tmp_path / "keys.csv").write_text("1\n")
    (tmp_path / "live").mkdir()
    (tmp_path / "reached").mkdir()
    reason = "no file system for it"
    settings = {}
    if leads_elsewhere:
        settings = {
            "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
            "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
            f"fs.viewfs.mounttable.{bucket}.link./store": f"file://{tmp_path}/reached",
        }
        reason = "what it writes there does not come to this place"
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        with pytest.raises(StageFailedError) as caught:
            create_pipeline(bucket, s3, tmp_path, stageFormat="spark").run(spark)
        run = create_pipeline(bucket, s3, tmp_path, stageFormat="auto").run(spark)
    finally:
        for name in settings:
            spark.conf.unset(name)
    run.stop()
    assert run.states["counts"] is StageState.FINISHED
    assert caught.value.reason == (
        f"the store's folder s3://{bucket}/store/stages cannot be used (stageFormat=spark: Spark does not write and "
        f"read there (s3: no file system for it; s3a: {reason}): give arrow or auto): `store=` takes a folder that "
        "exists or can be made, or s3://BUCKET/FOLDER, which this driver and all executors may write"
    )


def test_an_ordinary_query_is_staged_on_s3(spark: SparkSession, s3: str, bucket: str, tmp_path: Path) -> None:
    """What is small is sent to all tasks, as Spark does with its own files; no secret is in the query's plan."""
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "0.csv").write_text("1\n2\n3\n")
    counts = spark.range(6).selectExpr("id % 3 as k").groupBy("k").count()
    live = spark.readStream.schema("value long").csv(f"{tmp_path}/live")
    writer = live.join(counts, live["value"] == counts["k"]).select("k", "count").writeStream.format("json")
    writer = writer.option("path", f"{tmp_path}/out").option("checkpointLocation", f"{tmp_path}/checkpoint")
    secret = {"awsSecretAccessKey": "a-secret-key", "awsAccessKeyId": "an-access-key"}
    run = run_staged(
        writer.trigger(availableNow=True), store=f"s3://{bucket}/store", store_options={**options(s3), **secret}
    )
    assert run.await_termination(120)
    plan = run.queries["output"]._jsq.explainInternal(True)
    run.stop()
    assert rows(spark, tmp_path) == [(1, 2), (2, 2)]
    assert "penstock_stage" in plan
    assert "BroadcastHashJoin" in plan
    assert "a-secret-key" not in plan + run.explain()


def test_rows_come_back_as_they_were(spark: SparkSession, s3: str, bucket: str) -> None:
    """For all types, also without rows; a type that Arrow does not have is refused."""
    place = Place.parse(f"s3://{bucket}/rows", options(s3))
    frame = spark.range(3).selectExpr(*(f"{text} as `{name}`" for name, text in TYPES.items()))
    for number, one in enumerate((frame, frame.limit(0))):
        found = read_rows(
            spark, place.below(str(number)), write_rows(one, place.below(str(number))), nullable(one.schema)
        )
        assert found.collect() == one.collect()
        assert found.schema.simpleString() == one.schema.simpleString()
        assert all(field.nullable for field in found.schema)
    with pytest.raises(PipelineDefinitionError) as caught:
        write_rows(spark.sql("select 1 as a, interval '1-2' year to month as b"), place)
    assert str(caught.value) == (
        "column 'b' is of type interval year to month, which Arrow does not have, and so cannot be kept in a store on "
        "S3: cast it, or give a store in a folder"
    )
