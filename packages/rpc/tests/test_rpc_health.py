import asyncio
import http.server
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.rpc import ClientSecurity, GrpcServer, ServerSecurity, ServerSettings, open_aio_channel
from penstock.rpc.health import main

NAME = "penstock.example.v1.ExampleService"


def server(**security: Any) -> GrpcServer:
    settings = ServerSettings(security=ServerSecurity(**security), drain_seconds=0)
    return GrpcServer(settings, register=[], service_names=[NAME])


def put(folder: Path, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return certificate, key


async def test_health_is_reported_by_an_exit_code_and_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """0 for a server and a service that serve, 1 for a service that it does not know and for a server that is gone."""
    async with server(token="a-secret-of-these-tests-with-32-characters") as running:
        endpoint = running.address
        assert await asyncio.to_thread(main, ["--endpoint", endpoint]) == 0
        assert await asyncio.to_thread(main, ["--endpoint", endpoint, "--service", NAME]) == 0
        assert capsys.readouterr().out == f"{endpoint} SERVING\n" * 2
        token = tmp_path / "token"
        token.write_text("a-secret-of-these-tests-with-32-characters\n")
        with_token = ["--endpoint", endpoint, "--token-file", str(token)]
        assert await asyncio.to_thread(main, [*with_token, "--service", "other"]) == 1
        assert "SERVICE_UNKNOWN (other)" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["--endpoint", endpoint, "--timeout-seconds", "0.5"]) == 1
    assert "UNREACHABLE" in capsys.readouterr().out


async def test_watching_health_reports_the_state_and_the_end() -> None:
    """With the token where one is needed, of the server and of each service; one that is not here is unknown."""
    token = "a-secret-of-these-tests-with-32-characters"
    settings = ServerSettings(security=ServerSecurity(token=token), drain_seconds=5)
    running = GrpcServer(settings, register=[], service_names=[NAME])
    await running.__aenter__()
    async with open_aio_channel(running.address, ClientSecurity(token=token)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watched = {
            name: aiter(stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=30)) for name in ("", NAME, "?")
        }
        first = {name: (await anext(answers)).status for name, answers in watched.items()}
        async with open_aio_channel(running.address) as stranger:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await anext(aiter(health_pb2_grpc.HealthStub(stranger).Watch(health_pb2.HealthCheckRequest())))
        await running.__aexit__(None, None, None)
        last = {name: [answer.status async for answer in watched[name]] for name in ("", NAME)}
    status = health_pb2.HealthCheckResponse
    assert first == {"": status.SERVING, NAME: status.SERVING, "?": status.SERVICE_UNKNOWN}
    assert last == {"": [status.NOT_SERVING], NAME: [status.NOT_SERVING]}
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1", "localhost"])
async def test_a_service_is_checked_by_its_own_settings(host: str) -> None:
    """Its prefix is enough: a service that listens on all addresses is asked on loopback."""
    async with server() as running:
        environment = {"PENSTOCK_X_HOST": host, "PENSTOCK_X_PORT": str(running.port)}
        assert await asyncio.to_thread(main, ["--prefix", "PENSTOCK_X"], environment) == 0


@pytest.mark.parametrize("name", ["reader.example", "10.1.2.3", "*.internal.example"])
async def test_a_service_with_tls_is_trusted_for_the_certificate_that_it_was_given(tmp_path: Path, name: str) -> None:
    """It may have any name, and needs no authority; a certificate that the service does not serve is refused."""
    certificate, key = put(tmp_path, "server", trustme.CA().issue_cert(name))
    other, _ = put(tmp_path, "other", trustme.CA().issue_cert(name))
    async with server(certificate_file=certificate, private_key_file=key) as running:
        environment = {"PENSTOCK_X_PORT": str(running.port), "PENSTOCK_X_CERTIFICATE_FILE": str(certificate)}
        assert await asyncio.to_thread(main, ["--prefix", "PENSTOCK_X"], environment) == 0
        environment["PENSTOCK_X_CERTIFICATE_FILE"] = str(other)
        arguments = ["--prefix", "PENSTOCK_X", "--timeout-seconds", "2"]
        assert await asyncio.to_thread(main, arguments, environment) == 1


