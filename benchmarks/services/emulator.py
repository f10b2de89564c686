"""The embedded Kinesis against moto's server: puts, gets, growth, subscriptions, and a full rate."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks._harness import Case, interleave
from benchmarks.services import _full_rate
from benchmarks.services._bare_client import RECORD_BYTES, SHARD, Client, put_body, subscribe_request

if TYPE_CHECKING:
    from collections.abc import Callable

_PUTS = 20
_RECORDS_PER_PUT = 500
_READ_RECORDS = 10_000
_GROWN_RECORDS = 1_000_000
_FEW_RECORDS = 1_000
_SUBSCRIBED_RECORDS = 100_000
_MARK = b'"PartitionKey"'

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
    iterator = client.call("GetShardIterator", StreamName=name, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")[
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
    with socket.create_connection(client.address) as connection:
        connection.sendall(subscribe_request(consumer_arn, SHARD))
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
        ready = json.loads(line)
        yield Client(ready["endpoint_url"], ready["pid"])


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
        yield Case(name="subscribe-mb-per-s", peer_name="none", unit="MB/s", ours=rates, peers=[1.0] * rounds)
    with emulator() as ours:
        taken = [_full_rate.cores(ours) for _ in range(rounds)]
        yield Case(name="full-rate-of-100-shards", peer_name="one-core", unit="cores", ours=taken, peers=[1.0] * rounds)


def _into_few(client: Client) -> Callable[[], float]:
    def measure() -> float:
        name = client.create_stream()
        client.fill(name, _FEW_RECORDS, record_bytes=100)
        return put_millis(client, name)

    return measure
