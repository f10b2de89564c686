"""What services answer to any calls: an input is a short history of the calls of a service that is new.

The servicers are the real ones; what is behind them is in memory, so that nothing depends on time or on a network.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import re
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError

from penstock.async_sink import AsyncSinkBase, AsyncSinkConfig, SharedDestinations, SinkGatewayServicer
from penstock.async_sink.testing import FakeDestination, FakeWriter, settle
from penstock.efo_consumer import LocalShardReader, ShardPosition, ShardReaderServicer
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis
from penstock.operator_attributes import LocalStageScheduler, StageSchedulerServicer
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2
from penstock.proto.reader_directory.v1 import reader_directory_pb2
from penstock.proto.rules.v1 import rules_pb2
from penstock.proto.shard_reader.v1 import shard_reader_pb2
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2
from penstock.registration import ConsumerRegistryServicer, LocalConsumerRegistry, StreamConsumerRegistrar
from penstock.registration.testing import FakeKinesis as FakeConsumers
from penstock.registration.testing import InMemoryLeaseStore, ManualClock
from penstock.rpc._security.principals import Principal
from penstock.rpc._server.rules import CallRules, calls_of, rules_of
from tools.prove.fuzz.target import MEBIBYTE, Target, loop, shape

MOST_CALLS = 6
"""Calls that one input may make."""
_PATIENCE_SECONDS = 0.02
_ANSWERS = 3
TOLD = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""What a service may say of a message that it can read; the rest would be a mistake of its own."""
_INSIDE = re.compile(r"Traceback|File \"|site-packages|\.py\b|/src/|object at 0x|<class")


@dataclass(frozen=True, eq=False)
class _Served:
    """A service: its servicer over what is in memory, what its contract says, and a request that it can do."""

    contract: Any
    name: str
    make: Callable[[], AbstractAsyncContextManager[Any]]
    seeds: Callable[[], Sequence[tuple[str, Any]]]

    @property
    def methods(self) -> Sequence[MethodDescriptor]:
        (service,) = self.contract.DESCRIPTOR.services_by_name.values()
        return list(service.methods)

    @property
    def rules(self) -> dict[str, CallRules]:
        (service,) = self.contract.DESCRIPTOR.services_by_name.values()
        return {one.name: one for one in calls_of([service.full_name]).values()}


class _Refused(grpc.aio.AbortError):
    pass


class _Context:
    """As much of a call's context as servicers use."""

    def __init__(self) -> None:
        self.status: tuple[grpc.StatusCode, str] | None = None

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.status = code, details
        raise _Refused

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def add_done_callback(self, callback: Any) -> None:
        pass

    def time_remaining(self) -> None:
        return None


