import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import (
    ClientSecurity,
    GrpcServer,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    ServerStartError,
    abort_with,
    open_aio_channel,
    open_channel,
    typed_error,
)

SERVICE = "penstock.proto.stage_scheduler.v1.StageSchedulerService"


class JobNotFoundError(Exception):
    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id}")
        self.job_id = job_id


class Servicer(pb_grpc.StageSchedulerServiceServicer):
    async def GetJob(self, request: pb.GetJobRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetJobResponse:
        if request.job_id == "missing":
            await abort_with(context, JobNotFoundError(request.job_id), {JobNotFoundError: grpc.StatusCode.NOT_FOUND})
        if request.job_id == "defect":
            raise FileNotFoundError("/srv/kept-here")
        metadata = dict(context.invocation_metadata() or ())
        return pb.GetJobResponse(job=pb.Job(job_id=str(metadata.get("traceparent", "none"))))

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def ListJobs(
        self, request: pb.ListJobsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListJobsResponse:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return pb.ListJobsResponse()

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        for version in range(3):
            yield pb.WatchResponse(job=pb.Job(version=version))


def server(servicer: Servicer | None = None, **settings: Any) -> GrpcServer:
    own = servicer or Servicer()  # type: ignore[abstract]  # the other calls are not made
    return GrpcServer(
        ServerSettings(**settings),
        register=[lambda server: pb_grpc.add_StageSchedulerServiceServicer_to_server(own, server)],
        service_names=[SERVICE],
    )


@pytest.fixture
def authority(tmp_path: Path) -> SimpleNamespace:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    own, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("client")
    for name, leaf in (("server", own), ("client", client)):
        leaf.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    return SimpleNamespace(
        ca=tmp_path / "ca.pem",
        server={"certificate_file": tmp_path / "server.pem", "private_key_file": tmp_path / "server.key"},
        client={"certificate_file": tmp_path / "client.pem", "private_key_file": tmp_path / "client.key"},
    )


async def watch(address: str, security: ClientSecurity | None = None) -> list[int]:
    async with open_aio_channel(address, security) as channel:
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        return [answer.job.version async for answer in stub.Watch(pb.WatchRequest(job_id="a"))]


async def test_health_and_reflection_answer_while_the_server_is_open() -> None:
    """A server says SERVING for each service and lists them by reflection."""
    async with server() as running, open_aio_channel(running.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflection.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await call.read()
        call.cancel()
        assert SERVICE in {service.name for service in listed.list_services_response.service}


async def test_an_unforeseen_error_discloses_nothing_internal(caplog: pytest.LogCaptureFixture) -> None:
    """The log has it, with its traceback."""
    async with server() as running, open_aio_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await pb_grpc.StageSchedulerServiceStub(channel).GetJob(pb.GetJobRequest(job_id="defect"))
    assert told.value.code() is grpc.StatusCode.INTERNAL
    assert told.value.details() == "the service failed; its log says why"
    assert "kept-here" not in str(told.value.trailing_metadata())
    assert "/srv/kept-here" in caplog.text


async def test_a_wrong_or_missing_token_is_refused_for_every_kind_of_call() -> None:
    """Only the token opens the service; health stays open for probes."""
    async with server(security=ServerSecurity(token="a-secret-of-these-tests-with-32-characters")) as running:
        assert await watch(running.address, ClientSecurity(token="a-secret-of-these-tests-with-32-characters")) == [
            0,
            1,
            2,
        ]
        for security in (None, ClientSecurity(token="wrong" * 7)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await watch(running.address, security)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        async with open_aio_channel(running.address) as channel:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())


async def test_a_limited_token_is_good_for_its_methods_alone() -> None:
    """Beside the token that is good for all."""
    security = ServerSecurity(
        token="good-for-everything-with-32-characters",
        limited_token="good-for-few-things-with-32-characters",
        limited_to=frozenset({f"/{SERVICE}/GetJob"}),
    )
    async with server(security=security) as running:
        for token, codes in (
            ("good-for-everything-with-32-characters", (grpc.StatusCode.OK, grpc.StatusCode.OK)),
            ("good-for-few-things-with-32-characters", (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)),
            ("good-for-nothing-with-32-characters", (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAUTHENTICATED)),
        ):
            async with open_aio_channel(running.address, ClientSecurity(token=token)) as channel:
                stub = pb_grpc.StageSchedulerServiceStub(channel)
                one, many = stub.GetJob(pb.GetJobRequest(job_id="a")), stub.Watch(pb.WatchRequest(job_id="a"))
                with suppress(grpc.aio.AioRpcError):
                    await one
                with suppress(grpc.aio.AioRpcError):
                    assert len([answer async for answer in many]) == 3
                assert (await one.code(), await many.code()) == codes
    with pytest.raises(RpcOptionError, match="limited_token"):
        ServerSecurity(limited_token="good-for-few-things-with-32-characters")
    assert "good-for" not in repr(security)


async def test_mutual_tls_refuses_a_client_without_a_certificate(authority: SimpleNamespace) -> None:
    """With a client authority the server talks to its clients only."""
    security = ServerSecurity(**authority.server, client_ca_file=authority.ca)
    async with server(security=security) as running:
        known = ClientSecurity(ca_file=authority.ca, **authority.client)
        assert await watch(running.address, known) == [0, 1, 2]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watch(running.address, ClientSecurity(ca_file=authority.ca))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_typed_error_keeps_its_class_and_fields_over_the_wire() -> None:
    """The caller gets the servicer's error back, fields and all."""
    async with server() as running, open_aio_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pb_grpc.StageSchedulerServiceStub(channel).GetJob(pb.GetJobRequest(job_id="missing"))
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        error = typed_error(failed.value, [JobNotFoundError])
        assert isinstance(error, JobNotFoundError)
        assert error.job_id == "missing"
        assert typed_error(failed.value, [KeyError]) is None


async def test_a_blocking_channel_carries_the_token_and_streams() -> None:
    """The channel for synchronous callers does what the other does."""

    def call(address: str) -> list[int]:
        with open_channel(address, ClientSecurity(token="a-secret-of-these-tests-with-32-characters")) as channel:
            stub = pb_grpc.StageSchedulerServiceStub(channel)
            return [answer.job.version for answer in stub.Watch(pb.WatchRequest(job_id="a"))]

    async with server(security=ServerSecurity(token="a-secret-of-these-tests-with-32-characters")) as running:
        assert await asyncio.to_thread(call, running.address) == [0, 1, 2]


async def test_cancelling_a_task_cancels_its_call() -> None:
    """The server learns that the caller no longer waits, also below the tracing interceptor."""
    servicer = Servicer()  # type: ignore[abstract]  # the other calls are not made
    async with server(servicer) as running, open_aio_channel(running.address) as channel:
        stub = pb_grpc.StageSchedulerServiceStub(channel)

        async def call() -> None:
            await stub.ListJobs(pb.ListJobsRequest())

        task = asyncio.create_task(call())
        await servicer.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(servicer.cancelled.wait(), 10)


async def test_a_port_that_is_taken_is_a_typed_error() -> None:
    """Two servers never share a port without a word."""
    async with server() as running:
        with pytest.raises(ServerStartError, match=str(running.port)):
            async with server(port=running.port):
                pass


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: ServerSettings(host="0.0.0.0"), "host"),
        (
            lambda: ServerSettings(
                host="0.0.0.0", security=ServerSecurity(token="a-token-of-tests-with-32-characters")
            ),
            "host",
        ),
        (lambda: ServerSettings(host="0.0.0.0", security=ServerSecurity(allow_plain_text=True)), "host"),
        (lambda: ServerSettings(port=70000), "port"),
        (lambda: ServerSettings(drain_seconds=float("nan")), "drain_seconds"),
        (lambda: ServerSecurity(certificate_file=Path("a.pem")), "private_key_file"),
        (lambda: ServerSecurity(client_ca_file=Path("a.pem")), "client_ca_file"),
        (lambda: ServerSecurity(token=""), "token"),
        (lambda: ServerSecurity(token="t" * 31), "token"),
        (lambda: ClientSecurity(token="t" * 31), "token"),
        (lambda: ClientSecurity(token="t" * 32).check_endpoint("reader.example:50"), "token"),
        (lambda: ClientSecurity(ca_file=Path("none.pem")).channel_credentials(), "ca_file"),
    ],
)
def test_an_unsafe_or_incomplete_setting_names_its_option(make: Callable[[], object], option: str) -> None:
    """The error names the setting."""
    with pytest.raises(RpcOptionError) as error:
        make()
    assert error.value.option == option


