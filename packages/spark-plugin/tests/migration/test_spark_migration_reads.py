"""Options of other connectors where Spark hands them over: on reads, writes and in SQL."""

from collections.abc import Callable
from typing import Any

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
