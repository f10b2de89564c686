"""Bytes that nobody should send end in a typed error: never in another one, never in a hang, never in much memory.

Each target runs in a process of its own, whose memory is bounded. Inputs are made of a corpus: what comes with the
target, and whatever was answered in a new way before. An input is on disk before it is tried, so that one which ends
its process is known, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mmap
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.message import DecodeError

from penstock.aws import AwsServiceError
from penstock.aws._http_connection import HttpConnection, HttpConnectionError
from penstock.cli._audit import Filter, parse_line
from penstock.efo_consumer import ShardReaderServicer
from penstock.efo_consumer._wire.kpl import MalformedAggregateError, parse_aggregate
from penstock.efo_consumer._wire.subscription import SubscriptionParser
from penstock.efo_consumer.errors import EfoConsumerError
from penstock.operator_attributes import StageSchedulerServicer
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2
from penstock.proto.shard_reader.v1 import shard_reader_pb2
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2
from penstock.registration import ConsumerRegistryServicer
from penstock.rpc import Principal, RpcOptionError
from penstock.rpc._security.principals import parse_principals
from penstock.rpc._security.token_file import parse_tokens
from penstock.spark_plugin._reading.stream.offsets import parse_offset
from penstock.spark_plugin.errors import OffsetError

if TYPE_CHECKING:
    import argparse

SUMMARY = "bytes that nobody should send end in a typed error, in time and in little memory"

SLICE_SECONDS = 10.0
"""Of one target, before the next one has its turn."""
LONGEST_SECONDS = 5.0
"""Of the processor, that one input may take; six times as long by the clock, for one that only waits."""
MEMORY_BYTES = 256 * 2**20
"""That a process may take beyond what it has when its target is loaded."""
LONGEST_INPUT = 64 * 1024
MOST_KEPT = 2_000
"""Inputs of a target in the corpus."""
_NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"2147483648", b"-9223372036854775809", b"null", b"true", b'""')
_BYTES = (0, 1, 7, 8, 0x0A, 0x0D, 0x20, 0x22, 0x3D, 0x5B, 0x5C, 0x7F, 0x80, 0xC0, 0xFF)


@dataclass(frozen=True)
class Target:
    """Something that reads what others send."""

    seeds: Callable[[], Sequence[bytes]]
    """Inputs to begin with."""
    attempt: Callable[[bytes], str]
    """Tries one. Returns how it was answered, in words; raises for an answer that nobody foresaw."""


_DETAILS = re.compile(r"[0-9]+|\"[^\"]*\"?|'[^']*'?")


def _told(error: Exception) -> str:
    return f"{type(error).__name__} {_DETAILS.sub('#', str(error))[:40]}"


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
        "ChildShards": [{"ShardId": "s", "ParentShards": ["p"], "HashKeyRange": {}}],
    }
).encode()


def _event_stream(data: bytes) -> str:
    parser, told = SubscriptionParser(), []
    middle = len(data) // 2
    for chunk in (data[:middle], data[middle:]):
        for outcome in parser.feed(chunk):
            if isinstance(outcome, AwsServiceError):
                # Its words are the sender's.
                return type(outcome).__name__
            if isinstance(outcome, EfoConsumerError):
                return _told(outcome)
            assert not isinstance(outcome, Exception), outcome
            told.append(type(outcome).__name__)
    ended = parser.finish()
    assert ended is None or isinstance(ended, EfoConsumerError | AwsServiceError), ended
    return " ".join(sorted(set(told))) + ("" if ended is None else _told(ended))


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
        return _told(error)


class _Nowhere(asyncio.Transport):
    closing = False

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
            return _told(error)
        return f"{answer.status // 100} {len(answer.headers)}"

    return _loop().run_until_complete(one())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


_TABLES = [
    (ConsumerRegistryServicer.rights, consumer_registry_pb2),
    (ShardReaderServicer.rights, shard_reader_pb2),
    (StageSchedulerServicer.rights, stage_scheduler_pb2),
]


@cache
def _requests() -> list[tuple[Any, Any]]:
    from penstock.async_sink.gateway import SinkGatewayServicer

    found = []
    for rights, module in (*_TABLES, (SinkGatewayServicer.rights, sink_gateway_pb2)):
        service = module.DESCRIPTOR.services_by_name[rights.service.rpartition(".")[2]]
        found += [(rights.methods[one.name], getattr(module, one.input_type.name)) for one in service.methods]
    return found


def _grpc_request(data: bytes) -> str:
    """The first byte says of which method."""
    rights, kind = _requests()[(data[0] if data else 0) % len(_requests())]
    try:
        request = kind.FromString(data[1:])
    except DecodeError:
        return f"{kind.__name__} none"
    caller = Principal(name="fuzz", streams=("a*",), jobs=("a*", "[b]*"), destinations=("*",))
    refused = rights.refusal(caller, request)
    rights.take_as_own(caller, request)
    request.SerializeToString()
    return f"{kind.__name__} {refused is None} {len(rights.used(request)) > 1}"


def _filled(kind: Any, depth: int = 0) -> Any:
    message = kind()
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        if one.message_type is not None:
            if depth < 2 and not one.message_type.GetOptions().map_entry:
                part = _filled(one.message_type._concrete_class, depth + 1)
                (value.append if hasattr(value, "append") else value.CopyFrom)(part)
        elif one.type == one.TYPE_STRING:
            text = "arn:aws:kinesis:r:1:stream/abc/consumer/a:1" if "arn" in one.name else "abc (principal x)"
            value.append(text) if hasattr(value, "append") else setattr(message, one.name, text)
    return message


def _request_seeds() -> list[bytes]:
    return [bytes([index]) + _filled(kind).SerializeToString() for index, (_, kind) in enumerate(_requests())]


def _principals(data: bytes) -> str:
    try:
        found = parse_principals(data)
    except RpcOptionError as error:
        return _told(error)
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
calls_per_second = 1.5
bytes_per_second = 1_000

[[principal]]
name = "b"
token_sha256 = "{"1" * 64}"
"""


