"""PutRecords of 500 records on a server that answers success: records per second of the client's processor time.

The sink's writer takes Arrow record batches; boto3 gets its records as dictionaries, made before the clock starts, and
its retries are off. async-kinesis's Producer takes record by record, without a rate limit, in an environment of its own
that uv makes (it pins another botocore).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
from botocore.config import Config

from benchmarks._harness import Case, interleave
from penstock.async_sink import KinesisStreamsSink
from penstock.aws import AwsOptions

_RECORDS = 50_000
_PER_REQUEST = 500
_PEER_RECORDS = 10_000
_FOLDER = Path(__file__).parent
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@contextlib.contextmanager
def success_server() -> Iterator[str]:
    """The endpoint of a server that accepts everything, in a process of its own."""
    command = [sys.executable, str(_FOLDER / "_success_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.communicate()


def penstock(endpoint: str, record_bytes: int) -> Callable[[], float]:
    """The sink, from a record batch to the last acknowledgement."""
    batch = pa.record_batch(
        {
            "data": [os.urandom(record_bytes) for _ in range(_RECORDS)],
            "partitionKey": [f"key-{number % 1000}" for number in range(_RECORDS)],
        }
    )
    aws = AwsOptions(region="us-east-1", endpoint_url=endpoint, access_key_id="test", secret_access_key="test")
    sink = KinesisStreamsSink(aws, "s")

    async def put() -> float:
        async with sink.create_writer() as writer:
            began = time.process_time()
            await writer.write_many(batch)
            await writer.flush(end_of_input=True)
            seconds = time.process_time() - began
            if writer.metrics.records_out != _RECORDS:
                raise RuntimeError(f"{writer.metrics.records_out} of {_RECORDS} records were accepted")
        return _RECORDS / seconds

    return lambda: asyncio.run(put())


def boto3_put(endpoint: str, record_bytes: int) -> Callable[[], float]:
    """boto3, request after request."""
    client: Any = boto3.client(
        "kinesis",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard", "total_max_attempts": 1}),
    )
    records = [
        {"Data": os.urandom(record_bytes), "PartitionKey": f"key-{number % 1000}"} for number in range(_PEER_RECORDS)
    ]

    def put() -> float:
        began = time.process_time()
        for start in range(0, _PEER_RECORDS, _PER_REQUEST):
            answer = client.put_records(StreamName="s", Records=records[start : start + _PER_REQUEST])
            if answer["FailedRecordCount"]:
                raise RuntimeError("records were refused")
        return _PEER_RECORDS / (time.process_time() - began)

    return put


def async_kinesis_put(endpoint: str, record_bytes: int) -> Callable[[], float]:
    """async-kinesis's Producer."""
    uv = shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv is not on the PATH: it makes the environment for async-kinesis")
    program = [str(_FOLDER / "_async_kinesis_put.py"), endpoint, str(_PEER_RECORDS), str(record_bytes)]
    command = [uv, "run", "--quiet", "--isolated", "--no-project", "--with", "async-kinesis==3.0.1", "python", *program]

    def put() -> float:
        environment = {**os.environ, **_KEYS}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        return float(ended.stdout)

    return put


def run(rounds: int) -> Iterator[Case]:
    """One case per peer and size of a record."""
    cases = (
        ("boto3-100B", "boto3", boto3_put, 100),
        ("boto3-1kB", "boto3", boto3_put, 1_000),
        ("async-kinesis-100B", "async-kinesis", async_kinesis_put, 100),
    )
    with success_server() as endpoint:
        for name, peer_name, peer, record_bytes in cases:
            yield interleave(
                name,
                penstock(endpoint, record_bytes),
                peer(endpoint, record_bytes),
                peer_name=peer_name,
                unit="records/s",
                rounds=rounds,
            )
