import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.async_sink.errors import GatewayError, RecordsRejectedError
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc.testing import service_process
from penstock.spark_plugin import KinesisDataSource, WriteSummary
from penstock.spark_plugin._writing.sink_task import MAX_OPEN_SINKS
from penstock.spark_plugin.errors import SparkPluginError
from penstock.spark_plugin.testing import endpoint_options

ROWS = StructType([StructField("data", StringType()), StructField("partitionKey", StringType())])
ROUTED = StructType([*ROWS.fields, StructField("streamName", StringType())])
REFUSED = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """A Kinesis of this file's own, whose faults affect no other test."""
    with running_emulator(enforce_limits=False) as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def no_faults(emulator: RunningEmulator) -> Iterator[None]:
    """Each test begins without the faults of other tests."""
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


def test_undelivered_record_fails_the_task_or_is_a_dead_letter(emulator: RunningEmulator, tmp_path: Path) -> None:
    """With `maxAttempts` a record that is refused each time ends the task; with `deadLetterPath` it is kept on disk,
    bad rows beside it, and the others are written."""
    make_stream(emulator, "dead")
    options = endpoint_options(emulator.endpoint_url, "dead", maxAttempts="2", maxRecordSizeInBytes="100")
    emulator.faults.add(kind="fail_records", indices=(0,))
    with pytest.raises(RecordsRejectedError):
        write(options, numbered(3))
    rows = [*numbered(3), ("4", None), ("5" * 200, "k")]
    with pytest.raises(SparkPluginError, match=r"UNWRITABLE_ROW.*row 3 .* partition key is null"):
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


def test_wrong_endpoint_fails_the_task(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer logs what it waits for while it tries again, then the error says what answered last."""
    # In a fiftieth of the time.
    monkeypatch.setattr("penstock.async_sink._core.pump.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("penstock.async_sink._core.held.FIRST_SECONDS", 0.1)
    options = endpoint_options(REFUSED, "s", stallTimeout="1s")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(SparkPluginError, match=r"WRITE_STALLED.*endpointUrl") as caught,
    ):
        write(options, numbered(3))
    assert str(caught.value.facts["last_failure"])
    held = [record for record in caplog.records if record.name == "penstock.async_sink._core.pump"]
    assert held
    # The stream, and the first record of the task.
    assert isinstance(held[0].args, tuple)
    assert held[0].args[:2] == ("s", 0)


def test_rows_are_routed_with_a_bounded_number_of_writers(emulator: RunningEmulator) -> None:
    """More streams than writers may be open: each row is in its own, and a null goes to the stream of the options."""
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
    with pytest.raises(SparkPluginError, match=r"UNWRITABLE_ROW.*row 1 .* its stream is empty"):
        write(options, rows, ROUTED)
    summary = write(options | {"deadLetterPath": str(tmp_path)}, rows, ROUTED)
    assert (summary.records, summary.dead_letters) == (1, 1)
    (file,) = tmp_path.iterdir()
    letter = json.loads(file.read_text())
    assert (letter["row"], letter["errorMessage"], letter["streamName"]) == (1, "its stream is empty", None)


@pytest.mark.parametrize("use", ["writer", "streamWriter"])
def test_a_row_with_a_hash_key_that_the_service_refuses_is_named(
    emulator: RunningEmulator, tmp_path: Path, use: str
) -> None:
    """The service would refuse the whole request for leading zeros; with a folder the other 99 rows are written."""
    name = f"hash-keys-{use.lower()}"
    make_stream(emulator, name)
    schema = StructType([*ROWS.fields, StructField("explicitHashKey", StringType())])
    rows = pa.record_batch(
        {
            "data": [str(row) for row in range(100)],
            "partitionKey": ["k"] * 100,
            "explicitHashKey": ["007" if row == 57 else "7" for row in range(100)],
        }
    )
    options = endpoint_options(emulator.endpoint_url, name)

    def write_rows(**more: str) -> WriteSummary:
        writer = getattr(KinesisDataSource(options | more), use)(schema, overwrite=False)
        summary = writer.write(iter([rows.slice(0, 50), rows.slice(50)]))
        assert isinstance(summary, WriteSummary)
        return summary

    with pytest.raises(SparkPluginError, match="UNWRITABLE_ROW") as caught:
        write_rows()
    assert caught.value.facts["row"] == 57
    before = len(held(emulator, name))
    summary = write_rows(deadLetterPath=str(tmp_path))
    assert (summary.records, summary.dead_letters) == (99, 1)
    assert sorted(held(emulator, name)[before:]) == sorted(str(row).encode() for row in range(100) if row != 57)
    (letter,) = (json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines())
    assert (letter["row"], letter["explicitHashKey"]) == (57, "007")


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
        with pytest.raises((GatewayError, SparkPluginError)):
            writer.write(batches())
    assert len(held(emulator, "gateway")) == 400


def test_micro_batch_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
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
