"""A single service that is killed and started again at its address, under a caller that knows no other."""

from __future__ import annotations

import os
from contextlib import ExitStack

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisherType,
    connect_reader,
    ranges_between,
    read_ranges,
    resolve_initial_positions,
)
from penstock.emulator.testing import running_emulator
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import ServiceProcess, service_process

SECURITY = ClientSecurity(token="a-token-of-this-test-with-32-characters")


def test_a_service_that_is_killed_and_started_again_is_gone_on_with() -> None:
    """Twice, each time between what it told and the reading of it: nothing fails, and each record is read once."""
    with running_emulator() as emulator, ExitStack() as services:
        client = emulator.client()
        client.create_stream(StreamName="orders", ShardCount=2)
        environment = os.environ | {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "PENSTOCK_READER_TOKEN": SECURITY.token or "",
            "PENSTOCK_READER_REGION": "us-east-1",
        }
        arguments = ["serve", "--endpoint-url", emulator.endpoint_url]

        def start(port: str) -> ServiceProcess:
            module = "penstock.services.shard_reader"
            return services.enter_context(service_process(module, [*arguments, "--port", port], environment))

        service = start("0")
        aws = AwsSession(emulator_options(emulator.endpoint_url))
        position = resolve_initial_positions(aws, ["orders"], "TRIM_HORIZON")
        reader = connect_reader(service.address, SECURITY)
        reader.open("query", position, RecordPublisherType.POLLING)
        written: list[bytes] = []
        rows: list[bytes] = []
        kills = 0
        for round_ in range(3):
            records = [b"row-%d" % number for number in range(20 * round_, 20 * round_ + 20)]
            client.put_records(
                StreamName="orders", Records=[{"Data": data, "PartitionKey": data.decode()} for data in records]
            )
            written += records
            while len(rows) < len(written):
                end = reader.positions(position, wait_seconds=5).positions
                if round_ and service.process.poll() is None and len(rows) < len(written) - 10:
                    kills += 1
                    service.process.kill()
                    service.process.wait()
                    service = start(service.address.rpartition(":")[2])
                batches = read_ranges(
                    service.address, SECURITY, "query", ranges_between(position, end), patience_seconds=30
                )
                for batch in batches:
                    rows += batch.column("data").to_pylist()
                position = end
                reader.commit(position)
        reader.close()
    assert kills >= 2
    assert sorted(rows) == sorted(written)
