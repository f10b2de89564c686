"""The embedded Kinesis against moto's server: puts, gets, growth, and the output of SubscribeToShard."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks._harness import Case, interleave

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_BYTES = 1000
_PUTS = 20
_RECORDS_PER_PUT = 500
_READ_RECORDS = 10_000
_GROWN_RECORDS = 1_000_000
_FEW_RECORDS = 1_000
_SUBSCRIBED_RECORDS = 100_000
_MARK = b'"PartitionKey"'
_SHARD = "shardId-000000000000"

# moto has no command that takes any free port and says which.
_MOTO = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


class Client:
    """The same bare client for both: bodies are made before the clock starts, and answers are not parsed."""

    def __init__(self, endpoint: str) -> None:
        address = urlsplit(endpoint)
        self.address = (address.hostname or "", address.port or 0)
        self._connection = http.client.HTTPConnection(*self.address)
        self._streams = 0

    def send(self, operation: str, body: bytes) -> bytes:
        """The body of an answer."""
        self._connection.request("POST", "/", body, headers(operation))
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{operation}: {response.status} {answer[:300]!r}")
        return answer

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """An answer."""
        answer: dict[str, Any] = json.loads(self.send(operation, json.dumps(parameters).encode()) or b"{}")
        return answer

    def create_stream(self) -> str:
        """The name of a new stream with one shard."""
        self._streams += 1
        name = f"stream-{self._streams}"
        self.call("CreateStream", StreamName=name, ShardCount=1)
        deadline = time.monotonic() + 10
        while self._status(name) != "ACTIVE":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not become ACTIVE")
            time.sleep(0.01)
        return name

    def _status(self, name: str) -> str:
        return str(self.call("DescribeStreamSummary", StreamName=name)["StreamDescriptionSummary"]["StreamStatus"])

    def fill(self, name: str, records: int, record_bytes: int = RECORD_BYTES) -> None:
        """Put records into a stream."""
        body = put_body(name, min(records, _RECORDS_PER_PUT), record_bytes)
        for _ in range(records // min(records, _RECORDS_PER_PUT)):
            self.send("PutRecords", body)


def headers(operation: str) -> dict[str, str]:
    """The headers of a request; the signature is for moto, which takes the region from it."""
    scope = "AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/kinesis/aws4_request"
    return {
        "x-amz-target": f"Kinesis_20131202.{operation}",
        "content-type": "application/x-amz-json-1.1",
        "authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=00",
    }


def put_body(name: str, records: int, record_bytes: int) -> bytes:
    """A PutRecords request with records of random bytes."""
    source = random.Random(record_bytes)
    entries = [
        {"Data": base64.b64encode(source.randbytes(record_bytes)).decode(), "PartitionKey": f"key-{index}"}
        for index in range(records)
    ]
    return json.dumps({"StreamName": name, "Records": entries}).encode()


def put_rate(client: Client) -> float:
    """Records per second into a new stream."""
    name = client.create_stream()
    body = put_body(name, _RECORDS_PER_PUT, RECORD_BYTES)
    start = time.perf_counter()
    for _ in range(_PUTS):
        if b'"FailedRecordCount":0' not in client.send("PutRecords", body).replace(b" ", b""):
            raise RuntimeError("records were refused")
    return _PUTS * _RECORDS_PER_PUT / (time.perf_counter() - start)


def get_rate(client: Client, name: str) -> float:
    """Records per second out of a stream, from its beginning to its end."""
    iterator = client.call("GetShardIterator", StreamName=name, ShardId=_SHARD, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    records = 0
    start = time.perf_counter()
    while records < _READ_RECORDS:
        answer = client.send("GetRecords", json.dumps({"ShardIterator": iterator}).encode())
        count = answer.count(_MARK)
        found = re.search(rb'"NextShardIterator": ?"([^"]+)"', answer)
        if not count or found is None:
            raise RuntimeError(f"{records} of {_READ_RECORDS} records came")
        records += count
        iterator = found[1].decode()
    return records / (time.perf_counter() - start)


def put_millis(client: Client, name: str) -> float:
    """Milliseconds for a put of 50 records of 100 bytes."""
    body = put_body(name, 50, 100)
    start = time.perf_counter()
    for _ in range(40):
        client.send("PutRecords", body)
    return (time.perf_counter() - start) / 40 * 1000


def subscribe_rate(client: Client, consumer_arn: str) -> float:
    """Megabytes of data per second out of one SubscribeToShard call over HTTP/1.1."""
    body = json.dumps(
        {"ConsumerARN": consumer_arn, "ShardId": _SHARD, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    ).encode()
    lines = ["POST / HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers("SubscribeToShard").items()]
    with socket.create_connection(client.address) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        buffer = bytearray(1024 * 1024)
        view = memoryview(buffer)
        records = kept = 0
        start = time.perf_counter()
        while records < _SUBSCRIBED_RECORDS:
            size = connection.recv_into(view[kept:])
            if not size:
                raise RuntimeError(f"the stream ended after {records} records")
            end = kept + size
            records += buffer.count(_MARK, 0, end)
            # A mark that the end cuts in two is found when the rest of it is there.
            kept = min(end, len(_MARK) - 1)
            view[:kept] = view[end - kept : end]
        seconds = time.perf_counter() - start
    return records * RECORD_BYTES / 1e6 / seconds


@contextlib.contextmanager
def emulator() -> Iterator[Client]:
    """The emulator in a process of its own, with its limits off."""
    arguments = ["--no-enforce-limits", "--no-tls", "--consumer-creation-delay", "0", "--resubscribe-interval", "0"]
    command = [sys.executable, "-m", "penstock.emulator", "--exit-with-parent", *arguments]
    with _process(command) as line:
        yield Client(json.loads(line)["endpoint_url"])


@contextlib.contextmanager
def moto() -> Iterator[Client]:
    """moto's server in a process of its own."""
    with _process([sys.executable, "-c", _MOTO]) as line:
        yield Client(line.strip())


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def run(rounds: int) -> Iterator[Case]:
    """The cases, each in processes of its own."""
    with emulator() as ours, moto() as theirs:
        yield interleave(
            "put-over-moto",
            lambda: put_rate(ours),
            lambda: put_rate(theirs),
            peer_name="moto",
            unit="records/s",
            rounds=rounds,
        )
    with emulator() as ours, moto() as theirs:
        our_stream, their_stream = ours.create_stream(), theirs.create_stream()
        ours.fill(our_stream, _READ_RECORDS)
        theirs.fill(their_stream, _READ_RECORDS)
        yield interleave(
            "get-over-moto",
            lambda: get_rate(ours, our_stream),
            lambda: get_rate(theirs, their_stream),
            peer_name="moto",
            unit="records/s",
            rounds=rounds,
        )
    with emulator() as ours:
        grown = ours.create_stream()
        ours.fill(grown, _GROWN_RECORDS, record_bytes=100)
        yield interleave(
            "put-1M-over-1k",
            lambda: put_millis(ours, grown),
            _into_few(ours),
            peer_name="1,000 records in the shard",
            unit="ms",
            rounds=rounds,
        )
    with emulator() as ours:
        name = ours.create_stream()
        ours.fill(name, _SUBSCRIBED_RECORDS)
        arn = ours.call("DescribeStreamSummary", StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
        consumer = ours.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="bench")["Consumer"]["ConsumerARN"]
        subscribe_rate(ours, consumer)
        rates = [subscribe_rate(ours, consumer) for _ in range(rounds)]
        yield Case(name="subscribe-mb-per-s", peer_name="nobody", unit="MB/s", ours=rates, peers=[1.0] * rounds)


def _into_few(client: Client) -> Callable[[], float]:
    def measure() -> float:
        name = client.create_stream()
        client.fill(name, _FEW_RECORDS, record_bytes=100)
        return put_millis(client, name)

    return measure
