"""Lists of many entries with the longest names that the contracts allow: each list call answers, also after a restart.

The servers send no message of more than 560 KiB.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from penstock.async_sink import SERVICE_NAME as SINK
from penstock.async_sink import SinkGatewayServicer
from penstock.efo_consumer import SERVICE_NAME as READER
from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    RecordPublisherType,
    RemoteShardReader,
    ShardReaderServicer,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.operator_attributes import SERVICE_NAME as STAGES
from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    JobStatus,
    LocalStageScheduler,
    RemoteStageScheduler,
    SqliteJobStore,
    StageSchedulerServicer,
)
from penstock.proto.reader_directory.v1 import reader_directory_pb2 as readers_pb
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as reader_pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink_pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc as sink_grpc
from penstock.registration import (
    READERS_SERVICE_NAME,
    SERVICE_NAME,
    AcquireRequest,
    AnnouncedReader,
    ConsumerRegistryServicer,
    LocalConsumerRegistry,
    OrphanFate,
    ReaderDirectoryServicer,
    RemoteConsumerRegistry,
    RemoteReaderDirectory,
    SqliteLeaseStore,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import FakeKinesis as FakeConsumers
from penstock.registration.testing import ManualClock
from penstock.rpc import GrpcServer, ServerSettings, all_pages, open_aio_channel

SETTINGS = ServerSettings(drain_seconds=0, max_message_bytes=560 * 1024)


def long(number: int, most: int = 1_024) -> str:
    """A name of the most bytes that are allowed."""
    return f"{number:05d}-".ljust(most, "x")


async def serve(stack: AsyncExitStack, servicer: Any, name: str) -> GrpcServer:
    register = [servicer.add_to]
    return await stack.enter_async_context(GrpcServer(SETTINGS, register=register, service_names=[name]))


async def test_the_registry_lists_all_consumers_and_collects_all_orphans(tmp_path: Path) -> None:
    """With jobs of the longest names, before and after a restart."""
    kinesis = FakeConsumers(streams=tuple(long(number, 128) for number in range(25)), looks=0, limit=500)
    clock = ManualClock()

    async def registry(stack: AsyncExitStack) -> RemoteConsumerRegistry:
        registrar = StreamConsumerRegistrar(kinesis, sleep=clock.sleep, clock=clock)
        store = SqliteLeaseStore(tmp_path / "leases.db")
        local = LocalConsumerRegistry(registrar, store, clock=clock, wall_clock=clock, sleep=clock.sleep)
        stack.push_async_callback(local.close)
        server = await serve(stack, ConsumerRegistryServicer(local), SERVICE_NAME)
        return await stack.enter_async_context(RemoteConsumerRegistry(server.address))

    async with AsyncExitStack() as stack:
        remote = await registry(stack)
        asked = [
            AcquireRequest(stream_name=stream, consumer_name=long(number, 128), job_id=long(number))
            for stream in kinesis.streams
            for number in range(20)
        ]
        await asyncio.gather(*map(remote.acquire, asked))
        before = await remote.list_consumers()
        assert len(before) == 500
    async with AsyncExitStack() as stack:
        remote = await registry(stack)
        kinesis.calls.clear()
        after = await remote.list_consumers(with_state=True)
        # A stream can be on two pages.
        assert len(kinesis.calls) <= 2 * (len(kinesis.streams) + 1)
        assert [one.consumer_arn for one in after] == [one.consumer_arn for one in before]
        assert {one.lease.job_id for one in after if one.lease} == {long(number) for number in range(20)}
        orphans = await remote.collect_garbage(dry_run=True)
        assert [one.consumer.consumer_arn for one in orphans] == [one.consumer_arn for one in before]
        assert {one.fate for one in orphans} == {OrphanFate.KEPT}


async def test_the_directory_lists_all_readers() -> None:
    """Announced with the longest texts and the most streams."""
    async with AsyncExitStack() as stack:
        server = await serve(stack, ReaderDirectoryServicer(), READERS_SERVICE_NAME)
        directory = await stack.enter_async_context(RemoteReaderDirectory(server.address))
        streams = tuple(long(number, 128) for number in range(900))
        for number in range(40):
            texts: dict[str, Any] = {"query": long(0), "owner": long(0), "condition": long(0), "view_token": long(0)}
            await directory.announce(
                AnnouncedReader(job_id=long(number), reader_id=long(0), address="h:1", stream_names=streams, **texts)
            )
        assert [one.job_id for one in await directory.readers()] == [long(number) for number in range(40)]


async def test_the_reader_lists_all_sessions_and_all_of_their_shards() -> None:
    """A session with many shards continues on the next pages."""
    kinesis = FakeKinesis()
    stream = long(0, 128)
    kinesis.create_stream(stream, 2_000)
    kinesis.create_stream("small")
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(LocalShardReader(kinesis))
        server = await serve(stack, ShardReaderServicer(local), READER)
        remote = RemoteShardReader(server.address)
        stack.push_async_callback(remote.aclose)
        polling = RecordPublisherType.POLLING
        positions = kinesis.trim_horizon(stream)
        await local.open(OpenRequest(session_id=long(0), positions=positions, record_publisher=polling))
        small = kinesis.trim_horizon("small")
        for number in range(1, 300):
            await local.open(OpenRequest(session_id=long(number), positions=small, record_publisher=polling))
        sessions = await remote.sessions(with_shards=True)
        assert [one.session_id for one in sessions] == [long(number) for number in range(300)]
        assert [one.shard_id for one in sessions[0].shards] == sorted(positions.streams[stream])
        assert len(await remote.stats(long(0))) == 2_000


async def test_the_scheduler_lists_all_jobs_and_all_of_their_stages(tmp_path: Path) -> None:
    """With the largest graphs that the contract allows, before and after a restart."""
    names = [long(number) for number in range(3)]
    many, wide = JobGraph("many"), JobGraph("wide")
    sources = [long(number) for number in range(200)]
    for number, source in enumerate(sources):
        many.add_source(source, boundedness=Boundedness.BOUNDED)
        many.add_sink(f"sink {number}", source)
        wide.add_source(source, boundedness=Boundedness.BOUNDED)
    wide.add_sink("sink", *sources)

    async def listed() -> tuple[JobStatus, ...]:
        async with AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(LocalStageScheduler(store=SqliteJobStore(tmp_path / "s.db")))
            server = await serve(stack, StageSchedulerServicer(scheduler), STAGES)
            remote = await stack.enter_async_context(RemoteStageScheduler(server.address))
            if not await remote.list_jobs():
                for name, graph in zip(names, (many, wide, many), strict=True):
                    await remote.submit(name, graph)
            return await remote.list_jobs()

    for jobs in (await listed(), await listed()):
        assert [one.job_id for one in jobs] == names
        assert [len(one.stages) for one in jobs] == [200, 1, 200]
        assert {vertex for stage in jobs[2].stages for vertex in stage.vertices} > set(sources)


async def test_the_gateway_gives_the_numbers_of_all_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the longest names."""
    stats = [sink_pb.DestinationStats(kind="sqs", destination=long(number, 2_048)) for number in range(1_000)]
    monkeypatch.setattr("penstock.async_sink._gateway.servicer._stats", lambda one: one)
    async with AsyncExitStack() as stack:
        server = await serve(stack, SinkGatewayServicer(SimpleNamespace(all=lambda: stats)), SINK)  # type: ignore[arg-type]  # as much as is asked
        channel = await stack.enter_async_context(open_aio_channel(server.address))
        stub, request = sink_grpc.SinkGatewayServiceStub(channel), sink_pb.StatsRequest()
        answer = await all_pages(lambda: stub.Stats(request), request)
        assert [one.destination for one in answer.destinations] == [one.destination for one in stats]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Stats(sink_pb.StatsRequest(page_token="a"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (f"/{READER}/ListSessions", reader_pb.ListSessionsRequest(page_token="_w")),
        (f"/{READERS_SERVICE_NAME}/ListReaders", readers_pb.ListReadersRequest(page_token="YQ")),
    ],
)
async def test_a_token_of_no_service_is_refused(path: str, request_: Any) -> None:
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(LocalShardReader(FakeKinesis()))
        servicers = [ShardReaderServicer(local), ReaderDirectoryServicer()]
        register = [one.add_to for one in servicers]
        names = [READER, READERS_SERVICE_NAME]
        server = await stack.enter_async_context(GrpcServer(SETTINGS, register=register, service_names=names))
        channel = await stack.enter_async_context(open_aio_channel(server.address))
        call: Any = channel.unary_unary(path, type(request_).SerializeToString, bytes)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request_)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
