"""Firehose, DynamoDB and SQS over real sockets: the emulator's Firehose, and moto's server for the others."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import (
    AggregationConfig,
    AsyncSinkConfig,
    DynamoDbRequestEntry,
    DynamoDbSink,
    FirehoseRequestEntry,
    FirehoseSink,
    KinesisStreamsSink,
    RemoteSink,
    SqsRequestEntry,
    SqsSink,
    dynamodb_config,
    firehose_config,
    slow_start_strategy,
    sqs_config,
    write_batches,
)
from penstock.async_sink.errors import DestinationError, RecordError, SinkOptionError
from penstock.aws import AwsOptionError, AwsOptions
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, companions=("dynamodb", "sqs")) as emulator:
        yield emulator


def new() -> str:
    """A name that nothing has had: moto keeps what is made for as long as the process lives."""
    return f"flights-{uuid.uuid4().hex}"


@pytest.fixture
def delivery_stream(emulator: RunningEmulator) -> str:
    name = new()
    client = emulator.client("firehose")
    client.create_delivery_stream(
        DeliveryStreamName=name,
        ExtendedS3DestinationConfiguration={
            "RoleARN": "arn:aws:iam::123456789012:role/r",
            "BucketARN": "arn:aws:s3:::b",
        },
    )
    return name


@pytest.fixture
def table(emulator: RunningEmulator) -> Any:
    client, name = emulator.client("dynamodb"), new()
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "flight", "AttributeType": "S"},
            {"AttributeName": "day", "AttributeType": "N"},
        ],
        KeySchema=[{"AttributeName": "flight", "KeyType": "HASH"}, {"AttributeName": "day", "KeyType": "RANGE"}],
    )
    return name


@pytest.fixture
def queue(emulator: RunningEmulator) -> str:
    url: str = emulator.client("sqs").create_queue(QueueName=new())["QueueUrl"]
    return url


def delivered(emulator: RunningEmulator, name: str) -> bytes:
    folder = emulator.firehose_folder / name
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def items(emulator: RunningEmulator, table: str) -> list[dict[str, Any]]:
    pages = emulator.client("dynamodb").get_paginator("scan").paginate(TableName=table)
    return [item for page in pages for item in page["Items"]]


def messages(emulator: RunningEmulator, queue: str) -> list[dict[str, Any]]:
    client = emulator.client("sqs")
    found: list[dict[str, Any]] = []
    while True:
        answer = client.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        )
        if not answer.get("Messages"):
            return found
        found += answer["Messages"]


def firehose(emulator: RunningEmulator, name: str, **config: Any) -> FirehoseSink[Any]:
    return FirehoseSink(emulator_options(emulator.endpoint_url), name, config=firehose_config(**config))


def dynamodb(emulator: RunningEmulator, name: str, **options: Any) -> DynamoDbSink[Any]:
    return DynamoDbSink(emulator_options(emulator.endpoints["dynamodb"]), name, **options)


def sqs(emulator: RunningEmulator, url: str, **options: Any) -> SqsSink[Any]:
    return SqsSink(emulator_options(emulator.endpoints["sqs"]), url, **options)


@pytest.mark.parametrize(
    ("config", "batch", "buffer", "batch_bytes", "record_bytes"),
    [
        (AsyncSinkConfig(), 500, 10_000, 5 * 2**20, 2**20),
        (firehose_config(), 500, 10_000, 4 * 2**20, 1_024_000),
        (sqs_config(), 10, 5_000, 256_000, 256_000),
        (dynamodb_config(), 25, 10_000, 16_000_000, 400_000),
    ],
)
def test_each_destination_has_its_own_defaults(
    config: AsyncSinkConfig, batch: int, buffer: int, batch_bytes: int, record_bytes: int
) -> None:
    """Like the connectors that follow FLIP-171; all other limits are the same."""
    assert (config.max_batch_size, config.max_buffered_requests) == (batch, buffer)
    assert (config.max_batch_size_in_bytes, config.max_record_size_in_bytes) == (batch_bytes, record_bytes)
    assert (config.max_in_flight_requests, config.max_time_in_buffer) == (50, timedelta(seconds=5))
    assert not config.fail_on_error


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda aws: FirehoseSink(aws, "s", config=firehose_config(max_batch_size=501)), "max_batch_size"),
        (lambda aws: DynamoDbSink(aws, "t", config=dynamodb_config(max_batch_size=26)), "max_batch_size"),
        (lambda aws: SqsSink(aws, "http://q/1/q", config=sqs_config(max_batch_size=11)), "max_batch_size"),
        (lambda aws: FirehoseSink(aws, "s", config=AsyncSinkConfig()), "max_batch_size_in_bytes"),
        (lambda aws: FirehoseSink(aws, ""), "delivery_stream_name"),
        (lambda aws: DynamoDbSink(aws, ""), "table_name"),
        (lambda aws: SqsSink(aws, ""), "queue_url"),
    ],
)
def test_limits_above_the_services_are_refused_at_once(make: Any, option: str) -> None:
    """Before anything is written, by an error that names the option."""
    with pytest.raises(SinkOptionError) as caught:
        make(emulator_options("http://127.0.0.1:1"))
    assert caught.value.option == option


def test_records_are_delivered_by_firehose(emulator: RunningEmulator, delivery_stream: str) -> None:
    """Rows of a record batch, in requests of 500, each once."""
    rows = [b"row %d\n" % number for number in range(1_234)]
    summary = write_batches(firehose(emulator, delivery_stream), [pa.record_batch({"data": rows})])
    assert (summary.records, summary.requests, summary.bytes) == (1_234, 3, sum(map(len, rows)))
    assert sorted(delivered(emulator, delivery_stream).splitlines(keepends=True)) == sorted(rows)


async def test_firehose_rows_are_checked_before_any_is_written(emulator: RunningEmulator, delivery_stream: str) -> None:
    """Null, empty, and one byte too many are named by their number; the largest size is taken."""
    async with firehose(emulator, delivery_stream).create_writer() as writer:
        await writer.write_many(pa.record_batch({"data": [b"x" * 1_024_000]}))
        for bad, error in (
            (None, RecordError),
            (b"", RecordError),
            (b"x" * 1_024_001, RecordError),
        ):
            with pytest.raises(error) as caught:
                await writer.write_many(pa.record_batch({"data": pa.array([b"good", bad], pa.binary())}))
            assert caught.value.record_number == 2
        for entry, words in (
            (FirehoseRequestEntry("text"), "its data is str, not bytes"),  # type: ignore[arg-type]  # the mistake
            (b"raw", "expected a FirehoseRequestEntry, got bytes: give the sink a converter"),
        ):
            with pytest.raises(RecordError, match=f"record 1: {words}"):
                await writer.write(entry)
    assert len(delivered(emulator, delivery_stream)) == 1_024_000


@pytest.mark.parametrize("kind", ["firehose", "dynamodb", "sqs"])
def test_a_missing_destination_raises_at_once(emulator: RunningEmulator, kind: str) -> None:
    """Nothing is retried; the error has the service's code."""
    missing: Any = {
        "firehose": (firehose(emulator, "nowhere"), {"data": [b"x"]}),
        "dynamodb": (dynamodb(emulator, "nowhere"), {"id": ["x"]}),
        "sqs": (sqs(emulator, emulator.endpoints["sqs"] + "/123456789012/nowhere"), {"body": ["x"]}),
    }[kind]
    with pytest.raises(DestinationError) as caught:
        write_batches(missing[0], [pa.record_batch(missing[1])])
    assert caught.value.destination == "nowhere"
    assert caught.value.code in ("ResourceNotFoundException", "QueueDoesNotExist", "NonExistentQueue")


