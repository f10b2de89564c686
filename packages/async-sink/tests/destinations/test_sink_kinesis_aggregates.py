"""Aggregates of the Kinesis Producer Library, read by an independent consumer."""

import asyncio
import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records
from hypothesis import given
from hypothesis import strategies as st
from sink_scripted_service import Body, ScriptedService

from penstock.async_sink import (
    AggregationConfig,
    CallbackHandler,
    KinesisRequestEntry,
    KinesisStreamsSink,
    TerminalReason,
    aimd_strategy,
    kinesis_aggregation_config,
    write_batches,
)
from penstock.async_sink._destinations.kinesis.aggregate import MAGIC, Aggregate
from penstock.async_sink._rate.per_shard import hash_key_of
from penstock.async_sink.errors import DestinationError, SinkOptionError
from penstock.async_sink.testing import wait_until
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator

_keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
_entries = st.lists(
    st.builds(KinesisRequestEntry, st.binary(max_size=300), _keys, st.none() | st.integers(0, 2**128 - 1).map(str)),
    min_size=2,
    max_size=200,
)


def taken_apart(data: bytes, key: str = "k") -> list[tuple[bytes, str]]:
    """What aws-kinesis-agg makes of a record of the stream."""
    record = {
        "kinesis": {
            "data": base64.b64encode(data).decode(),
            "partitionKey": key,
            "explicitHashKey": None,
            "sequenceNumber": "1",
            "approximateArrivalTimestamp": 0,
            "kinesisSchemaVersion": "1.0",
        },
        "eventSource": "",
        "eventSourceARN": "",
        "eventVersion": "",
        "eventName": "",
        "eventID": "",
        "invokeIdentityArn": "",
        "awsRegion": "",
    }
    return [
        (base64.b64decode(each["kinesis"]["data"]), each["kinesis"]["partitionKey"])
        for each in deaggregate_records([record])
    ]


@given(_entries)
def test_an_independent_consumer_reads_every_user_record(entries: list[KinesisRequestEntry]) -> None:
    """Whatever the data and the keys are: in order, with their keys."""
    aggregate = Aggregate(hash_key_of(entries[0]))
    for place, entry in enumerate(entries):
        assert aggregate.add(entry, place, AggregationConfig(max_aggregate_bytes=2**20))
    made = aggregate.to_entry()
    assert made.data[:4] == MAGIC
    assert made.data[-16:] == hashlib.md5(made.data[4:-16]).digest()
    assert len(made.data) <= aggregate.size_in_bytes
    assert taken_apart(bytes(made.data)) == [(entry.data, entry.partition_key) for entry in entries]


def test_an_aggregate_ends_before_its_limits() -> None:
    """By bytes and by number; the first record always fits, and a single record is sent unchanged."""
    config = AggregationConfig(max_aggregate_bytes=100, max_aggregate_records=2)
    large = KinesisRequestEntry(b"x" * 200, "k", "7")
    alone = Aggregate(7)
    assert alone.add(large, 0, config)
    assert not alone.add(KinesisRequestEntry(b"y", "k"), 1, config)
    assert alone.to_entry() is large
    pair = Aggregate(7)
    assert pair.add(KinesisRequestEntry(b"x", "k"), 0, config)
    assert pair.add(KinesisRequestEntry(b"y", "k"), 1, config)
    assert not pair.add(KinesisRequestEntry(b"z", "k"), 2, config)
    for options in ({"max_aggregate_bytes": 63}, {"max_aggregate_bytes": 10 * 2**20 + 1}, {"max_aggregate_records": 0}):
        with pytest.raises(SinkOptionError):
            AggregationConfig(**options)


def shard(shard_id: str, start: int, end: int, *, closed: bool = False) -> dict[str, Any]:
    """As ListShards describes it."""
    sequence = {"StartingSequenceNumber": "1"} | ({"EndingSequenceNumber": "2"} if closed else {})
    keys = {"StartingHashKey": str(start), "EndingHashKey": str(end)}
    return {"ShardId": shard_id, "HashKeyRange": keys, "SequenceNumberRange": sequence}


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=4)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def sink(emulator: RunningEmulator, **options: Any) -> KinesisStreamsSink:
    options.setdefault("aggregation", AggregationConfig())
    return KinesisStreamsSink(emulator_options(emulator.endpoint_url), "flights", **options)


