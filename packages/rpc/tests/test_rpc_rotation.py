"""Certificates, authorities and tokens change under calls, and no call fails."""

import asyncio
import logging
import os
import resource
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import (
    ClientSecurity,
    FileChanges,
    GrpcServer,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    open_aio_channel,
    open_channel,
    stamp_of,
)
from penstock.rpc._security.token_file import TokenFile

DEADLINE = 30
NAME = "penstock.proto.stage_scheduler.v1.StageSchedulerService"


class Servicer(pb_grpc.StageSchedulerServiceServicer):
    """Answers, and streams until the test ends it."""

    def __init__(self) -> None:
        self.more: asyncio.Queue[int | None] = asyncio.Queue()

    async def GetJob(self, request: pb.GetJobRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetJobResponse:
        return pb.GetJobResponse(job=pb.Job(job_id=request.job_id))

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        while (version := await self.more.get()) is not None:
            yield pb.WatchResponse(job=pb.Job(version=version))


class Files:
    """Certificates and tokens that are replaced at once, as mounted secrets are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.security = ServerSecurity(
            certificate_file=folder / "server.pem",
            private_key_file=folder / "server.key",
            client_ca_file=folder / "clients.pem",
            token_file=folder / "server.tokens",
        )
        self.client = ClientSecurity(
            ca_file=folder / "ca.pem",
            certificate_file=folder / "client.pem",
            private_key_file=folder / "client.key",
            token_file=folder / "client.tokens",
        )

    def put(self, name: str, content: bytes) -> None:
        temporary = self.folder / f"{name}.new"
        temporary.write_bytes(content)
        temporary.replace(self.folder / name)

    def authorities(self, name: str, *authorities: trustme.CA) -> None:
        self.put(name, b"".join(one.cert_pem.bytes() for one in authorities))

    def leaf(self, name: str, authority: trustme.CA) -> None:
        leaf = authority.issue_cert("127.0.0.1")
        self.put(f"{name}.key", leaf.private_key_pem.bytes())
        self.put(f"{name}.pem", leaf.cert_chain_pems[0].bytes())

    def tokens(self, whose: str, *lines: str) -> None:
        self.put(f"{whose}.tokens", "".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files, authority = Files(tmp_path), trustme.CA()
    files.authorities("ca.pem", authority)
    files.authorities("clients.pem", authority)
    files.leaf("server", authority)
    files.leaf("client", authority)
    files.tokens("server", "an-old-token-of-tests-with-32-characters")
    files.tokens("client", "an-old-token-of-tests-with-32-characters")
    return files


@asynccontextmanager
async def serving(files: Files) -> AsyncIterator[tuple[GrpcServer, Servicer]]:
    servicer = Servicer()  # type: ignore[abstract]  # the other calls are not made
    server = GrpcServer(
        ServerSettings(security=files.security, drain_seconds=0.5),
        register=[lambda server: pb_grpc.add_StageSchedulerServiceServicer_to_server(servicer, server)],
        service_names=[NAME],
    )
    async with server:
        yield server, servicer


class Traffic:
    """Calls without a pause, from an asyncio channel, a blocking one, and channels that connect for each call."""

    def __init__(self, address: str, security: ClientSecurity) -> None:
        self.address = address
        self.security = security
        self.done = {"aio": 0, "blocking": 0, "reopened": 0}
        self.failed: list[str] = []
        self._ended = threading.Event()

    async def __aenter__(self) -> "Traffic":
        self._tasks = [
            asyncio.create_task(self._aio()),
            asyncio.create_task(asyncio.to_thread(self._blocking)),
            asyncio.create_task(self._anew()),
        ]
        await self.some()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        await asyncio.gather(*self._tasks)

    async def some(self) -> None:
        """Wait for calls of each kind that begin from now on."""
        wanted = {kind: count + 3 for kind, count in self.done.items()}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE
        while any(self.done[kind] < count for kind, count in wanted.items()) and not self.failed:
            assert loop.time() < deadline
            await asyncio.sleep(0.01)  # a thread counts, too
        assert self.failed == []

    async def _call(self, kind: str, stub: "pb_grpc.StageSchedulerServiceAsyncStub") -> None:
        try:
            await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
            self.done[kind] += 1
        except grpc.RpcError as error:
            self.failed.append(f"{kind}: {error.code()}: {error.details()}")

    async def _aio(self) -> None:
        async with open_aio_channel(self.address, self.security) as channel:
            stub = pb_grpc.StageSchedulerServiceStub(channel)
            while not self._ended.is_set() and not self.failed:
                await self._call("aio", stub)

    async def _anew(self) -> None:
        while not self._ended.is_set() and not self.failed:
            async with open_aio_channel(self.address, self.security) as channel:
                stub = pb_grpc.StageSchedulerServiceStub(channel)
                await self._call("reopened", stub)

    def _blocking(self) -> None:
        with open_channel(self.address, self.security) as channel:
            stub = pb_grpc.StageSchedulerServiceStub(channel)
            while not self._ended.is_set() and not self.failed:
                try:
                    stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
                    self.done["blocking"] += 1
                except grpc.RpcError as error:
                    self.failed.append(f"blocking: {error.code()}: {error.details()}")


async def attempt(address: str, security: ClientSecurity) -> grpc.StatusCode:
    """The status of a call on a new connection."""
    async with open_aio_channel(address, security) as channel:
        try:
            await pb_grpc.StageSchedulerServiceStub(channel).GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def shown(address: str, files: Files) -> bytes:
    """The certificate that the server shows to a new connection."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(files.folder / "client.pem", files.folder / "client.key")
    # gRPC ends connections that speak no HTTP/2.
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), DEADLINE) as plain, context.wrap_socket(plain) as wrapped:
        return wrapped.getpeercert(binary_form=True) or b""


