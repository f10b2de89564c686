"""Several processes of the service: one that is killed loses nothing, and its shards move."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisherType,
    StreamConsumer,
    connect_reader,
    ranges_between,
    read_ranges,
    resolve_initial_positions,
)
from penstock.efo_consumer._remote.resume import owner_of
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import ServiceProcess, service_process

MODULE = "penstock.services.shard_reader"
STREAM = "orders"
SECURITY = ClientSecurity(token="a-token-of-this-test-with-32-characters")


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName=STREAM, ShardCount=6)
        yield running


@pytest.fixture
def services(emulator: RunningEmulator) -> Iterator[list[ServiceProcess]]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PENSTOCK_READER_TOKEN": SECURITY.token or "",
        "PENSTOCK_READER_REGION": "us-east-1",
        "PENSTOCK_READER_CA_BUNDLE": str(emulator.ca_file),
    }
    arguments = ["serve", "--endpoint-url", emulator.tls_endpoint_url]
    with ExitStack() as stack:
        yield [stack.enter_context(service_process(MODULE, arguments, environment)) for _ in range(2)]


def consumer(emulator: RunningEmulator) -> StreamConsumer:
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    found = client.register_stream_consumer(StreamARN=arn, ConsumerName="fleet")["Consumer"]["ConsumerARN"]
    deadline = time.monotonic() + 20
    while client.describe_stream_consumer(ConsumerARN=found)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return StreamConsumer(STREAM, found, 1)


@pytest.mark.parametrize("publisher", list(RecordPublisherType))
def test_killing_one_of_two_moves_its_shards_and_loses_and_doubles_nothing(
    emulator: RunningEmulator, services: list[ServiceProcess], publisher: RecordPublisherType
) -> None:
    """Records are written while a process dies by SIGKILL; each record is read exactly once."""
    aws = AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))
    position = resolve_initial_positions(aws, [STREAM], "TRIM_HORIZON")
    consumers = [consumer(emulator)] if publisher is RecordPublisherType.EFO else []
    written: list[bytes] = []
    stop = threading.Event()

    def produce() -> None:
        client = emulator.client()
        while not stop.wait(0.02):
            record = f"row-{len(written)}".encode()
            client.put_record(StreamName=STREAM, Data=record, PartitionKey=record.decode())
            written.append(record)

    reader = connect_reader([service.address for service in services], SECURITY)
    reader.open("query", position, publisher, consumers)
    assert reader.endpoint is not None
    producer = threading.Thread(target=produce, name="producer")
    producer.start()
    rows: list[bytes] = []
    killed_at = moved_at = 0.0
    killed_shards: set[str] = set()
    deadline = time.monotonic() + 90
    try:
        while not stop.is_set() or len(rows) < len(written):
            assert time.monotonic() < deadline, f"{len(rows)} of {len(written)}"
            end = reader.positions(position, wait_seconds=1).positions
            if not killed_at and len(rows) > 50:
                # After the positions were answered and before the range is fetched: the worst moment.
                followed = {shard.shard_id for shard in reader.stats()}
                # Ports are new each time, and so is who has which shards: one of the two may have none.
                owner = owner_of(tuple(service.address for service in services), STREAM, min(followed))
                (victim,) = (service for service in services if service.address == owner)
                victim.process.kill()
                victim.process.wait()
                killed_at = time.monotonic()
                killed_shards = {
                    one.shard_id for one in reader.stats() if "waits for its reader" in one.condition.cause
                }
            for batch in read_ranges(reader.endpoint, SECURITY, "query", ranges_between(position, end)):
                rows += batch.column("data").to_pylist()
                if killed_shards & set(batch.column("shardId").to_pylist()) and time.monotonic() > killed_at + 1:
                    moved_at = moved_at or time.monotonic()
            position = end
            reader.commit(position)
            if moved_at and time.monotonic() > moved_at + 2:
                stop.set()
                producer.join()
    finally:
        stop.set()
        producer.join()
        reader.close()
    assert sorted(rows) == sorted(written)
    assert killed_shards
    # The lease's 10 s, and what it takes to subscribe again.
    assert moved_at - killed_at < 25
