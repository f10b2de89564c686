import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from penstock.async_sink import AsyncSinkConfig, KinesisRequestEntry, RemoteSink, write_batches
from penstock.async_sink.errors import DestinationError, GatewayError, LocationMismatchError, RecordsRejectedError
from penstock.async_sink.testing import wait_until
from penstock.aws import AwsLocation
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2, sink_gateway_pb2_grpc
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.sink_gateway.__main__ import main
from penstock.terminal.testing import run_main

MODULE = "penstock.services.sink_gateway"
ENVIRONMENT = {
    **os.environ,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
# Longer than what keeps a silent connection alive: a ping after ten seconds, and as long for its answer.
FROZEN_SECONDS = 25.0
ONE_ATTEMPT = AsyncSinkConfig(max_attempts=1)


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, shard_read_calls_per_second=10_000) as emulator:
        yield emulator


@pytest.fixture
def stream(emulator: RunningEmulator, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name.partition('[')[0][:100]}-{uuid.uuid4().hex[:8]}"
    client = emulator.client()
    client.create_stream(StreamName=name, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    return name


@pytest.fixture(scope="module")
def gateway(emulator: RunningEmulator) -> Iterator[ServiceProcess]:
    """For tests that need no settings, and do not end it."""
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url]
    with service_process(MODULE, arguments, ENVIRONMENT) as process:
        yield process


def read_all(emulator: RunningEmulator, stream: str) -> list[bytes]:
    client = emulator.client()
    found = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            answer = client.get_records(ShardIterator=iterator)
            found += [record["Data"] for record in answer["Records"]]
            if not answer["Records"] and answer["MillisBehindLatest"] == 0:
                break
            iterator = answer["NextShardIterator"]
    return found


def rows(start: int, end: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "data": [f"{number}".encode() for number in range(start, end)],
            "partitionKey": [f"ключ {number}" for number in range(start, end)],
        }
    )


def test_several_clients_write_through_one_gateway(
    emulator: RunningEmulator, stream: str, gateway: ServiceProcess
) -> None:
    """Everything arrives once, by one writer with one rate, though both offer more than the shards take."""
    sink = RemoteSink(gateway.address, destination=stream)
    with ThreadPoolExecutor(2) as threads:
        parts = [threads.submit(write_batches, sink, [rows(start, start + 2_000)]) for start in (0, 2_000)]
        summaries = [part.result() for part in parts]
    assert [summary.records for summary in summaries] == [2_000, 2_000]
    assert sorted(map(int, read_all(emulator, stream))) == list(range(4_000))
    (stats,) = (each for each in looked_at(gateway) if each.destination == stream)
    assert (stats.kind, stats.records_out) == ("kinesis", 4_000)


def looked_at(process: ServiceProcess) -> list[sink_gateway_pb2.DestinationStats]:
    with grpc.insecure_channel(process.address) as channel:
        stub: Any = sink_gateway_pb2_grpc.SinkGatewayServiceStub(channel)
        return list(stub.Stats(sink_gateway_pb2.StatsRequest()).destinations)


async def test_invented_streams_are_refused_and_not_kept(emulator: RunningEmulator, gateway: ServiceProcess) -> None:
    """AWS is asked once for each, and the error says what to do; the gateway still serves the others."""

    async def write(name: str) -> str:
        async with contextlib.AsyncExitStack() as closing:
            writer = RemoteSink(gateway.address, destination=name).create_writer()
            await writer.__aenter__()
            closing.push_async_callback(writer.close)
            await writer.write(KinesisRequestEntry(b"x", "k"))
            with pytest.raises(DestinationError) as caught:
                await writer.flush(end_of_input=True)
        assert caught.value.code == "ResourceNotFoundException"
        return str(caught.value)

    # More than a service describes in a second.
    told = await asyncio.gather(*(write(f"invented-{number}") for number in range(60)))
    assert "name a destination that exists" in told[0]
    assert not any("invented" in each.destination for each in looked_at(gateway))


