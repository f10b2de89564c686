"""PutRecords of 500 records on a server that answers success: records per second of the client's processor time.

The sink's writer takes Arrow record batches, and sends JSON as all others do, or with `-cbor` what it sends to the
service's own endpoints. boto3 and aiobotocore get their records as dictionaries, made before the
clock starts, with their retries off; async-kinesis's Producer takes record by record, without a rate limit. It pins
another version of botocore than ours: it runs in an environment of its own that uv makes, and is left out where that
cannot be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import boto3
import pyarrow as pa
from botocore.config import Config

from benchmarks._harness import Case, interleave
from penstock.async_sink import KinesisStreamsSink
from penstock.aws import AwsOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RECORDS = {100: 200_000, 1_000: 100_000}
_PEER_RECORDS = 25_000
# It becomes slower with each record that it was given: its rate is half at 25,000.
_ASYNC_KINESIS_RECORDS = 5_000
_PER_REQUEST = 500
# JSON goes to every endpoint that is not the service's own.
_FORMATS: tuple[tuple[str, Literal["cbor", "json"]], ...] = (("", "json"), ("-cbor", "cbor"))
_FOLDER = Path(__file__).parent
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_ASYNC_KINESIS = "async-kinesis==3.0.1"


@contextlib.contextmanager
def success_server() -> Iterator[str]:
    """The endpoint of a server that accepts everything, in a process of its own."""
    command = [sys.executable, str(_FOLDER / "_success_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.communicate()


def penstock(endpoint: str, record_bytes: int, wire_format: Literal["cbor", "json"]) -> Callable[[], float]:
    """The sink, from a record batch to the last acknowledgement."""
    records = _RECORDS[record_bytes]
    batch = pa.record_batch(
        {
            "data": [os.urandom(record_bytes) for _ in range(records)],
            "partitionKey": [f"key-{number % 1000}" for number in range(records)],
        }
    )
    aws = AwsOptions(region="us-east-1", endpoint_url=endpoint, access_key_id="test", secret_access_key="test")
    sink = KinesisStreamsSink(aws, "s", wire_format=wire_format)

    async def put() -> float:
        async with sink.create_writer() as writer:
            gc.collect()
            began = time.process_time()
            await writer.write_many(batch)
            await writer.flush(end_of_input=True)
            seconds = time.process_time() - began
            if writer.metrics.records_out != records:
                raise RuntimeError(f"{writer.metrics.records_out} of {records} records were accepted")
        return records / seconds

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
        gc.collect()
        began = time.process_time()
        for start in range(0, _PEER_RECORDS, _PER_REQUEST):
            answer = client.put_records(StreamName="s", Records=records[start : start + _PER_REQUEST])
            if answer["FailedRecordCount"]:
                raise RuntimeError("records were refused")
        return _PEER_RECORDS / (time.process_time() - began)

    return put


def foreign_put(command: list[str], records: int, endpoint: str, record_bytes: int) -> Callable[[], float]:
    """A program in an environment of its own, that prints its rate."""

    def put() -> float:
        ended = subprocess.run(
            [*command, endpoint, str(records), str(record_bytes)],
            env={**os.environ, **_KEYS},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return float(ended.stdout)

    return put


def _foreign_peers() -> Iterator[tuple[str, list[str], int]]:
    """Yield the peers that run in separate processes, with command and number of records. Report a missing one."""
    yield "aiobotocore", [sys.executable, str(_FOLDER / "_aiobotocore_put.py")], _PEER_RECORDS
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        print("bench put: without async-kinesis: uv is missing, which creates its environment", file=sys.stderr)
        return
    python = [uv, "run", "--quiet", "--isolated", "--no-project", "--with", _ASYNC_KINESIS, "python"]
    tried = subprocess.run([*python, "-c", "import kinesis"], capture_output=True, text=True, check=False)
    if tried.returncode:
        print(f"bench put: without async-kinesis, whose environment fails: {tried.stderr.strip()}", file=sys.stderr)
        return
    yield "async-kinesis", [*python, str(_FOLDER / "_async_kinesis_put.py")], _ASYNC_KINESIS_RECORDS


def run(rounds: int) -> Iterator[Case]:
    """A case per peer and size of a record, for boto3 in both formats; async-kinesis with small records only."""
    peers: dict[str, Callable[[str, int], Callable[[], float]]] = {"boto3": boto3_put}
    peers |= {name: partial(foreign_put, command, records) for name, command, records in _foreign_peers()}
    with success_server() as endpoint:
        for peer_name, peer in peers.items():
            for suffix, wire_format in _FORMATS if peer_name == "boto3" else _FORMATS[:1]:
                for size, record_bytes in (("100B", 100), ("1kB", 1_000)):
                    if (peer_name, size) == ("async-kinesis", "1kB"):
                        continue
                    yield interleave(
                        f"{peer_name}-{size}{suffix}",
                        penstock(endpoint, record_bytes, wire_format),
                        peer(endpoint, record_bytes),
                        peer_name=peer_name,
                        unit="records/s",
                        rounds=rounds,
                    )
