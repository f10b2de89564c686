"""SubscribeToShard over HTTP/1.1, by aiohttp: the fall-back for emulators, and for networks without HTTP/2.

Each subscription has a connection of its own, which ends with it. Back-pressure is TCP's: the socket is left unread
while about a window of bytes waits for the caller. What TLS and the kernel hold comes on top.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

import aiohttp

from penstock.aws import AwsOptionError, AwsServiceError, AwsSession, date_seconds, service_error
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
from penstock.efo_consumer.errors import SubscriptionConnectionError

if TYPE_CHECKING:
    from datetime import timedelta


class Http1Subscription:
    """A SubscribeToShard answer on a connection of its own."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._body = response.content
        self._parser = SubscriptionParser()
        self._outcomes: deque[Outcome | None] = deque()
        self._parsed_bytes = 0
        self._closed = False
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self.answered_at = date_seconds(response.headers.get("Date"))
        self._watch_connection()
        self._reader = asyncio.create_task(self._read_ahead(), name="http1 subscription")

    @property
    def bytes_received(self) -> int:
        """See `Subscription.bytes_received`."""
        return self._body.total_bytes

    @property
    def is_pending(self) -> bool:
        """See `Subscription.is_pending`."""
        return bool(self._outcomes) or self._parser.pending_bytes > 0 or self._body.total_bytes > self._parsed_bytes

    @property
    def waits_since(self) -> float | None:
        """See `Subscription.waits_since`."""
        return first_arrival(self._outcomes)

    async def receive(self) -> SubscriptionEvent | None:
        """See `Subscription.receive`."""
        while not self._outcomes:
            if self._closed:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        outcome = self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            self._outcomes.popleft()
            self._taken.set()
        return outcome

    async def close(self, *, suspect: bool = False) -> None:
        """See `Subscription.close`; the connection ends with its subscription anyway."""
        self._closed = True
        self._outcomes.clear()
        self._reader.cancel()
        self._arrived.set()
        _hang_up(self._response)

    def _watch_connection(self) -> None:
        # After a malformed chunk aiohttp (3.14) closes the connection, but leaves readers of the body waiting.
        connection = self._response.connection
        if connection is None or connection.protocol is None:
            return  # the answer has ended
        lost = connection.protocol.closed
        if lost is None:
            self._on_connection_lost()
        else:
            lost.add_done_callback(self._on_connection_lost)

    def _on_connection_lost(self, lost: asyncio.Future[None] | None = None) -> None:
        failure = aiohttp.ClientPayloadError("the connection ended inside the answer")
        failure.__cause__ = None if lost is None else lost.exception()
        if not self._body.is_eof() and self._body.exception() is None:
            self._body.set_exception(failure)

    async def _read_ahead(self) -> None:
        # Up to one chunk with whole events, so that it is known since when they wait.
        while not self._outcomes or isinstance(self._outcomes[-1], SubscriptionEvent):
            if self._outcomes:
                self._taken.clear()
                await self._taken.wait()
                continue
            try:
                chunk = await self._body.readany()
                if chunk:
                    self._parsed_bytes += len(chunk)
                    self._outcomes += self._parser.feed(chunk)
                elif self._body.at_eof():
                    self._outcomes.append(self._parser.finish())
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                # A RuntimeError: the connection was lost before this read, and its callback has not run yet.
                failure = SubscriptionConnectionError(f"the connection failed: {error}")
                failure.__cause__ = error
                self._outcomes.append(failure)
            self._arrived.set()


class Http1Transport:
    """One connection per subscription. Bound to the event loop that first uses it."""

    name = "http1"

    def __init__(self, session: AwsSession, *, window_bytes: int, connect_timeout: timedelta) -> None:
        self._session = session
        self._url = session.endpoint_url("kinesis") + "/"
        self._proxy = session.proxy("kinesis")
        self._window_bytes = window_bytes
        self._connect_timeout_seconds = connect_timeout.total_seconds()
        self._http: aiohttp.ClientSession | None = None
        self._subscriptions: WeakSet[Http1Subscription] = WeakSet()
        self._closed = False

    async def subscribe(self, request: SubscribeRequest) -> Http1Subscription:
        """See `SubscribeTransport.subscribe`."""
        body = request.body()
        headers = await self._session.signed("POST", self._url, REQUEST_HEADERS, body)
        http = await self._client()
        proxy, to_proxy = self._proxy, {}
        if proxy is not None and proxy.authorization is not None:
            to_proxy["Proxy-Authorization"] = proxy.authorization
            if not self._url.startswith("https:"):
                headers |= to_proxy
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                response = await http.post(
                    self._url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=None if proxy is None else f"http://{proxy.authority}",
                    proxy_headers=to_proxy,
                )
                if response.status != 200 or response.content_type == "text/html":
                    raise await _refusal(response, self._url)
        except (aiohttp.ClientError, OSError) as error:
            if proxy is not None and isinstance(error, aiohttp.ClientHttpProxyError):
                refusal = proxy.refusal(error.status, error.message, self._url)
                if isinstance(refusal, AwsOptionError):
                    raise refusal from error
            reason = "the transport was closed" if self._closed else str(error) or type(error).__name__
            raise SubscriptionConnectionError(f"no answer from {self._url}: {reason}") from error
        subscription = Http1Subscription(response)
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        """See `SubscribeTransport.close`."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()
        if self._http is not None:
            await self._http.close()

    async def _client(self) -> aiohttp.ClientSession:
        tls = None
        if self._http is None and self._url.startswith("https:"):
            # In a thread: it reads the trust store.
            tls = await asyncio.to_thread(self._session.ssl_context)
        if self._closed:
            raise SubscriptionConnectionError("the transport was closed")
        if self._http is None:
            if tls is not None:
                tls.set_alpn_protocols(["http/1.1"])
            self._http = aiohttp.ClientSession(
                # An answer lasts for minutes: a connection kept for the next one saves nothing, and may be stale.
                connector=aiohttp.TCPConnector(ssl=tls or True, limit=0, force_close=True),
                # Silence is the publisher's to judge: the service is silent for seconds in a healthy subscription.
                timeout=aiohttp.ClientTimeout(total=None),
                # aiohttp stops reading at twice this.
                read_bufsize=self._window_bytes // 2,
                # The request is sent as it was signed, and the answer is read as it comes.
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http


async def _refusal(response: aiohttp.ClientResponse, endpoint: str) -> AwsServiceError:
    """The error that an answer other than 200 describes; its connection is closed."""
    body = bytearray()
    try:
        while len(body) < MAX_ERROR_BODY_BYTES and (chunk := await response.content.readany()):
            body += chunk
    finally:
        _hang_up(response)
    headers = {name.lower(): value for name, value in response.headers.items()}
    return service_error(OPERATION, response.status, headers, bytes(body), endpoint=endpoint)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    # At once: TLS's own good-bye would wait for the other side's.
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()