async def test_mutual_tls_takes_a_certificate_of_the_clients_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of its own for the check; without, the service's, which need not be of the clients' authority."""
    clients = trustme.CA()
    certificate, key = put(tmp_path, "server", trustme.CA().issue_cert("reader.example"))
    health, health_key = put(tmp_path, "health", clients.issue_cert("health.example"))
    authority = tmp_path / "clients.pem"
    authority.write_bytes(clients.cert_pem.bytes())
    files = {"certificate_file": certificate, "private_key_file": key, "client_ca_file": authority}
    async with server(**files) as running:
        environment = {f"PENSTOCK_X_{name.upper()}": str(path) for name, path in files.items()}
        environment["PENSTOCK_X_PORT"] = str(running.port)
        arguments = ["--prefix", "PENSTOCK_X", "--timeout-seconds", "2"]
        assert await asyncio.to_thread(main, arguments, environment) == 1
        environment["PENSTOCK_X_HEALTH_CERTIFICATE_FILE"] = str(health)
        environment["PENSTOCK_X_HEALTH_PRIVATE_KEY_FILE"] = str(health_key)
        assert await asyncio.to_thread(main, arguments, environment) == 0
        # As a client elsewhere would, by the authority and the name.
        pair = ["--certificate-file", str(health), "--private-key-file", str(health_key)]
        given = ["--endpoint", running.address, "--ca-file", str(certificate), "--server-name", "reader.example"]
        assert await asyncio.to_thread(main, [*given, *pair]) == 0


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("tls", [False, True])
def test_a_page_is_asked_by_http(tmp_path: Path, tls: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """In plain text, or by TLS when the service has a certificate; only 200 is healthy."""
    certificate, key = put(tmp_path, "server", trustme.CA().issue_cert("console.example"))
    other, _ = put(tmp_path, "other", trustme.CA().issue_cert("console.example"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            page.socket = context.wrap_socket(page.socket, server_side=True)
        threading.Thread(target=page.serve_forever, daemon=True).start()
        environment = {"PENSTOCK_X_PORT": str(page.server_address[1])}
        if tls:
            environment["PENSTOCK_X_CERTIFICATE_FILE"] = str(certificate)
        assert main(["--prefix", "PENSTOCK_X", "--http-path", "/healthz"], environment) == 0
        assert main(["--prefix", "PENSTOCK_X", "--http-path", "/"], environment) == 1
        assert "NOT_SERVING (HTTP 503)" in capsys.readouterr().out
        environment["PENSTOCK_X_CERTIFICATE_FILE"] = str(other)
        assert main(["--prefix", "PENSTOCK_X", "--http-path", "/healthz"], environment) == 1
        page.shutdown()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "PENSTOCK_X_PORT: names no port"),
        ({"PENSTOCK_X_PORT": "0"}, "PENSTOCK_X_PORT: names no port"),
        (
            {"PENSTOCK_X_PORT": "1", "PENSTOCK_X_CERTIFICATE_FILE": "/nowhere.pem"},
            "PENSTOCK_X_CERTIFICATE_FILE: cannot read /nowhere.pem",
        ),
    ],
)
def test_a_wrong_setting_is_named(environment: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With code 2; a service that does not serve gives code 1."""
    assert main(["--prefix", "PENSTOCK_X"], environment) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prefix", "X", "--tls"], "--tls does not go with --prefix"),
        (["--prefix", "X", "--ca-file", "ca.pem"], "--ca-file does not go with --prefix"),
        (["--prefix", "X", "--certificate-file", "c"], "--certificate-file does not go with --prefix"),
        (["--prefix", "X", "--private-key-file", "k"], "--private-key-file does not go with --prefix"),
        (["--prefix", "X", "--token-file", "token"], "--token-file does not go with --prefix"),
        (["--prefix", "X", "--server-name", "name"], "--server-name does not go with --prefix"),
        (["--endpoint", "a:1", "--http-path", "/", "--service", "s"], "--service does not go with --http-path"),
        (["--endpoint", "a:1", "--http-path", "/", "--server-name", "n"], "--server-name does not go with --http-path"),
        (["--endpoint", "a:1", "--http-path", "/", "--token-file", "t"], "--token-file does not go with --http-path"),
        (["--endpoint", "a:1", "--server-name", "n"], "--server-name is of a certificate: turn TLS on"),
        ([], "one of the arguments --endpoint --prefix is required"),
        (["--endpoint", "127.0.0.1:1", "--nonsense"], "--nonsense"),
        (["--endpoint", "127.0.0.1:1", "--timeout-seconds", "0"], "--timeout-seconds: '0'"),
        (["--endpoint", "127.0.0.1:1", "--timeout-seconds", "nan"], "--timeout-seconds: 'nan'"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which names the help, as the other commands do."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in said
    assert said.endswith(": see python -m penstock.rpc.health --help\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--endpoint", "localhost"],
        ["--endpoint", "localhost", "--http-path", "/"],
        ["--endpoint", "unix:/nowhere", "--http-path", "/"],
        ["--endpoint", "127.0.0.1:1", "--http-path", "/", "--ca-file", "CA", "--certificate-file", "CA"],
        ["--endpoint", "127.0.0.1:1", "--http-path", "/", "--ca-file", "/nowhere"],
        ["--endpoint", "127.0.0.1:1", "--ca-file", "EMPTY"],
    ],
)
def test_an_address_or_a_file_that_is_none_is_a_wrong_setting(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 2 and a sentence, whichever way it asks."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "empty.pem").write_text("")
    places = {"CA": str(tmp_path / "ca.pem"), "EMPTY": str(tmp_path / "empty.pem")}
    assert main([places.get(one, one) for one in arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("health: --")


def test_tls_is_used_for_a_page_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """With the authorities of the system, when none is named: a page in plain text does not pass for one of TLS."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        endpoint = f"127.0.0.1:{page.server_address[1]}"
        assert main(["--endpoint", endpoint, "--http-path", "/healthz"]) == 0
        assert main(["--endpoint", endpoint, "--http-path", "/healthz", "--tls"]) == 1
        assert "UNREACHABLE" in capsys.readouterr().out
        page.shutdown()
