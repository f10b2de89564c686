"""The rules for fields of records, compared with the services' own models, through every way to write."""

import asyncio
import re
import string
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape

from penstock.async_sink import (
    AggregationConfig,
    AsyncSinkConfig,
    DynamoDbRequestEntry,
    DynamoDbSink,
    FirehoseSink,
    KinesisRequestEntry,
    KinesisStreamsSink,
    SqsRequestEntry,
    SqsSink,
    dynamodb_config,
    firehose_config,
    kinesis_aggregation_config,
    sqs_config,
)
from penstock.async_sink._destinations.dynamodb_items import DynamoDbEntries
from penstock.async_sink._destinations.kinesis.rows import KinesisEntries
from penstock.async_sink._destinations.sqs import SqsEntries
from penstock.async_sink._destinations.writer import RowContext
from penstock.async_sink.errors import RecordError, SinkOptionError
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator

NOWHERE = emulator_options("http://127.0.0.1:1")


def shape(service: str, name: str) -> Shape:
    """A shape of the model that botocore carries."""
    return ServiceModel(Loader().load_service_model(service, "service-2"), service_name=service).shape_for(name)


def model_takes(rule: Shape, value: str | bytes) -> bool:
    """Whether a value satisfies the lengths and the pattern of a shape; patterns are written for Java."""
    low, high, pattern = (rule.metadata.get(name) for name in ("min", "max", "pattern"))
    long_enough = (low or 0) <= len(value) and (high is None or len(value) <= high)
    return long_enough and (pattern is None or re.fullmatch(pattern, cast("str", value), re.ASCII) is not None)


def is_taken(kind: Any, entry: Any) -> bool:
    """Whether the sink takes an entry."""
    try:
        kind.measure(entry, 0)
    except RecordError:
        return False
    return True


HASH_KEYS = (
    *("", "0", "00", "007", "1", "10", "-1", "+1", " 1", "1 ", "1\n", "1.0", "1e3", "x", "٣", "1٣"),
    *("9" * 38, "1" * 39, "0" * 39, str(2**128 - 1), str(2**128), "9" * 39, "1" * 40, "0" + str(2**128 - 1)),
)
ROW_KEYS = ("partitionKey", "explicitHashKey")
KEYS = ("", "k", "ключ", "k" * 256, "k" * 257, "ж" * 256, "ж" * 257)


def test_the_keys_of_kinesis_records_follow_the_model() -> None:
    """Of entries and of rows alike. Beyond its pattern, an explicit hash key must be below 2^128."""
    hash_key, key = shape("kinesis", "HashKey"), shape("kinesis", "PartitionKey")
    rows = [*(("k", one) for one in HASH_KEYS), *((one, None) for one in KEYS)]
    expected = [
        model_takes(key, one) and (other is None or (model_takes(hash_key, other) and int(other) < 2**128))
        for one, other in rows
    ]
    assert [is_taken(KinesisEntries(), KinesisRequestEntry(b"x", *row)) for row in rows] == expected
    columns = {
        name: pa.array(column, pa.string()) for name, column in zip(ROW_KEYS, zip(*rows, strict=True), strict=True)
    }
    batch = pa.record_batch({"data": pa.array([b"x"] * len(rows)), **columns})
    faulty = set[int]()
    for fault in KinesisStreamsSink.row_faults(batch, 2**20):
        faulty.update(cast("Any", pc).indices_nonzero(fault.wrong).to_pylist())
    assert [index not in faulty for index in range(len(rows))] == expected


def kinesis(**limits: Any) -> KinesisStreamsSink:
    return KinesisStreamsSink(NOWHERE, "s", config=AsyncSinkConfig(**limits))


def aggregated(**limits: int) -> KinesisStreamsSink:
    config = kinesis_aggregation_config(**limits)
    return KinesisStreamsSink(NOWHERE, "s", config=config, aggregation=AggregationConfig())


def firehose(**limits: int) -> FirehoseSink[Any]:
    return FirehoseSink(NOWHERE, "s", config=firehose_config(**limits))


def dynamodb(**limits: int) -> DynamoDbSink[Any]:
    return DynamoDbSink(NOWHERE, "t", config=dynamodb_config(**limits))


def sqs(**limits: int) -> SqsSink[Any]:
    return SqsSink(NOWHERE, "https://sqs/1/q", config=sqs_config(**limits))


DATA = shape("kinesis", "Data").metadata["max"]


