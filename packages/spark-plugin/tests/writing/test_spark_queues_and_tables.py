"""Formats `sqs` and `dynamodb`, against moto over real sockets."""

import json
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from patience import PATIENCE_SECONDS
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.async_sink.dead_letters import read_dead_letters, why_it_stays
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc.testing import service_process
from penstock.spark_plugin import DynamoDbDataSource, SqsDataSource, WriteSummary
from penstock.spark_plugin.errors import OptionError, SchemaError, SparkPluginError
from penstock.spark_plugin.testing import endpoint_options

SOURCES: dict[str, Any] = {"sqs": SqsDataSource, "dynamodb": DynamoDbDataSource}


@pytest.fixture(scope="module")
def services() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, companions=("dynamodb", "sqs")) as emulator:
        yield emulator


def new() -> str:
    return f"flights-{uuid.uuid4().hex}"


def make_queue(services: RunningEmulator, *, fifo: bool = False) -> str:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if fifo else {}
    client = services.client("sqs")
    url: str = client.create_queue(QueueName=new() + ".fifo" * fifo, Attributes=attributes)["QueueUrl"]
    return url


def make_table(services: RunningEmulator) -> str:
    name = new()
    services.client("dynamodb").create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    return name


def options(services: RunningEmulator, kind: str, destination: str, **given: str) -> dict[str, str]:
    common = endpoint_options(services.endpoints[kind], "", **given)
    del common["streamName"]
    return common | {"queueUrl" if kind == "sqs" else "tableName": destination}


def messages(services: RunningEmulator, url: str) -> list[dict[str, Any]]:
    client, found = services.client("sqs"), list[dict[str, Any]]()
    while True:
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])
        if not answer.get("Messages"):
            return found
        found += answer["Messages"]
        for one in answer["Messages"]:
            client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])


def items(services: RunningEmulator, table: str) -> dict[int, dict[str, Any]]:
    pages = services.client("dynamodb").get_paginator("scan").paginate(TableName=table)
    return {int(item["id"]["N"]): item for page in pages for item in page["Items"]}


def test_frames_and_streams_become_messages(
    spark: SparkSession, services: RunningEmulator, make_stream: Callable[[int], Any], tmp_path: Path
) -> None:
    """A row is a message: its body as it is, with its group, or all columns as JSON."""
    fifo, standard = make_queue(services, fifo=True), make_queue(services)
    frame = spark.range(30, numPartitions=2).select(
        F.concat(F.lit("flight "), "id").alias("body"), (F.col("id") % 3).cast("string").alias("messageGroupId")
    )
    frame.write.format("sqs").options(**options(services, "sqs", fifo)).mode("append").save()
    found = messages(services, fifo)
    assert {(one["Body"], one["Attributes"]["MessageGroupId"]) for one in found} == {
        (f"flight {number}", str(number % 3)) for number in range(30)
    }

    source = make_stream(1)
    source.put(20)
    stream = spark.readStream.format("kinesis").options(**source.options(initialPosition="TRIM_HORIZON")).load()
    rows = stream.select(F.col("data").cast("string").alias("number"), F.lit(0).alias("delaySeconds"))
    given = options(services, "sqs", standard, valueFormat="json", recordIds="true")
    query = rows.writeStream.format("sqs").options(**given).trigger(availableNow=True)
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert started.awaitTermination(PATIENCE_SECONDS)
    bodies = [json.loads(one["Body"]) for one in messages(services, standard)]
    assert {one["number"] for one in bodies} == {data.decode() for data in source.put_keys.values()}
    assert len({one["recordId"] for one in bodies}) == len(bodies) == 20


