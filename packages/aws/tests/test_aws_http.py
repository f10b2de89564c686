"""Calls over kept-alive connections, against a server that answers as a test says, byte by byte."""

import asyncio
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from penstock.aws import AwsConnectionError, AwsServiceError, AwsSession, JsonClient
from penstock.aws._http_connection import HttpConnection, HttpConnectionError
from penstock.aws.testing import emulator_options

Answer = Callable[["Server", asyncio.StreamWriter], Awaitable[None]]


def ok(body: bytes = b"{}", *more: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *more))
    return head.encode() + b"\r\n" + body


class Server:
    """Counts connections, keeps requests, answers by a function."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.url = ""
        self.connections = 0
        self.ended = 0
        self.changed = asyncio.Condition()
        self.requests: list[tuple[bytes, bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                self.requests.append((head, await reader.readexactly(length)))
                async with self.changed:
                    self.changed.notify_all()
                await self.answer(self, writer)
        writer.close()
        async with self.changed:
            self.ended += 1
            self.changed.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(reached)


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    served = Server(answer)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    served.url = f"{'https' if tls else 'http'}://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        for writer in served.writers:
            writer.transport.abort()


def always(*answers: bytes) -> Answer:
    """These pieces for each request, each in a packet of its own."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        for piece in answers:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def client_of(server: Server, ca_bundle: str | None = None, **options: object) -> JsonClient:
    return JsonClient(AwsSession(emulator_options(server.url, ca_bundle)), **options)  # type: ignore[arg-type]  # of tests


async def test_one_connection_serves_call_after_call() -> None:
    """Its requests are whole: a line, headers, a body of the length that they say."""
    async with serving(always(ok(b'{"a":1}'))) as server, client_of(server) as client:
        for size in (0, 10, 300_000):
            assert await client.call_raw("PutRecords", b"x" * size) == b'{"a":1}'
        assert server.connections == 1
    head, body = server.requests[-1]
    assert head.startswith(b"POST / HTTP/1.1\r\n")
    assert b"\r\nx-amz-target:Kinesis_20131202.PutRecords\r\n" in head
    assert body == b"x" * 300_000


async def test_calls_at_once_have_a_connection_each_up_to_the_limit() -> None:
    """The others wait, and take the connections over."""
    release = asyncio.Event()

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(ok())

    async with serving(answer) as server, client_of(server, connections=3) as client, asyncio.TaskGroup() as tasks:
        for _ in range(9):
            tasks.create_task(client.call_raw("PutRecords", b"{}"))
        await server.until(lambda: len(server.requests) == 3)
        release.set()
    assert (server.connections, len(server.requests)) == (3, 9)


@pytest.mark.parametrize(
    "pieces",
    [
        (ok(b'{"a":1}')[:30], ok(b'{"a":1}')[30:]),
        (b"HTTP/1.1 100 Continue\r\n\r\n", ok(b'{"a":1}')),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n', b'4\r\n":1}\r\n0\r\n\r\n'),
    ],
    ids=["in two packets", "after an interim answer", "in chunks"],
)
async def test_an_answer_may_come_in_any_framing(pieces: tuple[bytes, ...]) -> None:
    """And the connection serves the next call."""
    async with serving(always(*pieces)) as server, client_of(server) as client:
        assert await client.call("PutRecords", {}) == {"a": 1}
        assert await client.call("PutRecords", {}) == {"a": 1}
        assert server.connections == 1


async def test_a_connection_that_the_service_closes_is_replaced() -> None:
    """`Connection: close` is heard."""
    async with serving(always(ok(b"{}", "Connection: close"))) as server, client_of(server) as client:
        await client.call("PutRecords", {})
        await client.call("PutRecords", {})
        assert server.connections == 2