@pytest.mark.parametrize(
    ("make", "option", "most", "others"),
    [
        (kinesis, "max_batch_size", shape("kinesis", "PutRecordsRequestEntryList").metadata["max"], {}),
        (kinesis, "max_record_size_in_bytes", DATA, {"max_batch_size_in_bytes": DATA}),
        (aggregated, "max_record_size_in_bytes", DATA, {"max_batch_size_in_bytes": DATA + 1}),
        (firehose, "max_batch_size", shape("firehose", "PutRecordBatchRequestEntryList").metadata["max"], {}),
        (firehose, "max_record_size_in_bytes", shape("firehose", "Data").metadata["max"], {}),
        (dynamodb, "max_batch_size", shape("dynamodb", "WriteRequests").metadata["max"], {}),
        # The models of these two do not state the sizes; their developer guides do.
        (dynamodb, "max_record_size_in_bytes", 400 * 1024, {}),
        (sqs, "max_batch_size", 10, {}),
        (sqs, "max_record_size_in_bytes", 2**20, {"max_batch_size_in_bytes": 2**20}),
    ],
)
def test_no_limit_of_a_sink_is_above_its_services(make: Any, option: str, most: int, others: dict[str, int]) -> None:
    """The service's limit is allowed; one more is an error, because requests would be refused."""
    make(**others, **{option: most})
    with pytest.raises(SinkOptionError):
        make(**others, **{option: most + 1})


def words_of(name: str) -> str:
    """What the model of SQS says of a member of an entry; it has no patterns."""
    members = cast("Any", shape("sqs", "SendMessageBatchRequestEntry")).members
    return re.sub(r"<[^>]*>", "", members[name].documentation)


@pytest.mark.parametrize(
    ("member", "field"), [("MessageDeduplicationId", "deduplication_id"), ("MessageGroupId", "group_id")]
)
def test_the_ids_of_messages_follow_the_words_of_the_model(member: str, field: str) -> None:
    """128 ASCII letters, digits and punctuation: a blank or another script is refused."""
    words = words_of(member)
    assert "128 characters" in words
    assert "alphanumeric characters" in words
    assert string.punctuation in words.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    values = dict.fromkeys((*string.ascii_letters, *string.digits, *string.punctuation, "a" * 128), True)
    values |= dict.fromkeys(("", "a" * 129, "a b", "ключ", "é", "a\n", "\x7f"), False)
    fifo = SqsEntries(is_fifo=True)
    assert {one: is_taken(fifo, SqsRequestEntry("x", **{"group_id": "g", field: one})) for one in values} == values


@pytest.mark.parametrize(
    ("entry", "standard", "fifo"),
    [
        (SqsRequestEntry("x"), True, False),
        (SqsRequestEntry("x", group_id="g"), True, True),
        (SqsRequestEntry("x", group_id="g", deduplication_id="d"), False, True),
        (SqsRequestEntry("x", group_id="g", delay_seconds=1), True, False),
        (SqsRequestEntry("x", group_id="g", delay_seconds=0), True, True),
        (SqsRequestEntry("x", delay_seconds=900), True, False),
        (SqsRequestEntry("x", delay_seconds=901), False, False),
        (SqsRequestEntry("x", delay_seconds="1"), False, False),  # type: ignore[arg-type]  # the mistake
        (SqsRequestEntry("x", group_id=7), False, False),  # type: ignore[arg-type]  # the mistake
        (SqsRequestEntry("x", group_id="g", attributes={"a": "b\x00"}), False, False),
        (SqsRequestEntry("x", group_id="g", attributes={"a": "\ud800"}), False, False),
        (SqsRequestEntry("x", group_id="g", attributes={"n" * 256: "b"}), True, True),
        (SqsRequestEntry("x", group_id="g", attributes={"n" * 257: "b"}), False, False),
    ],
)
def test_messages_follow_the_rules_of_their_queue(entry: SqsRequestEntry, standard: bool, fifo: bool) -> None:
    """A FIFO queue needs groups and has no message delays; only FIFO queues accept deduplication ids."""
    kinds = [SqsSink(NOWHERE, url).create_writer().target.kind for url in ("https://sqs/1/q", "https://sqs/1/q.fifo")]
    assert [is_taken(kind, entry) for kind in kinds] == [standard, fifo]


NAME_MAX = shape("dynamodb", "AttributeName").metadata["max"]


