"""`penstock doctor` on Penstock's services: each way in which a service is unreachable has a finding of its own."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from doctor_world import has_cure, the, world

from penstock.cli import Finding, Verdict
from penstock.cli._doctor._services import check_services
from penstock.cli._doctor._surroundings import Service
from penstock.operator_attributes import SERVICE_NAME, LocalStageScheduler, StageSchedulerServicer
from penstock.rpc import GrpcServer, ServerSecurity, ServerSettings

PROBLEM, OK, SKIPPED = Verdict.PROBLEM, Verdict.OK, Verdict.SKIPPED


@contextmanager
def scheduler(socket_path: Path | None = None, **security: object) -> Iterator[str]:
    """A stage scheduler on a thread; gives its address."""
    started: list[str] = []
    is_ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        servicer = StageSchedulerServicer(LocalStageScheduler())
        settings = ServerSettings(socket_path=socket_path, security=ServerSecurity(**security))  # type: ignore[arg-type]
        async with GrpcServer(settings, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
            started.append(server.address)
            is_ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert is_ready.wait(30)
        yield started[0]
    finally:
        stop.set()
        thread.join()


def look(address: str, name: str = "stages", *, tls: bool = False, **environ: str) -> Finding:
    services = [Service(name=name, endpoint=address, tls=tls)]
    return the(check_services(world(services=services, environ=environ, timeout_seconds=3.0)))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PEM files: an authority, an untrusted one, a server's pair, a client's pair."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = trustme.CA(), trustme.CA()
    files = {
        name: folder / name
        for name in ("ca", "other", "server", "server_key", "client", "client_key", "stranger", "stranger_key")
    }
    authority.cert_pem.write_to_path(str(files["ca"]))
    other.cert_pem.write_to_path(str(files["other"]))
    for name, signer, host in (
        ("server", authority, "127.0.0.1"),
        ("client", authority, "client"),
        ("stranger", authority, "elsewhere.example"),
    ):
        issued = signer.issue_cert(host)
        issued.private_key_pem.write_to_path(str(files[f"{name}_key"]))
        issued.cert_chain_pems[0].write_to_path(str(files[name]))
    return files


def test_nothing_there_is_told_apart() -> None:
    """Refused, unknown host, no address, silent; and none named is not a problem."""
    assert the(check_services(world())).verdict is SKIPPED
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert has_cure(look(address, "registry"), PROBLEM, "nobody listens", "penstock registry serve")
    for address in ("no-such-host.invalid:1", "a..b:1"):
        assert has_cure(look(address), PROBLEM, "no such host")
    assert has_cure(look("localhost"), PROBLEM, "not host:port")


def test_the_token_is_missing_or_wrong(tmp_path: Path) -> None:
    """Health checks need none, so it is tried by a call that changes nothing."""
    with scheduler(token="a-right-token-of-tests-with-32-characters") as address:
        assert has_cure(look(address), PROBLEM, "token is missing", "PENSTOCK_STAGES_TOKEN_FILE")
        assert has_cure(
            look(address, PENSTOCK_STAGES_TOKEN="wrong-token-of-tests-with-32-characters"), PROBLEM, "token is wrong"
        )
        assert "wrong-token-of-tests-with-32-characters" not in repr(
            look(address, PENSTOCK_STAGES_TOKEN="wrong-token-of-tests-with-32-characters")
        )
        assert look(address, PENSTOCK_STAGES_TOKEN="a-right-token-of-tests-with-32-characters").verdict is OK
        (tmp_path / "token").write_text("a-right-token-of-tests-with-32-characters\n")
        assert look(address, PENSTOCK_STAGES_TOKEN_FILE=str(tmp_path / "token")).verdict is OK
        assert has_cure(look(address, PENSTOCK_STAGES_TOKEN_FILE=str(tmp_path / "none")), PROBLEM, "token_file")


def test_tls_on_one_side_only(certificates: dict[str, Path]) -> None:
    """Either way round; and with it on both it is fine."""
    pair = {"certificate_file": certificates["server"], "private_key_file": certificates["server_key"]}
    with scheduler(**pair) as address:
        assert has_cure(look(address), PROBLEM, "speaks TLS", "PENSTOCK_STAGES_CA_FILE")
        assert look(address, PENSTOCK_STAGES_CA_FILE=str(certificates["ca"])).verdict is OK
        untrusted: tuple[dict[str, Any], ...] = (
            {"PENSTOCK_STAGES_CA_FILE": str(certificates["other"])},
            {"PENSTOCK_STAGES_TLS": "true"},
            {"tls": True},
        )
        for options in untrusted:
            assert has_cure(look(address, **options), PROBLEM, "not trusted", "PENSTOCK_STAGES_CA_FILE")
    with scheduler() as address:
        assert look(address).verdict is OK
        assert has_cure(look(address, PENSTOCK_STAGES_CA_FILE=str(certificates["ca"])), PROBLEM, "does not speak TLS")
        assert has_cure(look(address, PENSTOCK_STAGES_CA_FILE="/no/such.pem"), PROBLEM, "PENSTOCK_STAGES_")
        assert has_cure(look(address, PENSTOCK_STAGES_TLS="yes"), PROBLEM, "neither true nor false")
        assert has_cure(look(address, "sink"), PROBLEM, "another service")
    stranger = {"certificate_file": certificates["stranger"], "private_key_file": certificates["stranger_key"]}
    with scheduler(**stranger) as address:
        assert has_cure(
            look(address, PENSTOCK_STAGES_CA_FILE=str(certificates["ca"])), PROBLEM, "not trusted", "mismatch"
        )
