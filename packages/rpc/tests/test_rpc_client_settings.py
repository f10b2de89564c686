"""Commands say what keeps them from a service, and what to do, in one line."""

import argparse
import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import (
    ClientSecurity,
    ClientSettings,
    GrpcServer,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    abort_with,
    explain_failure,
    failed_call,
    open_aio_channel,
    read_path,
)

PREFIX = "PENSTOCK_FLIGHTS"


class AwayError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Servicer(pb_grpc.StageSchedulerServiceServicer):
    async def GetJob(self, request: pb.GetJobRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetJobResponse:
        raise await abort_with(context, AwayError("Connection refused"), {AwayError: grpc.StatusCode.UNAVAILABLE})


def server(security: ServerSecurity | None = None) -> GrpcServer:
    servicer = Servicer()  # type: ignore[abstract]  # the other calls are not made
    return GrpcServer(
        ServerSettings(security=security or ServerSecurity()),
        register=[lambda server: pb_grpc.add_StageSchedulerServiceServicer_to_server(servicer, server)],
        service_names=[],
    )


def settings(*flags: str, **environment: str) -> ClientSettings:
    parser = argparse.ArgumentParser()
    ClientSettings.add_arguments(parser, PREFIX)
    return ClientSettings.from_arguments(parser.parse_args(flags), PREFIX, environment)


async def told(*flags: str, method: str = "ListJobs", **environment: str) -> tuple[str, bool] | None:
    """What is said of a call by a client of these flags."""
    client = settings(*flags, **environment)
    async with open_aio_channel(client.endpoint, client.security) as channel:
        try:
            call = getattr(pb_grpc.StageSchedulerServiceStub(channel), method)
            await call(getattr(pb, f"{method}Request")(), timeout=5)
        except grpc.RpcError as error:
            wrapped = RuntimeError("as packages wrap it")
            wrapped.__cause__ = error
            failed = failed_call(wrapped)
    assert failed is not None
    return explain_failure(failed, client, prefix=PREFIX, command="penstock-flights serve")


def has(said: tuple[str, bool] | None, *details: str, away: bool) -> bool:
    return said is not None and said[1] is away and all(word in said[0] for word in details)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """PEM files of a server, and of two authorities."""
    ca = trustme.CA()
    own, other = ca.issue_cert("127.0.0.1"), ca.issue_cert("elsewhere.test")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")
    for name, leaf in (("server", own), ("other", other)):
        leaf.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    return tmp_path


def of(files: Path, name: str, **more: Any) -> ServerSecurity:
    return ServerSecurity(certificate_file=files / f"{name}.pem", private_key_file=files / f"{name}.key", **more)


async def test_a_missing_service_is_reported_with_the_command_that_starts_it() -> None:
    """No server listens; the host is unknown; another program or another service listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        said = await told("--endpoint", f"127.0.0.1:{taken.getsockname()[1]}")
    assert has(said, "no server listens", "`penstock-flights serve`", "PENSTOCK_FLIGHTS_ENDPOINT", away=True)
    assert has(await told("--endpoint", "unix:/nowhere/socket"), "no server listens", away=True)
    assert has(await told("--endpoint", "nowhere.invalid:1"), "no such host", "check DNS", away=True)
    async with server() as running:
        said = await told("--endpoint", running.address)
        assert has(said, "another service than penstock-flights serve", "correct the port", away=True)
        # The service itself says who is away: its own details are given.
        assert await told("--endpoint", running.address, method="GetJob") is None

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(web, "127.0.0.1", 0)
    async with other:
        host, port = other.sockets[0].getsockname()
        assert has(await told("--endpoint", f"{host}:{port}"), "something else listens", away=True)


async def test_tls_on_one_side_only_is_reported_with_the_flag_to_change(files: Path) -> None:
    """Also an authority or a name that does not fit, and mutual TLS without a certificate."""
    async with server() as plain:
        said = await told("--endpoint", plain.address, "--ca-file", str(files / "ca.pem"))
        assert has(said, "does not speak TLS", "leave --tls and --ca-file out", "PENSTOCK_FLIGHTS_CA_FILE", away=True)
    async with server(of(files, "server")) as tls:
        assert has(await told("--endpoint", tls.address), "ends the connection", "--ca-file", "--tls", away=True)
        said = await told("--endpoint", tls.address, "--ca-file", str(files / "stranger.pem"))
        assert has(said, "not trusted", "--ca-file", away=True)
    async with server(of(files, "other")) as misnamed:
        said = await told("--endpoint", misnamed.address, "--ca-file", str(files / "ca.pem"))
        assert has(said, "of another name", away=True)
    async with server(of(files, "server", client_ca_file=files / "ca.pem")) as mutual:
        said = await told("--endpoint", mutual.address, "--ca-file", str(files / "ca.pem"))
        assert has(said, "mutual TLS", "--certificate-file", away=True)


async def test_a_missing_or_wrong_token_is_reported_and_never_shown() -> None:
    """The service is there: it says no."""
    async with server(ServerSecurity(token="a-secret-of-these-tests-with-32-characters")) as running:
        assert has(await told("--endpoint", running.address), "missing", "--token-file", away=False)
        said = await told("--endpoint", running.address, PENSTOCK_FLIGHTS_TOKEN="guessed" * 5)
        assert has(said, "wrong or expired", "PENSTOCK_FLIGHTS_TOKEN", away=False)
        assert "guessed" not in str(said)


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "host:", ":1", "host:99999", "host:0", "host:a", "http://host:1", "unix:"]
)
def test_an_endpoint_that_is_none_is_refused_before_grpc_makes_something_of_it(endpoint: str) -> None:
    """It takes port 99999 for another one, and waits for hosts that are none."""
    with pytest.raises(RpcOptionError, match=f"{endpoint!r} is not a HOST:PORT"):
        settings("--endpoint", endpoint)
    with pytest.raises(RpcOptionError, match="give --endpoint HOST:PORT, or set PENSTOCK_FLIGHTS_ENDPOINT"):
        settings()
    assert settings("--endpoint", "[::1]:50051").endpoint == "[::1]:50051"
    assert settings("--endpoint", "dns:///host:1").endpoint == "dns:///host:1"


@pytest.mark.parametrize(("text", "uses_tls"), [("true", True), ("True", True), ("false", False), ("", False)])
def test_tls_is_turned_on_by_a_variable_too(monkeypatch: pytest.MonkeyPatch, text: str, uses_tls: bool) -> None:
    """As by the flag, which goes before it."""
    monkeypatch.setenv(f"{PREFIX}_TLS", text)
    assert settings("--endpoint", "host:1").security.uses_tls is uses_tls
    assert settings("--endpoint", "host:1", "--tls").security.uses_tls


@pytest.mark.parametrize("text", ["yes", "1", "tru"])
def test_a_variable_that_is_neither_true_nor_false_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """It is refused, before a token goes anywhere; the help names it."""
    monkeypatch.setenv(f"{PREFIX}_TLS", text)
    with pytest.raises(RpcOptionError, match=f"'{text}' is neither true nor false") as refused:
        settings("--endpoint", "host:1")
    assert refused.value.option == "tls"
    parser = argparse.ArgumentParser()
    ClientSettings.add_arguments(parser, PREFIX)
    assert f"[{PREFIX}_TLS=true]" in parser.format_help()


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("sqlite:///var/lib/a%20b.db", "write /var/lib/a b.db"),
        ("sqlite:////var/lib/a.db", "write /var/lib/a.db"),
        ("sqlite:a.db", "write a.db"),
        ("file:///a.db", "write /a.db"),
        ("sqlite://", "give the path of a file"),
        ("postgres://user:planted-secret@host/a", "give the path of a file"),
    ],
)
def test_a_url_in_place_of_a_path_is_refused(text: str, cure: str) -> None:
    """It would be a path below the working folder, and its password stays where it is."""
    with pytest.raises(RpcOptionError, match=cure) as refused:
        read_path("store", text)
    assert refused.value.option == "store"
    assert "planted-secret" not in str(refused.value)
    for path in ("a.db", "./sqlite:a.db", "/var/lib/a:b.db"):
        assert read_path("store", path) == Path(path)


async def test_an_authority_needs_no_file_and_a_certificate_no_host(tmp_path: Path) -> None:
    """Readers on executors need this: their addresses are not known before, and their callers have no such file."""
    authority = trustme.CA()
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued = authority.issue_cert("readers")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    settings = ServerSettings(security=ServerSecurity(certificate_file=certificate, private_key_file=key))
    pem = authority.cert_pem.bytes()
    async with GrpcServer(settings, register=[], service_names=[]) as server:

        async def check(security: ClientSecurity) -> object:
            async with open_aio_channel(server.address, security) as channel:
                request = health_pb2.HealthCheckRequest()
                return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)).status

        serving = health_pb2.HealthCheckResponse.SERVING
        assert await check(ClientSecurity(ca_certificates=pem, server_name="readers")) == serving
        for wrong in (
            ClientSecurity(ca_certificates=pem),
            ClientSecurity(ca_certificates=pem, server_name="others"),
            ClientSecurity(ca_certificates=trustme.CA().cert_pem.bytes(), server_name="readers"),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await check(wrong)
    with pytest.raises(RpcOptionError, match="ca_certificates"):
        ClientSecurity(ca_certificates=pem, ca_file=certificate)
