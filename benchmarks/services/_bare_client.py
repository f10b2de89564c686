"""The same bare client of Kinesis for both: bodies are made before the clock starts, and answers are not parsed."""

from __future__ import annotations

import base64
import http.client
import json
import random
import time
from typing import Any
from urllib.parse import urlsplit

RECORD_BYTES = 1000
SHARD = "shardId-000000000000"
_RECORDS_PER_PUT = 500


class Client:
    """The same bare client for both: bodies are made before the clock starts, and answers are not parsed."""

    def __init__(self, endpoint: str, pid: int = 0) -> None:
        self.pid = pid
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

    def create_stream(self, shards: int = 1) -> str:
        """The name of a new stream."""
        self._streams += 1
        name = f"stream-{self._streams}"
        self.call("CreateStream", StreamName=name, ShardCount=shards)
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


def subscribe_request(consumer_arn: str, shard_id: str) -> bytes:
    """A SubscribeToShard call over HTTP/1.1, from the first record on."""
    body = json.dumps(
        {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    ).encode()
    lines = ["POST / HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers("SubscribeToShard").items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
