"""Certificates that were taken back by their authority's list are refused, by real handshakes and real lists."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import (
    ClientSecurity,
    GrpcServer,
    MethodRights,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    ServiceRights,
    open_aio_channel,
)
from penstock.rpc._security.revocations import RevocationsFile, parse_revocations

DEADLINE = 20
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
TOKEN = "a-token-of-these-tests"
NAME = "penstock.proto.stage_scheduler.v1.StageSchedulerService"
RIGHTS = ServiceRights(
    "stage-scheduler", NAME, {"GetJob": MethodRights(resources={"jobs": ("job_id",)}), "Watch": MethodRights()}
)
REVOKED = "the client's certificate is revoked"


def serial_number(leaf: trustme.LeafCert | trustme.CA) -> int:
    pem = leaf.cert_pem if isinstance(leaf, trustme.CA) else leaf.cert_chain_pems[0]
    return x509.load_pem_x509_certificate(pem.bytes()).serial_number


def revocation_list(
    authority: trustme.CA,
    *revoked: trustme.LeafCert | trustme.CA,
    signer: trustme.CA | None = None,
    issued: datetime = NOW - DAY,
    ends: datetime = NOW + 7 * DAY,
    delta: bool = False,
) -> bytes:
    """As an authority publishes it, in PEM."""
    key = serialization.load_pem_private_key((signer or authority).private_key_pem.bytes(), None)
    name = x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject
    builder = x509.CertificateRevocationListBuilder().issuer_name(name).last_update(issued).next_update(ends)
    for one in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial_number(one)).revocation_date(issued).build()
        builder = builder.add_revoked_certificate(entry)
    if delta:
        builder = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


class World:
    """An authority of clients, one below it, a server and two clients, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.below = self.authority.create_child_ca()
        self.ca, self.crl = folder / "ca.pem", folder / "crl.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.crl.write_bytes(revocation_list(self.authority))
        self.leaves = {name: self.authority.issue_cert(f"{name}.example") for name in ("kept", "lost")}
        self.leaves["server"] = self.authority.issue_cert("127.0.0.1")
        self.leaves["below"] = self.below.issue_cert("below.example")
        for name, leaf in self.leaves.items():
            chain = b"".join(part.bytes() for part in leaf.cert_chain_pems)
            (folder / f"{name}.pem").write_bytes(chain)
            leaf.private_key_pem.write_to_path(folder / f"{name}.key")

    def put(self, *lists: bytes) -> None:
        """As mounted files change: at once."""
        new = self.crl.with_suffix(".new")
        new.write_bytes(b"".join(lists))
        new.replace(self.crl)

    def server_security(self, **options: Any) -> ServerSecurity:
        return ServerSecurity(
            certificate_file=self.folder / "server.pem",
            private_key_file=self.folder / "server.key",
            client_ca_file=self.ca,
            client_crl_file=self.crl,
            **options,
        )

    def client(self, name: str, token: str | None = None) -> ClientSecurity:
        own: dict[str, Any] = {
            "certificate_file": self.folder / f"{name}.pem",
            "private_key_file": self.folder / f"{name}.key",
        }
        return ClientSecurity(ca_file=self.ca, token=token, **own)

    def chain(self, name: str) -> list[bytes]:
        return [part.bytes() for part in self.leaves[name].cert_chain_pems]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Servicer(pb_grpc.StageSchedulerServiceServicer):
    def __init__(self) -> None:
        self.asked = 0

    async def GetJob(self, request: pb.GetJobRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetJobResponse:
        self.asked += 1
        return pb.GetJobResponse()

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse()
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(security: ServerSecurity, **options: Any) -> AsyncIterator[tuple[GrpcServer, Servicer]]:
    servicer = Servicer()  # type: ignore[abstract]  # the other calls are not made
    server = GrpcServer(
        ServerSettings(security=security, drain_seconds=0.5, **options),
        register=[lambda server: pb_grpc.add_StageSchedulerServiceServicer_to_server(servicer, server)],
        service_names=[NAME],
        rights=[RIGHTS],
    )
    async with server:
        yield server, servicer


async def answer(call: Awaitable[object]) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


@pytest.mark.parametrize("token", [TOKEN, None], ids=["with a token", "by certificate alone"])
async def test_a_revoked_certificate_is_refused_from_the_next_call_on(world: World, token: str | None) -> None:
    """Also on the connection that it had; no method acts or reads, health and reflection too; others go on."""
    health = health_pb2.HealthCheckRequest()
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    async with serving(world.server_security(token=token)) as (server, servicer):
        channels = {name: open_aio_channel(server.address, world.client(name, token)) for name in ("lost", "kept")}
        try:
            for expected in ("OK", f"UNAUTHENTICATED: {REVOKED}"):
                for name, channel in channels.items():
                    said = "OK" if name == "kept" else expected
                    stub = pb_grpc.StageSchedulerServiceStub(channel)
                    assert await answer(stub.GetJob(pb.GetJobRequest(), timeout=DEADLINE)) == said
                    asked = servicer.asked
                    # Were it read, it would not be a message of the contract.
                    async with open_aio_channel(server.address, world.client(name, token)) as raw:
                        garbage = await answer(
                            raw.unary_unary(f"/{NAME}/GetJob", None, None)(b"\xff", timeout=DEADLINE)
                        )
                    assert garbage.startswith("INVALID_ARGUMENT" if said == "OK" else said)
                    assert servicer.asked == asked
                    check = health_pb2_grpc.HealthStub(channel)
                    assert await answer(check.Check(health, timeout=DEADLINE)) == said
                    reflected = reflection_pb2_grpc.ServerReflectionStub(channel)
                    asking = reflected.ServerReflectionInfo(iter([question]), timeout=DEADLINE)
                    assert await answer(anext(aiter(asking))) == said
                world.put(revocation_list(world.authority, world.leaves["lost"]))
            async with open_aio_channel(server.address, world.client("lost")) as channel:
                assert await answer(health_pb2_grpc.HealthStub(channel).Check(health, timeout=DEADLINE)) == (
                    f"UNAUTHENTICATED: {REVOKED}"
                )
        finally:
            for channel in channels.values():
                await channel.close(None)


async def test_health_checks_are_answered_as_without_lists(world: World) -> None:
    """With and without a token, watched too, for a service and one that is not there."""
    async with serving(world.server_security(token=TOKEN)) as (server, _):
        for token in (TOKEN, None):
            async with open_aio_channel(server.address, world.client("kept", token)) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                found = await stub.Check(health_pb2.HealthCheckRequest(service=NAME), timeout=DEADLINE)
                assert found.status == health_pb2.HealthCheckResponse.SERVING
        async with open_aio_channel(server.address, world.client("kept", TOKEN)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watching = stub.Watch(health_pb2.HealthCheckRequest(service=NAME), timeout=DEADLINE)
            assert (await anext(aiter(watching))).status == health_pb2.HealthCheckResponse.SERVING
            watching.cancel()
            said = await answer(stub.Check(health_pb2.HealthCheckRequest(service="none"), timeout=DEADLINE))
            assert said.startswith("NOT_FOUND")


async def test_a_stream_ends_soon_after_its_certificate_was_revoked(world: World) -> None:
    """Its client may call again with a new certificate; with the old one it is refused."""
    async with (
        serving(world.server_security(), recheck_seconds=0.05) as (server, _),
        open_aio_channel(server.address, world.client("lost")) as channel,
    ):
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        watching = aiter(stub.Watch(pb.WatchRequest(job_id="a"), timeout=DEADLINE))
        await anext(watching)
        world.put(revocation_list(world.authority, world.leaves["lost"]))
        assert (await answer(anext(watching))).startswith("UNAVAILABLE: the token or certificate")
        assert await answer(stub.GetJob(pb.GetJobRequest())) == f"UNAUTHENTICATED: {REVOKED}"


async def test_a_client_of_a_revoked_authority_is_refused(world: World) -> None:
    """The authority below comes with the client, and is looked at, too; it needs a list of its own."""
    both = world.authority.cert_pem.bytes() + world.below.cert_pem.bytes()
    world.ca.write_bytes(both)
    lists = [revocation_list(world.below), revocation_list(world.authority)]
    world.put(*lists)
    async with (
        serving(world.server_security()) as (server, _),
        open_aio_channel(server.address, world.client("below")) as channel,
    ):
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        assert await answer(stub.GetJob(pb.GetJobRequest(), timeout=DEADLINE)) == "OK"
        world.put(lists[0], revocation_list(world.authority, world.below))
        said = await answer(stub.GetJob(pb.GetJobRequest(), timeout=DEADLINE))
        assert said == "UNAUTHENTICATED: the client's authority is revoked"
        world.put(lists[1])
        assert "its authority has no list" in await answer(stub.GetJob(pb.GetJobRequest(), timeout=DEADLINE))


def test_the_newest_list_of_an_authority_counts_and_none_that_has_ended(world: World) -> None:
    """In whatever order they stand in the file; also when more than the lists are in it."""
    old = revocation_list(world.authority, world.leaves["lost"], issued=NOW - 3 * DAY)
    new = revocation_list(world.authority, issued=NOW - DAY)
    ended = revocation_list(world.authority, issued=NOW - 9 * DAY, ends=NOW - DAY)
    file = RevocationsFile(world.crl, world.ca)
    for lists, said in (([old], REVOKED), ([new, old], None), ([b"# both\n", old, new], None)):
        world.put(*lists)
        assert file.refusal(world.chain("lost")) == said
    world.put(ended)
    assert "has ended" in str(file.refusal(world.chain("kept")))
    assert file.refusal([]) == "the client has shown no certificate"
    assert file.refusal([b"none"]) == "the client's certificate cannot be read"


@pytest.mark.parametrize("kind", ["empty", "garbage", "other signer", "other authority", "partial", "der"])
def test_what_is_no_list_of_the_authority_is_refused(world: World, kind: str) -> None:
    """At the start, with the cure."""
    stranger = trustme.CA()
    whole = revocation_list(world.authority)
    content, words = {
        "empty": (b"", "holds no list.*openssl crl"),
        "garbage": (whole.replace(b"CRL-----\nMI", b"CRL-----\nAA", 1), "list 1 of the file is not a list"),
        "other signer": (revocation_list(world.authority, signer=stranger), "is not signed by an authority"),
        "other authority": (whole + revocation_list(stranger), "list 2 .*put the certificate of who signed it"),
        "partial": (revocation_list(world.authority, delta=True), "is partial"),
        "der": (x509.load_pem_x509_crl(whole).public_bytes(serialization.Encoding.DER), "holds no list"),
    }[kind]
    world.put(content)
    with pytest.raises(RpcOptionError, match=words) as raised:
        world.server_security().check_files()
    assert raised.value.option == "client_crl_file"
    with pytest.raises(RpcOptionError, match=words):
        parse_revocations(content, world.ca.read_bytes())


def test_lists_need_an_authority_of_clients(world: World) -> None:
    """Else nobody shows a certificate."""
    with pytest.raises(RpcOptionError, match="set client_ca_file, too"):
        ServerSecurity(client_crl_file=world.crl)


def test_lists_outlive_their_file_for_a_minute_and_then_nobody_gets_in(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that cannot tell any more who is revoked says so, in its log, and takes nobody's word."""
    now = 100.0
    file = RevocationsFile(world.crl, world.ca, clock=lambda: now)
    world.crl.unlink()
    assert file.refusal(world.chain("kept")) is None
    now += 61
    with caplog.at_level(logging.ERROR):
        assert "cannot check which certificates are revoked" in str(file.refusal(world.chain("kept")))
    assert "no client's certificate is taken any more" in caplog.text
    world.put(revocation_list(world.authority, world.leaves["lost"]))
    assert file.refusal(world.chain("kept")) is None
    assert file.refusal(world.chain("lost")) == REVOKED


def test_a_list_that_came_before_its_authority_counts_when_that_comes(world: World) -> None:
    """As files of a rotation do not change all at once."""
    file = RevocationsFile(world.crl, world.ca)
    new = trustme.CA()
    world.put(revocation_list(world.authority, world.leaves["lost"]), revocation_list(new))
    assert file.refusal(world.chain("lost")) is None
    world.ca.write_bytes(world.authority.cert_pem.bytes() + new.cert_pem.bytes())
    assert file.refusal(world.chain("lost")) == REVOKED