def test_an_unused_destination_is_closed_and_opened_again(emulator: RunningEmulator, stream: str) -> None:
    """It continues to count."""
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url, "--destination-idle-seconds", "0.4"]
    with service_process(MODULE, arguments, ENVIRONMENT) as process:
        sink = RemoteSink(process.address, destination=stream)
        assert write_batches(sink, [rows(0, 3)]).records == 3
        deadline = time.monotonic() + 20
        while looked_at(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert looked_at(process) == []
        assert write_batches(sink, [rows(3, 5)]).records == 2
        (stats,) = looked_at(process)
        assert stats.records_out == 5


async def test_destinations_are_as_many_as_the_flag_says(emulator: RunningEmulator, stream: str) -> None:
    """Another destination has to wait, and its error says why; an idle destination makes room for it at once."""
    other = f"{stream[:100]}-other"
    emulator.client().create_stream(StreamName=other, ShardCount=1)
    emulator.client().get_waiter("stream_exists").wait(StreamName=other, WaiterConfig={"Delay": 1})
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url, "--max-destinations", "1"]
    with service_process(MODULE, arguments, ENVIRONMENT) as process:
        async with RemoteSink(process.address, destination=stream).create_writer() as writer:
            await writer.write(KinesisRequestEntry(b"x", "k"))
            await writer.flush(end_of_input=True)
            late = RemoteSink(process.address, destination=other, reconnect_timeout=timedelta(seconds=0.2))
            with pytest.raises(GatewayError, match="as many as its --max-destinations, and none of them is idle"):
                await asyncio.to_thread(write_batches, late, [rows(0, 1)])
        assert (await asyncio.to_thread(write_batches, late, [rows(0, 1)])).records == 1
        assert [each.destination for each in looked_at(process)] == [other]


def test_a_client_that_means_another_account_is_refused(stream: str, gateway: ServiceProcess) -> None:
    """The gateway learns the stream's account from the stream itself."""
    sink = RemoteSink(gateway.address, destination=stream, caller=AwsLocation(account_id="999999999999"))
    with pytest.raises(LocationMismatchError, match="999999999999"):
        write_batches(sink, [rows(0, 1)])


def test_a_drain_takes_its_time_once(emulator: RunningEmulator, stream: str) -> None:
    """Also with a throttled stream: clients that wait are sent away, and the process ends."""
    emulator.call(lambda: emulator.faults.add("throttle", stream=stream, operation="PutRecords"))
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url, "--drain-seconds", "12"]
    with service_process(MODULE, arguments, ENVIRONMENT) as process, ThreadPoolExecutor(1) as threads:
        sink = RemoteSink(process.address, destination=stream, reconnect_timeout=timedelta(0))
        writing = threads.submit(write_batches, sink, [rows(0, 600)])
        deadline = time.monotonic() + 20
        while not any(each.throttled for each in looked_at(process)) and time.monotonic() < deadline:
            time.sleep(0.05)
        began = time.monotonic()
        assert process.terminate(60) == 0
        # Not twice the time.
        assert 11 < time.monotonic() - began < 24
        with pytest.raises(GatewayError):
            writing.result()


def test_rates_are_the_flags(emulator: RunningEmulator, stream: str) -> None:
    """The limit in flight starts at its setting; entries leave no faster than they may."""
    rates = ["--rate-strategy", "aimd", "--rate-threshold", "7", "--increase-rate", "1", "--decrease-factor", "0.5"]
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url, *rates, "--max-records-per-second", "100"]
    with service_process(MODULE, arguments, ENVIRONMENT) as process:
        began = time.monotonic()
        assert write_batches(RemoteSink(process.address, destination=stream), [rows(0, 400)]).records == 400
        assert time.monotonic() - began > 2
        (stats,) = looked_at(process)
        assert stats.limit_messages == 7


async def test_a_gateway_and_its_clients_live_through_being_frozen(
    emulator: RunningEmulator, stream: str, tmp_path: Path
) -> None:
    """Each in turn, for longer than a silent connection lives: everything arrives, each record is acknowledged once."""
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url]
    program = """
import asyncio, sys
from penstock.async_sink import KinesisRequestEntry, RemoteSink

async def main():
    async with RemoteSink(sys.argv[1], destination=sys.argv[2]).create_writer() as writer:
        for number in range(300):
            await writer.write(KinesisRequestEntry(b"%d" % number, str(number)))
            if number % 10 == 9:
                await writer.flush(end_of_input=True)
                print(writer.metrics.records_out, flush=True)
            await asyncio.sleep(0.02)

asyncio.run(main())
"""
    with (
        (tmp_path / "errors").open("wb") as errors,
        service_process(MODULE, arguments, ENVIRONMENT, errors) as process,
    ):
        command = [sys.executable, "-c", program, process.address, stream]
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert client.stdout is not None
            for frozen in (process.process.pid, client.pid):
                assert await client.stdout.readline()
                os.kill(frozen, signal.SIGSTOP)
                await asyncio.sleep(FROZEN_SECONDS)
                os.kill(frozen, signal.SIGCONT)
            out, _ = await asyncio.wait_for(client.communicate(), 60)
        finally:
            if client.returncode is None:
                client.kill()
        assert out.splitlines()[-1] == b"300"
        assert await asyncio.to_thread(process.terminate, 30) == 0
    assert set(map(int, await asyncio.to_thread(read_all, emulator, stream))) == set(range(300))
    log = (tmp_path / "errors").read_text()
    assert "detach" not in log
    assert "Traceback" not in log