async def test_tokens_rotate_under_traffic(files: Files) -> None:
    """First the server takes both, then clients send the new one, then the server forgets the old one."""
    async with serving(files) as (server, _), Traffic(server.address, files.client) as traffic:
        files.tokens("server", "an-old-token-of-tests-with-32-characters", "a-new-token-of-tests-with-32-characters")
        await traffic.some()
        files.tokens("client", "a-new-token-of-tests-with-32-characters")
        await traffic.some()
        files.tokens("server", "a-new-token-of-tests-with-32-characters")
        await traffic.some()
        files.tokens("other", "an-old-token-of-tests-with-32-characters")
        stranger = ClientSecurity(**{**vars(files.client), "token_file": files.folder / "other.tokens"})
        assert await attempt(server.address, stranger) is grpc.StatusCode.UNAUTHENTICATED


async def test_the_servers_certificate_and_its_authority_rotate_under_traffic(files: Files) -> None:
    """First clients trust both authorities, then the server shows the new certificate, then the old one is nothing."""
    following = trustme.CA()
    async with serving(files) as (server, _), Traffic(server.address, files.client) as traffic:
        before = await asyncio.to_thread(shown, server.address, files)
        old = (files.folder / "ca.pem").read_bytes()
        files.put("ca.pem", old + following.cert_pem.bytes())
        await traffic.some()
        files.leaf("server", following)
        await traffic.some()
        files.put("ca.pem", following.cert_pem.bytes())
        await traffic.some()
        assert await asyncio.to_thread(shown, server.address, files) != before
        files.put("old-ca.pem", old)
        old_friend = ClientSecurity(**{**vars(files.client), "ca_file": files.folder / "old-ca.pem"})
        assert await attempt(server.address, old_friend) is grpc.StatusCode.UNAVAILABLE


async def test_clients_certificates_and_their_authority_rotate_under_traffic(files: Files) -> None:
    """First the server trusts both authorities, then clients show new certificates, then it forgets the old one."""
    following = trustme.CA()
    async with serving(files) as (server, _), Traffic(server.address, files.client) as traffic:
        for kind in ("pem", "key"):
            files.put(f"old.{kind}", (files.folder / f"client.{kind}").read_bytes())
        old = (files.folder / "clients.pem").read_bytes()
        files.put("clients.pem", old + following.cert_pem.bytes())
        await traffic.some()
        files.leaf("client", following)
        await traffic.some()
        files.authorities("clients.pem", following)
        await traffic.some()
        pair = {"certificate_file": files.folder / "old.pem", "private_key_file": files.folder / "old.key"}
        assert await attempt(server.address, ClientSecurity(**{**vars(files.client), **pair})) is not grpc.StatusCode.OK


async def read(call: grpc.aio.UnaryStreamCall[Any, pb.WatchResponse]) -> pb.WatchResponse:
    answer = await call.read()
    assert isinstance(answer, pb.WatchResponse)
    return answer


