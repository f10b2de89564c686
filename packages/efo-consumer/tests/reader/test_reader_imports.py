"""What importing the package costs a process that needs little of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import penstock.efo_consumer


def modules_after(statement: str) -> set[str]:
    """Import in a process of its own; give the modules that it has then."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_a_task_that_reads_ranges_loads_no_client_of_aws() -> None:
    """Spark starts many Python workers: what only the driver needs is loaded by the driver."""
    found = modules_after("from penstock.efo_consumer import READ_SCHEMA, ShardRange, StreamPositions, read_ranges")
    assert "penstock.efo_consumer._remote.fetch" in found
    assert found.isdisjoint({"awscrt", "aiohttp", "botocore", "boto3", "pandas"})


READS = """
from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ReaderHost, RecordPublisherType
from penstock.efo_consumer import ranges_between, read_ranges, resolve_initial_positions
from penstock.emulator.testing import running_emulator

with running_emulator() as emulator:
    client = emulator.client()
    client.create_stream(StreamName="orders", ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
    for number in range(3):
        client.put_record(StreamName="orders", Data=b"x" * (10 + number), PartitionKey="k" * (1 + number))
    aws = emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))
    start = resolve_initial_positions(AwsSession(aws), ["orders"], "TRIM_HORIZON")
    with ReaderHost(aws=aws) as host:
        host.reader.open("query", start, RecordPublisherType.POLLING)
        end = host.reader.positions(start, wait_seconds=60).positions
        batches = read_ranges(host.address, host.security, "query", ranges_between(start, end))
        assert sum(batch.num_rows for batch in batches)
"""


def test_the_first_records_of_a_start_do_not_wait_for_pandas() -> None:
    """Arrow imports it to make an array of a list or of a value, which takes longer than all else until then."""
    assert "pandas" not in modules_after(READS)


WRONG = "Reader2"


def test_every_name_is_found_on_first_use() -> None:
    """Each public name leads to its module, is listed by `dir`, and a wrong one is an AttributeError."""
    for name in penstock.efo_consumer.__all__:
        assert name in dir(penstock.efo_consumer)
        assert getattr(penstock.efo_consumer, name) is not None
    with pytest.raises(AttributeError, match="Reader2"):
        getattr(penstock.efo_consumer, WRONG)
