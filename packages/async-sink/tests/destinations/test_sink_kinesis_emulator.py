import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.async_sink import (
    AsyncSinkConfig,
    CallbackHandler,
    KinesisRequestEntry,
    KinesisStreamsSink,
    TerminalReason,
    TerminalRecord,
    aimd_strategy,
    state_from_bytes,
    state_to_bytes,
    write_batches,
)
from penstock.async_sink.errors import DestinationError, RecordError, RecordsRejectedError
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
    """With the limits as they are by default: while the stream takes its time, 25,000 records fly and 10,000 wait."""
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


def test_one_request_in_flight_keeps_the_order_of_data(emulator: RunningEmulator) -> None:
    """On one shard, with one request at a time and no throttle, records stand in the order of writing."""
    create_stream(emulator)
    write_batches(sink_for(emulator, max_in_flight_requests=1, max_batch_size=50), [batch_of(range(400), "k")])
    assert [record["Data"] for record in read_all(emulator)] == [f"row {number}".encode() for number in range(400)]


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


async def test_single_entries_and_many_can_be_mixed(emulator: RunningEmulator) -> None:
    """write, write_many of entries and of record batches share one buffer."""
    create_stream(emulator)
    async with sink_for(emulator, max_in_flight_requests=1).create_writer() as writer:
        await writer.write(KinesisRequestEntry(b"1", "k"))
        await writer.write_many([KinesisRequestEntry(b"2", "k"), KinesisRequestEntry(b"3", "k")])
        await writer.write_many(batch_of(range(2), "k"))
        await writer.flush(end_of_input=True)
        assert writer.metrics.records_out == 5
    records = await asyncio.to_thread(read_all, emulator)
    assert [record["Data"] for record in records] == [b"1", b"2", b"3", b"row 0", b"row 1"]


async def test_what_was_saved_is_written_by_a_successor(emulator: RunningEmulator) -> None:
    """A snapshot goes through bytes into another writer."""
    create_stream(emulator)
    async with sink_for(emulator).create_writer() as writer:
        await writer.write(KinesisRequestEntry("é".encode(), "ключ", "5"))
        await writer.flush()
        saved = [state_to_bytes(state) for state in writer.snapshot_state()]
        await writer.close()
    async with sink_for(emulator).restore_writer(state_from_bytes(each) for each in saved):
        pass
    (record,) = await asyncio.to_thread(read_all, emulator)
    assert (record["Data"], record["PartitionKey"]) == ("é".encode(), "ключ")


def test_a_missing_stream_is_said_at_once(emulator: RunningEmulator) -> None:
    """ResourceNotFoundException is fatal: the error names the stream and the first record, and nothing is retried."""
    with pytest.raises(DestinationError) as caught:
        write_batches(sink_for(emulator), [batch_of(range(3))])
    error = caught.value
    assert (error.destination, error.code) == ("flights", "ResourceNotFoundException")
    assert (error.entries, error.first_record_number) == (3, 0)


def test_a_record_that_throttles_for_ever_is_named(emulator: RunningEmulator) -> None:
    """With a bound on attempts, the error names the record, its attempts and the service's code."""
    create_stream(emulator)
    config = AsyncSinkConfig(max_attempts=2, retry_backoff_base=timedelta(0), max_in_flight_requests=5)
    # One that hits the limit: the default keeps below it.
    sink = KinesisStreamsSink(emulator_options(emulator.endpoint_url), "flights", config=config, strategy=aimd_strategy)
    with pytest.raises(RecordsRejectedError) as caught:
        write_batches(sink, [batch_of(range(4_000))])
    record = caught.value.records[0]
    assert record.attempts == 2
    assert record.error_code == "ProvisionedThroughputExceededException"
    assert 0 <= record.record_number < 4_000


def test_an_oversize_row_is_named_and_none_of_its_batch_written(emulator: RunningEmulator) -> None:
    """A batch is checked whole before any of it is written."""
    create_stream(emulator)
    bad = pa.record_batch({"data": [b"x", b"x" * 2**20], "partitionKey": ["k", "k"]})
    with pytest.raises(RecordError) as caught:
        write_batches(sink_for(emulator), [batch_of(range(5)), bad])
    assert caught.value.record_number == 6


def test_a_bad_key_is_named(emulator: RunningEmulator) -> None:
    """The number counts over all batches."""
    create_stream(emulator)
    with pytest.raises(RecordError) as caught:
        write_batches(sink_for(emulator), [batch_of(range(5)), batch_of(range(1), "")])
    assert caught.value.record_number == 5


def test_an_unreachable_endpoint_is_tried_again_so_often(emulator: RunningEmulator) -> None:
    """A refused connection is not a fatal error; attempts bound it."""
    config = AsyncSinkConfig(max_attempts=3, retry_backoff_base=timedelta(milliseconds=1))
    sink = KinesisStreamsSink(emulator_options("http://127.0.0.1:1"), "flights", config=config)
    with pytest.raises(RecordsRejectedError) as caught:
        write_batches(sink, [batch_of(range(2))])
    assert caught.value.records[0].attempts == 3


def test_no_batches_are_no_requests(emulator: RunningEmulator) -> None:
    """A task without rows writes nothing."""
    summary = write_batches(sink_for(emulator), [])
    assert (summary.records, summary.requests) == (0, 0)


async def test_write_batches_works_below_a_running_loop(emulator: RunningEmulator) -> None:
    """It brings its own loop and thread, whatever the caller's thread runs."""
    create_stream(emulator)
    assert write_batches(sink_for(emulator), [batch_of(range(10))]).records == 10


def test_an_error_of_the_callers_batches_passes_through(emulator: RunningEmulator) -> None:
    """The iterator's own exception reaches the caller, and the writer is closed."""
    create_stream(emulator)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of(range(5))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_batches(sink_for(emulator), batches())


def test_the_callers_span_is_the_parent_of_the_requests(
    emulator: RunningEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trace context crosses from the caller's thread to the loop's."""
    create_stream(emulator)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name, **_: provider.get_tracer(name))
    with provider.get_tracer("test").start_as_current_span("task") as task:
        write_batches(sink_for(emulator), [batch_of(range(10))])
    submit = next(span for span in exporter.get_finished_spans() if span.name == "async_sink.submit")
    assert submit.parent is not None
    assert submit.parent.span_id == task.get_span_context().span_id
    assert submit.attributes is not None
    assert submit.attributes["stream"] == "flights"
    assert submit.attributes["entries"] == 10
    provider.shutdown()


async def test_a_record_that_the_service_refuses_does_not_keep_the_others_back(emulator: RunningEmulator) -> None:
    """The request that it spoils is bisected; it goes to the handler, all the others into the stream."""
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
            # Larger than the stream takes, though not than the writer was told.
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
