import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.async_sink import (
    SERVICE_NAME,
    AsyncSinkBase,
    AsyncSinkConfig,
    CreditWindow,
    KinesisRequestEntry,
    RemoteSink,
    SharedDestinations,
    SinkGatewayServicer,
)
from penstock.async_sink.errors import DestinationError, GatewayError, RecordsRejectedError
from penstock.async_sink.testing import FakeDestination, FakeWriter, wait_until
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc
from penstock.rpc import ClientSecurity, GrpcServer, ServerSecurity, ServerSettings, open_aio_channel


class KinesisLikeWriter(FakeWriter):
    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        return len(entry.data) + len(entry.partition_key)


class FakeSink(AsyncSinkBase[Any, Any]):
    def __init__(self, fake: FakeDestination, config: AsyncSinkConfig) -> None:
        self.fake = fake
        self.config = config
        self.writers: list[KinesisLikeWriter] = []

    @property
    def made(self) -> int:
        return len(self.writers)

    def create_writer(self) -> Any:
        self.writers.append(KinesisLikeWriter(self.fake, self.config))
        return self.writers[-1]

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


class Gateway:
    def __init__(self, server: GrpcServer, servicer: SinkGatewayServicer, sinks: dict[str, FakeSink]) -> None:
        self.address = server.address
        self.servicer = servicer
        self.sinks = sinks


@asynccontextmanager
async def running_gateway(
    fake: FakeDestination,
    *,
    window: CreditWindow | None = None,
    settings: ServerSettings | None = None,
    progress_interval: timedelta = timedelta(seconds=1),
    **config: Any,
) -> AsyncIterator[Gateway]:
    config = {"max_time_in_buffer": timedelta(milliseconds=5), "retry_backoff_base": timedelta(0), **config}
    sinks: dict[str, FakeSink] = {}

    def make(name: str) -> FakeSink:
        return sinks.setdefault(name, FakeSink(fake, AsyncSinkConfig(**config)))

    destinations = SharedDestinations(make)
    servicer = SinkGatewayServicer(destinations, window, progress_interval=progress_interval)
    server = GrpcServer(
        settings or ServerSettings(drain_seconds=0.5), register=[servicer.add_to], service_names=[SERVICE_NAME]
    )
    async with server:
        yield Gateway(server, servicer, sinks)
    await destinations.close(1.0)


def remote(gateway: Gateway, destination: str = "flights", **options: Any) -> RemoteSink:
    config = AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=5), **options.pop("config", {}))
    return RemoteSink(gateway.address, destination=destination, config=config, **options)


def entry(number: int, key: str = "k") -> KinesisRequestEntry:
    return KinesisRequestEntry(str(number).encode(), key)


def numbers(fake: FakeDestination) -> list[int]:
    return [int(each.data) for each in fake.accepted]


async def test_all_clients_of_a_destination_share_one_writer() -> None:
    """One writer, and so one rate limit, per destination, whoever writes to it."""
    fake = FakeDestination()
    async with running_gateway(fake) as gateway:
        async with (
            remote(gateway).create_writer() as first,
            remote(gateway).create_writer() as second,
            remote(gateway, "delays").create_writer() as third,
        ):
            for writer in (first, second, third):
                await writer.write(entry(1))
                await writer.flush(end_of_input=True)
            channel = open_aio_channel(gateway.address)
            stub: Any = sink_gateway_pb2_grpc.SinkGatewayServiceStub(channel)
            stats = await stub.Stats(pb.StatsRequest())
            await channel.close(None)
        assert {name: sink.made for name, sink in gateway.sinks.items()} == {"flights": 1, "delays": 1}
    assert [(each.kind, each.destination, each.clients, each.records_out) for each in stats.destinations] == [
        ("kinesis", "delays", 1, 1),
        ("kinesis", "flights", 2, 2),
    ]