def _tokens(data: bytes) -> str:
    try:
        return f"{min(len(parse_tokens(data.decode(errors='replace'))), 3)} tokens"
    except RpcOptionError as error:
        return _told(error)


def _offset(data: bytes) -> str:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    try:
        offset = parse_offset(document)
    except OffsetError as error:
        return _told(cast("Exception", error.__cause__))
    assert parse_offset(offset.to_json()) == offset
    return "an offset"


_POSITION = {"type": "AFTER_SEQUENCE_NUMBER", "value": "49", "caughtUp": 1, "record": "48", "arrived": 1, "first": "7"}
_OFFSETS = [
    {"version": 2, "streams": {"s": {"shardId-0": _POSITION}}, "created": {"s": 1}, "epoch": 3, "query": "q"},
    {"version": 1, "streams": {"s": {"shardId-0": {"type": "TRIM_HORIZON"}, "shardId-1": {"type": "SHARD_END"}}}},
    {"version": 2, "streams": {"s": {"x": {"type": "AT_TIMESTAMP", "value": 1}}}, "initial": True, "since": None},
]


def _audit_line(data: bytes) -> str:
    line = parse_line(data.decode(errors="replace"))
    if line is None:
        return "none"
    looked = Filter(who="*", about="a*", failed=True, since=None)
    return f"{looked.takes(line)} {'further' in line} {len(line) > 5}"


_AUDIT = b'{"time": "2026-11-23T18:00:00.000Z", "event": "refused", "who": "a", "streams": ["abc"], "outcome": "OK"}'
_HTTP = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Type: application/x-amz-json-1.1\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n{}",
]
_KPL = bytes.fromhex("0a016b0a026b321201311a0a080010001a04616263641a0808011a0462636465")

TARGETS: dict[str, Target] = {
    "event-stream": Target(lambda: [_frame(_EVENT, _PAYLOAD) * 2], _event_stream),
    "event": Target(_event_seeds, _event),
    "kpl": Target(lambda: [_KPL, b""], _aggregate),
    "http-answer": Target(lambda: _HTTP, _http_answer),
    "grpc-request": Target(_request_seeds, _grpc_request),
    "principals": Target(lambda: [_PRINCIPALS.encode()], _principals),
    "tokens": Target(lambda: [b"# mine\na-token 2027-01-31T00:00:00Z\nanother\n"], _tokens),
    "offset": Target(lambda: [json.dumps(one).encode() for one in _OFFSETS], _offset),
    "audit-line": Target(lambda: [_AUDIT], _audit_line),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=10.0, help="in all; default: 10")
    parser.add_argument("--seed", type=int, help="of the inputs, as a run names it; default: random")
    parser.add_argument("--only", choices=sorted(TARGETS), action="append", help="these targets; default: all")
    parser.add_argument(
        "--corpus", type=Path, help="folder that keeps inputs which were answered in a new way; default: a new one"
    )
    parser.add_argument("--in-this-process", metavar="SECONDS", type=float, help="one target, without bounds")


