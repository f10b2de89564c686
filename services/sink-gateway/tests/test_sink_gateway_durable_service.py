import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import AsyncSinkConfig, RemoteSink, write_batches
from penstock.async_sink.errors import GatewayStorageError
from penstock.async_sink.testing import wait_until
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.sink_gateway.__main__ import main
from penstock.terminal.testing import run_main

MODULE = "penstock.services.sink_gateway"
BATCHES_OF_200 = AsyncSinkConfig(max_batch_size=200)
ENVIRONMENT = {
    **os.environ,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, companions=("dynamodb", "sqs")) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=4)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def arguments(emulator: RunningEmulator, folder: Path) -> list[str]:
    return ["serve", "--endpoint-url", emulator.endpoint_url, "--durable", str(folder), "--drain-seconds", "1"]


def written(emulator: RunningEmulator) -> list[int]:
    return emulator.call(
        lambda: [
            int(bytes(record.data)) for shard in emulator.kinesis.streams["flights"].shards for record in shard.records
        ]
    )


def rows(start: int, end: int, *, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "data": [b"%0*d" % (size, number) for number in range(start, end)],
            "partitionKey": [f"ключ {number}" for number in range(start, end)],
        }
    )


def kill(process: ServiceProcess) -> None:
    process.process.send_signal(signal.SIGKILL)
    assert process.process.wait(20) == -signal.SIGKILL


async def test_kill_9_loses_nothing_that_was_acknowledged(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Killed with everything unwritten: a successor with the same folder writes it, once, without any client."""
    fault = emulator.call(lambda: emulator.faults.add("throttle", stream="flights", operation="PutRecords"))
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
        assert write_batches(RemoteSink(process.address, destination="flights"), [rows(0, 3_000)]).records == 3_000
        kill(process)
    assert written(emulator) == []
    emulator.call(lambda: emulator.faults.clear(fault))
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
        await wait_until(lambda: len(written(emulator)) >= 3_000, seconds=30)
        assert process.terminate(30) == 0
    assert sorted(written(emulator)) == list(range(3_000))


async def test_kill_9_while_it_writes_loses_nothing_either(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Killed three times with batches half written: what was acknowledged is there, some of it perhaps twice."""
    acknowledged = 0
    for _ in range(3):
        with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
            write_batches(
                RemoteSink(process.address, destination="flights"), [rows(acknowledged, acknowledged + 2_000)]
            )
            acknowledged += 2_000
            kill(process)
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT):
        await wait_until(lambda: len(set(written(emulator))) >= acknowledged, seconds=40)
    assert set(written(emulator)) == set(range(acknowledged))


def test_a_torn_journal_is_read_and_a_damaged_one_refused(emulator: RunningEmulator, tmp_path: Path) -> None:
    """A cut at the end is what a kill leaves; anything else ends the service with code 2 and the file's name."""
    fault = emulator.call(lambda: emulator.faults.add("throttle", stream="flights", operation="PutRecords"))
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
        for start in (0, 100, 200):
            write_batches(RemoteSink(process.address, destination="flights"), [rows(start, start + 100)])
        kill(process)
    emulator.call(lambda: emulator.faults.clear(fault))
    log = tmp_path / "journal.db-wal"
    whole = log.read_bytes()
    log.write_bytes(whole[:100] + b"\xff" + whole[101:])
    ended = run_main(main, arguments(emulator, tmp_path), environ=ENVIRONMENT)
    assert ended.returncode == 2
    assert log.name in ended.stderr
    assert "Traceback" not in ended.stderr
    log.write_bytes(whole[:-5])
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT):
        deadline = time.monotonic() + 20
        while len(written(emulator)) < 200 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert sorted(written(emulator)) == list(range(200))


def test_a_folder_has_one_gateway_at_a_time(emulator: RunningEmulator, tmp_path: Path) -> None:
    """The second one ends with code 2 and a word about it; the first one goes on."""
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
        ended = run_main(main, arguments(emulator, tmp_path), environ=ENVIRONMENT)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "in use by another gateway" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert write_batches(RemoteSink(process.address, destination="flights"), [rows(0, 10)]).records == 10


async def test_kill_9_on_a_full_disk_loses_nothing_that_was_acknowledged(
    emulator: RunningEmulator, tmp_path: Path
) -> None:
    """The client that found the disk full has a typed error and keeps its records; the others are written later."""
    fault = emulator.call(lambda: emulator.faults.add("throttle", stream="flights", operation="PutRecords"))
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
        sink = RemoteSink(process.address, destination="flights")
        assert write_batches(sink, [rows(0, 1_000)]).records == 1_000
        # From here on the kernel lets no file of the process grow much more: EFBIG, in effect a full disk.
        room = (tmp_path / "journal.db-wal").stat().st_size + 30_000
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (room, room))
        writer = sink.create_writer()
        await writer.__aenter__()
        await writer.write_many(rows(1_000, 4_000))
        with pytest.raises(GatewayStorageError):
            await writer.flush(end_of_input=True)
        kept = {int(entry.data) for state in writer.snapshot_state() for entry, _ in state.entries}
        acknowledged = set(range(4_000)) - kept
        assert kept
        assert len(acknowledged) == 1_000 + writer.metrics.records_out
        await writer.close()
        kill(process)
    assert written(emulator) == []
    emulator.call(lambda: emulator.faults.clear(fault))
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT):
        await wait_until(lambda: set(written(emulator)) >= acknowledged, seconds=30)
    assert len(written(emulator)) == len(set(written(emulator)))


