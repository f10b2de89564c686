"""Kept-alive connections to one endpoint."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.aws._http_connection import HttpAnswer, HttpConnection, HttpConnectionError, Parts

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from penstock.aws._proxy import HttpProxy

_READ_BYTES = 256 * 1024
# The service closes idle connections after about a minute: do it first.
IDLE_SECONDS = 20.0
_HAPPY_EYEBALLS_SECONDS = 0.25
_MAX_TUNNEL_HEAD_BYTES = 64 * 1024


class HttpPool:
    """Sends requests over a limited number of connections; the most recently used is used first.

    Belongs to the event loop that creates it.

    Args:
        url: of the endpoint.
        make_tls: makes the context for https; called once, in a thread.
        connections: maximum number; further calls wait.
        connect_timeout_seconds: for a connection with its handshake.
        proxy: https uses a tunnel through it; http requests must be written for a proxy.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        make_tls: Callable[[], ssl.SSLContext | None],
        *,
        connections: int,
        connect_timeout_seconds: float,
        proxy: HttpProxy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = urlsplit(url)
        self._make_tls = make_tls
        self._tls: ssl.SSLContext | None = None
        self._making_tls = asyncio.Lock()
        self._connect_timeout_seconds = connect_timeout_seconds
        self._proxy = proxy
        self._clock = clock
        self._room = asyncio.Semaphore(connections)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._idle: list[tuple[float, HttpConnection]] = []
        self._connections: set[HttpConnection] = set()
        self._is_closed = False

    async def call(self, head: bytes, body: Parts, *, may_repeat: bool) -> HttpAnswer:
        """Send a request and return its answer. Cancelling it closes its connection.

        A kept connection that was closed before the request is sent is replaced. With `may_repeat` the request is also
        repeated if the connection breaks before the first byte of an answer: the service may receive it twice.

        Raises:
            OSError: no connection, or no answer.
            AwsOptionError: the proxy refuses to lead there.
        """
        async with self._room:
            connection = self._take_idle()
            if connection is not None:
                try:
                    return await self._request(connection, head, body)
                except HttpConnectionError as error:
                    if not (may_repeat and error.untouched) or self._is_closed:
                        raise
            return await self._request(await self._connect(), head, body)

    async def close(self) -> None:
        """Close the connections; running calls end with an error."""
        self._is_closed = True
        self._idle.clear()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.wait_closed()

    async def _request(self, connection: HttpConnection, head: bytes, body: Parts) -> HttpAnswer:
        try:
            answer = await connection.request(head, body)
        except BaseException:
            connection.abort()
            self._connections.discard(connection)
            raise
        if connection.is_open:
            self._idle.append((self._clock(), connection))
        else:
            self._connections.discard(connection)
        return answer

    def _take_idle(self) -> HttpConnection | None:
        latest_end = self._clock() - IDLE_SECONDS
        while self._idle and self._idle[0][0] < latest_end:
            self._drop(self._idle.pop(0)[1])
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_open:
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: HttpConnection) -> None:
        connection.abort()
        self._connections.discard(connection)

    async def _connect(self) -> HttpConnection:
        if self._url.scheme == "https" and self._tls is None:
            async with self._making_tls:
                # It reads the trust store.
                self._tls = self._tls or await asyncio.to_thread(self._make_tls)
                assert self._tls is not None  # it is there for https
                self._tls.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                connection = await (self._open_tunnel() if self._proxy and self._tls else self._open())
        except TimeoutError as error:
            by = f" by the proxy {self._proxy.authority}" if self._proxy else ""
            raise ConnectionError(f"no connection{by} within {self._connect_timeout_seconds:g} s") from error
        self._connections.add(connection)
        if self._is_closed:
            self._drop(connection)
        return connection

    async def _open(self) -> HttpConnection:
        host, port = (self._proxy.host, self._proxy.port) if self._proxy else self._host
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(self._buffer),
            host,
            port,
            ssl=self._tls,
            happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS,
        )
        return connection

    async def _open_tunnel(self) -> HttpConnection:
        proxy, tls = self._proxy, self._tls
        assert proxy is not None
        assert tls is not None
        host, port = self._host
        loop = asyncio.get_running_loop()
        transport, answer = await loop.create_connection(
            _TunnelAnswer, proxy.host, proxy.port, happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS
        )
        try:
            transport.write(proxy.tunnel_request(host, port))
            status, reason = await answer.status
            if not 200 <= status < 300:
                raise proxy.refusal(status, reason, host)
            connection = HttpConnection(self._buffer)
            secured = await loop.start_tls(transport, connection, tls, server_hostname=host)
        except BaseException:
            transport.abort()
            raise
        assert secured is not None
        connection.connection_made(secured)
        return connection

    @property
    def _host(self) -> tuple[str, int]:
        return self._url.hostname or "", self._url.port or (443 if self._url.scheme == "https" else 80)


class _TunnelAnswer(asyncio.Protocol):
    """Waits for a proxy's answer to CONNECT."""

    def __init__(self) -> None:
        self.status: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._head += data
        if b"\r\n\r\n" in self._head and not self.status.done():
            _, status, reason = (*self._head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2), "", "")[:3]
            self.status.set_result((int(status) if status.isdecimal() else 0, reason))
        elif len(self._head) > _MAX_TUNNEL_HEAD_BYTES:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if not self.status.done():
            self.status.set_exception(ConnectionError(f"the proxy did not answer CONNECT: {exc or 'it hung up'}"))
