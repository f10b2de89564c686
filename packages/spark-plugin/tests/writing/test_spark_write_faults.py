import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.async_sink.errors import GatewayError, RecordsRejectedError
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc.testing import service_process
from penstock.spark_plugin import KinesisDataSource, WriteSummary
from penstock.spark_plugin._writing._sink_task import MAX_OPEN_SINKS, SinkTask
from penstock.spark_plugin.errors import RowError, WriteStalledError
from penstock.spark_plugin.testing import endpoint_options

ROWS = StructType([StructField("data", StringType()), StructField("partitionKey", StringType())])
ROUTED = StructType([*ROWS.fields, StructField("streamName", StringType())])
REFUSED = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """A Kinesis of this file's own, whose faults hit nobody else."""
    with running_emulator(enforce_limits=False) as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def no_faults(emulator: RunningEmulator) -> Iterator[None]:
    """Each test begins without those of others."""
    yield
    emulator.faults.clear()


def make_stream(emulator: RunningEmulator, name: str) -> None:
    client = emulator.client()
    client.create_stream(StreamName=name, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})


def held(emulator: RunningEmulator, name: str) -> list[bytes]:
    return emulator.call(lambda: [one.data for one in emulator.kinesis.streams[name].shards[0].records])


def write(
    options: dict[str, str], rows: list[tuple[Any, ...]], schema: StructType = ROWS, *, batch_rows: int = 10_000
) -> WriteSummary:
    """Run one write task as Spark does, without Spark."""
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    whole = pa.RecordBatch.from_arrays(columns, names=schema.names)
    writer = KinesisDataSource(options).writer(schema, overwrite=False)
    summary = writer.write(whole.slice(first, batch_rows) for first in range(0, len(rows), batch_rows))
    assert isinstance(summary, WriteSummary)
    return summary


def numbered(count: int) -> list[tuple[str, str]]:
    return [(str(number), f"key-{number}") for number in range(count)]


def test_faults_cost_retries_and_no_record(emulator: RunningEmulator) -> None:
    """Throttled requests, refused records, errors and a connection cut after the request was accepted: everything that
    is acknowledged is in the stream, doubled at most by the cut, and the summary says what it took."""
    make_stream(emulator, "faults")
    faults: list[dict[str, Any]] = [
        {"kind": "throttle", "operation": "PutRecords", "count": 2},
        {"kind": "fail_records", "share": 0.3, "count": 4},
        {"kind": "error", "code": "InternalFailure", "operation": "PutRecords", "count": 1, "skip": 1},
        {"kind": "reset", "operation": "PutRecords", "count": 1, "skip": 2},
    ]
    for fault in faults:
        emulator.faults.add(**fault)
    summary = write(endpoint_options(emulator.endpoint_url, "faults", maxBatchSize="100"), numbered(1_000))
    found = held(emulator, "faults")
    assert set(found) == {str(number).encode() for number in range(1_000)}
    assert len(found) > 1_000  # the request that was cut off had been carried out
    assert summary.records == 1_000
    assert summary.retries > 100
    assert summary.throttled >= 100


def test_what_is_given_up_fails_the_task_or_is_a_dead_letter(emulator: RunningEmulator, tmp_path: Path) -> None:
    """With `maxAttempts` a record that is refused each time ends the task; with `deadLetterPath` it is kept on disk,
    bad rows beside it, and the others are written."""
    make_stream(emulator, "dead")
    options = endpoint_options(emulator.endpoint_url, "dead", maxAttempts="2", maxRecordSizeInBytes="100")
    emulator.faults.add(kind="fail_records", indices=(0,))
    with pytest.raises(RecordsRejectedError):
        write(options, numbered(3))
    rows = [*numbered(3), ("4", None), ("5" * 200, "k")]
    with pytest.raises(RowError, match=r"row 3 .* partition key is null"):
        write(options, rows, batch_rows=2)
    summary = write(options | {"deadLetterPath": str(tmp_path / "dead")}, rows, batch_rows=2)
    (file,) = (tmp_path / "dead").iterdir()
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert (summary.records, summary.dead_letters) == (2, 3)
    assert sorted((one["reason"], one["attempts"], one["row"]) for one in letters if one["row"] is not None) == [
        ("bad row", 0, 3),
        ("bad row", 0, 4),
    ]
    (refused,) = [one for one in letters if one["row"] is None]
    assert (refused["attempts"], refused["partitionKey"]) == (2, "key-0")
    assert refused["errorCode"]


