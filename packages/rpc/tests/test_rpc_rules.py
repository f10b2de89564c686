"""The rules of the contracts: which requests are refused before a servicer sees them, and what they name."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as registry_pb
from penstock.proto.reader_directory.v1 import reader_directory_pb2 as readers_pb
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as reader_pb
from penstock.proto.shard_reader.v1 import shard_reader_pb2_grpc as reader_grpc
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink_pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as stages_pb
from penstock.rpc import GrpcServer, ServerSettings, open_aio_channel
from penstock.rpc._server.rules import calls_of, rules_of

DEADLINE = 30
READER = "penstock.proto.shard_reader.v1.ShardReaderService"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
TABLE = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-29T14:37:00.000"
LONG = "x" * 200_000


def positions(stream: str = "orders", shard: str = "shardId-000000000000", number: str = "") -> Any:
    return reader_pb.StreamPositions(
        stream_name=stream, shards={shard: reader_pb.ShardPosition(sequence_number=number)}
    )


def announced(**fields: Any) -> readers_pb.AnnounceRequest:
    known: dict[str, Any] = {"reader_id": "r", "address": "host:1"}
    return readers_pb.AnnounceRequest(job_id="j", reader=readers_pb.Reader(**known | fields))


def submitted(name: str = "a", **graph: Any) -> stages_pb.SubmitRequest:
    vertices = graph.pop("vertices", [stages_pb.Vertex(name=name)])
    return stages_pb.SubmitRequest(job_id="j", graph=stages_pb.JobGraph(vertices=vertices, **graph))


@pytest.mark.parametrize(
    ("request_", "begin"),
    [
        (reader_pb.StatsRequest(), "session_id is required"),
        (reader_pb.CloseRequest(epoch=1), "session_id is required"),
        (reader_pb.StatsRequest(session_id="x" * 1_025), "session_id has more than 1,024 bytes"),
        (reader_pb.StatsRequest(session_id="€" * 400), "session_id has more than 1,024 bytes"),
        (reader_pb.StatsRequest(session_id="a\nb"), "session_id 'a\\nb' is not"),
        (reader_pb.PositionsRequest(session_id="q", wait_seconds=86_400), "wait_seconds 86400 is not between 0 and"),
        (reader_pb.PositionsRequest(session_id="q", wait_seconds=math.nan), "wait_seconds nan is not between"),
        (reader_pb.OpenRequest(session_id="q", session_seconds=-1), "session_seconds -1 is not between 0 and"),
        (reader_pb.OpenRequest(session_id="q", positions=[positions()] * 1_001), "positions has more than 1,000 items"),
        (reader_pb.OpenRequest(session_id="q", positions=[positions("")]), "positions.stream_name is required"),
        (reader_pb.OpenRequest(session_id="q", positions=[positions(shard="a b")]), "positions.shards 'a b' is not"),
        (
            reader_pb.OpenRequest(session_id="q", positions=[positions(), positions(number="1x")]),
            "positions.shards.sequence_number '1x' is not digits",
        ),
        (
            reader_pb.ReadRangeRequest(session_id="q", ranges=[reader_pb.ShardRange(stream_name=LONG, shard_id="s")]),
            "ranges.stream_name has more than 512 bytes",
        ),
        (reader_pb.ReadRangeRequest(session_id="q", max_batch_bytes=2**40), "max_batch_bytes"),
        (registry_pb.AcquireRequest(stream_name="s", job_id="j" * 15_000_000), "AcquireRequest has more than"),
        (
            registry_pb.AcquireRequest(stream_name="s", job_id="j", claim=LONG[:2_000]),
            "claim has more than 1,024 bytes",
        ),
        (registry_pb.HeartbeatRequest(stream_name="orders/1", job_id="j"), "stream_name 'orders/1' is not the name or"),
        (registry_pb.HeartbeatRequest(stream_name=ARN.replace("12345", ""), job_id="j"), "stream_name 'arn:"),
        (registry_pb.HeartbeatRequest(stream_name="x" * 200, job_id="j"), None),
        (registry_pb.HeartbeatRequest(stream_name=ARN, job_id="j"), None),
        (registry_pb.HeartbeatRequest(stream_name=TABLE, job_id="j"), None),
        (registry_pb.ReleaseRequest(stream_name="s", job_id="j", disowned_consumer_arn=f"{ARN}/consumer/c:7"), None),
        (registry_pb.ReleaseRequest(stream_name="s", job_id="j", disowned_consumer_arn=f"{ARN}/c:7"), "disowned_"),
        (readers_pb.AnnounceRequest(job_id="j"), "reader is required"),
        (announced(stream_names=["s"] * 1_001), "reader.stream_names has more than 1,000 items"),
        (announced(stream_names=["s"] * 999 + ["x y"]), "reader.stream_names 'x y' is not the name or"),
        (announced(worst_shards=[readers_pb.ReaderShard()] * 21), "reader.worst_shards has more than 20 items"),
        (announced(owner=LONG[:140_000]), "reader has more than 131,072 bytes"),
        (submitted(name="g" * 530_000), "graph has more than 524,288 bytes"),
        (submitted("n" * 1_025), "graph.vertices.name has more than 1,024 bytes"),
        (submitted(vertices=[stages_pb.Vertex(name="v")] * 10_001), "graph.vertices has more than 10,000 items"),
        (stages_pb.ReportRequest(job_id="j", stage_id="s", error="e" * 4_097), "error has more than 4,096 bytes"),
        (stages_pb.ClaimRequest(store="s", fingerprint="f", owner="o" * 1_025), "owner has more than 1,024 bytes"),
        (sink_pb.WriteRequest(hello=sink_pb.Hello(kind="kinesis")), "hello.destination is required"),
        (
            sink_pb.WriteRequest(batch=sink_pb.Batch(entries=[sink_pb.Entry(partition_key=LONG)])),
            "batch.entries.partition_key has more than 1,024 bytes",
        ),
        (sink_pb.WriteRequest(batch=sink_pb.Batch(entries=[sink_pb.Entry(data=b"x" * 2_000_000)])), None),
        (reader_pb.OpenRequest(session_id="query 1 / ü", positions=[positions(ARN), positions(number="9" * 56)]), None),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_with_the_path_of_the_field(
    request_: Message, begin: str | None
) -> None:
    """The reason names the bound and shows at most 100 characters of the value."""
    rules = rules_of(request_.DESCRIPTOR)
    reason = rules.too_long(request_.SerializeToString()) or rules.refusal(request_)
    if begin is None:
        assert reason is None
        return
    assert reason is not None
    assert reason.startswith(begin)
    assert len(reason) < 300


class Sessions(reader_grpc.ShardReaderServiceServicer):
    """Counts what it is asked."""

    asked = 0

    async def Stats(self, request: reader_pb.StatsRequest, context: Any) -> reader_pb.StatsResponse:
        self.asked += 1
        return reader_pb.StatsResponse()

    async def ReadRange(self, request: reader_pb.ReadRangeRequest, context: Any) -> AsyncIterator[Any]:
        self.asked += 1
        yield reader_pb.ReadRangeResponse()


@asynccontextmanager
async def reading() -> AsyncIterator[tuple["reader_grpc.ShardReaderServiceAsyncStub", Sessions]]:
    sessions = Sessions()  # type: ignore[abstract]  # the other calls are not made
    server = GrpcServer(
        ServerSettings(drain_seconds=0.5),
        register=[lambda server: reader_grpc.add_ShardReaderServiceServicer_to_server(sessions, server)],
        service_names=[READER],
    )
    async with server, open_aio_channel(server.address) as channel:
        yield reader_grpc.ShardReaderServiceStub(channel), sessions


async def test_no_servicer_sees_a_request_that_breaks_a_rule() -> None:
    """Also where every caller may do all."""
    ranges = reader_pb.ReadRangeRequest(session_id="q", ranges=[reader_pb.ShardRange(stream_name="a b", shard_id="s")])
    async with reading() as (stub, sessions), asyncio.timeout(DEADLINE):
        for call in (stub.Stats(reader_pb.StatsRequest()), stub.ReadRange(ranges).read()):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sessions.asked == 0
        await stub.Stats(reader_pb.StatsRequest(session_id="q"))
        assert sessions.asked == 1


def test_every_resource_of_a_request_is_found_once() -> None:
    """In nested and repeated fields too, and by the name in an ARN."""
    calls = calls_of([READER])
    asked = reader_pb.OpenRequest(
        session_id="q",
        positions=[positions("a"), positions(ARN), positions("a")],
        consumers=[reader_pb.StreamConsumer(stream_name="b", consumer_arn=f"{ARN}/consumer/c:1")],
    )
    found = calls[f"/{READER}/Open"].used(asked)
    assert sorted(found) == [
        ("consumers", "c"),
        ("jobs", "q"),
        ("streams", "a"),
        ("streams", "b"),
        ("streams", "orders"),
    ]
    assert calls[f"/{READER}/ListSessions"].used(reader_pb.ListSessionsRequest()) == [("jobs", "*")]