async def test_a_stream_lives_through_a_rotation(files: Files) -> None:
    """It ends on the connection on which it began, which goes when it has ended; new calls take the new one."""
    following = trustme.CA()
    async with serving(files) as (server, servicer), open_aio_channel(server.address, files.client) as channel:
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        watch = stub.Watch(pb.WatchRequest(job_id="a"), timeout=DEADLINE)
        await servicer.more.put(1)
        assert (await read(watch)).job.version == 1
        files.put("ca.pem", (files.folder / "ca.pem").read_bytes() + following.cert_pem.bytes())
        files.leaf("server", following)
        assert (await stub.GetJob(pb.GetJobRequest(job_id="b"), timeout=DEADLINE)).job.job_id == "b"
        await servicer.more.put(2)
        assert (await read(watch)).job.version == 2
        await servicer.more.put(None)
        assert not await watch.read()
        assert (await stub.GetJob(pb.GetJobRequest(job_id="c"), timeout=DEADLINE)).job.job_id == "c"


async def test_each_callable_of_a_method_has_its_own_serializers(files: Files) -> None:
    """One channel serves whoever asks: as bytes, or as messages, before and after a rotation."""
    method, request = f"/{NAME}/GetJob", pb.GetJobRequest(job_id="a").SerializeToString()
    messages: dict[str, Any] = {
        "request_serializer": pb.GetJobRequest.SerializeToString,
        "response_deserializer": pb.GetJobResponse.FromString,
    }
    async with serving(files) as (server, _):
        async with open_aio_channel(server.address, files.client) as channel:
            as_bytes, as_messages = channel.unary_unary(method, None, None), channel.unary_unary(method, **messages)
            for _ in range(2):
                answer = await as_bytes(request, timeout=DEADLINE)
                assert await as_messages(pb.GetJobRequest(job_id="a"), timeout=DEADLINE) == answer_of(answer)
                files.put("ca.pem", (files.folder / "ca.pem").read_bytes() + trustme.CA().cert_pem.bytes())
        await asyncio.to_thread(_both_ways, server.address, files.client, method, messages)


def answer_of(answer: bytes) -> pb.GetJobResponse:
    return pb.GetJobResponse.FromString(answer)


def _both_ways(address: str, security: ClientSecurity, method: str, messages: dict[str, Any]) -> None:
    with open_channel(address, security) as channel:
        answer = channel.unary_unary(method, None, None)(
            pb.GetJobRequest(job_id="a").SerializeToString(), timeout=DEADLINE
        )
        call = channel.unary_unary(method, **messages)
        assert call(pb.GetJobRequest(job_id="a"), timeout=DEADLINE) == answer_of(answer)