def test_a_token_is_never_shown() -> None:
    """Secrets stay out of representations."""
    shown = repr(ServerSecurity(token="hush-hush-hush-hush-hush-hush-hush")) + repr(
        ClientSecurity(token="hush-hush-hush-hush-hush-hush-hush")
    )
    assert "hush-hush-hush-hush-hush-hush-hush" not in shown + json.dumps(
        str(ServerSettings(security=ServerSecurity(token="hush-hush-hush-hush-hush-hush-hush")))
    )


def test_files_that_hold_no_certificate_are_named_before_the_server_listens(tmp_path: Path) -> None:
    """gRPC would only say that it could not listen."""
    (tmp_path / "server.pem").write_text("not a certificate")
    (tmp_path / "server.key").write_text("not a key")
    security = ServerSecurity(certificate_file=tmp_path / "server.pem", private_key_file=tmp_path / "server.key")
    with pytest.raises(RpcOptionError, match=r"server\.pem") as raised:
        security.server_credentials()
    assert raised.value.option == "certificate_file"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_server_listens_on_an_address_of_ipv6(host: str) -> None:
    """With brackets and without; its address is as a client names it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with server(host=host) as running:
        assert running.address == f"[::1]:{running.port}"
        assert await watch(running.address) == [0, 1, 2]


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(tmp_path: Path) -> None:
    """A service that asked at its terminal would wait for ever, and gRPC takes no passphrase."""
    trustme.CA().issue_cert("localhost").cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    head = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF"
    kind = "RSA PRIVATE KEY"
    (tmp_path / "server.key").write_text(f"-----BEGIN {kind}-----\n{head}\n\n{'A' * 64}\n-----END {kind}-----\n")
    security = ServerSecurity(certificate_file=tmp_path / "server.pem", private_key_file=tmp_path / "server.key")
    with pytest.raises(RpcOptionError, match="passphrase"):
        security.check_files()


async def test_an_error_of_many_words_comes_whole() -> None:
    """Such as one that names all consumers of a stream, twice: more than gRPC itself lets metadata be."""
    many = " ".join(f"job-{number:0120}" for number in range(60))

    class Wordy(Servicer):
        async def GetJob(
            self, request: pb.GetJobRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> pb.GetJobResponse:
            await abort_with(context, JobNotFoundError(many), {JobNotFoundError: grpc.StatusCode.NOT_FOUND})

    wordy = Wordy()  # type: ignore[abstract]  # the other calls are not made
    async with server(wordy) as running, open_aio_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pb_grpc.StageSchedulerServiceStub(channel).GetJob(pb.GetJobRequest(job_id="a"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    error = typed_error(failed.value, [JobNotFoundError])
    assert isinstance(error, JobNotFoundError)
    assert error.job_id == many


class Flood(Servicer):
    """Answers until the client stops reading."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        try:
            while True:
                self.sent += 1
                yield pb.WatchResponse(job=pb.Job(job_id="x" * 1_000_000))
        finally:
            self.cancelled.set()