def test_frames_and_streams_become_items(
    spark: SparkSession, services: RunningEmulator, make_stream: Callable[[int], Any], tmp_path: Path
) -> None:
    """A row is an item: an attribute for each column, none for a null."""
    table = make_table(services)
    frame = spark.range(60, numPartitions=2).selectExpr(
        "id",
        "cast(id as decimal(10, 2)) as price",
        "if(id = 0, null, named_struct('from', 'EWR', 'stops', array('ORD'))) as route",
        "map('seat', id) as seats",
        "cast('x' as binary) as raw",
        "timestamp'2026-01-31 12:00:00' as time",
    )
    frame.write.format("dynamodb").options(**options(services, "dynamodb", table)).mode("append").save()
    found = items(services, table)
    assert found[1] == {
        "id": {"N": "1"},
        "price": {"N": "1.00"},
        "route": {"M": {"from": {"S": "EWR"}, "stops": {"L": [{"S": "ORD"}]}}},
        "seats": {"M": {"seat": {"N": "1"}}},
        "raw": {"B": b"x"},
        "time": {"S": datetime(2026, 1, 31, 12, tzinfo=UTC).isoformat()},
    }
    assert len(found) == 60
    assert "route" not in found[0]

    source, table = make_stream(1), make_table(services)
    source.put(20)
    stream = spark.readStream.format("kinesis").options(**source.options(initialPosition="TRIM_HORIZON")).load()
    numbers = stream.select(F.col("data").cast("string").cast("long").alias("id"), "partitionKey")
    query = numbers.writeStream.format("dynamodb").options(**options(services, "dynamodb", table))
    started = query.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert started.awaitTermination(PATIENCE_SECONDS)
    assert set(items(services, table)) == {int(data) for data in source.put_keys.values()}


def fields(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def write(kind: str, given: dict[str, str], schema: StructType, rows: pa.RecordBatch, use: str) -> WriteSummary:
    """Run one write task as Spark does, without Spark."""
    writer = getattr(SOURCES[kind](given), use)(schema, overwrite=False)
    summary = writer.write(iter([rows.slice(0, 2), rows.slice(2)]))
    assert isinstance(summary, WriteSummary)
    return summary


MESSAGES = fields(body=StringType(), messageGroupId=StringType(), delaySeconds=IntegerType())
MESSAGE_ROWS = pa.record_batch(
    {
        "body": ["0", "1", "a\x00b", None, "4", "5"],
        "messageGroupId": ["g", "g", "g", "g", "ключ", "g"],
        "delaySeconds": pa.array([None, None, None, None, None, 901], pa.int32()),
    }
)
ITEMS = fields(id=LongType(), data=BinaryType())
ITEM_ROWS = pa.record_batch({"id": pa.array([0, 1, None, 3, None], pa.int64()), "data": [b"x"] * 5})


@pytest.mark.parametrize("use", ["writer", "streamWriter"])
def test_a_message_that_the_queue_refuses_is_a_dead_letter(services: RunningEmulator, tmp_path: Path, use: str) -> None:
    """With its row and all of its fields; the others are written."""
    url = make_queue(services)
    given = options(services, "sqs", url)
    with pytest.raises(SparkPluginError, match="UNWRITABLE_ROW") as caught:
        write("sqs", given, MESSAGES, MESSAGE_ROWS, use)
    assert caught.value.facts["row"] == 2
    messages(services, url)
    summary = write("sqs", given | {"deadLetterPath": str(tmp_path)}, MESSAGES, MESSAGE_ROWS, use)
    assert (summary.records, summary.dead_letters) == (2, 4)
    assert sorted(one["Body"] for one in messages(services, url)) == ["0", "1"]
    (file,) = tmp_path.iterdir()
    letters = {one["row"]: one for one in map(json.loads, file.read_text().splitlines())}
    kept = {row: one["data"] and b64decode(one["data"]).decode() for row, one in letters.items()}
    assert kept == {2: "a\x00b", 3: None, 4: "4", 5: "5"}
    assert (letters[4]["messageGroupId"], letters[5]["delaySeconds"]) == ("ключ", 901)
    assert (letters[2]["kind"], letters[2]["streamName"], letters[2]["partitionKey"]) == ("sqs", url, None)
    assert all(why_it_stays(letter) is not None for letter in read_dead_letters(file))


@pytest.mark.parametrize("use", ["writer", "streamWriter"])
def test_an_item_without_its_key_is_a_dead_letter(services: RunningEmulator, tmp_path: Path, use: str) -> None:
    """The writer asks the table for its key; the letter has the row as JSON."""
    table = make_table(services)
    given = options(services, "dynamodb", table)
    with pytest.raises(SparkPluginError, match=r"UNWRITABLE_ROW.*'id'") as caught:
        write("dynamodb", given, ITEMS, ITEM_ROWS, use)
    assert caught.value.facts["row"] == 2
    summary = write("dynamodb", given | {"deadLetterPath": str(tmp_path)}, ITEMS, ITEM_ROWS, use)
    assert (summary.records, summary.dead_letters) == (3, 2)
    assert set(items(services, table)) == {0, 1, 3}
    (file,) = tmp_path.iterdir()
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["row"], one["kind"], one["reason"]) for one in letters] == [
        (2, "dynamodb", "not encoded"),
        (4, "dynamodb", "not encoded"),
    ]
    assert json.loads(b64decode(letters[0]["data"])) == {"data": "eA=="}