async def test_a_kept_connection_that_proves_closed_is_replaced_once() -> None:
    """The service closes idle connections whenever it likes, also while a request is on its way."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            writer.transport.abort()
        else:
            writer.write(ok())

    async with serving(answer) as server, client_of(server) as client:
        await client.call("PutRecords", {})
        await client.call("PutRecords", {})
        assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_submission_is_sent_once() -> None:
    """A kept connection that breaks before an answer may have brought the request to the service."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            writer.transport.abort()
        else:
            writer.write(ok())

    async with serving(answer) as server, client_of(server) as client:
        await client.submit("PutRecords", b"{}")
        with pytest.raises(AwsConnectionError) as caught:
            await client.submit("PutRecords", b"{}")
        assert caught.value.is_reached
        assert len(server.requests) == 2


async def test_a_submission_replaces_a_connection_that_is_found_closed() -> None:
    """Nothing was sent over the old connection."""
    async with serving(always(ok())) as server, client_of(server) as client:
        await client.submit("PutRecords", b"{}")
        server.writers[0].close()
        await server.until(lambda: server.ended == 1)
        await asyncio.sleep(0)
        await client.submit("PutRecords", b"{}")
        assert (server.connections, len(server.requests)) == (2, 2)


async def test_a_submission_has_no_time_out_of_the_client() -> None:
    """Its caller bounds it, by cancelling it."""
    release = asyncio.Event()

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) > 1:
            await release.wait()
        writer.write(ok())

    async with serving(answer) as server, client_of(server, total_timeout_seconds=0.05) as client:
        await client.submit("PutRecords", b"{}")
        submission = asyncio.create_task(client.submit("PutRecords", b"{}"))
        with pytest.raises(AwsConnectionError, match=r"within 0\.05 s"):
            await client.call_raw("ListShards", b"{}")
        assert not submission.done()
        release.set()
        assert await submission == b"{}"


async def test_an_answer_that_breaks_off_is_an_error_even_on_a_kept_connection() -> None:
    """Something of the answer came: the service has seen the request."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 1:
            writer.write(ok())
            return
        writer.write(ok(b'{"a":1}')[:-1])
        await writer.drain()
        writer.close()

    async with serving(answer) as server, client_of(server) as client:
        await client.call("PutRecords", {})
        with pytest.raises(AwsConnectionError, match="ended before the answer did"):
            await client.call("PutRecords", {})
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "surplus",
    [ok(b'{"forged":1}'), b"HTTP/1.1 200 OK\r\nContent-Le", b"H", b"rubbish"],
    ids=["an answer", "a part of one", "a letter", "rubbish"],
)
async def test_what_comes_behind_an_answer_is_not_the_next_answer(surplus: bytes) -> None:
    """The connection that brought it is used no more."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b'{"a":1}') + (surplus if len(server.requests) == 1 else b""))

    async with serving(answer) as server, client_of(server) as client:
        assert await client.call("PutRecords", {}) == {"a": 1}
        assert await client.call("PutRecords", {}) == {"a": 1}
        assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "too long"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "not HTTP"),
    ],
    ids=["another protocol", "two lengths", "an endless head", "an upgrade"],
)
async def test_an_invalid_answer_is_an_error(answer: bytes, words: str) -> None:
    """It says so, and the connection is closed."""
    async with serving(always(answer)) as server, client_of(server) as client:
        with pytest.raises(AwsConnectionError, match=words):
            await client.call("PutRecords", {})
        await server.until(lambda: server.ended == 1)


async def test_an_early_answer_is_returned_and_ends_the_connection() -> None:
    """A service may refuse by the head alone; the rest of the body would be taken for the next request."""
    refusal = b'{"__type":"InvalidArgumentException","message":"too large"}'
    head = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n" % len(refusal)
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(head + refusal)
        with suppress(ConnectionError):
            await writer.drain()
            # Not read on: what is on its way stays there.
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with JsonClient(AwsSession(emulator_options(url))) as client:
        for _ in range(2):
            with pytest.raises(AwsServiceError, match="too large"):
                await client.call_raw("PutRecords", b"x" * 30_000_000)
    assert len(heads) == 2
    server.close()


