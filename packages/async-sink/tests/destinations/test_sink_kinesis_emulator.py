import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import (
    AsyncSinkConfig,
    CallbackHandler,
    KinesisRequestEntry,
    KinesisStreamsSink,
    TerminalReason,
    TerminalRecord,
    aimd_strategy,
    write_batches,
)
from penstock.async_sink.errors import DestinationError, RecordsRejectedError
from penstock.async_sink.testing import wait_until
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, shard_read_calls_per_second=10_000) as emulator:
        yield emulator


def create_stream(emulator: RunningEmulator, shards: int = 1) -> None:
    client = emulator.client()
    client.create_stream(StreamName="flights", ShardCount=shards)
    client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})


def read_all(emulator: RunningEmulator) -> list[dict[str, Any]]:
    client = emulator.client()
    records = []
    for shard in client.list_shards(StreamName="flights")["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName="flights", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            answer = client.get_records(ShardIterator=iterator)
            records += answer["Records"]
            if not answer["Records"] and answer["MillisBehindLatest"] == 0:
                break
            iterator = answer["NextShardIterator"]
    return records


def sink_for(emulator: RunningEmulator, **config: Any) -> KinesisStreamsSink:
    return KinesisStreamsSink(
        emulator_options(emulator.endpoint_url), "flights", config=AsyncSinkConfig(**config) if config else None
    )


def batch_of(numbers: range, key: str = "k{}") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "data": [f"row {number}".encode() for number in numbers],
            "partitionKey": [key.format(number) for number in numbers],
        }
    )


async def test_fifty_requests_are_under_way_at_once() -> None:
    """With the default limits and a slow stream, 25,000 records are in flight and 10,000 wait."""
    with running_emulator(tls=False, enforce_limits=False) as emulator:
        await asyncio.to_thread(create_stream, emulator)
        emulator.faults.add(kind="delay", operation="PutRecords", seconds=4.0, count=50)
        options = emulator_options(emulator.endpoint_url)
        async with KinesisStreamsSink(options, "flights", strategy=aimd_strategy).create_writer() as writer:
            writing = asyncio.create_task(writer.write_many(batch_of(range(36_000))))
            await wait_until(lambda: writer.in_flight_requests == 50 and writer.buffered_entries == 10_000)
            assert not writing.done()
            await writing
        assert writer.metrics.records_out == 36_000
        stream = emulator.kinesis.streams["flights"]
        assert emulator.call(lambda: len(stream.shards[0].records)) == 36_000


def test_everything_arrives_although_shards_throttle(emulator: RunningEmulator) -> None:
    """Offered several times the shards' rate, every record is delivered exactly once, and the throttles are counted."""
    create_stream(emulator, shards=2)
    batches = [batch_of(range(start, start + 1_000)) for start in range(0, 6_000, 1_000)]
    summary = write_batches(sink_for(emulator), batches)
    assert sorted(record["Data"] for record in read_all(emulator)) == sorted(
        f"row {number}".encode() for number in range(6_000)
    )
    assert summary.records == 6_000
    assert summary.bytes == sum(len(f"row {number}k{number}") for number in range(6_000))
    assert summary.throttled > 0
    assert summary.retries >= summary.throttled
    assert summary.requests > 12


def test_keys_of_any_script_and_explicit_hash_keys_arrive(emulator: RunningEmulator) -> None:
    """Partition keys are Unicode; an explicit hash key picks the shard."""
    create_stream(emulator, shards=2)
    keys = ["ключ", "鍵", "🔑", "é" * 256]
    batch = pa.record_batch(
        {
            "data": [b"\x00\xff", b"", b"x", b"y"],
            "partitionKey": keys,
            "explicitHashKey": ["0", str(2**128 - 1), "0", str(2**128 - 1)],
        }
    )
    write_batches(sink_for(emulator), [batch])
    assert [record["PartitionKey"] for record in read_all(emulator)] == [keys[0], keys[2], keys[1], keys[3]]


def test_an_unreachable_endpoint_is_tried_again_so_often(emulator: RunningEmulator) -> None:
    """A refused connection is not fatal; `max_attempts` limits the retries."""
    config = AsyncSinkConfig(max_attempts=3, retry_backoff_base=timedelta(milliseconds=1))
    sink = KinesisStreamsSink(emulator_options("http://127.0.0.1:1"), "flights", config=config)
    with pytest.raises(RecordsRejectedError) as caught:
        write_batches(sink, [batch_of(range(2))])
    assert caught.value.records[0].attempts == 3


async def test_write_batches_works_below_a_running_loop(emulator: RunningEmulator) -> None:
    """It has its own loop and thread."""
    create_stream(emulator)
    assert write_batches(sink_for(emulator), [batch_of(range(10))]).records == 10


async def test_a_record_that_the_service_refuses_does_not_keep_the_others_back(emulator: RunningEmulator) -> None:
    """The request is bisected; the record goes to the handler and all others to the stream."""
    create_stream(emulator)
    told: list[TerminalRecord[Any]] = []
    sink = KinesisStreamsSink(
        emulator_options(emulator.endpoint_url),
        "flights",
        config=AsyncSinkConfig(max_record_size_in_bytes=2 * 2**20, max_in_flight_requests=1),
        terminal=lambda: CallbackHandler(told.append),
    )
    async with sink.create_writer() as writer:
        for number in range(20):
            # Larger than the stream accepts, but not than the writer's limit.
            data = b"x" * (2**20 + 1) if number == 13 else b"row %d" % number
            await writer.write(KinesisRequestEntry(data, "k"))
    records = await asyncio.to_thread(read_all, emulator)
    assert len({record["Data"] for record in records}) == len(records) == 19
    assert [(each.record_number, each.reason) for each in told] == [(13, TerminalReason.POISON)]


@pytest.mark.parametrize("code", ["AccessDeniedException", "InvalidArgumentException", "KMSDisabledException"])
def test_what_trying_again_cannot_mend_is_not_tried_again(emulator: RunningEmulator, code: str) -> None:
    """One request, and an error that has the service's code and words, the stream, and the first record."""
    create_stream(emulator)
    emulator.faults.add("error", operation="PutRecords", code=code, message="as told")
    with pytest.raises(DestinationError, match="as told") as caught:
        write_batches(sink_for(emulator), [batch_of(range(10))])
    error = caught.value
    assert (error.code, error.destination, error.first_record_number) == (code, "flights", 0)
    assert [fault["hits"] for fault in emulator.faults.list()] == [1]
