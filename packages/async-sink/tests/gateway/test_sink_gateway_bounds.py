"""What a gateway holds is bounded, whatever its clients do; over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest

from penstock.async_sink import (
    SERVICE_NAME,
    AsyncSinkBase,
    AsyncSinkConfig,
    CreditWindow,
    EntryFailure,
    KinesisRequestEntry,
    RemoteSink,
    SharedDestinations,
    SinkGatewayServicer,
)
from penstock.async_sink.errors import SinkError, SinkOptionError
from penstock.async_sink.testing import FakeDestination, FakeRequest, FakeWriter, wait_until
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc
from penstock.rpc import GrpcServer, ServerSettings, open_aio_channel

WINDOW = CreditWindow(entries=20, bytes=100_000, largest_batch_entries=20, largest_batch_bytes=1_000)
HELLO = pb.WriteRequest(hello=pb.Hello(kind="kinesis", destination="flights", client_id="c"))


class KinesisLikeWriter(FakeWriter):
    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        return len(entry.data) + len(entry.partition_key)


class FakeSink(AsyncSinkBase[Any, Any]):
    def __init__(self, fake: FakeDestination) -> None:
        self.fake = fake

    def create_writer(self) -> Any:
        config = AsyncSinkConfig(
            max_batch_size=20, max_time_in_buffer=timedelta(milliseconds=5), retry_backoff_base=timedelta(0)
        )
        return KinesisLikeWriter(self.fake, config)

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def running_gateway(
    fake: FakeDestination, **options: Any
) -> AsyncIterator[tuple[str, SinkGatewayServicer, SharedDestinations]]:
    destinations = SharedDestinations(lambda name: FakeSink(fake))
    servicer = SinkGatewayServicer(destinations, WINDOW, **options)
    server = GrpcServer(ServerSettings(drain_seconds=0.5), register=[servicer.add_to], service_names=[SERVICE_NAME])
    async with server:
        yield server.address, servicer, destinations
    await destinations.close(1.0)


class RawClient:
    """A client that keeps to no rule."""

    def __init__(self, address: str) -> None:
        self.channel = open_aio_channel(address)
        stub: Any = sink_gateway_pb2_grpc.SinkGatewayServiceStub(self.channel)
        self.call: Any = stub.Write()

    async def send(self, number: int, entries: int = 1) -> None:
        sent = [pb.Entry(data=b"%d" % number, partition_key="k")] * entries
        await self.call.write(pb.WriteRequest(batch=pb.Batch(batch_id=number, entries=sent)))

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close(None)


async def test_a_client_that_reads_no_answers_cannot_fill_the_gateway() -> None:
    """Unread answers count against its credits; its stream ends when it sends more than they allow."""
    words = "x" * 50_000

    def refuse(request: FakeRequest) -> None:
        places = range(len(request.entries))
        request.handler.retry_failures(
            [EntryFailure(place, "Refused", words, throttled=False, final=True) for place in places]
        )

    fake = FakeDestination(*[refuse] * 1_000)
    async with running_gateway(fake) as (address, servicer, _):
        client = RawClient(address)
        await client.call.write(HELLO)
        await wait_until(lambda: bool(servicer._sessions))
        (session,) = servicer._sessions
        sent = 0
        while session.error is None and sent < 600:
            await client.send(sent)
            sent += 1
            # One batch at a time: else it would exceed its credits before there is any answer to read.
            await wait_until(lambda: len(fake.requests) >= sent or session.error is not None)  # noqa: B023
        assert isinstance(session.error, SinkError)
        assert session.error.code == "GATEWAY_CREDITS"
        assert len(fake.requests) < 300
        # A word about the batch and one about its credits for each that the window has room for.
        assert len(session._answers) <= 2 * WINDOW.entries
        failures = 0
        with contextlib.suppress(grpc.aio.AioRpcError):
            while answer := await client.call.read():
                failures += answer.HasField("failure")
        assert failures == len(fake.requests)
        assert await client.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await client.close()


@asynccontextmanager
async def full_gateway(fake: FakeDestination) -> AsyncIterator[tuple[str, SinkGatewayServicer]]:
    """A gateway that has no credits for new clients: more than a window of others that are gone is not written."""
    fake.script = [fake.hold(fake.fail())] * 2
    async with running_gateway(fake, progress_interval=timedelta(milliseconds=5)) as (address, servicer, destinations):
        clients = [RawClient(address) for _ in range(2)]
        for client in clients:
            await client.call.write(HELLO)
            assert (await client.call.read()).credit.entries == 20
        for client in clients:
            await client.send(1, entries=20)
        await wait_until(lambda: len(fake.requests) == 2)
        for client in clients:
            await client.close()
        shared = await destinations.get("kinesis", "flights")
        await wait_until(lambda: shared.orphanage.entries == 40)
        yield address, servicer


async def test_a_client_without_credits_gets_signs_of_life() -> None:
    """It gets signs of life while earlier entries are written or throttled, and then the whole window."""
    fake = FakeDestination()
    async with full_gateway(fake) as (address, servicer):
        fake.script = [fake.hold()] * 2
        async with RemoteSink(address, destination="flights").create_writer() as writer:
            await writer.write_many([KinesisRequestEntry(b"x", "k")] * 60)
            flushing = asyncio.create_task(writer.flush(end_of_input=True))
            await wait_until(lambda: any(session.awaits_credit for session in servicer._sessions))
            for request in fake.requests[:2]:
                before = writer.metrics.signs_of_life
                request.answer.set()
                await wait_until(lambda before=before: writer.metrics.signs_of_life > before)  # type: ignore[misc]
            assert writer.metrics.requests == 0
            await wait_until(lambda: len(fake.requests) == 4)
            for request in fake.requests[2:]:
                request.answer.set()
            await asyncio.wait_for(flushing, 10)
            assert writer.metrics.requests == 3
    assert len(fake.accepted) == 100


async def test_a_batch_that_the_window_never_covers_is_an_error_that_says_what_to_do() -> None:
    """Instead of waiting for credits forever; the entries stay in the snapshot."""
    config = AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=5))
    async with running_gateway(FakeDestination()) as (address, _, _):
        writer = RemoteSink(address, destination="flights", config=config).create_writer()
        await writer.__aenter__()
        await writer.write_many([KinesisRequestEntry(b"x" * 60_000, "k")] * 2)
        with pytest.raises(SinkOptionError, match="--credit-bytes") as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.option == "max_batch_size_in_bytes"
        assert sum(len(state.entries) for state in writer.snapshot_state()) == 2
        await writer.close()
