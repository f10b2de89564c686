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

_READ_BYTES = 256 * 1024
# The service closes idle connections after about a minute: do it first.
IDLE_SECONDS = 20.0
_HAPPY_EYEBALLS_SECONDS = 0.25


class HttpPool:
    """Sends requests over at most so many connections; the one that was used last is used first.

    Bound to the event loop that makes it. Goes to the endpoint directly, by no proxy.

    Args:
        url: of the endpoint.
        make_tls: makes the context for https; called once, in a thread.
        connections: more calls than these wait.
        connect_timeout_seconds: for a connection with its handshake.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        make_tls: Callable[[], ssl.SSLContext | None],
        *,
        connections: int,
        connect_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = urlsplit(url)
        self._make_tls = make_tls
        self._tls: ssl.SSLContext | None = None
        self._making_tls = asyncio.Lock()
        self._connect_timeout_seconds = connect_timeout_seconds
        self._clock = clock
        self._room = asyncio.Semaphore(connections)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._idle: list[tuple[float, HttpConnection]] = []
        self._connections: set[HttpConnection] = set()
        self._is_closed = False

    async def call(self, head: bytes, body: Parts) -> HttpAnswer:
        """Send a request, give its answer. Cancelling it closes its connection.

        A connection that turns out to be closed, with not a byte of an answer, is replaced once by a new one.

        Raises:
            OSError: no connection, or no answer.
        """
        async with self._room:
            connection = self._take_idle()
            if connection is not None:
                try:
                    return await self._request(connection, head, body)
                except HttpConnectionError as error:
                    if not error.untouched or self._is_closed:
                        raise
            return await self._request(await self._connect(), head, body)

    async def close(self) -> None:
        """Close the connections; calls on their way end with an error."""
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
        url, is_https = self._url, self._url.scheme == "https"
        if is_https and self._tls is None:
            async with self._making_tls:
                # It reads the trust store.
                self._tls = self._tls or await asyncio.to_thread(self._make_tls)
                assert self._tls is not None  # it is there for https
                self._tls.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(self._buffer),
                    url.hostname or "",
                    url.port or (443 if is_https else 80),
                    ssl=self._tls if is_https else None,
                    happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS,
                )
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {self._connect_timeout_seconds:g} s") from error
        self._connections.add(connection)
        if self._is_closed:
            self._drop(connection)
        return connection