async def _several(messages: Sequence[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def _answered(servicer: Any, method: MethodDescriptor, messages: Sequence[Any]) -> str:
    context = _Context()

    async def take() -> int:
        behaviour = getattr(servicer, method.name)
        answers = 0
        given = _several(messages) if method.client_streaming else messages[0]
        if not method.server_streaming:
            await behaviour(given, context)
            return 1
        async with aclosing(behaviour(given, context)) as streamed:
            async for _ in streamed:
                answers += 1
                if answers == _ANSWERS:
                    break
        return answers

    task = asyncio.ensure_future(take())
    await settle()
    if not task.done():
        await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        return f"{method.name} waits"
    try:
        return f"{method.name} {task.result()}"
    except _Refused:
        assert context.status is not None
        code, details = context.status
        assert code in TOLD, (method.name, code, details)
        assert not _INSIDE.search(details), (method.name, details)
        return f"{method.name} {code.name} {shape(details)}"


def _calls(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The parts of an input: a byte for the method, two for the length of the message, the message."""
    at = 0
    for _ in range(MOST_CALLS):
        if len(data) < at + 3:
            return
        index, length = struct.unpack_from(">BH", data, at)
        yield index, data[at + 3 : at + 3 + length]
        at += 3 + length


def _attempt(served: _Served, data: bytes) -> str:
    methods = served.methods
    parsed = []
    for index, content in _calls(data):
        method = methods[index % len(methods)]
        try:
            parsed.append((method, getattr(served.contract, method.input_type.name).FromString(content)))
        except DecodeError:
            return f"{method.name} none"
    for method, message in parsed:
        if not _judge(served.rules[method.name], message):
            return f"{method.name} breaks a rule"

    async def use() -> list[str]:
        async with served.make() as servicer:
            said = []
            for method, group in groupby(parsed, key=lambda one: one[0]):
                messages = [message for _, message in group]
                parts = [messages] if method.client_streaming else [[one] for one in messages]
                said += [await _answered(servicer, method, part) for part in parts]
            return said

    return "; ".join(loop().run_until_complete(use())[:2])


_CALLER = Principal(name="fuzz", streams=("a*",), jobs=("a*", "[b]*"), destinations=("*",))


def _judge(rules: CallRules, message: Any) -> bool:
    """Does what the server does with a principal's request. Says whether its servicer would see it."""
    asked = type(message).FromString(message.SerializeToString())
    if rules_of(asked.DESCRIPTOR).refusal(asked) is not None:
        return False
    rules.refusal(_CALLER, asked, rules.used(asked))
    rules.take_as_own(_CALLER, asked)
    asked.SerializeToString()
    return True


@asynccontextmanager
async def _registry() -> AsyncIterator[ConsumerRegistryServicer]:
    clock = ManualClock()
    consumers = FakeConsumers(streams=("abc",), looks=0)
    registrar = StreamConsumerRegistrar(consumers, sleep=clock.sleep, clock=clock)
    local = LocalConsumerRegistry(registrar, InMemoryLeaseStore(), clock=clock, wall_clock=clock, sleep=clock.sleep)
    yield ConsumerRegistryServicer(local)


class _Streams(FakeKinesis):
    """Refuses shards that it does not have, as Kinesis does."""

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> Any:
        self._check(stream, shard_id)
        async for event in super().follow(stream, shard_id, position):
            yield event

    async def read_once(self, stream_name: str, shard_id: str, after: ShardPosition, **note: Any) -> Any:
        self._check(stream_name, shard_id)
        async for event in super().read_once(stream_name, shard_id, after, **note):
            yield event

    def _check(self, stream: str, shard_id: str) -> None:
        if (stream, shard_id) not in self.shards:
            code = "ResourceNotFoundException"
            raise RecordPublisherFatalError("it is not there", stream=stream, shard_id=shard_id, code=code)


@asynccontextmanager
async def _reader() -> AsyncIterator[ShardReaderServicer]:
    kinesis = _Streams()
    (shard,) = kinesis.create_stream("abc")
    kinesis.put("abc", shard, 5)
    async with LocalShardReader(kinesis) as reader:
        yield ShardReaderServicer(reader)


_CONFIG = AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=1), retry_backoff_base=timedelta(0))


class _Sink(AsyncSinkBase[Any, Any]):
    def create_writer(self) -> Any:
        return _Writer(FakeDestination(), _CONFIG)

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


class _Writer(FakeWriter):
    def get_size_in_bytes(self, entry: Any) -> int:
        return len(str(entry))


@asynccontextmanager
async def _gateway() -> AsyncIterator[SinkGatewayServicer]:
    others = dict.fromkeys(("firehose", "dynamodb", "sqs"), lambda _: _Sink())
    destinations = SharedDestinations(lambda _: _Sink(), others)
    yield SinkGatewayServicer(destinations)
    await destinations.close(0)


@asynccontextmanager
async def _scheduler() -> AsyncIterator[StageSchedulerServicer]:
    scheduler = LocalStageScheduler(clock=lambda: 1.0)
    try:
        yield StageSchedulerServicer(scheduler)
    finally:
        await scheduler.close()


def _registry_seeds() -> list[tuple[str, Any]]:
    pb: Any = consumer_registry_pb2  # enums by their numbers
    acquire = pb.AcquireRequest(stream_name="abc", consumer_name="c", job_id="j", strategy=1, conflict_policy=1)
    return [("Acquire", acquire), ("ListConsumers", pb.ListConsumersRequest(stream_name="abc")), ("Acquire", acquire)]


def _reader_seeds() -> list[tuple[str, Any]]:
    pb: Any = shard_reader_pb2  # enums by their numbers
    start = [
        pb.StreamPositions(
            stream_name="abc",
            shards={"shardId-000000000000": pb.ShardPosition(type=pb.POSITION_TYPE_TRIM_HORIZON)},
        )
    ]
    epoch = 1
    return [
        ("Open", pb.OpenRequest(session_id="q", positions=start, record_publisher=2, epoch=epoch)),
        ("Positions", pb.PositionsRequest(session_id="q", epoch=epoch, start=start, max_records=3)),
        ("Close", pb.CloseRequest(session_id="q", epoch=epoch)),
    ]


def _gateway_seeds() -> list[tuple[str, Any]]:
    pb = sink_gateway_pb2
    entry = pb.Entry(data=b"abc", partition_key="k")
    return [
        ("Write", pb.WriteRequest(hello=pb.Hello(kind="kinesis", destination="abc", client_id="c", weight=1))),
        ("Write", pb.WriteRequest(batch=pb.Batch(batch_id=1, entries=[entry, entry]))),
        ("Stats", pb.StatsRequest()),
    ]


def _scheduler_seeds() -> list[tuple[str, Any]]:
    pb: Any = stage_scheduler_pb2  # enums by their numbers
    graph = pb.JobGraph(
        name="g",
        vertices=[
            pb.Vertex(name="in", kind=1, bounded=True, parallelism=1),
            pb.Vertex(name="sort", kind=2, output_only_after_end_of_stream=True, parallelism=1),
            pb.Vertex(name="out", kind=3, parallelism=1),
        ],
        edges=[pb.Edge(source="in", target="sort"), pb.Edge(source="sort", target="out", keyed=True)],
    )
    return [
        ("Claim", pb.ClaimRequest(store="s", fingerprint="f", owner="o#secret", lease_seconds=60)),
        ("ListJobs", pb.ListJobsRequest()),
        ("Submit", pb.SubmitRequest(job_id="abc", graph=graph)),
        ("GetJob", pb.GetJobRequest(job_id="abc")),
        ("Report", pb.ReportRequest(job_id="abc", stage_id="stage-1", event=1)),
        ("Watch", pb.WatchRequest(job_id="abc")),
    ]


_ARN = "arn:aws:kinesis:eu-west-1:000000000001:stream/abc"


def _rules(field: FieldDescriptor) -> Any:
    return field.GetOptions().Extensions[rules_pb2.field]


def _text(field: FieldDescriptor) -> str:
    if _rules(field).alphabet == rules_pb2.ALPHABET_DIGITS:
        return "1"
    if "arn" not in field.name:
        return "abc"
    return _ARN if _rules(field).resource == rules_pb2.RESOURCE_STREAM else f"{_ARN}/consumer/a:1"


def _filled(kind: Any) -> Any:
    """A message with each of its texts and parts, which breaks no rule."""
    message = kind()
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            value["abc"].CopyFrom(_filled(one.message_type.fields_by_name["value"].message_type._concrete_class))
        elif one.message_type is not None:
            part = _filled(one.message_type._concrete_class)
            (value.append if hasattr(value, "append") else value.CopyFrom)(part)
        elif one.type == one.TYPE_STRING:
            value.append(_text(one)) if hasattr(value, "append") else setattr(message, one.name, _text(one))
    return message


Break = Callable[[Any, str, int], None]
"""Breaks a rule of a field of a message; the number says by how much."""


def _set(message: Any, name: str, value: Any) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, name)[value].SetInParent()
    elif field.is_repeated:
        getattr(message, name).append(value)
    else:
        setattr(message, name, value.encode() if field.type == field.TYPE_BYTES else value)