async def test_the_gateway_logs_and_shows_what_holds_an_entry(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that the destination keeps refusing, at fifty times the normal speed."""
    monkeypatch.setattr("penstock.async_sink._core.pump.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("penstock.async_sink._core.held.FIRST_SECONDS", 0.1)
    fake = FakeDestination()
    fake.script = [fake.fail(code="InternalFailure")] * 1_000
    pause: dict[str, Any] = {"retry_backoff_base": timedelta(milliseconds=10)}
    async with running_gateway(fake, **pause) as gateway, remote(gateway).create_writer() as writer:
        await writer.write(entry(1))
        flushing = asyncio.create_task(writer.flush(end_of_input=True))
        await wait_until(lambda: "flights" in gateway.sinks)
        (shared,) = gateway.sinks["flights"].writers
        await wait_until(lambda: shared.gauges().held_seconds > 0)
        channel = open_aio_channel(gateway.address)
        stub: Any = sink_gateway_pb2_grpc.SinkGatewayServiceStub(channel)
        (stats,) = (await stub.Stats(pb.StatsRequest())).destinations
        assert stats.held_seconds >= 0.1
        assert stats.held_reason in {"answer", "back_off", "batch"}
        assert (stats.held_attempts > 1, stats.held_error_code) == (True, "InternalFailure")
        assert {record.args[0] for record in caplog.records if isinstance(record.args, tuple)} >= {"KinesisLikeWriter"}
        fake.script.clear()
        await flushing
        (stats,) = (await stub.Stats(pb.StatsRequest())).destinations
        assert (stats.held_seconds, stats.held_reason) == (0.0, "")
        await channel.close(None)


async def test_a_batch_is_acknowledged_when_all_of_it_is_written_and_not_before() -> None:
    """The client's flush waits for the destination behind the gateway."""
    fake = FakeDestination()
    fake.script = [fake.hold()]
    async with running_gateway(fake) as gateway, remote(gateway).create_writer() as writer:
        await writer.write(entry(1))
        flushing = asyncio.create_task(writer.flush(end_of_input=True))
        await wait_until(lambda: bool(fake.requests))
        assert not flushing.done()
        assert writer.metrics.records_out == 0
        fake.requests[0].answer.set()
        await flushing
        assert writer.metrics.records_out == 1


async def test_the_client_learns_the_gateways_retries() -> None:
    """The acknowledgement counts the submissions beyond the first."""
    fake = FakeDestination()
    fake.script = [fake.fail(0, 1), fake.fail(0)]
    async with running_gateway(fake) as gateway, remote(gateway).create_writer() as writer:
        await writer.write_many(entry(number) for number in range(5))
        await writer.flush(end_of_input=True)
        assert writer.metrics.retried == 3


async def test_permanently_failed_entries_are_named_by_record_number() -> None:
    """The others are written; the error names the client's records with the destination's messages."""
    fake = FakeDestination()
    fake.script = [fake.fail(1, 3, code="Poison")]
    async with running_gateway(fake, max_attempts=1) as gateway, remote(gateway).create_writer() as writer:
        await writer.write_many(entry(number) for number in range(5))
        with pytest.raises(RecordsRejectedError) as caught:
            await writer.flush(end_of_input=True)
        assert [record.record_number for record in caught.value.records] == [1, 3]
        assert caught.value.records[0].error_code == "Poison"
        assert numbers(fake) == [0, 2, 4]
        async with remote(gateway).create_writer() as another:
            await another.write(entry(9))
    assert numbers(fake) == [0, 2, 4, 9]


@pytest.mark.parametrize(
    ("code", "status"), [("ResourceNotFoundException", "NOT_FOUND"), ("AccessDeniedException", "PERMISSION_DENIED")]
)
async def test_a_permanent_refusal_ends_the_clients_with_the_destinations_error(code: str, status: str) -> None:
    """The client gets the destination's typed error over the status of the contract; the next client may try again."""
    fake = FakeDestination()
    fake.script = [fake.explode(DestinationError("flights", code, "no"))]
    async with running_gateway(fake) as gateway:
        async with remote(gateway).create_writer() as writer:
            await writer.write(entry(1))
            with pytest.raises(DestinationError) as caught:
                await writer.flush(end_of_input=True)
            assert caught.value.code == code
            assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)
            assert caught.value.__cause__.code().name == status
        async with remote(gateway).create_writer() as writer:
            await writer.write(entry(2))
    assert numbers(fake) == [2]