async def test_half_written_files_change_nothing(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate without its key, and files that are cut short, are logged and passed over."""
    caplog.set_level(logging.INFO, "penstock.rpc")
    async with serving(files) as (server, _), open_aio_channel(server.address, files.client) as channel:
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        files.put("server.pem", trustme.CA().issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
        assert await attempt(server.address, files.client) is grpc.StatusCode.OK
        await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
        files.put("ca.pem", b"-----BEGIN CERTIFICATE-----\nMIIB")
        files.put("client.tokens", b"half a line of one")
        files.put("server.tokens", b"half a line of one")
        await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
        # A channel that is opened now has no usable files.
        with pytest.raises(RpcOptionError):
            await attempt(server.address, files.client)
    told = caplog.text
    for words in ("certificates stay as they were", "channel stays as it was", "tokens stay as they were"):
        assert words in told


async def test_a_token_ends_at_its_moment(files: Files) -> None:
    """The server says that it has expired; a client sends the token of the next line."""
    past, future = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    async with serving(files) as (server, _):
        files.tokens(
            "server",
            f"an-old-token-of-tests-with-32-characters {past.isoformat()}",
            f"a-new-token-of-tests-with-32-characters {future.isoformat()}",
        )
        async with open_aio_channel(server.address, files.client) as channel:
            stub = pb_grpc.StageSchedulerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="has expired") as refused:
                await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            files.tokens(
                "client",
                f"an-old-token-of-tests-with-32-characters {past.isoformat()}",
                "a-new-token-of-tests-with-32-characters",
            )
            await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)


@pytest.mark.parametrize("text", [b"", b"# old\n", b"\n\n"], ids=["empty", "commented", "blank"])
async def test_a_file_without_tokens_revokes_all_of_them(files: Files, text: bytes) -> None:
    """From the next call on; and a token that is written there later is taken."""
    async with serving(files) as (server, _), open_aio_channel(server.address, files.client) as channel:
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
        files.put("server.tokens", text)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        files.tokens("server", "an-old-token-of-tests-with-32-characters")
        await stub.GetJob(pb.GetJobRequest(job_id="a"), timeout=DEADLINE)


@pytest.mark.parametrize("damage", ["deleted", "unreadable", "malformed"])
def test_tokens_outlive_their_file_for_a_minute(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """Files are replaced in steps, but a file that stays unreadable counts as empty."""
    file = tmp_path / "tokens"
    file.write_text("an-old-token-of-tests-with-32-characters\n")
    now = 100.0
    tokens = TokenFile(file, clock=lambda: now)
    if damage == "deleted":
        file.unlink()
    elif damage == "unreadable":
        file.unlink()
        file.mkdir()
    else:
        file.write_text("one token too many\n")
    assert [token.value for token in tokens.tokens()] == ["an-old-token-of-tests-with-32-characters"]
    assert "stay as they were, for 60 s at most" in caplog.text
    now += 61
    assert tokens.tokens() == ()
    assert "no token is taken any more" in caplog.text
    assert tokens.current() == "an-old-token-of-tests-with-32-characters", "a client has nothing better to send"
    if damage == "unreadable":
        file.rmdir()
    file.write_text("a-new-token-of-tests-with-32-characters\n")
    assert [token.value for token in tokens.tokens()] == ["a-new-token-of-tests-with-32-characters"]


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(tmp_path: Path) -> None:
    """As while a crowd of clients has all files of the process: the file is read again, and the tokens stay valid."""
    file = tmp_path / "tokens"
    file.write_text("an-old-token-of-tests-with-32-characters\n")
    now = 100.0
    tokens = TokenFile(file, clock=lambda: now)
    file.write_text("a-new-token-of-tests-with-32-characters\n")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert [token.value for token in tokens.tokens()] == ["an-old-token-of-tests-with-32-characters"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    now += 2
    assert [token.value for token in tokens.tokens()] == ["a-new-token-of-tests-with-32-characters"]
    now += 61
    assert [token.value for token in tokens.tokens()] == ["a-new-token-of-tests-with-32-characters"]


def test_changed_files_that_could_not_be_taken_over_are_tried_again(tmp_path: Path) -> None:
    """Certificates, too: once a second though the files stay as they are, and the log says it once."""
    file, now, tries = tmp_path / "one.pem", 100.0, list[float]()
    file.write_text("old")
    changes = FileChanges(lambda: stamp_of([file]), "the certificates stay as they were", clock=lambda: now)

    def read() -> str:
        tries.append(now)
        if len(tries) < 3:
            raise OSError("too many open files")
        return file.read_text()

    assert changes.take_over(read) is None
    file.write_text("a new one")
    found = []
    for now in (100.0, 100.5, 101.0, 102.0, 103.0):  # noqa: B007  # the clock
        found.append(changes.take_over(read))
    assert found == [None, None, None, "a new one", None]
    assert tries == [100.0, 101.0, 102.0]


def test_a_file_is_read_again_though_its_size_and_time_are_as_before(tmp_path: Path) -> None:
    """As some ways to copy files leave them."""
    file = tmp_path / "tokens"
    file.write_text("token-of-these-tests-whose-number-is-1\n")
    tokens, found = TokenFile(file), file.stat()
    with file.open("r+") as opened:
        opened.write("token-of-these-tests-whose-number-is-2\n")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert [token.value for token in tokens.tokens()] == ["token-of-these-tests-whose-number-is-2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no token"),
        ("# nothing\n\n", "holds no token"),
        ("secret-one tomorrow", "line 1"),
        (f"{'fine' * 8}\nsecret-one 2027-01-31T00:00:00", "line 2"),
        (f"{'fine' * 8}\nsecret-one", "line 2: a token must have at least 32 characters: make one with `openssl"),
        ("secret-one and more", "line 1"),
        ("secret-önë", "line 1"),
    ],
)
def test_a_file_of_tokens_that_is_none_is_named_without_what_it_holds(tmp_path: Path, text: str, words: str) -> None:
    """A word about the line; not the line, which may be a secret."""
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(RpcOptionError, match=words) as raised:
        ServerSecurity(token_file=file).check_files()
    assert "secret" not in str(raised.value)