@pytest.mark.parametrize(
    ("item", "taken"),
    [
        ({"id": {"S": "x"}}, True),
        ({"id": {"S": ""}}, False),
        ({"id": {"B": b""}}, False),
        ({"id": {"N": "1"}}, False),
        ({"id": {"BOOL": True}}, False),
        ({"id": {"S": "x"}, "other": {"S": ""}}, True),
        ({"id": {"S": "x"}, "indexed": {"S": "1"}}, False),
        ({"id": {"S": "x"}, "a" * NAME_MAX: {"N": "1"}}, True),
        ({"id": {"S": "x"}, "a" * (NAME_MAX + 1): {"N": "1"}}, False),
        ({"id": {"S": "x"}, "": {"N": "1"}}, False),
        ({"id": {"S": "x"}, "n": {"N": "x"}}, False),
        ({"id": {"S": "x"}, "n": {"N": "1e126"}}, False),
        ({"id": {"S": "x"}, "n": {"N": "1" * 39}}, False),
        ({"id": {"S": "x"}, "n": {"N": 1}}, False),
        ({"id": {"S": "x"}, "n": {"S": "\ud800"}}, False),
        ({"id": {"S": "x"}, "n": {"L": [{"NS": []}]}}, False),
        ({"id": {"S": "x"}, "n": {"NS": ["1", "1.0"]}}, False),
        ({"id": {"S": "x"}, "n": {"SS": ["a", "b"]}}, True),
        ({"id": {"S": "x"}, "n": {}}, False),
        ({"id": "x"}, False),
    ],
)
def test_items_are_checked_before_they_are_sent(item: Any, taken: bool) -> None:
    """An invalid item would have the other 24 of its request refused; keys have the types of the table."""
    entries = DynamoDbEntries(("id",))
    entries.types = {"id": "S", "indexed": "N"}
    assert is_taken(entries, DynamoDbRequestEntry(item)) == taken


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def held(emulator: RunningEmulator) -> list[bytes]:
    """What the stream holds."""
    shard = emulator.kinesis.streams["flights"].shards[0]
    return emulator.call(lambda: [bytes(record.data) for record in shard.records])


BAD = 57
ENTRIES = [KinesisRequestEntry(b"%d" % row, "k", "007" if row == BAD else "7") for row in range(100)]


async def test_records_around_one_with_a_bad_hash_key_are_written(emulator: RunningEmulator) -> None:
    """The writer continues."""
    before = len(await asyncio.to_thread(held, emulator))
    async with KinesisStreamsSink(emulator_options(emulator.endpoint_url), "flights").create_writer() as writer:
        for number, entry in enumerate(ENTRIES):
            if number == BAD:
                with pytest.raises(RecordError):
                    await writer.write(entry)
            else:
                await writer.write(entry)
    written = (await asyncio.to_thread(held, emulator))[before:]
    assert sorted(written) == sorted(entry.data for number, entry in enumerate(ENTRIES) if number != BAD)


def bad_rows(kind: Any, batch: pa.RecordBatch) -> dict[int, str]:
    """The first thing that is wrong with each row that breaks a rule."""
    found: dict[int, str] = {}
    for fault in kind.row_faults(batch, 100):
        for row in cast("Any", pc).indices_nonzero(fault.wrong).to_pylist():
            found.setdefault(row, fault.reason(row))
    return found


def not_utf8(*values: bytes) -> Any:
    """A column of strings with these bytes, as Spark can make it."""
    column = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


@pytest.mark.parametrize(
    ("kind", "batch", "bad"),
    [
        (SqsEntries(is_fifo=True), {"body": ["x", None, "", "x" * 101], "messageGroupId": ["g"] * 4}, [1, 2, 3]),
        (SqsEntries(is_fifo=True), {"body": ["x", "x"], "messageGroupId": ["g", None]}, [1]),
        (SqsEntries(), {"body": not_utf8(b"x", b"\xff"), "messageGroupId": not_utf8(b"g", b"g")}, [1]),
        (SqsEntries(), {"body": not_utf8(b"x", b"x"), "messageGroupId": not_utf8(b"\xff", b"g")}, [0]),
        (DynamoDbEntries(("id",)), {"id": ["x", None, ""], "data": [b"", b"", b""]}, [1, 2]),
        (DynamoDbEntries(("id",)), {"id": not_utf8(b"x", b"\xff", b"y")}, [1]),
        (
            DynamoDbEntries(("id",)),
            {"id": ["x", "y"], "day": pa.array([1, 2_932_897], pa.int32()).view(pa.date32())},
            [1],
        ),
    ],
)
def test_the_rows_that_break_a_rule_are_named_before_any_is_written(kind: Any, batch: Any, bad: list[int]) -> None:
    """All rows; the error of a write names the first one."""
    rows = pa.record_batch(batch)
    assert sorted(bad_rows(kind, rows)) == bad
    with pytest.raises(RecordError) as caught:
        list(kind.rows_of(rows, RowContext(7, sqs_config(max_record_size_in_bytes=100), in_runs=False)))
    assert caught.value.record_number == 7 + bad[0]
