"""Connections that keep the console waiting, and too many of them: they end, and the others are answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from console_world import World, console, session, shard_stats, world

from penstock.rpc import ServerSecurity, ServerStartError
from penstock.services.console._access.connection import Connection, Patience
from penstock.services.console.testing import Limits

QUICK = Limits(handshake=0.5, head=1.0, form=1.0, stuck=1.0)
DEADLINE = 120


class Raw:
    """A connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ends(self) -> bytes:
        """What comes until the other side ends the connection."""
        async with asyncio.timeout(DEADLINE):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def drip(self, text: bytes) -> asyncio.Task[None]:
        """Send it again and again, as long as that goes."""

        async def forever() -> None:
            while True:
                self.writer.write(text)
                await asyncio.sleep(0.1)

        return asyncio.create_task(forever())


@asynccontextmanager
async def raw(address: str, begin: bytes = b"") -> AsyncIterator[Raw]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(begin)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


async def answers(address: str) -> bool:
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/healthz") as answer:
        return answer.status == 200


def test_patience_is_for_the_whole_and_not_for_each_byte() -> None:
    """It ends a while after the last answer, not while the console itself is at work."""
    patience = Patience(Limits(head=20, stuck=5), now=100)
    assert not patience.is_over(119.9)
    assert patience.is_over(120)
    patience.asked()
    assert not patience.is_over(1_000)
    patience.answered(1_000)
    assert not patience.is_over(1_019)
    assert patience.is_over(1_020)


def test_who_reads_slowly_is_waited_for_as_long_as_something_is_read() -> None:
    """Each time that the buffer runs down begins anew; pipelined requests change nothing about it."""
    patience = Patience(Limits(head=20, stuck=5), now=0)
    patience.asked()
    patience.answered(1)
    patience.stuck(1, 65_536)
    assert not patience.is_over(5.9)
    patience.asked()
    patience.answered(5)
    assert patience.is_over(6)
    patience.freed(6)
    assert not patience.is_over(25)
    patience.asked()
    patience.stuck(30, 65_536)
    patience.freed(31)
    assert not patience.is_over(1_000)
    patience.stuck(1_000, 65_536)
    patience.looked(1_001, 500_000)
    patience.looked(1_004, 440_000)
    assert not patience.is_over(1_008), "what came to it since hides what was taken"
    assert patience.is_over(1_009)


class Pipe(asyncio.Transport):
    """A connection of which only what waits is real."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 500_000
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


async def nothing(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nobody asks")


@pytest.mark.parametrize(("taken", "ended_at"), [(0, 20), (1_024, 20), (50_000, None), (100_000, None)])
async def test_a_large_page_has_its_time_for_each_part(taken: int, ended_at: int | None) -> None:
    """A page of 500 kB, of which so much is taken in every 19 seconds; a limit for all of it would end most links."""
    pipe = Pipe()
    connection = Connection(web.Server(nothing), Limits(stuck=20), {}, lambda gone: None)
    connection.connection_made(pipe)
    begin = asyncio.get_running_loop().time()
    connection.pause_writing()
    for second in range(1, 96):
        if not second % 19:
            pipe.waiting -= taken
        # The pause was a moment after the beginning.
        if connection.end_if_over(begin + second + 0.5):
            assert second == ended_at
            break
    assert pipe.is_aborted == (ended_at is not None)
    connection.connection_lost(None)


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 10000\r\n\r\ntoken="
)


@pytest.mark.parametrize(
    ("begin", "more", "said"),
    [
        (b"", b"", b""),
        (HEAD, b"", b""),
        (HEAD, b"X-More: x\r\n", b""),
        (HEAD + b"\r\n", b"", b"200 OK"),
        (HEAD + b"\r\n" + HEAD, b"X-More: x\r\n", b"200 OK"),
        (FORM, b"", b"408 Request Timeout"),
        # Whoever sends on is reset, and may lose the answer by that.
        (FORM, b"x", b""),
    ],
    ids=["silent", "half", "dripping", "idle", "second", "half form", "dripping form"],
)
async def test_who_says_nothing_or_too_little_is_ended(begin: bytes, more: bytes, said: bytes) -> None:
    """However steadily it drips; the others are answered meanwhile."""
    security = {"security": ServerSecurity(token="a-token-of-these-tests-with-32-characters")}
    async with console(server=security, limits=QUICK) as running, raw(running.address, begin) as slow:
        dripping = slow.drip(more) if more else None
        try:
            assert await answers(running.address)
            assert said in await slow.ends()
        finally:
            if dripping is not None:
                dripping.cancel()


async def test_who_reads_nothing_is_ended() -> None:
    """With a large page on its way; whoever reads slowly but steadily gets all of it."""
    async with world() as services:
        await fill(services)
        limits = Limits(stuck=2.0)
        async with console(services.endpoints(), limits=limits) as running:
            path = "/stream?name=flights&size=1000"
            async with aiohttp.ClientSession() as http, asyncio.timeout(DEADLINE):
                while True:
                    async with http.get(f"http://{running.address}{path}") as answer:
                        page = await answer.text()
                        if answer.status == 200 and "shardId-000000000999" in page:
                            break
                    await asyncio.sleep(0.05)
            # Without compression: 500 kB each, and in all far more than the kernel's buffers of a connection hold.
            request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            slow = small_window(running.address)
            steady = small_window(running.address)
            loop = asyncio.get_running_loop()
            try:
                for one in (slow, steady):
                    await loop.sock_sendall(one, request * 64)
                async with asyncio.timeout(DEADLINE):
                    # Who came first is served by then, too.
                    assert await loop.sock_recv(steady, 32_768)
                    while is_served(slow):
                        assert await loop.sock_recv(steady, 32_768), "who reads was ended"
                        # A page takes several times as long as a browser may stand still.
                        await asyncio.sleep(0.15)
                assert is_served(steady), "who reads was ended"
                assert await answers(running.address)
                # What was under way when it was ended is far less than the pages that were asked for.
                assert await rest(slow) < 32 * len(page)
            finally:
                slow.close()
                steady.close()


async def fill(services: World) -> None:
    services.reader.open_sessions = [session("query-1", [shard_stats("flights", one) for one in range(1_000)])]


def small_window(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    one.connect((host, int(port)))
    one.setblocking(False)
    return one


def is_served(one: socket.socket) -> bool:
    """Whether the console, which is in this process, has the connection open; nothing of it is read by that."""
    mine = one.getsockname()
    return any(
        other.raddr == mine and other.status == psutil.CONN_ESTABLISHED
        for other in psutil.Process().net_connections("tcp4")
    )


async def rest(one: socket.socket) -> int:
    """Bytes that are there, until the other side's end."""
    got = 0
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                part = await asyncio.get_running_loop().sock_recv(one, 65_536)
            except ConnectionError:
                return got
            if not part:
                return got
            got += len(part)