def _lengthen(message: Any, name: str, by: int) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    most = _rules(field).max_bytes
    if field.message_type is None or field.is_repeated:
        _set(message, name, "1" * (most + 1 + by))
        return
    # The part grows by a text of its own.
    part = getattr(message, name)
    text = next(one.name for one in part.DESCRIPTOR.fields if one.type == one.TYPE_STRING)
    _set(part, text, "1" * (most + by))


def _multiply(message: Any, name: str, by: int) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    most, items = _rules(field).max_items, getattr(message, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for number in range(most + 1):
            items[f"s{number}"].SetInParent()
    else:
        items.extend([type(items[0])()] * most)


def _empty(message: Any, name: str, by: int) -> None:
    message.ClearField(name)


def _spoil(message: Any, name: str, by: int) -> None:
    _set(message, name, ("\n", "a\x00b", "\x1b[31m", "\u202e", "a\u2028b")[by % 5])


def _exceed(message: Any, name: str, by: int) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    numbers: list[float] = [_rules(field).maximum * 2 + by, -1 - by]
    if field.type == field.TYPE_DOUBLE:
        numbers += [math.nan, math.inf]
    number = numbers[by % len(numbers)]
    setattr(message, name, number if field.type == field.TYPE_DOUBLE else int(number))


def _breaks(field: FieldDescriptor) -> Iterator[Break]:
    rules = _rules(field)
    # Records may be as long as a request: a copy of one would be most of the memory that a call may take.
    if 0 < rules.max_bytes <= MEBIBYTE:
        yield _lengthen
    if rules.max_items:
        yield _multiply
    if rules.required:
        yield _empty
    if rules.alphabet or rules.resource:
        yield _spoil
    if rules.maximum:
        yield _exceed


def _broken(message: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Break]]:
    for field in message.fields:
        yield from (((*path, field.name), one) for one in _breaks(field))
        part = field.message_type
        if part is not None:
            is_map = part.GetOptions().map_entry
            part = part.fields_by_name["value"].message_type if is_map else part
        if part is not None:
            yield from _broken(part, (*path, field.name))