async def fill(address: str) -> tuple[set[int], str]:
    """Write until the gateway's disk is full; returns what was acknowledged, and the error's words."""
    writer = RemoteSink(address, destination="flights", config=BATCHES_OF_200).create_writer()
    await writer.__aenter__()
    written = 0
    try:
        while True:
            await writer.write_many(rows(written, written + 200, size=500))
            written += 200
            await writer.flush(end_of_input=True)
    except GatewayStorageError as error:
        kept = {int(entry.data) for state in writer.snapshot_state() for entry, _ in state.entries}
        return set(range(written)) - kept, str(error)
    finally:
        await writer.close()


@pytest.mark.parametrize("end", ["goes on", "SIGTERM", "SIGKILL"])
async def test_a_disk_that_was_full_is_used_again(emulator: RunningEmulator, tmp_path: Path, end: str) -> None:
    """Clients are refused with what to do; what was acknowledged is written, and then there is room again."""
    fault = emulator.call(lambda: emulator.faults.add("throttle", stream="flights", operation="PutRecords"))
    with contextlib.ExitStack() as services:
        process = services.enter_context(small_disk(emulator, tmp_path))
        acknowledged, words = await fill(process.address)
        assert str(tmp_path) not in words
        assert "make room on its disk" in words
        assert len(acknowledged) >= 1_000
        emulator.call(lambda: emulator.faults.clear(fault))
        await wait_until(lambda: set(written(emulator)) >= acknowledged, seconds=40)
        if end != "goes on":
            process.process.send_signal(signal.Signals[end])
            process.process.wait(20)
            process = services.enter_context(small_disk(emulator, tmp_path))
        for start in range(100_000, 101_000, 200):
            sink = RemoteSink(process.address, destination="flights", config=BATCHES_OF_200)
            assert write_batches(sink, [rows(start, start + 200)]).records == 200
        await wait_until(lambda: set(written(emulator)) >= {*acknowledged, *range(100_000, 101_000)}, seconds=40)


@contextlib.contextmanager
def small_disk(emulator: RunningEmulator, folder: Path) -> Iterator[ServiceProcess]:
    """A gateway whose files the kernel lets grow to 2 MiB: EFBIG, in effect a full disk."""
    with service_process(MODULE, arguments(emulator, folder), ENVIRONMENT) as process:
        room = 2 * 1024 * 1024
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (room, room))
        yield process


def _create(emulator: RunningEmulator) -> dict[str, tuple[str, Callable[[], int]]]:
    firehose, dynamodb, sqs = (emulator.client(service) for service in ("firehose", "dynamodb", "sqs"))
    # moto keeps what is made for as long as the process lives.
    name = f"flights-{uuid.uuid4().hex[:8]}"
    firehose.create_delivery_stream(
        DeliveryStreamName=name,
        ExtendedS3DestinationConfiguration={
            "RoleARN": "arn:aws:iam::123456789012:role/r",
            "BucketARN": "arn:aws:s3:::b",
        },
    )
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    def messages() -> int:
        answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        return int(answer["Attributes"]["ApproximateNumberOfMessages"])

    def lines() -> int:
        folder = emulator.firehose_folder / name
        return sum(file.read_bytes().count(b"\n") for file in folder.iterdir())

    return {
        "firehose": (name, lines),
        "dynamodb": (name, lambda: int(dynamodb.scan(TableName=name, Select="COUNT")["Count"])),
        "sqs": (url, messages),
    }


def test_all_kinds_of_destinations_are_served(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Each through its own endpoint, from rows."""
    created = _create(emulator)
    batches: dict[str, Any] = {
        "firehose": {"data": [b"%d\n" % number for number in range(60)]},
        "dynamodb": {"id": [str(number) for number in range(60)]},
        "sqs": {"body": [str(number) for number in range(60)]},
    }
    endpoints = [flag for kind in batches for flag in (f"--{kind}-endpoint-url", emulator.endpoints[kind])]
    with service_process(MODULE, ["serve", *endpoints], ENVIRONMENT) as process:
        for kind, (destination, count) in created.items():
            sink = RemoteSink(process.address, destination=destination, kind=kind)
            assert write_batches(sink, [pa.record_batch(batches[kind])]).records == 60
            assert count() == 60


def test_a_client_leaves_no_noise_when_the_gateway_ends_its_stream(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Nothing on standard error but what the program says itself."""
    program = """
import asyncio, sys
from datetime import timedelta
from penstock.async_sink import KinesisRequestEntry, RemoteSink
from penstock.async_sink.errors import GatewayError

async def main():
    sink = RemoteSink(sys.argv[1], destination="flights", reconnect_timeout=timedelta(milliseconds=300))
    try:
        async with sink.create_writer() as writer:
            await writer.write(KinesisRequestEntry(b"1", "k"))
            await writer.flush(end_of_input=True)
            print("written", flush=True)
            while writer.failure is None:
                await asyncio.sleep(0.01)
            await writer.write(KinesisRequestEntry(b"2", "k"))
    except GatewayError:
        print("ended", flush=True)

asyncio.run(main(), debug=True)
"""
    with service_process(MODULE, arguments(emulator, tmp_path), ENVIRONMENT) as process:
        command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", program, process.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "written\n"
            process.terminate(30)
            out, err = client.communicate(timeout=60)
    assert out == "ended\n"
    assert "Task was destroyed" not in err
    assert "asynchronous generator" not in err
