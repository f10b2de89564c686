"""Services that say what a test wants, behind real sockets, and the console in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import grpc

from penstock.efo_consumer import SERVICE_NAME as READER
from penstock.efo_consumer import FleetMember, SessionInfo, ShardReaderServicer, ShardStats
from penstock.operator_attributes import SERVICE_NAME as STAGES
from penstock.operator_attributes import LocalStageScheduler, StageSchedulerServicer
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink_pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc as sink_grpc
from penstock.registration import READERS_SERVICE_NAME as READERS
from penstock.registration import SERVICE_NAME as REGISTRY
from penstock.registration import (
    AcquireRequest,
    ConsumerRegistryServicer,
    KnownReaders,
    LocalConsumerRegistry,
    ReaderDirectoryServicer,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore
from penstock.rpc import GrpcServer, ServerSettings
from penstock.services.console._serve import ConsoleServer, console_server
from penstock.services.console._settings import ConsoleSettings, Endpoint
from penstock.services.console._values import Kind

__all__ = [
    "ConsoleServer",
    "Endpoint",
    "FakeReader",
    "FakeServices",
    "FakeSink",
    "Kind",
    "fake_services",
    "running_console",
    "session",
    "shard_stats",
]

_SINK = sink_pb.DESCRIPTOR.services_by_name["SinkGatewayService"].full_name


def shard_stats(stream: str, number: int, **values: Any) -> ShardStats:
    """What a reader says of shard `number` of a stream; fields of `ShardStats` that are not given are 0."""
    stats = ShardStats(stream, f"shardId-{number:012d}", 0, 0, 0, 1, 0, 0, 0)
    return replace(stats, **values)


def session(name: str, shards: Sequence[ShardStats]) -> SessionInfo:
    """A session of a reader that reads these shards."""
    return SessionInfo(
        session_id=name,
        epoch=1,
        idle_seconds=0.5,
        time_to_live_seconds=None,
        shard_count=len(shards),
        shards=tuple(shards),
    )


@dataclass
class FakeReader:
    """What the console asks of a reader."""

    open_sessions: list[SessionInfo] = field(default_factory=list)
    """What it answers."""

    async def sessions(self, *, with_shards: bool = False) -> list[SessionInfo]:
        """As of a shard reader."""
        return self.open_sessions


class FakeSink(sink_grpc.SinkGatewayServiceServicer):
    """What the console asks of a sink gateway."""

    def __init__(self) -> None:
        self.destinations: list[sink_pb.DestinationStats] = []
        """What it answers."""

    async def Stats(self, request: sink_pb.StatsRequest, context: Any) -> sink_pb.StatsResponse:
        """As of a sink gateway."""
        return sink_pb.StatsResponse(destinations=self.destinations)

    async def Write(self, request_iterator: Any, context: Any) -> AsyncIterator[sink_pb.WriteResponse]:
        """The console writes nothing."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this gateway takes no records")
        yield sink_pb.WriteResponse()  # an iterator, as the contract has it


@dataclass
class FakeServices:
    """Four services, and how to reach them. Registry and scheduler are real ones that keep all in memory."""

    kinesis: FakeKinesis
    """Behind the registry."""
    registry: LocalConsumerRegistry
    drivers: KnownReaders
    """Readers inside drivers that are announced to the registry."""
    reader: FakeReader
    sink: FakeSink
    stages: LocalStageScheduler
    servers: dict[Kind, GrpcServer]
    """By what they serve."""

    def endpoints(self, **options: Any) -> tuple[Endpoint, ...]:
        """For `running_console`; options are fields of `Endpoint`, such as `ca_file` and `token_file`."""
        return tuple(Endpoint(kind=kind, address=server.address, **options) for kind, server in self.servers.items())

    async def acquire(self, stream: str, consumer: str, job_id: str) -> None:
        """Let a job hold a consumer."""
        await self.registry.acquire(AcquireRequest(stream_name=stream, consumer_name=consumer, job_id=job_id))


@asynccontextmanager
async def fake_services(
    streams: Sequence[str] = ("flights",), server: ServerSettings | None = None
) -> AsyncIterator[FakeServices]:
    """The services on free ports of this machine.

    Args:
        streams: that exist.
        server: what they demand, such as tokens.
    """
    settings = server or ServerSettings(drain_seconds=0)
    async with AsyncExitStack() as stack:
        kinesis = FakeKinesis(streams=tuple(streams))
        registry = LocalConsumerRegistry(StreamConsumerRegistrar(kinesis), InMemoryLeaseStore())
        stack.push_async_callback(registry.close)
        reader, sink, stages = FakeReader(), FakeSink(), LocalStageScheduler()
        stack.push_async_callback(stages.close)
        # It has the one call that the console makes.
        asks = cast("FleetMember", reader)
        servers: dict[Kind, GrpcServer] = {}
        drivers = KnownReaders()

        def add_registry(to: grpc.aio.Server) -> None:
            ConsumerRegistryServicer(registry).add_to(to)
            ReaderDirectoryServicer(drivers).add_to(to)

        for kind, register, names in (
            (Kind.REGISTRY, add_registry, [REGISTRY, READERS]),
            (Kind.READER, ShardReaderServicer(asks).add_to, [READER]),
            (Kind.SINK, lambda to: sink_grpc.add_SinkGatewayServiceServicer_to_server(sink, to), [_SINK]),
            (Kind.STAGES, StageSchedulerServicer(stages).add_to, [STAGES]),
        ):
            running = GrpcServer(settings, register=[register], service_names=names)
            servers[kind] = await stack.enter_async_context(running)
        yield FakeServices(kinesis, registry, drivers, reader, sink, stages, servers)


@asynccontextmanager
async def running_console(
    endpoints: Sequence[Endpoint] = (),
    *,
    server: ServerSettings | None = None,
    **options: Any,
) -> AsyncIterator[ConsoleServer]:
    """The console, in this process, on a free port; it asks five times a second.

    Args:
        endpoints: what it asks.
        server: what it demands.
        options: its other settings that a test needs, such as `streams`.
    """
    settings = ConsoleSettings(
        server=server or ServerSettings(drain_seconds=0.2),
        endpoints=tuple(endpoints),
        **{"interval_seconds": 0.2, **options},
    )
    async with console_server(settings) as running:
        yield running