async def test_a_client_sends_no_more_than_its_credits_allow() -> None:
    """If the destination does not answer, the client stops after its window."""
    fake = FakeDestination()
    fake.script = [fake.hold() for _ in range(100)]
    window = CreditWindow(entries=60, bytes=10_000, largest_batch_entries=20, largest_batch_bytes=1_000)
    options: dict[str, Any] = {"max_batch_size": 20, "max_buffered_requests": 1_000}
    async with (
        running_gateway(fake, window=window, **options) as gateway,
        remote(gateway, config=options).create_writer() as writer,
    ):
        await writer.write_many(entry(number) for number in range(200))
        await wait_until(lambda: sum(map(len, fake.batches)) >= 60)
        await asyncio.sleep(0.05)
        assert sum(map(len, fake.batches)) == 60
        assert writer.in_flight_messages == 60
        fake.script.clear()
        for request in fake.requests:
            request.answer.set()
    assert numbers(fake) == list(range(200))


async def exchange(gateway: Gateway, *requests: pb.WriteRequest) -> grpc.StatusCode:
    channel = open_aio_channel(gateway.address)
    stub: Any = sink_gateway_pb2_grpc.SinkGatewayServiceStub(channel)

    async def send() -> AsyncIterator[pb.WriteRequest]:
        for request in requests:
            yield request

    try:
        async for _ in stub.Write(send()):
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await channel.close(None)
    return grpc.StatusCode.OK


HELLO = pb.WriteRequest(hello=pb.Hello(kind="kinesis", destination="flights"))


def batch(*entries: pb.Entry) -> pb.WriteRequest:
    return pb.WriteRequest(batch=pb.Batch(entries=entries))


@pytest.mark.parametrize(
    ("requests", "status"),
    [
        ([HELLO, batch(pb.Entry(data=b"1", partition_key="k"))], "OK"),
        ([], "OK"),
        ([batch(pb.Entry(data=b"1", partition_key="k"))], "INVALID_ARGUMENT"),
        ([HELLO, HELLO], "INVALID_ARGUMENT"),
        ([pb.WriteRequest(hello=pb.Hello(kind="kafka", destination="x"))], "INVALID_ARGUMENT"),
        ([HELLO, batch()], "INVALID_ARGUMENT"),
        ([HELLO, batch(pb.Entry(data=b"1"))], "INVALID_ARGUMENT"),
        ([HELLO, batch(pb.Entry(data=b"1" * 2**20, partition_key="k"))], "OK"),
        ([HELLO, batch(*[pb.Entry(data=b"1", partition_key="k")] * 5_001)], "RESOURCE_EXHAUSTED"),
    ],
)
async def test_a_breach_of_the_contract_has_the_status_of_the_contract(
    requests: list[pb.WriteRequest], status: str
) -> None:
    """Statuses are those that the contract's comments promise."""
    async with running_gateway(FakeDestination()) as gateway:
        assert (await exchange(gateway, *requests)).name == status


async def test_draining_acknowledges_what_was_accepted_and_sends_the_client_away() -> None:
    """drain waits for the batch in flight; the client's later entries go to the gateway's successor."""
    fake = FakeDestination()
    fake.script = [fake.hold()]
    async with running_gateway(fake) as gateway:
        writer = remote(gateway, reconnect_timeout=timedelta(0)).create_writer()
        async with writer:
            await writer.write(entry(1))
            await wait_until(lambda: bool(fake.requests))
            draining = asyncio.create_task(gateway.servicer.drain(10.0))
            await asyncio.sleep(0.05)
            assert not draining.done()
            fake.requests[0].answer.set()
            await draining
            await wait_until(lambda: writer.failure is not None)
            assert writer.metrics.records_out == 1
            with pytest.raises(GatewayError, match="draining"):
                await writer.write(entry(2))


async def test_a_client_survives_a_restart_of_the_gateway() -> None:
    """Unacknowledged entries are sent again to the gateway that restarts at the same address."""
    fake = FakeDestination()
    fake.script = [fake.hold()]
    async with running_gateway(fake) as gateway:
        port = int(gateway.address.rpartition(":")[2])
        writer = remote(gateway).create_writer()
        await writer.__aenter__()
        await writer.write(entry(1))
        await wait_until(lambda: bool(fake.requests))
    successor = FakeDestination()
    async with running_gateway(successor, settings=ServerSettings(port=port, drain_seconds=0.5)):
        await writer.flush(end_of_input=True)
        await writer.close()
    assert numbers(successor) == [1]