def run(arguments: argparse.Namespace) -> bool:
    """Try inputs, target by target, until the time is over or one is answered as none should be."""
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    names = arguments.only or sorted(TARGETS)
    if arguments.in_this_process is not None:
        return _try_inputs(names[0], seed, arguments.in_this_process, arguments.corpus)
    corpus = arguments.corpus or Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    print(f"seed {seed}, corpus {corpus}", flush=True)
    ends, tried, turn = time.monotonic() + 60 * arguments.minutes, dict.fromkeys(names, 0), 0
    while turn < len(names) or time.monotonic() < ends:
        name = names[turn % len(names)]
        seconds = min(SLICE_SECONDS, 60 * arguments.minutes / len(names))
        inputs = _run_slice(name, seed + turn, seconds, corpus)
        if inputs is None:
            return False
        tried[name] += inputs
        turn += 1
    for name, number in tried.items():
        kept = len(list((corpus / name).glob("*.input")))
        print(f"{name:14} {number:12,} inputs, {kept:6,} kept")
    print(f"{sum(tried.values()):,} inputs were answered as they should be")
    return True


def _run_slice(name: str, seed: int, seconds: float, corpus: Path) -> int | None:
    """Inputs that were tried; None if one was answered as none should be."""
    (corpus / name).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.prove", "fuzz", "--only", name, "--seed", str(seed)]
    command += ["--corpus", str(corpus), "--in-this-process", str(seconds)]
    # Of the slice before: loading takes its time, and would be taken for a hang.
    (corpus / name / "now").unlink(missing_ok=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    number, since, words = 0, (0.0, 0.0), ""
    while True:
        try:
            out, errors = process.communicate(timeout=0.5)
            if process.returncode == 0:
                return int(out.split()[-1])
            words = errors[-3_000:]
            break
        except subprocess.TimeoutExpired:
            now, spent = _state(corpus / name)[0], _spent(process.pid)
            if now == 0 or now != number:
                number, since = now, spent
            elif spent[0] - since[0] > LONGEST_SECONDS or spent[1] - since[1] > 6 * LONGEST_SECONDS:
                process.kill()
                process.communicate()
                words = f"it took longer than {LONGEST_SECONDS:g} s"
                break
    data = _state(corpus / name)[1]
    found = corpus / name / f"{hashlib.sha256(data).hexdigest()[:16]}.broken"
    found.write_bytes(data)
    print(f"{name}: {words}\nthe input is kept in {found}", flush=True)
    return None


def _spent(pid: int) -> tuple[float, float]:
    """Seconds of the processor that a process has had, and of the clock."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()


def _state(folder: Path) -> tuple[int, bytes]:
    try:
        content = (folder / "now").read_bytes()
    except FileNotFoundError:
        return 0, b""
    number, length = struct.unpack_from(">QQ", content)
    return number, content[16 : 16 + length]


def _try_inputs(name: str, seed: int, seconds: float, corpus: Path) -> bool:
    target, chance = TARGETS[name], random.Random(f"{name} {seed}")
    folder = corpus / name
    known = [*target.seeds(), *(file.read_bytes() for file in sorted(folder.glob("*.input")))]
    ways = {target.attempt(one) for one in known}
    with open(folder / "now", "w+b") as file:
        file.truncate(16 + LONGEST_INPUT)
        now = mmap.mmap(file.fileno(), 16 + LONGEST_INPUT)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, resource.RLIM_INFINITY))
        ends, number = time.monotonic() + seconds, 0
        while number % 256 or time.monotonic() < ends:
            number += 1
            data = changed(chance.choice(known), known, chance)
            now[: 16 + len(data)] = struct.pack(">QQ", number, len(data)) + data
            way = target.attempt(data)
            if way not in ways and len(ways) < MOST_KEPT:
                ways.add(way)
                known.append(data)
                (folder / f"{hashlib.sha256(data).hexdigest()[:16]}.input").write_bytes(data)
        # What follows is the end of the process, and no input's fault.
        now[:8] = bytes(8)
    print(number)
    return True


def changed(data: bytes, known: Sequence[bytes], chance: random.Random) -> bytes:
    """The input, with some of it changed."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(made) + 1)
        span = min(len(made) - at, chance.choice((1, 1, 2, 4, 16, 64)))
        match chance.randrange(8):
            case 0:
                made[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                made[at : at + 1] = bytes([chance.choice(_BYTES)])
            case 2:
                del made[at : at + span]
            case 3:
                made[at:at] = made[at : at + span] * chance.choice((1, 1, 2, 100))
            case 4:
                other = chance.choice(known)
                begin = chance.randrange(len(other) + 1)
                made[at : at + span] = other[begin : begin + chance.choice((4, 16, 64, 1_000))]
            case 5:
                numbers = [found.span() for found in re.finditer(rb"-?[0-9.]+|null|true", made)]
                begin, end = chance.choice(numbers or [(at, at + span)])
                made[begin:end] = chance.choice(_NUMBERS)
            case 6:
                if at < len(made):
                    made[at] ^= 1 << chance.randrange(8)
            case _:
                made[at:at] = chance.randbytes(span or 1)
    return bytes(made[:LONGEST_INPUT])
