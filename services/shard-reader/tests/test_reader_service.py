"""The service as a process, over real sockets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    OpenRequest,
    ReaderUnavailableError,
    RecordPublisherType,
    RemoteShardReader,
    ShardPosition,
    StreamPositions,
    connect_reader,
    ranges_between,
    read_ranges,
    resolve_initial_positions,
)
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.shard_reader.__main__ import main
from penstock.terminal.testing import run_main

MODULE = "penstock.services.shard_reader"
TOKEN = "a-token-of-this-test-with-32-characters"


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName="orders", ShardCount=2)
        yield running


@pytest.fixture
def service(emulator: RunningEmulator) -> Iterator[ServiceProcess]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PENSTOCK_READER_TOKEN": TOKEN,
        "PENSTOCK_READER_REGION": "us-east-1",
        "PENSTOCK_READER_CA_BUNDLE": str(emulator.ca_file),
    }
    with service_process(MODULE, ["serve", "--endpoint-url", emulator.tls_endpoint_url], environment) as process:
        yield process


def test_a_session_over_the_service_reads_what_was_written_and_stops_on_sigterm(
    emulator: RunningEmulator, service: ServiceProcess
) -> None:
    """Positions and ranges work against the process; SIGTERM answers a long poll and ends it with code 0."""
    client = emulator.client()
    for number in range(20):
        client.put_record(StreamName="orders", Data=f"row-{number}".encode(), PartitionKey=str(number))
    session = AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))
    start = resolve_initial_positions(session, ["orders"], "TRIM_HORIZON")
    security = ClientSecurity(token=TOKEN)
    reader = connect_reader(service.address, security, patience_seconds=60)
    reader.open("query", start, RecordPublisherType.POLLING)
    position = start
    rows: list[Any] = []
    while len(rows) < 20:
        snapshot = reader.positions(position, wait_seconds=1)
        for batch in read_ranges(service.address, security, "query", ranges_between(position, snapshot.positions)):
            rows += batch.column("data").to_pylist()
        position = snapshot.positions
    assert sorted(rows) == sorted(f"row-{number}".encode() for number in range(20))
    assert sum(shard.records for shard in reader.stats()) == 20

    reader.close()

    assert asyncio.run(poll_until_terminated(service, start)) == 0


async def poll_until_terminated(service: ServiceProcess, start: StreamPositions) -> int:
    """Let SIGTERM come in the middle of a long poll; the poll must end with an answer."""
    reader = RemoteShardReader(service.address, ClientSecurity(token=TOKEN))
    now = ShardPosition.at_timestamp(int(time.time() * 1000))
    positions = StreamPositions({"orders": dict.fromkeys(start.streams["orders"], now)})
    request = OpenRequest(session_id="poll", positions=positions, record_publisher=RecordPublisherType.POLLING)
    epoch = await reader.open(request)
    polling = asyncio.create_task(reader.positions("poll", epoch, positions, wait_seconds=60))
    # While the first is answered the poll is sent, and it begins before the second: all go over one connection.
    for _ in range(2):
        await reader.stats("poll")
    code = await asyncio.to_thread(service.terminate)
    assert (await polling).positions == positions
    with pytest.raises(ReaderUnavailableError):
        await reader.positions("poll", epoch, positions)
    await reader.aclose()
    return code


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--buffer-bytes", "lots", "--region", "us-east-1"], "--buffer-bytes (PENSTOCK_READER_BUFFER_BYTES)"),
        (
            ["--fail-on-data-loss", "maybe", "--region", "us-east-1"],
            "--fail-on-data-loss (PENSTOCK_READER_FAIL_ON_DATA_LOSS)",
        ),
        (["--deaggregate", "some", "--region", "us-east-1"], "--deaggregate (PENSTOCK_READER_DEAGGREGATE)"),
        (["--retry-patience", "long", "--region", "us-east-1"], "--retry-patience (PENSTOCK_READER_RETRY_PATIENCE)"),
        (["--endpoint-url", "nonsense", "--region", "us-east-1"], "--endpoint-url (PENSTOCK_READER_ENDPOINT_URL)"),
        (["--role-arn", "foo"], "--role-arn (PENSTOCK_READER_ROLE_ARN): 'foo' must be an ARN such as arn:aws:iam::"),
        (["--region", "x y"], "--region (PENSTOCK_READER_REGION): invalid region 'x y'"),
    ],
)
def test_a_wrong_setting_ends_the_service_with_code_2_and_its_name(
    arguments: list[str], option: str, tmp_path: Path
) -> None:
    """An invalid setting is reported by name before the service starts."""
    done = run_main(main, ["serve", *arguments])
    assert done.returncode == 2
    assert option in done.stderr