async def test_a_call_that_takes_too_long_ends_with_its_connection() -> None:
    """The error says how long it waited; a late answer is dropped."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) > 1:
            writer.write(ok())

    async with serving(answer) as server, client_of(server, total_timeout_seconds=0.05) as client:
        with pytest.raises(AwsConnectionError, match=r"within 0\.05 s"):
            await client.call("PutRecords", {})
        await server.until(lambda: server.ended == 1)
        assert await client.call("PutRecords", {}) == {}


async def test_a_cancelled_call_closes_its_connection_and_gives_its_place_back() -> None:
    """What it would have answered reaches no other call."""

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) > 1:
            writer.write(ok())

    async with serving(answer) as server, client_of(server, connections=1) as client:
        call = asyncio.create_task(client.call("PutRecords", {}))
        await server.until(lambda: len(server.requests) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.until(lambda: server.ended == 1)
        assert await client.call("PutRecords", {}) == {}


async def test_tls_is_verified_by_the_given_authority(tmp_path: Path) -> None:
    """Large requests and answers pass; an authority that is not trusted is a connection error."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    large = b"{" + b"y" * 3_000_000
    async with serving(always(ok(large)), tls) as server:
        async with client_of(server, str(tmp_path / "ca.pem")) as client:
            for _ in range(2):
                assert await client.call_raw("PutRecords", b"x" * 3_000_000) == large
            assert server.connections == 1
        async with client_of(server, str(tmp_path / "other.pem")) as client:
            with pytest.raises(AwsConnectionError, match="certificate"):
                await client.call("PutRecords", {})


REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n"


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[HttpConnection]:
    connection = HttpConnection(memoryview(bytearray(65_536)))
    host, port = server.url.partition("://")[2].split(":")
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: connection, host, int(port))
    try:
        yield connection
    finally:
        transport.abort()


async def test_the_kernel_ends_a_connection_to_a_host_that_is_gone() -> None:
    """A submission has no time-out: without this, it would wait for as long as the writer does."""
    async with serving(always(ok())) as server, connected(server) as connection:
        assert connection._transport is not None
        kept = connection._transport.get_extra_info("socket")
        assert kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


async def test_an_answer_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails as soon as it is too long, whatever length was said."""
    monkeypatch.setattr("penstock.aws._http_connection.MAX_BODY_BYTES", 100_000)
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    endless = always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 50)
    async with serving(endless) as server, connected(server) as connection, asyncio.timeout(10):
        with pytest.raises(HttpConnectionError, match="longer than 100000 bytes"):
            await connection.request(REQUEST, [b"{}"])


@pytest.mark.parametrize(
    ("begun", "more"),
    [(b"2\r\n{}\r\n0\r\nx-kind: ", b"x"), (b"2\r\n{}\r\n0\r\n", b"x-kind: more\r\n"), (b"2;kind=", b"x")],
    ids=["trailer", "trailers", "chunk extension"],
)
async def test_what_comes_beside_a_body_has_an_end(begun: bytes, more: bytes) -> None:
    """As its head does: the call fails, instead of waiting while the parser keeps it."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = always(head + begun, *[more * (64_000 // len(more))] * 300)
    async with serving(endless) as server, connected(server) as connection, asyncio.timeout(10):
        with pytest.raises(HttpConnectionError, match="comes beside its body"):
            await connection.request(REQUEST, [b"{}"])


async def test_a_body_in_very_small_chunks_takes_no_more_memory_than_its_bytes() -> None:
    """An object for each would take twenty times as much."""
    chunks = b"2\r\n{}\r\n" * 200_000
    answer = always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n")
    async with serving(answer) as server, connected(server) as connection:
        tracemalloc.start()
        try:
            body = (await connection.request(REQUEST, [b"{}"])).body
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert body == b"{}" * 200_000
    assert most < 5_000_000


async def test_a_trailer_is_not_a_header() -> None:
    """What comes behind the body does not change what the answer said of itself."""
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-kind: first\r\n\r\n2\r\n{}\r\n0\r\nx-kind: last\r\n\r\n"
    )
    async with serving(always(answer)) as server, connected(server) as connection:
        assert (await connection.request(REQUEST, [b"{}"])).headers["x-kind"] == "first"