@pytest.mark.parametrize("kind", ["sqs", "dynamodb"])
def test_undelivered_message_or_item_is_a_dead_letter(
    services: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As it was sent: the body, or the attribute values of the item as JSON."""
    url = "http://127.0.0.1:9"  # nothing listens on the discard port
    schema, rows, destination = {
        "sqs": (MESSAGES, MESSAGE_ROWS.slice(0, 1), f"{url}/1/q"),
        "dynamodb": (ITEMS, ITEM_ROWS.slice(0, 1), make_table(services)),
    }[kind]
    given = options(services, kind, destination, maxAttempts="1", deadLetterPath=str(tmp_path))
    if kind == "sqs":
        given["endpointUrl"] = url
    else:
        # The table is described, and then there is no answer to a write.
        from penstock.async_sink._destinations.dynamodb import Table

        async def refuse(*_: Any) -> None:
            raise ConnectionError("as told")

        monkeypatch.setattr(Table, "send", refuse)
    summary = write(kind, given, schema, rows, "writer")
    assert (summary.records, summary.dead_letters) == (0, 1)
    (file,) = tmp_path.iterdir()
    letter = json.loads(file.read_text())
    expected = {"sqs": "0", "dynamodb": '{"id": {"N": "0"}, "data": {"B": "eA=="}}'}[kind]
    assert (b64decode(letter["data"]).decode(), letter["row"], letter["attempts"]) == (expected, None, 1)


@pytest.mark.parametrize("kind", ["sqs", "dynamodb"])
def test_rows_go_through_the_gateway(services: RunningEmulator, tmp_path: Path, kind: str) -> None:
    """With the same dead letters; that a row has no key only the gateway's own writer knows."""
    pytest.importorskip("penstock.services.sink_gateway")
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "PATH": ""}
    environment[f"AWS_ENDPOINT_URL_{kind.upper()}"] = services.endpoints[kind]
    command = ["serve", "--region", "us-east-1"]
    with service_process("penstock.services.sink_gateway", command, environment) as gateway:
        more = {"sinkEndpoint": gateway.address, "deadLetterPath": str(tmp_path)}
        if kind == "sqs":
            url = make_queue(services)
            summary = write(kind, options(services, kind, url, **more), MESSAGES, MESSAGE_ROWS, "writer")
            assert sorted(one["Body"] for one in messages(services, url)) == ["0", "1"]
            assert (summary.records, summary.dead_letters) == (2, 4)
        else:
            table = make_table(services)
            summary = write(kind, options(services, kind, table, **more), ITEMS, ITEM_ROWS, "writer")
            assert set(items(services, table)) == {0, 1, 3}
            assert (summary.records, summary.dead_letters) == (3, 2)


