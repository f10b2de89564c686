"""What reads bytes of others: answers of AWS, files, lines."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import zlib
from collections.abc import Coroutine
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from penstock.aws import AwsServiceError
from penstock.aws._http_connection import HttpConnection, HttpConnectionError
from penstock.efo_consumer._wire.kpl import MalformedAggregateError, parse_aggregate
from penstock.efo_consumer._wire.subscription import SubscriptionParser
from penstock.efo_consumer.errors import EfoConsumerError
from penstock.rpc import RpcOptionError
from penstock.rpc._security.principals import parse_principals
from penstock.rpc._security.token_file import parse_tokens
from penstock.spark_plugin._reading.stream.offsets import parse_offset
from penstock.spark_plugin.errors import OffsetError
from tools.prove.fuzz.target import LONGEST_INPUT, MEBIBYTE, Target, loop, told


def _frame(headers: bytes, payload: bytes) -> bytes:
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"\7" + struct.pack(">H", len(value)) + value


_EVENT = _header(b":event-type", b"SubscribeToShardEvent") + _header(b":message-type", b"event")
_PAYLOAD = json.dumps(
    {
        "Records": [
            {"SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.5, "Data": "YWJj", "PartitionKey": "k"},
            {"SequenceNumber": "2", "ApproximateArrivalTimestamp": 2, "Data": "", "PartitionKey": "ключ"},
        ],
        "ContinuationSequenceNumber": "2",
        "MillisBehindLatest": 0,
        "ChildShards": [
            {"ShardId": "s", "ParentShards": ["p"], "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"}}
        ],
    }
).encode()


def _event_stream(data: bytes) -> str:
    parser, found = SubscriptionParser(), []
    middle = len(data) // 2
    for chunk in (data[:middle], data[middle:]):
        for outcome in parser.feed(chunk):
            if isinstance(outcome, AwsServiceError):
                # Its words are the sender's.
                return type(outcome).__name__
            if isinstance(outcome, EfoConsumerError):
                return told(outcome)
            assert not isinstance(outcome, Exception), outcome
            found.append(type(outcome).__name__)
    ended = parser.finish()
    assert ended is None or isinstance(ended, EfoConsumerError | AwsServiceError), ended
    return " ".join(sorted(set(found))) + ("" if ended is None else told(ended))


def _event(data: bytes) -> str:
    """The first byte says how much of the rest is headers."""
    cut = len(data) * (data[0] if data else 0) // 256
    return _event_stream(_frame(data[1 : 1 + cut], data[1 + cut :]))


def _event_seeds() -> list[bytes]:
    share = -(-256 * len(_EVENT) // (len(_EVENT) + len(_PAYLOAD)))
    return [bytes([share]) + _EVENT + _PAYLOAD]


def _aggregate(data: bytes) -> str:
    whole = b"\xf3\x89\x9a\xc2" + data + hashlib.md5(data, usedforsecurity=False).digest()
    try:
        return f"{min(len(parse_aggregate(whole).data), 3)} records"
    except MalformedAggregateError as error:
        return told(error)


class _Nowhere(asyncio.Transport):
    closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None)

    def write(self, data: Any) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


@cache
def _buffer() -> memoryview:
    return memoryview(bytearray(LONGEST_INPUT))


def _http_answer(data: bytes) -> str:
    async def one() -> str:
        connection = HttpConnection(_buffer())
        connection.connection_made(_Nowhere())
        asked: Coroutine[Any, Any, Any] = connection.request(b"GET / HTTP/1.1\r\n\r\n", [])
        answering = asyncio.ensure_future(asked)
        await asyncio.sleep(0)
        middle = len(data) // 2
        for chunk in (data[:middle], data[middle:]):
            if chunk and connection.is_open:
                _buffer()[: len(chunk)] = chunk
                connection.buffer_updated(len(chunk))
        connection.connection_lost(None)
        try:
            answer = await answering
        except HttpConnectionError as error:
            return told(error)
        return f"{answer.status // 100} {len(answer.headers)}"

    return loop().run_until_complete(one())


def _principals(data: bytes) -> str:
    try:
        found = parse_principals(data)
    except RpcOptionError as error:
        return told(error)
    for one in found:
        one.may_use("streams", "abc")
        one.may_call("shard-reader", "Open", needs_admin=True)
    return f"{min(len(found), 3)} principals"


_PRINCIPALS = f"""# who
[[principal]]
name = "a"
token_sha256 = ["{"0" * 64}"]
certificate = "a.example"
expires = 2099-01-01T00:00:00Z
services = ["*"]
methods = ["Get*"]
streams = ["a*", '[b]']
jobs = '''*'''
admin = true
calls_at_once = 1_000

[[principal]]
name = "b"
token_sha256 = "{"1" * 64}"
"""


def _tokens(data: bytes) -> str:
    try:
        return f"{min(len(parse_tokens(data.decode(errors='replace'))), 3)} tokens"
    except RpcOptionError as error:
        return told(error)


def _offset(data: bytes) -> str:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    try:
        offset = parse_offset(document)
    except OffsetError as error:
        return told(cast("Exception", error.__cause__))
    assert parse_offset(offset.to_json()) == offset
    return "an offset"


_POSITION = {"type": "AFTER_SEQUENCE_NUMBER", "value": "49", "caughtUp": 1, "record": "48", "arrived": 1, "first": "7"}
_OFFSETS = [
    {"version": 2, "streams": {"s": {"shardId-0": _POSITION}}, "created": {"s": 1}, "epoch": 3, "query": "q"},
    {"version": 1, "streams": {"s": {"shardId-0": {"type": "TRIM_HORIZON"}, "shardId-1": {"type": "SHARD_END"}}}},
    {"version": 2, "streams": {"s": {"x": {"type": "AT_TIMESTAMP", "value": 1}}}, "initial": True, "since": None},
]


_TOKENS = b"# mine\n%b 2027-01-31T00:00:00Z\n%b\n" % (b"a" * 32, b"b" * 32)
_HTTP = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Type: application/x-amz-json-1.1\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n{}",
]
_KPL = bytes.fromhex("0a016b0a026b321201311a0a080010001a04616263641a0808011a0462636465")

PARSERS = {
    "event-stream": Target(lambda: [_frame(_EVENT, _PAYLOAD) * 2], _event_stream, memory_bytes=64 * MEBIBYTE),
    "event": Target(_event_seeds, _event, memory_bytes=64 * MEBIBYTE),
    "kpl": Target(lambda: [_KPL, b""], _aggregate, memory_bytes=64 * MEBIBYTE),
    "http-answer": Target(lambda: _HTTP, _http_answer, memory_bytes=64 * MEBIBYTE),
    "principals": Target(lambda: [_PRINCIPALS.encode()], _principals, memory_bytes=64 * MEBIBYTE),
    "tokens": Target(lambda: [_TOKENS], _tokens, memory_bytes=64 * MEBIBYTE),
    "offset": Target(lambda: [json.dumps(one).encode() for one in _OFFSETS], _offset, memory_bytes=64 * MEBIBYTE),
}
