"""What people write by mistake, or out of habit from elsewhere, is answered with the name, the value and the cure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from penstock.spark_plugin import KinesisOptions

_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s/consumer/c:1700000000"
_TIME = "a time since 1970: Kinesis knows none before"
_SHARDS = (
    'a position per stream, such as {"flights": "TRIM_HORIZON"}, or per shard, such as '
    '{"shardId-000000000000": "4959…"}, or an offset of a checkpoint'
)
_CONSUMER = "the ARN of a stream consumer"


def parse(**options: str) -> KinesisOptions:
    return KinesisOptions.parse({"streamName": "s", **options}, environ={})


def test_glue_s_names_mean_what_they_do_there() -> None:
    """A consumer that is there already, the pace of reads, and what is reported anyway."""
    told = {"emitConsumerLagMetrics": "true", "maxFetchTimeInMs": "1000"}
    options = parse(fanoutConsumerARN=_ARN, idleTimeBetweenReadsInMs="50", **told)
    assert (options.record_publisher, options.efo_consumer_arn) == ("efo", {"s": _ARN})
    assert options == parse(
        **{"recordPublisher": "efo", "efoRegistration": "none", "efoConsumerArn.s": _ARN, "getRecordsInterval": "200ms"}
    )


def test_what_a_stream_does_not_take_is_told_when_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    """Spark asks for the reader in a process that hides why it got none, behind an UnboundLocalError of its own."""
    given = {"streamName": "s", "region": "us-east-1", "endingPosition": "2026-01-31T12:00:00Z"}
    flights = spark.readStream.format("kinesis").options(**given).load()
    query = flights.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    assert "option 'endingPosition' belongs to bounded reads" in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)


def test_a_query_that_would_overwrite_a_stream_is_told_its_output_mode(spark: SparkSession, tmp_path: Path) -> None:
    """Spark calls output mode complete an overwrite, which is what a DataFrame has modes for."""
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    records = counts.selectExpr("cast(value as string) data", "cast(value as string) partitionKey")
    writer = records.writeStream.format("kinesis").options(streamName="s", region="us-east-1").outputMode("complete")
    with pytest.raises(Exception, match=r"cannot be overwritten: write with outputMode\('append'\), or 'update'"):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


@pytest.fixture
def stream(make_stream: Callable[[int], Any]) -> Any:
    made = make_stream(1)
    made.put(1)
    return made


def test_a_stream_is_no_table(spark: SparkSession, stream: Any, tmp_path: Path) -> None:
    """Spark keeps no options of a table: one that cannot be read says what to do, also where it is left by a write."""
    options = stream.options()
    spelled = ", ".join(f"{name} '{text}'" for name, text in options.items())
    rows = spark.createDataFrame([("a", "k")], "data string, partitionKey string")
    with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW … USING kinesis OPTIONS"):
        spark.sql(f"CREATE TABLE made USING kinesis OPTIONS ({spelled})")
    with pytest.raises(AnalysisException, match=r"no option is given at all, as for a table: .* Drop it; read by load"):
        spark.sql(f"CREATE TABLE made USING kinesis OPTIONS ({spelled}) AS SELECT 'a' AS data, 'k' AS partitionKey")
    live = spark.readStream.format("kinesis").options(**options, initialPosition="TRIM_HORIZON").load()
    writer = live.select("data", "partitionKey").writeStream.format("kinesis").options(**options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    try:
        spark.sql(f"CREATE TABLE declared (data string, partitionKey string) USING kinesis OPTIONS ({spelled})")
        rows.write.format("kinesis").options(**options).mode("append").saveAsTable("saved")
        writer.toTable("streamed").awaitTermination(60)
        for name in ("declared", "streamed", "saved"):
            with pytest.raises(AnalysisException, match="streamName' is required: no option is given at all, as for a"):
                spark.table(name).count()
        with pytest.raises(AnalysisException, match="streamName' is required: no option is given at all, as for a"):
            spark.sql("INSERT INTO declared SELECT 'a', 'k'")
    finally:
        for name in ("declared", "streamed", "saved"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_views_are_read_and_not_written(spark: SparkSession, stream: Any) -> None:
    """`STREAM` needs a view of a stream that is read; INSERT INTO says by what a stream is written."""
    spelled = ", ".join(f"{name} '{text}'" for name, text in stream.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW held USING kinesis OPTIONS ({spelled})")
    with pytest.raises(AnalysisException, match=r"'shardId': is not written; .*INSERT INTO a view gives all columns"):
        spark.sql("INSERT INTO held SELECT * FROM held")
    with pytest.raises(AnalysisException, match="not a temp view of streaming logical plan"):
        spark.sql("SELECT * FROM STREAM held")
    spark.readStream.format("kinesis").options(**stream.options()).load().createOrReplaceTempView("live")
    assert spark.sql("SELECT data FROM STREAM live").isStreaming
