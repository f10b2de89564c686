"""How much of a core the emulator takes for each MiB that is put into 100 shards and read by three consumers."""

from __future__ import annotations

import json
import selectors
import socket
import threading

import psutil

from benchmarks.services._bare_client import RECORD_BYTES, Client, put_body, subscribe_request

SHARDS = 100
CONSUMERS = 3
REQUESTS = 200
RECORDS = 500
_MARK = b'"PartitionKey"'
_MIB_PER_SECOND = 1.0
_CHUNK = 1024 * 1024
_PATIENCE_SECONDS = 120


class _Subscriber:
    """One SubscribeToShard call over HTTP/1.1, whose records are counted and not parsed."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.connection = socket.create_connection(address)
        self.connection.sendall(request)
        self.records = 0
        self._rest = b""

    def read(self) -> None:
        """Take what has arrived."""
        chunk = self.connection.recv(_CHUNK)
        if not chunk:
            raise RuntimeError(f"a subscription ended after {self.records} records")
        text = self._rest + chunk
        self.records += text.count(_MARK)
        # A mark that the end cuts in two is found when the rest of it is there.
        self._rest = text[-(len(_MARK) - 1) :]


def cores(client: Client) -> float:
    """Cores of the emulator's process for the full rate of all shards, 1 MiB/s in and three times that out for each."""
    name = client.create_stream(SHARDS)
    arn = client.call("DescribeStreamSummary", StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    subscribers: list[_Subscriber] = []
    try:
        for number in range(CONSUMERS):
            consumer = client.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName=f"bench-{number}")["Consumer"]
            for shard in range(SHARDS):
                request = subscribe_request(consumer["ConsumerARN"], f"shardId-{shard:012}")
                subscribers.append(_Subscriber(client.address, request))
        body = put_body(name, RECORDS, RECORD_BYTES)
        reading = threading.Thread(target=_read, args=(subscribers,), name="bench subscribers", daemon=True)
        process = psutil.Process(client.pid)
        before = process.cpu_times()
        reading.start()
        for _ in range(REQUESTS):
            if json.loads(client.send("PutRecords", body))["FailedRecordCount"]:
                raise RuntimeError("records were refused")
        reading.join(_PATIENCE_SECONDS)
        after = process.cpu_times()
        if reading.is_alive():
            raise RuntimeError(f"{sum(one.records for one in subscribers)} records came within {_PATIENCE_SECONDS} s")
    finally:
        for one in subscribers:
            one.connection.close()
        client.call("DeleteStream", StreamName=name, EnforceConsumerDeletion=True)
    seconds: float = after.user + after.system - before.user - before.system
    return seconds / (REQUESTS * RECORDS * RECORD_BYTES / 2**20) * SHARDS * _MIB_PER_SECOND


def _read(subscribers: list[_Subscriber]) -> None:
    expected = CONSUMERS * REQUESTS * RECORDS
    with selectors.DefaultSelector() as selector:
        for one in subscribers:
            selector.register(one.connection, selectors.EVENT_READ, one)
        while sum(one.records for one in subscribers) < expected:
            for key, _ in selector.select():
                key.data.read()