def shard_contents(emulator: RunningEmulator) -> list[tuple[int, int, list[tuple[bytes, str]]]]:
    """Per shard: its range, and the user records that consumers deliver and do not filter out."""

    def collect() -> Any:
        found = []
        for shard in emulator.kinesis.streams["flights"].shards:
            keys = shard.hash_keys.as_dict()
            low, high = keys["StartingHashKey"], keys["EndingHashKey"]
            records = [
                each for record in shard.records for each in taken_apart(bytes(record.data), record.partition_key)
            ]
            found.append((int(low), int(high), records))
        return found

    contents: list[tuple[int, int, list[tuple[bytes, str]]]] = emulator.call(collect)
    return contents


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"data": [b"row %d" % number for number in range(count)], "partitionKey": [f"k{n % 97}" for n in range(count)]}
    )


def test_user_records_stay_in_the_range_of_their_shard(emulator: RunningEmulator) -> None:
    """Aggregates hold records of one shard, so that consumers filter none; far fewer records than rows are put."""
    summary = write_batches(sink(emulator), [rows(8_000)])
    assert (summary.records, summary.retries) == (8_000, 0)
    delivered = []
    for low, high, records in shard_contents(emulator):
        for data, key in records:
            assert low <= hash_key_of(KinesisRequestEntry(b"", key)) <= high
            delivered.append(data)
    assert sorted(delivered) == sorted(rows(8_000).column(0).to_pylist())
    puts = emulator.call(lambda: sum(len(shard.records) for shard in emulator.kinesis.streams["flights"].shards))
    assert puts < 20


class Acknowledgements:
    """Attempts by the place of the user record."""

    def __init__(self) -> None:
        self.attempts: dict[int, int] = {}

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        assert entry_index not in self.attempts
        self.attempts[entry_index] = attempts

    def rejected(self, entry_index: int, attempts: int, failure: Any) -> None:
        raise AssertionError

    def abandoned(self, error: BaseException) -> None:
        raise AssertionError


@pytest.mark.parametrize("fault", ["throttle", "error"])
async def test_of_several_requests_only_the_one_that_fails_is_sent_again(emulator: RunningEmulator, fault: str) -> None:
    """More than 500 records need several calls: the calls before and after the failed one are written."""
    code = {"code": "InternalFailure"} if fault == "error" else {}
    emulator.faults.add(fault, operation="PutRecords", skip=1, count=1, **code)
    heard = Acknowledgements()
    single = sink(
        emulator,
        aggregation=AggregationConfig(max_aggregate_records=1),
        config=kinesis_aggregation_config(max_batch_size=1_200),
        strategy=aimd_strategy,
    )
    async with single.create_writer() as writer:
        await writer.write_many(rows(1_200), listener=heard)
        await writer.flush(end_of_input=True)
        assert writer.metrics.throttled == (500 if fault == "throttle" else 0)
    assert [heard.attempts[place] for place in range(1_200)] == [1] * 500 + [2] * 500 + [1] * 200
    delivered = [data for _, _, records in shard_contents(emulator) for data, _ in records]
    assert sorted(delivered) == sorted(rows(1_200).column(0).to_pylist())


async def test_after_a_resharding_nothing_is_filtered_out(emulator: RunningEmulator) -> None:
    """Records whose aggregate went to another shard's child are sent again to their own."""
    client = emulator.client()
    async with sink(emulator).create_writer() as writer:
        await writer.write_many(rows(50))
        await writer.flush(end_of_input=True)
        await asyncio.to_thread(
            lambda: client.update_shard_count(StreamName="flights", TargetShardCount=8, ScalingType="UNIFORM_SCALING")
        )
        await wait_until(
            lambda: (
                client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamStatus"]
                == "ACTIVE"
            ),
            seconds=30,
        )
        before = writer.metrics.retried
        await writer.write_many(rows(400))
        await writer.flush(end_of_input=True)
        assert writer.metrics.records_out == 450
        assert writer.metrics.retried > before
    kept: set[bytes] = set()
    for low, high, records in shard_contents(emulator):
        kept |= {data for data, key in records if low <= hash_key_of(KinesisRequestEntry(b"", key)) <= high}
    assert kept == set(rows(400).column(0).to_pylist())