def test_rows_become_items(emulator: RunningEmulator, table: str) -> None:
    """An attribute per column with DynamoDB's own types, and none for a null."""
    batch = pa.record_batch(
        {
            "flight": [f"UA{number}" for number in range(60)],
            "day": list(range(60)),
            "delay": pa.array([1.5 if number % 2 else None for number in range(60)], pa.float64()),
            "raw": [b"\x00\xff"] * 60,
            "legs": [["EWR", "ORD"]] * 60,
            "late": [True] * 60,
        }
    )
    assert write_batches(dynamodb(emulator, table), [batch]).records == 60
    found = {item["flight"]["S"]: item for item in items(emulator, table)}
    assert len(found) == 60
    assert found["UA1"] == {
        "flight": {"S": "UA1"},
        "day": {"N": "1"},
        "delay": {"N": "1.5"},
        "raw": {"B": b"\x00\xff"},
        "legs": {"L": [{"S": "EWR"}, {"S": "ORD"}]},
        "late": {"BOOL": True},
    }
    assert "delay" not in found["UA2"]


async def test_writes_of_one_item_in_one_batch_are_split(emulator: RunningEmulator, table: str) -> None:
    """BatchWriteItem refuses a key twice: the repeats go into requests of their own, and the last one wins."""
    async with dynamodb(emulator, table, config=dynamodb_config(max_in_flight_requests=1)).create_writer() as writer:
        for number in range(6):
            # 1 and 1.0 are one number, and so one key.
            day = Decimal("1.0") if number % 2 else 1
            await writer.write(DynamoDbRequestEntry.put({"flight": "UA1", "day": day, "version": number}))
        await writer.write(DynamoDbRequestEntry.put({"flight": "UA2", "day": 1}))
        await writer.write(DynamoDbRequestEntry.delete_key({"flight": "UA2", "day": 1}))
        await writer.flush(end_of_input=True)
        assert writer.metrics.records_out == 8
        assert writer.metrics.requests == 1
    (item,) = await asyncio.to_thread(items, emulator, table)
    assert item["version"] == {"N": "5"}