async def test_no_more_connections_than_allowed() -> None:
    """Those who come too late are closed at once; those who are in stay in; room that is given back is used."""
    async with console(server={"max_connections": 4}) as running, AsyncExitStack() as stack:
        friend = await stack.enter_async_context(raw(running.address, HEAD + b"\r\n"))
        assert b"200 OK" in await friend.reader.readuntil(b"\r\n")
        crowd = [await stack.enter_async_context(raw(running.address)) for _ in range(3)]
        late = await stack.enter_async_context(raw(running.address, HEAD + b"\r\n"))
        assert await late.ends() == b""
        friend.writer.write(HEAD + b"\r\n")
        await friend.reader.readuntil(b"200 OK")
        crowd[0].writer.close()
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    assert await answers(running.address)
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host `both` with three addresses, one of which is of no machine, and `none`, which has that one only."""
    real = asyncio.get_running_loop().getaddrinfo
    other = "192.0.2.1"

    async def several(host: str, port: int, **options: Any) -> list[object]:
        names = {"both": (other, "127.0.0.2", "127.0.0.1"), "none": (other,)}.get(host)
        return [one for name in names or (host,) for one in await real(name, port, **options)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", several)


def at(host: str) -> dict[str, Any]:
    """The settings of a server there."""
    return {
        "security": ServerSecurity(token="a-token-of-these-tests-with-32-characters", allow_plain_text=True),
        "host": host,
    }


@pytest.mark.usefixtures("names")
async def test_a_name_with_several_addresses_is_served_at_those_that_are_there() -> None:
    """At one port; an address that this machine does not have keeps it from nothing, unless it is the only one."""
    async with console(server=at("both")) as running:
        port = running.address.rpartition(":")[2]
        assert await answers(f"127.0.0.1:{port}")
        assert await answers(f"127.0.0.2:{port}")
    with pytest.raises(ServerStartError, match="could not listen on none:0"):
        async with console(server=at("none")):
            pass


@pytest.mark.usefixtures("names")
async def test_a_port_that_is_free_at_one_address_only_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is, as any would do; and after ten that were somebody's it says so."""
    taken: list[socket.socket] = []
    real = socket.create_server
    tries, at_once = 0, 2

    def create(address: tuple[str, int], **options: Any) -> socket.socket:
        nonlocal tries
        if address[1] and tries < at_once:
            tries += 1
            taken.append(real(address))  # or it is somebody's already
        return real(address, **options)

    monkeypatch.setattr(socket, "create_server", create)
    try:
        async with console(server=at("both")) as running:
            assert await answers(running.address.replace("both", "127.0.0.1"))
        assert tries == at_once
        at_once = 1_000
        with pytest.raises(ServerStartError, match="could not listen on both:0: Address already in use"):
            async with console(server=at("both")):
                pass
        assert tries == 12
    finally:
        for one in taken:
            one.close()


_FORM = b"Content-Type: application/x-www-form-urlencoded; charset=x\r\nContent-Length: 1\r\n\r\na"


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        (b"GET /", b'Cookie: penstock-console="\xff"\r\n\r\n'),
        (b"POST /login", b"Origin: http://[\r\nContent-Length: 0\r\n\r\n"),
        (b"POST /login", b"Origin: http://127.0.0.1\r\n" + _FORM),
    ],
    ids=["cookie", "origin", "charset"],
)
async def test_what_no_browser_sends_is_no_failure_of_the_console(
    line: bytes, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sends it is refused, or not known; the log is not filled with errors."""
    begin = line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + rest
    security = {"security": ServerSecurity(token="a-secret-of-these-tests-with-32-characters")}
    async with console(server=security) as running, raw(running.address, begin) as one:
        said = await one.ends()
    assert said.startswith(b"HTTP/1.1 4"), said[:200]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