async def test_a_wrong_token_fails_at_once() -> None:
    """The client does not retry."""
    settings = ServerSettings(
        security=ServerSecurity(token="a-right-token-of-tests-with-32-characters"), drain_seconds=0.5
    )
    async with running_gateway(FakeDestination(), settings=settings) as gateway:
        sink = RemoteSink(
            gateway.address, ClientSecurity(token="a-wrong-token-of-tests-with-32-characters"), destination="flights"
        )
        async with sink.create_writer() as writer:
            await writer.write(entry(1))
            with pytest.raises(GatewayError) as caught:
                await writer.flush(end_of_input=True)
        assert caught.value.code == "UNAUTHENTICATED"


async def test_a_token_file_that_is_replaced_late_ends_no_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway's file is ahead of the client's: refusals are logged, and the next token is sent."""
    old, new = "the-old-token-of-tests-with-32-characters", "the-new-token-of-tests-with-32-characters"
    token_file = tmp_path / "token"
    token_file.write_text(old)
    settings = ServerSettings(security=ServerSecurity(token=new), drain_seconds=0.5)
    fake = FakeDestination()
    async with running_gateway(fake, settings=settings) as gateway:
        sink = RemoteSink(gateway.address, ClientSecurity(token_file=token_file), destination="flights")
        async with sink.create_writer() as writer:
            await writer.write(entry(1))
            flushing = asyncio.create_task(writer.flush(end_of_input=True))
            await wait_until(lambda: any("refuses the token" in record.message for record in caplog.records))
            assert writer.failure is None
            token_file.write_text(f"{new}\n")
            await flushing
    assert numbers(fake) == [1]


async def test_a_token_file_that_is_never_replaced_ends_the_writer(tmp_path: Path) -> None:
    """After `reconnect_timeout`, with the gateway's code."""
    token_file = tmp_path / "token"
    token_file.write_text("a-wrong-token-of-tests-with-32-characters")
    right = ServerSecurity(token="a-right-token-of-tests-with-32-characters")
    async with running_gateway(FakeDestination(), settings=ServerSettings(security=right)) as gateway:
        sink = RemoteSink(
            gateway.address,
            ClientSecurity(token_file=token_file),
            destination="flights",
            reconnect_timeout=timedelta(seconds=0.2),
        )
        async with sink.create_writer() as writer:
            await writer.write(entry(1))
            with pytest.raises(GatewayError) as caught:
                await writer.flush(end_of_input=True)
        assert caught.value.code == "UNAUTHENTICATED"


async def test_a_client_that_vanishes_leaves_nothing_behind() -> None:
    """The gateway no longer counts it, and writes the entries that it had accepted."""
    fake = FakeDestination()
    fake.script = [fake.hold()]
    async with running_gateway(fake) as gateway:
        writer = remote(gateway).create_writer()
        await writer.__aenter__()
        await writer.write(entry(1))
        await wait_until(lambda: bool(fake.requests))
        await asyncio.wait_for(writer.close(), 10)
        fake.requests[0].answer.set()
        await wait_until(lambda: bool(fake.accepted))
        assert await exchange(gateway, HELLO) is grpc.StatusCode.OK


@pytest.mark.parametrize("answer", ["accept", "throttle"])
async def test_a_client_gets_signs_of_life_before_its_batch_is_answered(answer: str) -> None:
    """Its batch is as large as ten requests of the gateway, and the destination takes or throttles them one by one."""
    fake = FakeDestination()
    take = fake.accept if answer == "accept" else fake.fail()
    fake.script = [fake.hold(take) for _ in range(3)] + [fake.hold()] * 100
    async with (
        running_gateway(
            fake, progress_interval=timedelta(milliseconds=5), max_batch_size=10, max_in_flight_requests=1
        ) as gateway,
        remote(gateway).create_writer() as writer,
    ):
        await writer.write_many(entry(number) for number in range(100))
        flushing = asyncio.create_task(writer.flush(end_of_input=True))
        for number in range(3):
            before = writer.metrics.signs_of_life
            await wait_until(lambda number=number: len(fake.requests) > number)  # type: ignore[misc]
            fake.requests[number].answer.set()
            await wait_until(lambda before=before: writer.metrics.signs_of_life > before)  # type: ignore[misc]
        assert not flushing.done()
        assert writer.metrics.records_out == 0
        assert writer.metrics.signs_of_life >= 3
        fake.script = []
        for request in fake.requests:
            request.answer.set()
        await flushing
        assert writer.metrics.records_out == 100
