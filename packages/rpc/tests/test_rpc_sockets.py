import os
import socket
import stat
from pathlib import Path
from typing import cast

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.rpc import (
    ClientSecurity,
    GrpcServer,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    ServerStartError,
    is_answered,
    open_aio_channel,
)
from penstock.rpc._server.server import listen_on_socket

SERVICE = "example"
SERVING = health_pb2.HealthCheckResponse.SERVING


def server_at(path: Path, security: ServerSecurity | None = None) -> GrpcServer:
    settings = ServerSettings(socket_path=path, security=security or ServerSecurity())
    return GrpcServer(settings, register=[], service_names=[SERVICE])


async def health_at(endpoint: str, security: ClientSecurity | None = None) -> int:
    async with open_aio_channel(endpoint, security) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


async def test_a_server_listens_on_a_socket_besides(tmp_path: Path) -> None:
    """Both ways lead to it; the socket is this user's alone, and goes when the server ends."""
    path = tmp_path / "socket"
    async with server_at(path) as server:
        assert await health_at(f"unix:{path}") == await health_at(server.address) == SERVING
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert is_answered(path)
    assert not path.exists()
    assert not is_answered(path)


async def test_tls_is_asked_for_on_the_socket_too(tmp_path: Path) -> None:
    """Plain text is refused there as on the port, and a client of TLS is served."""
    path, authority = tmp_path / "socket", trustme.CA()
    certificate, key, ca = tmp_path / "certificate", tmp_path / "key", tmp_path / "ca"
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    async with server_at(path, ServerSecurity(certificate_file=certificate, private_key_file=key)):
        assert await health_at(f"unix:{path}", ClientSecurity(ca_file=ca)) == SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await health_at(f"unix:{path}")


async def test_what_a_killed_server_left_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    """Two servers on one path would take each other's clients."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    async with server_at(path):
        assert await health_at(f"unix:{path}") == SERVING
        with pytest.raises(ServerStartError, match="another server listens there"):
            await server_at(path).__aenter__()
        assert await health_at(f"unix:{path}") == SERVING


@pytest.mark.parametrize("name", ["file", "missing/socket"])
async def test_a_path_that_cannot_be_listened_on_is_reported(tmp_path: Path, name: str) -> None:
    """A file that is not a socket stays as it is."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ServerStartError, match="its folder must exist") as told:
        await server_at(tmp_path / name).__aenter__()
    assert told.value.address == f"unix:{tmp_path / name}"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(("path", "reason"), [("socket", "not absolute"), ("/" + "x" * 120, "longer than 100 bytes")])
def test_a_path_that_no_socket_can_have_is_refused(path: str, reason: str) -> None:
    """By the name of the option, before anything is started."""
    with pytest.raises(RpcOptionError, match=reason) as told:
        ServerSettings(socket_path=Path(path))
    assert told.value.option == "socket_path"


async def test_a_socket_is_private_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No moment passes in which another user could call."""
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    before = os.umask(0)
    try:
        async with server_at(tmp_path / "socket"):
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o700
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_folder_that_another_thread_makes_meanwhile_can_be_entered(tmp_path: Path) -> None:
    """What is changed so that a socket is private from its beginning holds for the whole process."""
    folder = tmp_path / "folder"

    class Server:
        def add_insecure_port(self, endpoint: str) -> None:
            folder.mkdir(0o700)

    listen_on_socket(cast("grpc.aio.Server", Server()), tmp_path / "socket", None)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