async def test_sigterm_writes_what_was_accepted_and_a_successor_takes_the_rest(
    emulator: RunningEmulator, stream: str
) -> None:
    """At the end of the process exactly the acknowledged records are written; its successor gets the others."""
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url, "--drain-seconds", "20"]
    numbers = range(7_000)
    with service_process(MODULE, arguments, ENVIRONMENT) as process:
        writer = RemoteSink(process.address, destination=stream).create_writer()
        await writer.__aenter__()
        await writer.write_many(rows(0, 7_000))
        await wait_until(lambda: writer.metrics.records_out > 0)
        assert writer.in_flight_messages > 0
        assert await asyncio.to_thread(process.terminate, 30) == 0
        await wait_until(lambda: writer.in_flight_messages == 0)
        written = await asyncio.to_thread(read_all, emulator, stream)
        assert len(written) == writer.metrics.records_out < len(numbers)
        assert len(set(written)) == len(written)
    successor = [*arguments, "--port", process.address.rpartition(":")[2]]
    with service_process(MODULE, successor, ENVIRONMENT):
        await writer.flush(end_of_input=True)
        await writer.close()
    assert sorted(map(int, await asyncio.to_thread(read_all, emulator, stream))) == list(numbers)


AIMD = ["--rate-strategy", "aimd"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--credit-entries", "10"], ["--credit-entries", "PENSTOCK_SINK_CREDIT_ENTRIES", "500"]),
        (["--max-batch-size", "many"], ["--max-batch-size", "'many' is not a whole number"]),
        (["--max-batch-size", "501"], ["--max-batch-size", "more than the service takes, 500"]),
        (["--max-record-bytes", "0"], ["--max-record-bytes", "must be at least 1"]),
        (["--max-record-bytes", "10485761"], ["--max-record-bytes", "must be at most 10485760"]),
        (["--linger-milliseconds", "-1"], ["--linger-milliseconds", "at least 1"]),
        (["--linger-milliseconds", "9" * 20], ["--linger-milliseconds", f"{'9' * 20} is too long"]),
        (["--rate-strategy", "fast"], ["--rate-strategy", "choose shards, aimd, none"]),
        (["--initial-rate", "5"], ["--initial-rate", "PENSTOCK_SINK_INITIAL_RATE", "needs --rate-strategy aimd"]),
        ([*AIMD, "--decrease-factor", "1"], ["--decrease-factor", "more than 0 and less than 1"]),
        ([*AIMD, "--rate-target", "requests", "--decrease-factor", "0.99"], ["--decrease-factor", "lower nothing"]),
        ([*AIMD, "--rate-threshold", "50"], ["--decrease-factor", "0.99, as none is given, must", "lower nothing"]),
        ([*AIMD, "--initial-rate", "900", "--rate-threshold", "100"], ["--initial-rate", "--rate-threshold, 100"]),
        ([*AIMD, "--increase-rate", "900", "--rate-threshold", "100"], ["--increase-rate", "--rate-threshold, 100"]),
        ([*AIMD, "--rate-threshold", "25001"], ["--rate-threshold", "at most 25000", "--max-batch-size"]),
        ([*AIMD, "--initial-rate", "201", "--max-batch-size", "4"], ["--initial-rate", "at most 200"]),
        ([*AIMD, "--rate-target", "requests", "--rate-threshold", "51"], ["--rate-threshold", "at most 50"]),
        (["--max-bytes-per-second", "0"], ["--max-bytes-per-second", "must be more than 0"]),
        (["--max-destinations", "0"], ["--max-destinations", "must be more than 0"]),
        (["--destination-idle-seconds", "soon"], ["--destination-idle-seconds", "'soon' is not a number"]),
        (["--drain-seconds", "soon"], ["--drain-seconds (PENSTOCK_SINK_DRAIN_SECONDS)", "'soon' is not a number"]),
        (["--audit-log", "/dev/null/x"], ["--audit-log (PENSTOCK_SINK_AUDIT_LOG): cannot write /dev/null/x"]),
        (["--prot", "1"], ["unrecognized arguments: --prot"]),
        (["--endpoint-url", "ftp://x"], ["--endpoint-url", "not an http or https URL"]),
        (["--sqs-endpoint-url", "queue"], ["--sqs-endpoint-url", "not an http or https URL"]),
        (["--profile", "nobodys"], ["--profile", "nobodys"]),
        (["--ca-bundle", "/nowhere.pem"], ["--ca-bundle", "/nowhere.pem", "No such file"]),
    ],
)
def test_a_wrong_setting_ends_with_a_word_about_it(arguments: list[str], words: list[str]) -> None:
    """Exit code 2, words that name the flag and say what is wrong, and no stack trace."""
    ended = _serve(arguments, ENVIRONMENT)
    assert ended.returncode == 2
    for word in words:
        assert word in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "flags", [["--max-batch-size", "100", "--max-buffered-requests", "400"], ["--max-buffered-bytes", "6291456"]]
)
def test_a_small_buffer_of_streams_leaves_room_for_a_request_of_each_other_kind(flags: list[str]) -> None:
    """Whose requests are larger, and which the flag did not mean."""
    with service_process(MODULE, ["serve", *flags], ENVIRONMENT) as process:
        assert process.address