async def test_a_stream_that_is_cut_off_while_it_answers_leaves_its_trace_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with a client that was frozen: in another task it could not, and OpenTelemetry would complain of that."""
    flood = Flood()  # type: ignore[abstract]  # the other calls are not made
    async with server(flood) as running:
        channel = open_aio_channel(running.address)
        call = pb_grpc.StageSchedulerServiceStub(channel).Watch(pb.WatchRequest(job_id="a"))
        await call.read()
        # Until the connection takes no more.
        before = 0
        while before != flood.sent:
            before = flood.sent
            await asyncio.wait({asyncio.create_task(flood.cancelled.wait())}, timeout=0.3)
        call.cancel()
        await asyncio.wait_for(flood.cancelled.wait(), 10)
        await channel.close(None)
    assert "detach" not in caplog.text


async def test_a_stream_that_is_refused_while_it_is_written_ends_by_what_the_server_said() -> None:
    """gRPC puts INTERNAL in the place of the status when a write fails as the call ends."""
    told: Counter[tuple[grpc.StatusCode, str | None]] = Counter()

    async def write_on() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(64 * 1024)
            await asyncio.sleep(0)

    async with server(security=ServerSecurity(token="a-right-token-of-tests-with-32-characters")) as running:
        security = ClientSecurity(token="wrong" * 7)
        async with open_aio_channel(running.address, security) as channel:
            write = channel.stream_stream("/penstock.Any/Write", None, None)
            for _ in range(30):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in write(write_on()):
                        pass
                told[caught.value.code(), caught.value.details()] += 1
    assert told == {(grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong"): 30}


async def test_a_stream_that_the_server_closes_during_a_write_raises_no_error() -> None:
    """Such as one that drains: the status that was lost is OK."""

    async def write_on() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(64 * 1024)
            await asyncio.sleep(0)

    async def end_at_once(
        _requests: AsyncIterator[bytes], _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        yield b"over"

    def register(running: Any) -> None:
        handler = grpc.stream_stream_rpc_method_handler(end_at_once)
        running.add_registered_method_handlers("penstock.Any", {"Write": handler})
        running.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.Any", {"Write": handler}),))

    async with (
        GrpcServer(ServerSettings(), register=[register], service_names=["penstock.Any"]) as running,
        open_aio_channel(running.address) as channel,
    ):
        write = channel.stream_stream("/penstock.Any/Write", None, None)
        for _ in range(100):
            assert [answer async for answer in write(write_on())] == [b"over"]
