"""One kept-alive connection over HTTP/1.1, for one call at a time.

Calls are small in number of headers and large in body, and many a second: requests are ready bytes, answers are read
by llhttp and given whole.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import httptools

_MAX_HEAD_BYTES = 64 * 1024
_SMALL_PART_BYTES = 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest body of an answer: GetRecords returns up to 10 MiB, a third more in JSON."""
# What is small in one packet with the head; a copy of what is large costs more than another call of the kernel.
_MAX_JOINED_BYTES = 128 * 1024
# After a minute without a sign of the other host's TCP the kernel ends a connection. A service that is only slow
# acknowledges what it receives, and may take as long as the caller waits.
_DEAD_PEER_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))


Parts: TypeAlias = Sequence[bytes | memoryview]
"""A body; of memoryviews each item is a byte."""


class HttpAnswer(NamedTuple):
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    """By names in small letters."""
    body: bytes


class HttpConnectionError(ConnectionError):
    """The connection ended, or the data is not a valid answer.

    `untouched` is true if no data came, for example because the service closed an idle connection.
    """

    def __init__(self, reason: str, *, untouched: bool) -> None:
        super().__init__(reason)
        self.untouched = untouched


class HttpConnection(asyncio.BufferedProtocol):
    """A protocol for `create_connection`.

    Args:
        buffer: where to receive into; may be shared by the connections of a loop.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._closed = self._loop.create_future()
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._received_bytes = 0
        self._is_head_read = False
        self._is_kept_alive = False
        self._headers: dict[str, str] = {}
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._beside_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def request(self, head: bytes, body: Parts) -> HttpAnswer:
        """Send a request and wait for its answer. After a cancellation the connection must be aborted.

        Raises:
            HttpConnectionError: no answer came.
        """
        if self._transport is None or self._transport.is_closing():
            raise HttpConnectionError("the connection was closed", untouched=True)
        self._begin()
        self._waiter = self._loop.create_future()
        joined: list[bytes | memoryview] = [head]
        for part in body:
            if len(part) > _MAX_JOINED_BYTES:
                self._transport.write(b"".join(joined))
                self._transport.write(part)
                joined.clear()
            else:
                joined.append(part)
        if joined:
            self._transport.write(b"".join(joined))
        return await self._waiter

    def abort(self) -> None:
        """Close at once, without TLS's closing handshake."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _DEAD_PEER_OPTIONS:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._waiter is None:
            # Unrequested data would be treated as the answer to the next request.
            self.abort()
            return
        self._received_bytes += nbytes
        before = self._body_bytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the answer is not HTTP/1.1: {error}")
        else:
            if not self._is_head_read and self._received_bytes > _MAX_HEAD_BYTES:
                self._fail("the answer's head is too long")
                return
            # Trailers and chunk headers, which the parser keeps until the end.
            self._beside_bytes = 0 if self._body_bytes > before else self._beside_bytes + nbytes
            if self._beside_bytes > _MAX_HEAD_BYTES:
                self._fail("the answer has no end: too much comes beside its body")
            elif self._body_bytes > MAX_BODY_BYTES:
                self._body.clear()
                self._fail(f"the answer is longer than {MAX_BODY_BYTES} bytes")

    def on_message_begin(self) -> None:
        """See httptools."""
        if self._waiter is None:
            # A second answer would be treated as the answer to the next request.
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if self._is_head_read:
            # Trailers must not change the headers.
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._is_head_read = True
        self._is_kept_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            return
        if len(body) >= _SMALL_PART_BYTES:
            self._body.append(body)
        elif self._body and isinstance(self._body[-1], bytearray):
            # An object for each very small chunk would take twenty times its size.
            self._body[-1] += body
        else:
            self._body.append(bytearray(body))

    def on_message_complete(self) -> None:
        """See httptools."""
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._is_head_read, self._headers = False, {}
            return
        self._complete(status)

    def _complete(self, status: int) -> None:
        waiter, self._waiter = self._waiter, None
        assert self._transport is not None
        # If a request is answered before it was sent completely, its rest would mix with the next request.
        if not self._is_kept_alive or waiter is None or self._transport.get_write_buffer_size():
            self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(HttpAnswer(status, self._headers, b"".join(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if not self._closed.done():
            self._closed.set_result(None)
        if self._waiter is None:
            return
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        if self._is_head_read and not framed and exc is None:
            # An answer without a length ends with the connection.
            self._complete(self._parser.get_status_code())
        else:
            self._fail(f"the connection failed: {exc or 'it ended before the answer did'}")

    def _fail(self, reason: str) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(HttpConnectionError(reason, untouched=self._received_bytes == 0))
        self.abort()