def test_a_wrong_variable_is_reported_by_its_name() -> None:
    """It was not a flag that was wrong."""
    ended = _serve([], {**ENVIRONMENT, "PENSTOCK_SINK_PORT": "abc"})
    assert ended.returncode == 2
    assert ended.stderr == "penstock sink: --port (PENSTOCK_SINK_PORT): 'abc' is not a whole number\n"


def _serve(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run_main(main, ["serve", *arguments], environ=environment)


@pytest.mark.parametrize(
    ("missing", "words"),
    [("AWS_ACCESS_KEY_ID", "no credentials: give keys, a profile or a role"), ("AWS_DEFAULT_REGION", "--region")],
)
def test_what_aws_needs_is_looked_for_at_the_start(missing: str, words: str, tmp_path: Path) -> None:
    """Not when the first client comes: exit code 2, and what to do."""
    environment = {name: value for name, value in ENVIRONMENT.items() if name != missing and name != "AWS_REGION"}
    if missing == "AWS_ACCESS_KEY_ID":
        del environment["AWS_SECRET_ACCESS_KEY"]
    environment |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    ended = _serve([], environment)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_endpoint_that_does_not_answer_is_named_to_the_client() -> None:
    """The client's error has the address and the reason; the gateway writes no stack trace."""
    arguments = ["serve", "--endpoint-url", "http://127.0.0.1:1", "--max-attempts", "2"]
    words = r"no answer from http://127\.0\.0\.1:1"
    with (
        service_process(MODULE, arguments, ENVIRONMENT) as process,
        pytest.raises(RecordsRejectedError, match=words),
    ):
        write_batches(RemoteSink(process.address, destination="x", config=ONE_ATTEMPT), [rows(0, 1)])


def test_help_names_the_variable_of_each_flag() -> None:
    """Somebody who configures a container finds it there."""
    ended = _serve(["--help"], ENVIRONMENT)
    assert ended.returncode == 0
    flags = set(re.findall(r"^  --([a-z-]+)", ended.stdout, re.MULTILINE))
    assert {"port", "region", "credit-bytes"} <= flags
    text = re.sub(r"\s+", "", ended.stdout)
    variables = {flag: "PENSTOCK_SINK_" + flag.upper().replace("-", "_") for flag in flags}
    assert {flag for flag, one in variables.items() if not re.search(rf"\[{one}(=true)?\]", text)} == set()


def test_settings_come_from_the_environment_and_ctrl_c_is_a_drain(emulator: RunningEmulator, stream: str) -> None:
    """Each flag has a variable behind it; a gateway ends by SIGINT as by SIGTERM."""
    environment = {**ENVIRONMENT, "PENSTOCK_SINK_ENDPOINT_URL": emulator.endpoint_url}
    with service_process(MODULE, ["serve"], environment) as process:
        assert write_batches(RemoteSink(process.address, destination=stream), [rows(0, 3)]).records == 3
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(20) == 0
    assert sorted(read_all(emulator, stream)) == [b"0", b"1", b"2"]


def test_a_client_leaves_no_noise_when_the_gateway_ends_its_stream(emulator: RunningEmulator, stream: str) -> None:
    """Nothing on standard error but what the program says itself."""
    program = """
import asyncio, sys
from datetime import timedelta
from penstock.async_sink import KinesisRequestEntry, RemoteSink
from penstock.async_sink.errors import GatewayError

async def main():
    sink = RemoteSink(sys.argv[1], destination=sys.argv[2], reconnect_timeout=timedelta(milliseconds=300))
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
    with service_process(MODULE, ["serve", "--endpoint-url", emulator.endpoint_url], ENVIRONMENT) as process:
        command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", program, process.address, stream]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "written\n"
            process.terminate(30)
            out, err = client.communicate(timeout=60)
    assert out == "ended\n"
    assert "Task was destroyed" not in err
    assert "asynchronous generator" not in err