@cache
def _all_broken(served: _Served) -> list[tuple[MethodDescriptor, tuple[str, ...], Break]]:
    return [(method, *one) for method in served.methods for one in _broken(method.input_type)]


def _rule_seeds(served: _Served) -> list[bytes]:
    return [struct.pack(">HI", number, 0) for number in range(len(_all_broken(served)))]


_malloc_trim = ctypes.CDLL(None).malloc_trim


def _resident(*, from_now: bool = False) -> int:
    """The most bytes that this process had in memory; `from_now` begins anew, without what was freed."""
    if from_now:
        _malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _break_a_rule(served: _Served, data: bytes) -> str:
    """Send a request that breaks one rule of the contract, and is otherwise as it should be."""
    number, by = struct.unpack(">HI", data[:6].ljust(6, b"\0"))
    broken = _all_broken(served)
    method, path, break_rule = broken[number % len(broken)]
    kind = getattr(served.contract, method.input_type.name)
    request = part = _filled(kind)
    assert rules_of(request.DESCRIPTOR).refusal(request) is None, method.name
    for step in path[:-1]:
        part = getattr(part, step)
        if hasattr(part, "HasField"):
            continue
        part = part["abc"] if hasattr(part, "items") else part[0]
    break_rule(part, path[-1], by % MEBIBYTE)
    content = request.SerializeToString()
    del request, part
    rules = rules_of(method.input_type)
    before = _resident(from_now=True)
    reason = rules.too_long(content) or rules.refusal(kind.FromString(content))
    taken = _resident() - before
    assert taken <= 16 * MEBIBYTE, (method.name, path, break_rule.__name__, taken)
    assert reason is not None, (method.name, path, break_rule.__name__)
    assert len(reason) < 1_000, (method.name, path)
    return f"{method.name} {'.'.join(path)} {break_rule.__name__}"


@cache
def _seeds(served: _Served) -> list[bytes]:
    index = {method.name: number for number, method in enumerate(served.methods)}

    def part(name: str, message: Any) -> bytes:
        content: bytes = message.SerializeToString()
        return struct.pack(">BH", index[name], len(content)) + content

    history = [part(name, message) for name, message in served.seeds()]
    alone = [part(one.name, _filled(getattr(served.contract, one.input_type.name))) for one in served.methods]
    return [b"".join(history), *history, *alone]


_SERVED = [
    _Served(consumer_registry_pb2, "consumer-registry", _registry, _registry_seeds),
    _Served(shard_reader_pb2, "shard-reader", _reader, _reader_seeds),
    _Served(sink_gateway_pb2, "sink-gateway", _gateway, _gateway_seeds),
    _Served(stage_scheduler_pb2, "stage-scheduler", _scheduler, _scheduler_seeds),
]
CALLS = {
    f"calls-{one.name}": Target(partial(_seeds, one), partial(_attempt, one), memory_bytes=128 * MEBIBYTE)
    for one in _SERVED
}
_DIRECTORY = _Served(reader_directory_pb2, "reader-directory", _registry, list)
RULES = {
    f"rules-{one.name}": Target(
        partial(_rule_seeds, one),
        partial(_break_a_rule, one),
        memory_bytes=16 * MEBIBYTE,
    )
    for one in (*_SERVED, _DIRECTORY)
}
