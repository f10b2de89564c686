"""Every field of every destination's entries goes through a gateway process to the service and comes back."""

import base64
import os
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from penstock.async_sink import (
    AsyncSinkConfig,
    DropHandler,
    DynamoDbRequestEntry,
    FirehoseRequestEntry,
    KinesisRequestEntry,
    RemoteSink,
    SqsRequestEntry,
    state_from_bytes,
    state_to_bytes,
)
from penstock.async_sink.errors import DestinationError, RecordError
from penstock.aws import AwsOptions, AwsSession
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import open_store
from penstock.rpc.testing import ServiceProcess, service_process

MODULE = "penstock.services.sink_gateway"
ENVIRONMENT = {
    **os.environ,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, companions=("dynamodb", "sqs"), shard_read_calls_per_second=1e6) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def gateway(emulator: RunningEmulator) -> Iterator[ServiceProcess]:
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url]
    for kind in ("firehose", "dynamodb", "sqs"):
        arguments += [f"--{kind}-endpoint-url", emulator.endpoints[kind]]
    with service_process(MODULE, arguments, ENVIRONMENT) as process:
        yield process


def new(name: str) -> str:
    """A name that nothing has had: moto keeps what is made for as long as the process lives."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def send(gateway: ServiceProcess, kind: str, destination: str, entries: list[Any]) -> None:
    async with RemoteSink(gateway.address, kind=kind, destination=destination).create_writer() as writer:
        await writer.write_many(entries)
    assert writer.metrics.records_out == len(entries)


def stream(emulator: RunningEmulator, shards: int) -> str:
    client, name = emulator.client(), new("stream")
    client.create_stream(StreamName=name, ShardCount=shards)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    return name


def records(emulator: RunningEmulator, name: str) -> list[list[tuple[str, bytes]]]:
    """(partition key, data) by shard."""
    return emulator.call(
        lambda: [
            [(record.partition_key, bytes(record.data)) for record in shard.records]
            for shard in emulator.kinesis.streams[name].shards
        ]
    )


async def test_records_of_streams(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """Data, keys of any script, and hash keys that pick another shard than the key does."""
    name = stream(emulator, 2)
    entries = [KinesisRequestEntry(b"\x00\xff", "ключ", str(half)) for half in (0, 2**128 - 1)]
    await send(gateway, "kinesis", name, entries)
    assert records(emulator, name) == [[("ключ", b"\x00\xff")], [("ключ", b"\x00\xff")]]


async def test_the_largest_records_of_streams(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """1 MiB with its key, five of them in a request; a byte more is refused before it is sent."""
    name = stream(emulator, 5)
    step = 2**128 // 5 + 1
    data = os.urandom(2**20 - 1)
    await send(gateway, "kinesis", name, [KinesisRequestEntry(data, "k", str(number * step)) for number in range(5)])
    assert records(emulator, name) == [[("k", data)]] * 5
    async with RemoteSink(gateway.address, destination=name).create_writer() as writer:
        with pytest.raises(RecordError):
            await writer.write(KinesisRequestEntry(data + b"x", "k"))


async def test_a_gateway_takes_records_of_the_configured_size(
    emulator: RunningEmulator, gateway: ServiceProcess
) -> None:
    """A stream may be set to records of up to 10 MiB; by default a gateway refuses records over 1 MiB."""
    name = stream(emulator, 1)
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10_240)
    most = 10 * 2**20
    config = AsyncSinkConfig(max_record_size_in_bytes=most, max_batch_size_in_bytes=most)
    entries = [KinesisRequestEntry(data, "k") for data in (b"1", b"x" * (most - 1), b"2")]
    flags = ["serve", "--endpoint-url", emulator.endpoint_url, "--max-record-bytes", str(most)]
    with service_process(MODULE, flags, ENVIRONMENT) as large:
        async with RemoteSink(large.address, destination=name, config=config).create_writer() as writer:
            await writer.write_many(entries)
    assert sorted(len(data) for _, data in records(emulator, name)[0]) == [1, 1, most - 1]
    async with RemoteSink(
        gateway.address, destination=name, config=config, terminal=lambda: DropHandler()
    ).create_writer() as writer:
        await writer.write_many(entries)
    assert (writer.metrics.records_out, writer.metrics.rejected) == (2, 1)
    assert len(records(emulator, name)[0]) == 5


async def test_records_of_delivery_streams(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """Any bytes, and the largest record."""
    configuration = {"RoleARN": "arn:aws:iam::123456789012:role/r", "BucketARN": "arn:aws:s3:::b"}
    name = new("any")
    emulator.client("firehose").create_delivery_stream(
        DeliveryStreamName=name, ExtendedS3DestinationConfiguration=configuration
    )
    large = os.urandom(1_024_000)
    await send(gateway, "firehose", name, [FirehoseRequestEntry(b"\x00\xff\n"), FirehoseRequestEntry(large)])
    written = b"".join(file.read_bytes() for file in sorted((emulator.firehose_folder / name).iterdir()))
    assert written == b"\x00\xff\n" + large


def table(emulator: RunningEmulator, key_type: str) -> tuple[Any, str]:
    client, name = emulator.client("dynamodb"), new("items")
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": key_type}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    return client, name


def plain(value: Any) -> Any:
    """Sets have no order on the wire."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        items = [plain(inner) for inner in value]
        return items if any(isinstance(item, dict) for item in items) else sorted(items)
    return value


