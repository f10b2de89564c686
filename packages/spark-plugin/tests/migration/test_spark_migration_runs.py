"""The complete examples of other connectors' documents in Spark: what they write is there, and can be read again."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documented_examples import EXAMPLES, Example, Way
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.emulator.testing import RunningEmulator
from penstock.spark_plugin._options.foreign import Connector

ENDPOINT = {Connector.FLINK: "aws.endpoint", Connector.DATABRICKS: "endpoint", Connector.AWS: "kinesis.endpointUrl"}
KEYS = {
    Connector.FLINK: ("aws.credentials.basic.accesskeyid", "aws.credentials.basic.secretkey"),
    Connector.DATABRICKS: ("awsAccessKey", "awsSecretKey"),
    Connector.AWS: ("kinesis.awsAccessKeyId", "kinesis.awsSecretKey"),
}


def options_of(one: Example, url: str, **places: str) -> dict[str, str]:
    """An example's options, with what a machine outside of AWS needs: an endpoint, and keys if there are none."""
    given = one.options(endpoint=url, **places) | {ENDPOINT[one.connector]: url}
    if not any(name.lower().endswith("accesskeyid") for name in given):
        given |= dict.fromkeys(KEYS[one.connector], "test")
    return given


@pytest.mark.parametrize(
    "one", [one for one in EXAMPLES if one.way is not Way.READ_STREAM], ids=lambda one: one.name.replace(" ", "-")
)
def test_each_example_of_writing_writes(
    spark: SparkSession, kinesis: RunningEmulator, make_stream: Callable[[int], Any], tmp_path: Path, one: Example
) -> None:
    """As a frame's write: a table's columns by `valueFormat`, and `data` otherwise, with keys made in a select."""
    table = spark.createDataFrame([(1, 7, "buy"), (2, 8, "a,b")], "user_id long, item_id long, behavior string")
    csv = [b"1,7,buy", b'2,8,"a,b"']
    places = {"checkpoint": str(tmp_path)}
    if one.way is Way.FIREHOSE:
        name = f"delivery-{uuid.uuid4().hex[:8]}"
        kinesis.client("firehose").create_delivery_stream(DeliveryStreamName=name)
        rows = table if "valueFormat" in one.added else table.select(F.col("behavior").alias("data"))
        options = options_of(one, kinesis.endpoints["firehose"], stream=name, **places)
        rows.coalesce(1).write.format("firehose").options(**options).mode("append").save()
        (file,) = (kinesis.firehose_folder / name).iterdir()
        assert file.read_bytes() == b"".join(csv if "valueFormat" in one.added else [b"buy", b"a,b"])
        return
    stream = make_stream(1)
    arn = stream.client.describe_stream_summary(StreamName=stream.name)["StreamDescriptionSummary"]["StreamARN"]
    key = F.concat_ws("|", "user_id", "item_id").alias("partitionKey")
    if "valueFormat" in one.added:
        rows, expected = table.select("*", key), csv
    else:
        rows, expected = table.select(F.col("behavior").alias("data"), key), [b"buy", b"a,b"]
    options = options_of(one, kinesis.endpoint_url, stream=stream.name, arn=arn, **places)
    rows.coalesce(1).write.format("kinesis").options(**options).mode("append").save()
    assert stream.held() == expected
