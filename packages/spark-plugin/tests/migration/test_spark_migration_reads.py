"""Options of other connectors where Spark hands them over: on reads, writes and in SQL."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession


def test_each_connectors_options_read_the_same_rows(spark: SparkSession, make_stream: Callable[[int], Any]) -> None:
    """As options, and in SQL, where names with dots and dashes stand as they are written; columns by their names."""
    stream = make_stream(1)
    stream.put(3)
    url = stream.emulator.endpoint_url
    dialects = {
        "penstock": {"kinesis.streamName": stream.name, "kinesis.endpointUrl": url, "kinesis.region": "us-east-1"},
        "databricks": {"streamName": stream.name, "endpoint": url, "region": "us-east-1", "maxFetchDuration": "5s"},
        "aws": {
            "stream": stream.name,
            "aws.endpoint": url,
            "aws.region": "us-east-1",
            "scan.shard-assigner": "uniform",
        },
    }
    expected = {
        "penstock": "data partitionKey streamName shardId sequenceNumber subSequenceNumber approximateArrivalTimestamp",
        "databricks": "partitionKey data stream shardId sequenceNumber approximateArrivalTimestamp",
        "aws": "data streamName partitionKey sequenceNumber approximateArrivalTimestamp",
    }
    for columns, options in dialects.items():
        keys = {"awsAccessKey": "test", "awsSecretKey": "test", "columns": columns}
        listed = ", ".join(f"`{name}` '{value}'" for name, value in (options | keys).items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW migrated USING kinesis OPTIONS ({listed})")
        frame = spark.table("migrated")
        assert " ".join(frame.columns) == expected[columns]
        assert sorted(bytes(row["data"]) for row in frame.collect()) == [b"0", b"1", b"2"]


def test_a_misplaced_option_is_told_as_the_frame_is_made(
    spark: SparkSession, make_stream: Callable[[int], Any]
) -> None:
    """By the name that was written, with what to do, and before any job."""
    options = make_stream(1).options()
    with pytest.raises(AnalysisException, match=r"'sink\.batch\.max-size' belongs to writes.*df\.write"):
        spark.readStream.format("kinesis").options(**options, **{"sink.batch.max-size": "5"}).load()
    rows = spark.sql("SELECT 'a' AS data, 'k' AS partitionKey").write.format("kinesis").mode("append")
    with pytest.raises(AnalysisException, match="'consumerMode' belongs to reads, and this is a write"):
        rows.options(**options, consumerMode="polling").save()
    with pytest.raises(AnalysisException, match="unknown option 'servicecredential'"):
        spark.read.format("kinesis").options(**options, serviceCredential="prod").load()
