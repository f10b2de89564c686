"""SubscribeToShard over HTTP/1.1, chunked: the fall-back, and the way to endpoints without TLS.

A client of its own, as this is all that it does: asyncio's TLS decrypts into a buffer in which events are decoded.
Back-pressure is TCP's: the socket is left unread while a window of events waits for the caller. What TLS and the kernel
hold comes on top.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

from penstock.efo_consumer._http1_answer import Http1Answer
from penstock.efo_consumer._http1_body import BufferPool
from penstock.efo_consumer._subscription import REQUEST_HEADERS, SubscribeRequest, SubscriptionEvent, first_arrival
from penstock.efo_consumer.errors import SubscriptionConnectionError

if TYPE_CHECKING:
    import ssl
    from datetime import timedelta

    from penstock.aws import AwsSession
    from penstock.efo_consumer._subscription import Outcome


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