async def test_fifo_queues_get_groups_and_drop_repeats(emulator: RunningEmulator) -> None:
    """Messages of a group keep their order with one request in flight; a deduplication id is there once."""
    url = emulator.client("sqs").create_queue(QueueName=f"{new()}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    batch = pa.record_batch(
        {
            "body": [str(number) for number in range(12)] + ["0"],
            "messageGroupId": ["g"] * 13,
            "messageDeduplicationId": [str(number) for number in range(12)] + ["0"],
        }
    )
    sink = sqs(emulator, url, config=sqs_config(max_in_flight_requests=1))
    summary = await asyncio.to_thread(write_batches, sink, [batch])
    assert summary.records == 13
    answer = emulator.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10)
    assert [message["Body"] for message in answer["Messages"]] == [str(number) for number in range(10)]


WRONG: Any = b"bytes"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (SqsRequestEntry(""), "empty"),
        (SqsRequestEntry(WRONG), "bytes, not str"),
        ("text", "expected an SqsRequestEntry, got str"),
        (SqsRequestEntry("a\x00b"), "cannot have"),
        (SqsRequestEntry("a", delay_seconds=901), "delay"),
        (SqsRequestEntry("a", attributes={str(number): 1 for number in range(11)}), "attributes"),
    ],
)
async def test_a_message_that_breaks_a_rule_is_refused_on_write(
    emulator: RunningEmulator, queue: str, entry: SqsRequestEntry, words: str
) -> None:
    """Before it could spoil its batch; the writer continues."""
    async with sqs(emulator, queue).create_writer() as writer:
        with pytest.raises(RecordError, match=words):
            await writer.write(entry)
        await writer.write(SqsRequestEntry("good"))
    assert len(await asyncio.to_thread(messages, emulator, queue)) == 1


@pytest.mark.parametrize("sink", [KinesisStreamsSink, FirehoseSink, DynamoDbSink, SqsSink])
def test_an_option_that_no_sink_has_is_an_error(sink: Any) -> None:
    """A misspelt one is not ignored."""
    with pytest.raises(TypeError, match="stratgy"):
        sink(AwsOptions(region="us-east-1"), "name", stratgy=slow_start_strategy)


@pytest.mark.parametrize(
    "make",
    [
        partial(KinesisStreamsSink, stream_name="s"),
        partial(KinesisStreamsSink, stream_name="s", aggregation=AggregationConfig()),
        partial(FirehoseSink, delivery_stream_name="s"),
        partial(DynamoDbSink, table_name="s"),
        partial(SqsSink, queue_url="s"),
    ],
)
def test_a_region_in_the_place_of_options_is_named_at_once(make: Any) -> None:
    """Not only in the writers of Spark tasks."""
    with pytest.raises(AwsOptionError) as caught:
        make("eu-west-1")
    assert caught.value.option == "aws"


OPTIONS = AwsOptions(region="eu-west-1")
# mypy would find these mistakes.
mistaken: Any = partial


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (mistaken(KinesisStreamsSink, OPTIONS, OPTIONS), "stream_name"),
        (mistaken(KinesisStreamsSink, OPTIONS, stream_arn=5), "stream_arn"),
        (mistaken(KinesisStreamsSink, OPTIONS, "s", aggregation=True), "aggregation"),
        (mistaken(KinesisStreamsSink, OPTIONS, "s", partition_key="k"), "partition_key"),
        (mistaken(KinesisStreamsSink, OPTIONS, "s", config={"max_batch_size": 5}), "config"),
        (mistaken(FirehoseSink, OPTIONS, 5), "delivery_stream_name"),
        (mistaken(FirehoseSink, OPTIONS, "s", strategy=slow_start_strategy(firehose_config())), "strategy"),
        (mistaken(FirehoseSink, OPTIONS, "s", terminal="folder"), "terminal"),
        (mistaken(DynamoDbSink, OPTIONS, OPTIONS), "table_name"),
        (mistaken(DynamoDbSink, OPTIONS, "s", key_names="id"), "key_names"),
        (mistaken(SqsSink, OPTIONS, 5), "queue_url"),
        (mistaken(RemoteSink, OPTIONS, destination="s"), "endpoint"),
        (mistaken(RemoteSink, "gateway:50051", "token", destination="s"), "security"),
        (mistaken(RemoteSink, "gateway:50051", destination=OPTIONS), "destination"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named_at_once(make: Any, option: str) -> None:
    """As a wrong value is."""
    with pytest.raises(SinkOptionError) as caught:
        make()
    assert caught.value.option == option