async def test_the_table_of_a_registry_is_refused_as_a_destination(
    emulator: RunningEmulator, gateway: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that may write could hold, or delete, the leases of all jobs."""
    name = new("leases")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", emulator.endpoints["dynamodb"])
    session = AwsSession(AwsOptions(region="us-east-1", access_key_id="test", secret_access_key="test"))
    store = open_store(f"dynamodb://{name}", session)
    assert await store.list() == []
    await store.close()
    async with RemoteSink(gateway.address, kind="dynamodb", destination=name).create_writer() as writer:
        await writer.write(DynamoDbRequestEntry.delete_key({"stream": "s", "consumer_name": "c"}))
        with pytest.raises(DestinationError, match="the table of a consumer registry"):
            await writer.flush(end_of_input=True)


async def test_items_of_tables(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """Every type, nested, numbers with all their digits, names of any script; and deletes."""
    client, name = table(emulator, "S")
    values = {
        "id": "ключ",
        "número": Decimal("1.2345678901234567890123456789012345678"),
        "binary": bytes(range(256)),
        "flags": [True, False, None],
        "sets": {"s": {"a", "ж"}, "n": {Decimal("0.5"), 7}, "b": {b"\xff", b"\x00"}},
        "deep": [{"x": [{"y": [b"\x01", {b"\x02"}]}]}],
    }
    entry = DynamoDbRequestEntry.put(values)
    await send(gateway, "dynamodb", name, [entry, DynamoDbRequestEntry.put({"id": "gone"})])
    await send(gateway, "dynamodb", name, [DynamoDbRequestEntry.delete_key({"id": "gone"})])
    (found,) = client.scan(TableName=name)["Items"]
    assert plain(found) == plain(entry.item)


async def test_large_items_with_binary_keys(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """A binary counts as many bytes as it has, not as base64 has: 25 items of almost 400 kB are one request."""
    client, name = table(emulator, "B")
    data = os.urandom(390_000)
    entries = [DynamoDbRequestEntry.put({"id": bytes([number]), "data": data}) for number in range(25)]
    await send(gateway, "dynamodb", name, entries)
    found = client.get_item(TableName=name, Key={"id": {"B": b"\x07"}})["Item"]
    assert found["data"]["B"] == data
    assert client.scan(TableName=name, Select="COUNT")["Count"] + _more(client, name) == 25


def _more(client: Any, name: str) -> int:
    """The second page of a scan, if the first one was cut off at 1 MB."""
    counted, page = 0, client.scan(TableName=name, Select="COUNT")
    while "LastEvaluatedKey" in page:
        page = client.scan(TableName=name, Select="COUNT", ExclusiveStartKey=page["LastEvaluatedKey"])
        counted += page["Count"]
    return counted


async def test_messages_of_queues(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """Attributes of each type, groups, and deduplication: what is sent twice is there once."""
    client = emulator.client("sqs")
    url = client.create_queue(QueueName=f"{new('all')}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    attributes: dict[str, str | int | float | Decimal | bytes] = {
        "s": "ж",
        "i": 10**20,
        "f": -0.25,
        "d": Decimal("1.50"),
        "b": b"\x00\xff",
    }
    entry = SqsRequestEntry("рейс", "group", "once", attributes=attributes)
    await send(gateway, "sqs", url, [entry])
    await send(gateway, "sqs", url, [entry, SqsRequestEntry("next", "group", "other")])
    answer = client.receive_message(
        QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"], MaxNumberOfMessages=10
    )
    first, *others = answer["Messages"]
    assert [first["Body"], *(message["Body"] for message in others)] == ["рейс", "next"]
    assert first["Attributes"]["MessageGroupId"] == "group"
    assert first["Attributes"]["MessageDeduplicationId"] == "once"
    found = {
        name: (value["DataType"], value.get("StringValue") or value["BinaryValue"])
        for name, value in first["MessageAttributes"].items()
    }
    assert found == {
        "s": ("String", "ж"),
        "i": ("Number", str(10**20)),
        "f": ("Number", "-0.25"),
        "d": ("Number", "1.50"),
        "b": ("Binary", b"\x00\xff"),
    }


async def test_saved_entries_of_any_kind_are_sent_by_a_successor(
    emulator: RunningEmulator, gateway: ServiceProcess
) -> None:
    """What a writer could not send is kept as bytes, and arrives from another process's writer."""
    client = emulator.client("sqs")
    url = client.create_queue(QueueName=new("saved"))["QueueUrl"]
    items, name = table(emulator, "B")
    message = SqsRequestEntry("рейс", attributes={"n": Decimal("0.10")})
    item = DynamoDbRequestEntry.put({"id": b"\xff", "tags": {"a", "b"}})
    for kind, destination, entry in (("sqs", url, message), ("dynamodb", name, item)):
        # No server listens there.
        away = RemoteSink("127.0.0.1:1", kind=kind, destination=destination).create_writer()
        await away.__aenter__()
        await away.write(entry)
        saved = [state_to_bytes(state) for state in away.snapshot_state()]
        await away.close()
        successor = RemoteSink(gateway.address, kind=kind, destination=destination)
        async with successor.restore_writer(state_from_bytes(raw) for raw in saved) as writer:
            await writer.flush(end_of_input=True)
        assert writer.metrics.records_out == 1
    (received,) = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert received["Body"] == "рейс"
    assert received["MessageAttributes"]["n"]["StringValue"] == "0.10"
    (found,) = items.scan(TableName=name)["Items"]
    assert plain(found) == plain(item.item)


async def test_the_largest_and_the_delayed_messages(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """256,000 bytes with the attributes; a delay keeps a message back; what breaks a rule is refused on write."""
    client = emulator.client("sqs")
    url = client.create_queue(QueueName=new("large"))["QueueUrl"]
    body = base64.b64encode(os.urandom(192_000)).decode()
    largest = SqsRequestEntry(body[: -len("a" + "String" + "x")], attributes={"a": "x"})
    await send(gateway, "sqs", url, [largest, SqsRequestEntry("later", delay_seconds=900)])
    (message,) = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert message["Body"] == largest.body
    counts = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesDelayed"])
    assert counts["Attributes"]["ApproximateNumberOfMessagesDelayed"] == "1"
    async with RemoteSink(gateway.address, kind="sqs", destination=url).create_writer() as writer:
        with pytest.raises(RecordError):
            await writer.write(SqsRequestEntry(largest.body + "x", attributes={"a": "x"}))
        with pytest.raises(RecordError, match="11 attributes"):
            await writer.write(SqsRequestEntry("x", attributes={f"a{number}": "x" for number in range(11)}))