HALF, TOP = 1 << 127, (1 << 128) - 1
PARENT = "shardId-000000000000"
CHILDREN = {"shardId-000000000001": (0, HALF - 1), "shardId-000000000002": (HALF, TOP)}


class SplitStream:
    """A stream whose shard was split. ListShards answers by each listing in turn, and by the last one from then on."""

    def __init__(self, *listings: list[dict[str, Any]]) -> None:
        self.listings = list(listings)
        self.open = CHILDREN
        """The shards that take records, whatever is listed."""
        self.puts: list[tuple[str, bytes]] = []
        """The shard that a record went to, and what is in it."""

    def answer(self, body: Body) -> tuple[int, Body]:
        if "Records" not in body:
            return 200, {"Shards": self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]}
        results = []
        for each in body["Records"]:
            key = hash_key_of(KinesisRequestEntry(b"", each["PartitionKey"], each.get("ExplicitHashKey")))
            child = next(child for child, (low, high) in self.open.items() if low <= key <= high)
            self.puts.append((child, base64.b64decode(each["Data"])))
            results.append({"SequenceNumber": "1", "ShardId": child})
        return 200, {"FailedRecordCount": 0, "Records": results}

    def delivered(self) -> list[bytes]:
        """What readers get of it: user records of an aggregate only where their key belongs."""
        found = []
        for child, data in self.puts:
            low, high = CHILDREN[child]
            for user_data, key in taken_apart(data):
                if not data.startswith(MAGIC) or low <= hash_key_of(KinesisRequestEntry(b"", key)) <= high:
                    found.append(user_data)
        return found


LOWER, UPPER = (shard(child, *keys) for child, keys in CHILDREN.items())
CLOSED, STILL_OPEN = shard(PARENT, 0, TOP, closed=True), shard(PARENT, 0, TOP)


@pytest.mark.parametrize("seen", [LOWER, UPPER])
async def test_a_split_that_is_listed_by_halves_loses_nothing(service: ScriptedService, seen: dict[str, Any]) -> None:
    """Records of a shard that is not listed yet are sent alone, and none is sent twice."""
    stream = SplitStream([CLOSED, seen])
    service.script = [stream.answer] * 1_000
    split = KinesisStreamsSink(emulator_options(service.url), "flights", aggregation=AggregationConfig())
    async with split.create_writer() as writer:
        await writer.write_many(rows(1_000))
    assert sorted(stream.delivered()) == sorted(rows(1_000).column(0).to_pylist())


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_shard_that_takes_records_is_aggregated_again(service: ScriptedService, ahead: bool) -> None:
    """The ids of a stream that is created again start from the beginning, and a listing may be ahead of the shards."""
    whole, split = {PARENT: (0, TOP)}, CHILDREN
    stream = SplitStream([CLOSED, LOWER, UPPER] if ahead else [STILL_OPEN])
    stream.open = whole
    service.script = [stream.answer] * 10_000
    aggregated = KinesisStreamsSink(emulator_options(service.url), "flights", aggregation=AggregationConfig())

    async def write() -> int:
        before = len(stream.puts)
        await writer.write_many(rows(1_000))
        await writer.flush(end_of_input=True)
        return len(stream.puts) - before

    async with aggregated.create_writer() as writer:
        await write()
        stream.open, stream.listings = split, [[CLOSED, LOWER, UPPER]]
        await write()
        assert await write() == 2
        stream.open, stream.listings = whole, [[STILL_OPEN]]
        await write()
        assert await write() == 1


def put_records(written: list[bytes], poison: bytes, code: str = "InvalidArgumentException") -> Any:
    """Answers of a stream of one shard that refuses each request in which `poison` is, and writes all others."""

    def answer(body: Body) -> tuple[int, Body]:
        if "Records" not in body:
            return 200, {"Shards": [shard(PARENT, 0, TOP)]}
        data = [base64.b64decode(each["Data"]) for each in body["Records"]]
        if poison in data:
            return 400, {"__type": code, "message": "as told"}
        written.extend(data)
        return 200, {"FailedRecordCount": 0, "Records": [{"SequenceNumber": "1", "ShardId": PARENT}] * len(data)}

    return answer


