"""SubscribeToShard over HTTP/1.1, chunked: the fall-back, and the way to endpoints without TLS.

A client of its own, as this is all that it does: asyncio's TLS decrypts into a buffer in which events are decoded.
Back-pressure is TCP's: the socket is left unread while a window of events waits for the caller. What TLS and the kernel
hold comes on top.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

import h11

from penstock.aws import service_error
from penstock.efo_consumer._wire.subscription import (
    MAX_ERROR_BODY_BYTES,
    OPERATION,
    REQUEST_HEADERS,
    Outcome,
    SubscribeRequest,
    SubscriptionEvent,
    SubscriptionParser,
    first_arrival,
)
from penstock.efo_consumer.errors import EfoConsumerError, SubscriptionConnectionError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from penstock.aws import AwsSession


class Http1Subscription(asyncio.BufferedProtocol):
    """A SubscribeToShard answer on a connection of its own."""

    def __init__(self, answer: Http1Answer, *, window_bytes: int) -> None:
        self._answer = answer
        self._window_bytes = window_bytes
        self._outcomes: deque[Outcome | None] = deque()
        self._waiting_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._closed = False
        self._is_started = False
        self._waiter: asyncio.Future[None] | None = None
        self.bytes_received = 0

    async def started(self) -> None:
        """Wait until the service has accepted the request.

        Raises:
            AwsServiceError: it refused.
            SubscriptionConnectionError: no answer came.
        """
        while not self._answer.accepted and not self._outcomes:
            if self._closed:
                raise SubscriptionConnectionError("the transport was closed")
            await self._woken()
        self._is_started = True
        if not self._answer.accepted:
            outcome = self._outcomes[0]
            assert isinstance(outcome, Exception)  # what is not accepted ends in an error
            raise outcome

    @property
    def waits_since(self) -> float | None:
        """See `Subscription.waits_since`."""
        return first_arrival(self._outcomes)

    async def receive(self) -> SubscriptionEvent | None:
        """See `Subscription.receive`."""
        while not self._outcomes:
            if self._closed:
                return None
            self._resume()
            await self._woken()
        outcome = self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            self._outcomes.popleft()
            self._waiting_bytes -= outcome.wire_bytes
        return outcome

    async def close(self, *, suspect: bool = False) -> None:
        """See `Subscription.close`; the connection ends with its subscription anyway."""
        self._closed = True
        self._outcomes.clear()
        self._hang_up()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._closed:
            self._hang_up()
        else:
            transport.write(self._answer.request)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio; TLS knows how much it has."""
        return self._answer.room(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self.bytes_received += nbytes
        self._enter(self._answer.received(nbytes))

    def eof_received(self) -> None:
        """See asyncio."""
        self._enter(self._answer.closed())

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._enter(self._answer.closed(exc))

    def _enter(self, outcomes: list[Outcome | None]) -> None:
        if self._answer.ended:
            self._hang_up()
        if self._closed:
            return
        self._outcomes += outcomes
        self._waiting_bytes += sum(one.wire_bytes for one in outcomes if isinstance(one, SubscriptionEvent))
        if self._waiting_bytes >= self._window_bytes and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if outcomes or not self._is_started:
            self._wake()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _hang_up(self) -> None:
        # Nothing else will be asked on the connection, and TLS's own good-bye would wait for the other side's.
        if self._transport is not None:
            self._transport.abort()

    async def _woken(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Http1Transport:
    """One connection per subscription. Bound to the event loop that first uses it."""

    name = "http1"

    def __init__(self, session: AwsSession, *, window_bytes: int, connect_timeout: timedelta) -> None:
        self._session = session
        self._url = session.endpoint_url("kinesis") + "/"
        self._window_bytes = window_bytes
        self._connect_timeout_seconds = connect_timeout.total_seconds()
        self._tls: ssl.SSLContext | None = None
        self._buffers = BufferPool()
        self._subscriptions: WeakSet[Http1Subscription] = WeakSet()

    async def subscribe(self, request: SubscribeRequest) -> Http1Subscription:
        """See `SubscribeTransport.subscribe`."""
        body = request.body()
        # In a thread: expired credentials are fetched anew over the network.
        headers = await asyncio.to_thread(self._session.sign, "POST", self._url, REQUEST_HEADERS, body, "kinesis")
        url = urlsplit(self._url)
        answer = Http1Answer(url.netloc, url.path, headers, body, self._buffers)
        subscription = Http1Subscription(answer, window_bytes=self._window_bytes)
        self._subscriptions.add(subscription)
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                await self._connect(subscription)
                await subscription.started()
        except BaseException as error:
            await subscription.close()
            if isinstance(error, OSError):
                reason = str(error) or type(error).__name__
                raise SubscriptionConnectionError(f"no answer from {self._url}: {reason}") from error
            raise
        return subscription

    async def close(self) -> None:
        """See `SubscribeTransport.close`."""
        for subscription in list(self._subscriptions):
            await subscription.close()

    async def _connect(self, subscription: Http1Subscription) -> None:
        url = urlsplit(self._url)
        is_https = url.scheme == "https"
        if is_https and self._tls is None:
            # In a thread: it reads the trust store.
            self._tls = await asyncio.to_thread(self._session.ssl_context)
            assert self._tls is not None  # it is there for https
            self._tls.set_alpn_protocols(["http/1.1"])
        # Silence is the publisher's to judge: the service is silent for seconds in a healthy subscription.
        await asyncio.get_running_loop().create_connection(
            lambda: subscription, url.hostname or "", url.port or (443 if is_https else 80), ssl=self._tls
        )


class Http1Answer:
    """Reads one answer: its head by h11, its body in place.

    `received` and `closed` give outcomes in order: events, and in the end an error, or None where the service ended the
    subscription. After that, what is received is not looked at.

    Attributes:
        request: the bytes to send.
        accepted: the service has accepted the request.
        ended: the last outcome was given.
    """

    def __init__(self, host: str, target: str, headers: Mapping[str, str], body: bytes, pool: BufferPool) -> None:
        self._h11 = h11.Connection(h11.CLIENT)
        names = {name.lower(): value for name, value in headers.items()}
        names.update({"host": host, "content-length": str(len(body))})
        sent = [
            self._h11.send(h11.Request(method="POST", target=target, headers=list(names.items()))),
            self._h11.send(h11.Data(data=body)),
            self._h11.send(h11.EndOfMessage()),
        ]
        self.request = b"".join(part for part in sent if part)
        self.accepted = False
        self.ended = False
        self._status = 0
        self._headers: dict[str, str] = {}
        self._error_body = bytearray()
        self._body = BodyBuffer(pool)
        self._parser = SubscriptionParser()

    def room(self, size_hint: int = -1) -> memoryview:
        """Where to receive into; see `BodyBuffer.room`."""
        return self._body.room(size_hint)

    def received(self, size: int) -> list[Outcome | None]:
        """So many bytes were written to the room; what they complete."""
        self._body.received(size)
        if self.ended:
            return []
        return self._read(self._read_body if self.accepted else self._read_head)

    def closed(self, error: Exception | None = None) -> list[Outcome | None]:
        """The connection ended, by this error if it did not end properly."""
        if self.ended:
            return []
        # A refusal may last until the end of the connection, and so may the answer.
        last: list[Outcome | None] = []
        if error is None:
            last = self._read(self._read_last)
        if not self.ended:
            failure = SubscriptionConnectionError(f"the connection failed: {error or 'it ended before the answer did'}")
            failure.__cause__ = error
            last.append(failure)
            self._end()
        return last

    def _read(self, step: Callable[[list[Outcome | None]], None]) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = []
        try:
            step(outcomes)
        except h11.RemoteProtocolError as error:
            failure = SubscriptionConnectionError(f"the answer is not HTTP/1.1: {error}")
            failure.__cause__ = error
            outcomes.append(failure)
        except SubscriptionConnectionError as error:
            outcomes.append(error)
        if outcomes and not isinstance(outcomes[-1], SubscriptionEvent):
            self._end()
        return outcomes

    def _read_last(self, outcomes: list[Outcome | None]) -> None:
        if not self.accepted:
            self._read_head(outcomes)
        elif self._body.may_end:
            outcomes.append(self._ending())

    def _read_head(self, outcomes: list[Outcome | None]) -> None:
        # Nothing to read means the end of the connection, to h11 as well.
        self._h11.receive_data(self._body.take_raw())
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
                self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                if self._status == 200:
                    self._accept()
                    self._read_body(outcomes)
                    return
            elif isinstance(event, h11.Data):
                self._error_body += event.data
            elif not isinstance(event, h11.InformationalResponse | h11.EndOfMessage):
                return
            if isinstance(event, h11.EndOfMessage) or len(self._error_body) >= MAX_ERROR_BODY_BYTES:
                outcomes.append(service_error(OPERATION, self._status, self._headers, bytes(self._error_body)))
                return

    def _accept(self) -> None:
        self.accepted = True
        if "transfer-encoding" in self._headers:
            # h11 lets no other than chunked pass.
            self._body.frame(Framing.CHUNKED)
        elif "content-length" in self._headers:
            self._body.frame(Framing.LENGTH, int(self._headers["content-length"]))
        rest, _ = self._h11.trailing_data
        self._body.room(len(rest))[: len(rest)] = rest
        self._body.received(len(rest))

    def _read_body(self, outcomes: list[Outcome | None]) -> None:
        body, parser = self._body, self._parser
        while body.unwrap():
            found, start = parser.feed_in_place(body.data, body.start, body.end)
            body.consume(start)
            outcomes += found
            if found and isinstance(found[-1], Exception):
                return
        body.tidy()
        if body.ended:
            outcomes.append(self._ending())

    def _ending(self) -> EfoConsumerError | None:
        try:
            self._parser.finish()
        except EfoConsumerError as truncated:
            return truncated
        return None

    def _end(self) -> None:
        self.ended = True
        self._body.drop()


_READ_BYTES = 256 * 1024
_LEAST_ROOM_BYTES = 4096
# No chunk extension and no trailer of a service comes near to these.
_MAX_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 16 * 1024

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class BufferPool:
    """Buffers that are used again: fresh memory costs as much as what is done with the bytes in it."""

    _MAX_KEPT = 4
    _MAX_KEPT_BYTES = 1024 * 1024

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def acquire(self, size: int) -> bytearray:
        """A buffer of at least so many bytes, whatever they are."""
        fitting = [buffer for buffer in self._free if len(buffer) >= size]
        if not fitting:
            return bytearray(1 << (size - 1).bit_length())
        smallest = min(fitting, key=len)
        self._free = [buffer for buffer in self._free if buffer is not smallest]
        return smallest

    def release(self, buffer: bytearray) -> None:
        """Give back a buffer that nobody reads from any more."""
        if 0 < len(buffer) <= self._MAX_KEPT_BYTES and len(self._free) < self._MAX_KEPT:
            self._free.append(buffer)


class Framing(Enum):
    """How the end of a body is told."""

    CHUNKED = auto()
    LENGTH = auto()
    """By the number of its bytes."""
    CLOSE = auto()
    """By the end of the connection."""


class _State(Enum):
    DATA = auto()
    AFTER_DATA = auto()
    SIZE = auto()
    TRAILER = auto()
    END = auto()


class BodyBuffer:
    """Takes in what was received, and shows the body in it piece by piece.

    `data[start:end]` is the body that was unwrapped and not consumed; behind it lies what was received and not
    unwrapped. A buffer is held only while there is one or the other.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._take_over(bytearray())
        self.start = self.end = self._raw = self._raw_end = 0
        self._state = _State.DATA
        self._framing = Framing.CLOSE
        self._left = 1 << 62
        self._line = b""
        self._trailer_bytes = 0

    @property
    def ended(self) -> bool:
        """The whole body was unwrapped."""
        return self._state is _State.END

    @property
    def may_end(self) -> bool:
        """The end of the connection is not too early."""
        return self._state is _State.END or self._framing is Framing.CLOSE

    def frame(self, framing: Framing, length: int = 0) -> None:
        """Say how the body is framed, before anything of it is unwrapped."""
        self._framing = framing
        if framing is Framing.CHUNKED:
            self._state, self._left = _State.SIZE, 0
        elif framing is Framing.LENGTH:
            self._state, self._left = (_State.DATA if length else _State.END), length

    def room(self, size_hint: int = -1) -> memoryview:
        """Where to receive into; all that was received before has to be unwrapped.

        Args:
            size_hint: how many bytes are there; negative if that is not known.
        """
        pending = self.end - self.start
        size = pending + max(_READ_BYTES if size_hint < 0 else size_hint, _LEAST_ROOM_BYTES)
        if len(self.data) < size:
            old, source = self.data, self._view[self.start : self.end]
            self._take_over(self._pool.acquire(size))
            self._view[:pending] = source
            self._pool.release(old)
        elif self.start and pending:
            self._view[:pending] = self._view[self.start : self.end]
        self.start = 0
        self.end = self._raw = self._raw_end = pending
        return self._view[pending:]

    def received(self, size: int) -> None:
        """So many bytes were written to the room."""
        self._raw_end = self._raw + size

    def take_raw(self) -> bytes:
        """Everything that was received, which is then gone."""
        raw = bytes(self._view[self._raw : self._raw_end])
        self._raw = self._raw_end
        return raw

    def unwrap(self) -> bool:
        """Extend `data[start:end]` up to the end of a chunk; False when nothing more was received.

        Raises:
            SubscriptionConnectionError: the chunks are malformed.
        """
        while self._raw < self._raw_end:
            if self._state is _State.DATA:
                self._unwrap_data()
                return True
            if self._state is _State.END:
                # Nothing else was asked for on this connection.
                self._raw = self._raw_end
            elif (line := self._next_line()) is not None:
                self._on_line(line)
        return False

    def consume(self, start: int) -> None:
        """The body before this was used up."""
        self.start = start

    def tidy(self) -> None:
        """Let the buffer go if nothing is left in it."""
        if self.start == self.end and self._raw == self._raw_end:
            self.drop()

    def drop(self) -> None:
        """Let the buffer go, whatever is in it."""
        self._pool.release(self.data)
        self._take_over(bytearray())
        self.start = self.end = self._raw = self._raw_end = 0

    def _take_over(self, buffer: bytearray) -> None:
        self.data = buffer
        self._view = memoryview(buffer)

    def _unwrap_data(self) -> None:
        size = min(self._left, self._raw_end - self._raw)
        if self.start == self.end:
            self.start = self.end = self._raw
        elif self.end != self._raw:
            self._view[self.end : self.end + size] = self._view[self._raw : self._raw + size]
        self.end += size
        self._raw += size
        self._left -= size
        if not self._left:
            self._state = _State.AFTER_DATA if self._framing is Framing.CHUNKED else _State.END

    def _next_line(self) -> bytes | None:
        """The next line without its end; None if that was not received yet."""
        end = self.data.find(b"\n", self._raw, self._raw_end)
        self._line += self._view[self._raw : self._raw_end if end < 0 else end]
        self._raw = self._raw_end if end < 0 else end + 1
        if len(self._line) > _MAX_LINE_BYTES:
            raise SubscriptionConnectionError("the answer is malformed: a line between chunks is too long")
        if end < 0:
            return None
        line, self._line = self._line, b""
        if not line.endswith(b"\r"):
            raise SubscriptionConnectionError("the answer is malformed: a line between chunks has no proper end")
        return line[:-1]

    def _on_line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise SubscriptionConnectionError("the answer is malformed: a chunk has no size")
            self._left = int(match[1], 16)
            self._state = _State.DATA if self._left else _State.TRAILER
        elif self._state is _State.AFTER_DATA:
            if line:
                raise SubscriptionConnectionError("the answer is malformed: a chunk is longer than its size")
            self._state = _State.SIZE
        elif not line:
            self._state = _State.END
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise SubscriptionConnectionError("the answer is malformed: its trailer is too long")