def test_a_task_that_fails_leaves_no_dead_letters(tmp_path: Path) -> None:
    """It runs again, and its rows with it: those that it had put aside would be there twice, or although they went."""
    folder = tmp_path / "dead"
    options = endpoint_options(REFUSED, "s", stallTimeout="200ms", deadLetterPath=str(folder))
    with pytest.raises(WriteStalledError):
        write(options, [*numbered(2), ("a bad row", None)])
    assert list(folder.iterdir()) == []


def test_a_wrong_endpoint_ends_the_task_with_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for ever: progress is told while it is tried, then the error says what answered last."""
    options = endpoint_options(REFUSED, "s", stallTimeout="500ms")
    with caplog.at_level(logging.WARNING), pytest.raises(WriteStalledError, match="endpointUrl") as caught:
        write(options, numbered(3))
    assert caught.value.last_failure
    assert any("has taken none of" in record.message for record in caplog.records)


class Held:
    """A sink, and its writer, which holds a record until it was looked at forty times; or until it is failed."""

    def __init__(self, *, is_throttled: bool) -> None:
        self._is_throttled = is_throttled
        self._looks = 0
        self._done = asyncio.Event()
        self.failure: Exception | None = None

    def create_writer(self) -> "Held":
        return self

    async def __aenter__(self) -> "Held":
        return self

    async def write_many(self, batch: Any) -> None:
        """Hold it."""

    async def flush(self, *, end_of_input: bool) -> None:
        await self._done.wait()

    async def close(self) -> None:
        """Nothing is open."""

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._done.set()

    def gauges(self) -> Any:
        return SimpleNamespace(buffer_records=1, in_flight_messages=0)

    @property
    def metrics(self) -> Any:
        self._looks += 1
        if self._looks > 40:
            self._done.set()
        names = "records_out", "bytes_out", "requests", "retried", "dead_lettered", "signs_of_life"
        counts = dict.fromkeys(names, 0)
        throttled = self._looks if self._is_throttled else 0
        return SimpleNamespace(**counts, throttled=throttled, last_failure="")


@pytest.mark.parametrize("is_throttled", [True, False])
async def test_a_throttled_destination_is_alive(*, is_throttled: bool) -> None:
    """One that answers nothing but throttles for twice the `stallTimeout` is waited for, and a silent one is not."""
    held = Held(is_throttled=is_throttled)
    task = SinkTask(lambda _: held, stall_seconds=0.2)
    await task.write("s", None)
    await task.finish()
    assert (held.failure is None) is is_throttled


class Broken(Held):
    """One that cannot even be failed: an error within it has ended what would tell its callers."""

    def __init__(self) -> None:
        super().__init__(is_throttled=False)
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    def gauges(self) -> Any:
        return SimpleNamespace(buffer_records=0, in_flight_messages=0)

    def fail(self, error: Exception) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    @property
    def metrics(self) -> Any:
        self._looks = 0
        return super().metrics


async def test_a_writer_that_is_broken_holds_no_task(caplog: pytest.LogCaptureFixture) -> None:
    """`stallTimeout` is a promise about the task, whatever becomes of the writer; that one is closed."""
    broken = Broken()
    task = SinkTask(lambda _: broken, stall_seconds=0.2)
    async with asyncio.timeout(20):
        await task.write("s", None)
        with pytest.raises(WriteStalledError):
            await task.finish()
        await task.abandon()
    assert broken.is_closed


def test_rows_are_routed_with_a_bounded_number_of_writers(emulator: RunningEmulator) -> None:
    """More streams than writers may be open: each row is in its own, a null goes to that of the options."""
    names = [f"routed-{number}" for number in range(MAX_OPEN_SINKS + 2)]
    client = emulator.client()
    for name in names:
        client.create_stream(StreamName=name, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=names[-1], WaiterConfig={"Delay": 1})
    rows = [(str(number), "k", names[number % len(names)]) for number in range(100)] + [("null", "k", None)]
    summary = write(endpoint_options(emulator.endpoint_url, names[0]), rows, ROUTED)
    assert summary.records == 101
    for index, name in enumerate(names):
        expected = [str(number).encode() for number in range(index, 100, len(names))] + [b"null"] * (index == 0)
        assert sorted(held(emulator, name)) == sorted(expected)


@pytest.mark.parametrize("default", [True, False])
def test_a_row_of_an_empty_stream_is_a_bad_row(emulator: RunningEmulator, tmp_path: Path, *, default: bool) -> None:
    """It is named, or a dead letter that names no stream; the others are written. Only a null means the default."""
    name = f"empty-{default}".lower()
    make_stream(emulator, name)
    options = endpoint_options(emulator.endpoint_url, name)
    if not default:
        del options["streamName"]
    rows = [("0", "k", name), ("1", "k", "")]
    with pytest.raises(RowError, match=r"row 1 .* its stream is empty"):
        write(options, rows, ROUTED)
    summary = write(options | {"deadLetterPath": str(tmp_path)}, rows, ROUTED)
    assert (summary.records, summary.dead_letters) == (1, 1)
    (file,) = tmp_path.iterdir()
    letter = json.loads(file.read_text())
    assert (letter["row"], letter["errorMessage"], letter["streamName"]) == (1, "its stream is empty", None)


def test_aggregates_and_rates_are_options(emulator: RunningEmulator) -> None:
    """With `aggregation` a stream gets fewer records than rows; a rate slows a task down."""
    make_stream(emulator, "packed")
    options = endpoint_options(emulator.endpoint_url, "packed", aggregation="true")
    assert write(options, numbered(500)).records == 500
    assert len(held(emulator, "packed")) < 50
    make_stream(emulator, "slow")
    limited = endpoint_options(emulator.endpoint_url, "slow", maxRecordsPerSecond="100", maxBatchSize="50")
    assert write(limited, numbered(150)).seconds > 0.4


def test_a_gateway_that_is_killed_fails_the_task(emulator: RunningEmulator, until: Callable[..., None]) -> None:
    """What the gateway did not acknowledge is not reported as written, and the error names the gateway or the stall."""
    pytest.importorskip("penstock.services.sink_gateway")
    make_stream(emulator, "gateway")
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "PATH": ""}
    command = ["serve", "--region", "us-east-1", "--endpoint-url", emulator.endpoint_url]
    with service_process("penstock.services.sink_gateway", command, environment) as gateway:
        options = endpoint_options(
            emulator.endpoint_url, "gateway", sinkEndpoint=gateway.address, stallTimeout="2s", maxBatchSize="100"
        )
        assert write(options, numbered(200)).records == 200

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(3):
                if number == 1:
                    until(lambda: len(held(emulator, "gateway")) >= 400, "the gateway writes nothing")
                    gateway.process.kill()
                    gateway.process.wait()
                rows = [(f"{number}/{row}", "k") for row in range(200)]
                yield pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], names=ROWS.names)

        writer = KinesisDataSource(options).writer(ROWS, overwrite=False)
        with pytest.raises((GatewayError, WriteStalledError)):
            writer.write(batches())
    assert len(held(emulator, "gateway")) == 400


def test_a_gateway_that_is_slow_is_alive_and_one_that_hangs_is_named(emulator: RunningEmulator) -> None:
    """At the rate that the gateway was given, a whole batch has its answer after `stallTimeout`: it is waited for. When
    Kinesis gives the gateway no answer, the error says where to look: not at this job's endpoint."""
    pytest.importorskip("penstock.services.sink_gateway")
    make_stream(emulator, "steady")
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "PATH": ""}
    command = ["serve", "--region", "us-east-1", "--endpoint-url", emulator.endpoint_url, "--drain-seconds", "0"]
    command += ["--max-records-per-second", "40"]
    with service_process("penstock.services.sink_gateway", command, environment) as gateway:
        options = endpoint_options(emulator.endpoint_url, "steady", sinkEndpoint=gateway.address, stallTimeout="5s")
        assert write(options, numbered(280)).records == 280
        emulator.faults.add(kind="silence", operation="PutRecords")
        with pytest.raises(WriteStalledError, match="penstock sink") as caught:
            write(options, numbered(3))
        emulator.faults.clear()
    assert gateway.address in str(caught.value)
    assert "endpointUrl" not in str(caught.value)


def test_a_micro_batch_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The commit says what was written, the abort what may have been."""
    writer = KinesisDataSource({"streamName": "told", "region": "us-east-1"}).streamWriter(ROWS, overwrite=False)
    done = WriteSummary(5, 50, 1, 2, 3, dead_letters=1, seconds=0.5)
    with caplog.at_level(logging.INFO):
        writer.commit([done, done], 7)
        writer.abort([done, None], 8)
    committed, aborted = (record.message for record in caplog.records)
    assert committed == (
        "wrote micro-batch 7 to told: 10 records, 100 bytes, 2 requests, 4 retries, 6 throttled, 2 dead letters, "
        "0.500 s"
    )
    assert "micro-batch 8 failed: 1 task(s)" in aborted
    assert "5 records" in aborted