@pytest.mark.parametrize(
    ("kind", "columns", "column"),
    [
        ("sqs", {"data": StringType()}, "body"),
        ("sqs", {"body": IntegerType()}, "body"),
        ("sqs", {"body": StringType(), "partitionKey": StringType()}, "partitionKey"),
        ("sqs", {"body": StringType(), "delaySeconds": StringType()}, "delaySeconds"),
        ("dynamodb", {"id": LongType(), "wait": DayTimeIntervalType()}, "wait"),
    ],
)
def test_columns_that_cannot_be_written_fail_the_plan(kind: str, columns: dict[str, DataType], column: str) -> None:
    """The error names the column."""
    destination = {"sqs": {"queueUrl": "https://sqs/1/q"}, "dynamodb": {"tableName": "flights"}}[kind]
    source = SOURCES[kind]({"region": "us-east-1", **destination})
    for use in (source.writer, source.streamWriter):
        with pytest.raises(SchemaError) as caught:
            use(fields(**columns), overwrite=False)
        assert caught.value.column == column


@pytest.mark.parametrize(
    ("kind", "given", "code", "option"),
    [
        ("sqs", {}, "MISSING_OPTION", "queueUrl"),
        ("sqs", {"queueUrl": "flights"}, "INVALID_OPTION", "queueUrl"),
        ("sqs", {"queueUrl": "https://sqs/1/q", "streamName": "s"}, "IRRELEVANT_OPTION", "streamName"),
        ("sqs", {"queueUrl": "https://sqs/1/q", "tableName": "t"}, "IRRELEVANT_OPTION", "tableName"),
        ("sqs", {"queueUrl": "https://sqs/1/q", "valueFormat": "avro"}, "INVALID_OPTION", "valueFormat"),
        ("sqs", {"queueUrl": "https://sqs/1/q", "maxBatchSize": "11"}, "INVALID_OPTION", "maxBatchSize"),
        ("sqs", {"queueUrl": "https://sqs/1/q", "schemaRegistry": "r"}, "IRRELEVANT_OPTION", "schemaRegistry"),
        ("dynamodb", {}, "MISSING_OPTION", "tableName"),
        ("dynamodb", {"tableName": "t", "valueFormat": "json"}, "IRRELEVANT_OPTION", "valueFormat"),
        ("dynamodb", {"tableName": "t", "initialPosition": "LATEST"}, "IRRELEVANT_OPTION", "initialPosition"),
        ("dynamodb", {"tableName": "t", "sinkRateStrategy": "shards"}, "INVALID_OPTION", "sinkRateStrategy"),
        ("dynamodb", {"tableName": "t", "streamNamePattern": "t"}, "IRRELEVANT_OPTION", "streamNamePattern"),
    ],
)
def test_options_without_effect_are_refused(kind: str, given: dict[str, str], code: str, option: str) -> None:
    """By their names, when the write is planned."""
    schema = fields(body=StringType()) if kind == "sqs" else ITEMS
    with pytest.raises(OptionError) as caught:
        SOURCES[kind]({"region": "us-east-1", **given}).writer(schema, overwrite=False)
    assert (caught.value.code, caught.value.option) == (code, option)


@pytest.mark.parametrize("kind", ["sqs", "dynamodb"])
def test_they_cannot_be_read(spark: SparkSession, kind: str) -> None:
    """The error says what to read instead."""
    with pytest.raises(AnalysisException, match=r"WRITE_ONLY.*format '"):
        spark.read.format(kind).load()


def test_a_task_without_rows_asks_nothing() -> None:
    """An empty partition does not even describe its table."""
    given = endpoint_options("http://127.0.0.1:9", "", tableName="flights", stallTimeout="1s")
    del given["streamName"]
    summary = DynamoDbDataSource(given).writer(ITEMS, overwrite=False).write(iter([]))
    assert isinstance(summary, WriteSummary)
    assert summary.records == 0