def one_by_one(service: ScriptedService, **options: Any) -> KinesisStreamsSink:
    """Each row is a record, so that 1,200 rows leave in three requests of one batch."""
    return KinesisStreamsSink(
        emulator_options(service.url),
        "flights",
        aggregation=AggregationConfig(max_aggregate_records=1),
        config=kinesis_aggregation_config(max_batch_size=1_200),
        strategy=aimd_strategy,
        **options,
    )


@pytest.mark.parametrize("place", [0, 700, 1_199])
async def test_a_poison_record_leaves_the_other_requests_of_its_batch_alone(
    service: ScriptedService, place: int
) -> None:
    """Only it goes to the handler; every other row is written once, whichever request has the poison."""
    written: list[bytes] = []
    service.script = [put_records(written, b"row %d" % place)] * 100
    given_up: list[Any] = []
    async with one_by_one(service, terminal=lambda: CallbackHandler(given_up.append)).create_writer() as writer:
        await writer.write_many(rows(1_200))
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.dead_lettered) == (1_199, 1)
    assert [(each.entry.data, each.reason) for each in given_up] == [(b"row %d" % place, TerminalReason.POISON)]
    assert sorted(written) == sorted({b"row %d" % number for number in range(1_200)} - {b"row %d" % place})


async def test_an_error_that_ends_the_writer_leaves_written_rows_out_of_its_snapshot(service: ScriptedService) -> None:
    """The rows of earlier requests are acknowledged: a writer that restores the snapshot does not write them."""
    written: list[bytes] = []
    service.script = [put_records(written, b"row 700", "AccessDeniedException")] * 100
    writer = await one_by_one(service).create_writer().__aenter__()
    await writer.write_many(rows(1_200))
    with pytest.raises(DestinationError) as caught:
        await writer.flush(end_of_input=True)
    (state,) = writer.snapshot_state()
    await writer.close()
    assert caught.value.code == "AccessDeniedException"
    assert [entry.data for entry, _ in state.entries] == [b"row %d" % number for number in range(500, 1_200)]
    assert written == [b"row %d" % number for number in range(500)]


async def test_a_full_aggregate_is_a_record_that_the_service_takes(service: ScriptedService) -> None:
    """Its partition key counts: with a key of 256 characters, an aggregate of 1 MiB is accepted."""
    sizes: list[int] = []

    def answer(body: Body) -> tuple[int, Body]:
        if "Records" not in body:
            return 200, {"Shards": [shard(PARENT, 0, TOP)]}
        sizes.extend(len(base64.b64decode(each["Data"])) + len(each["PartitionKey"]) for each in body["Records"])
        return 200, {
            "FailedRecordCount": 0,
            "Records": [{"SequenceNumber": "1", "ShardId": PARENT}] * len(body["Records"]),
        }

    service.script = [answer] * 10
    largest = KinesisStreamsSink(
        emulator_options(service.url), "flights", aggregation=AggregationConfig(max_aggregate_bytes=2**20)
    )
    async with largest.create_writer() as writer:
        await writer.write_many([KinesisRequestEntry(bytes(100), "k" * 256)] * 12_000)
    assert 2**20 - 200 < max(sizes) <= 2**20


def test_aggregates_larger_than_the_records_of_the_stream_are_refused() -> None:
    """A stream takes records of 1 MiB; one that was set to take more says so by the limit of its records."""
    aws = emulator_options("http://127.0.0.1:9")
    most = AggregationConfig(max_aggregate_bytes=10 * 2**20)
    with pytest.raises(SinkOptionError) as caught:
        KinesisStreamsSink(aws, "flights", aggregation=most)
    assert (caught.value.option, caught.value.bounded_by) == ("max_aggregate_bytes", "max_record_size_in_bytes")
    large = kinesis_aggregation_config(max_record_size_in_bytes=10 * 2**20, max_batch_size_in_bytes=10 * 2**20)
    KinesisStreamsSink(aws, "flights", aggregation=most, config=large)
    KinesisStreamsSink(
        aws,
        "flights",
        aggregation=AggregationConfig(),
        config=kinesis_aggregation_config(max_record_size_in_bytes=10_000),
    )
