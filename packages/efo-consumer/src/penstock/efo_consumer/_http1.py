"""SubscribeToShard over HTTP/1.1, chunked: the fall-back, and the way to endpoints without TLS.

Back-pressure is TCP's: a chunk is read from the socket only when the caller asks for the next event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

import aiohttp

from penstock.aws import AwsServiceError, service_error
from penstock.efo_consumer._subscription import (
    MAX_ERROR_BODY_BYTES,
    OPERATION,
    REQUEST_HEADERS,
    SubscribeRequest,
    SubscriptionEvent,
    SubscriptionParser,
)
from penstock.efo_consumer.errors import EfoConsumerError, SubscriptionConnectionError

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.aws import AwsSession

# aiohttp stops reading the socket at twice this; the kernel's buffers come on top.
_READ_BUFFER_BYTES = 256 * 1024


class Http1Subscription:
    """A chunked SubscribeToShard answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._parser = SubscriptionParser()
        self._outcomes: deque[SubscriptionEvent | EfoConsumerError | AwsServiceError] = deque()
        self._ended = False
        self.bytes_received = 0

    async def receive(self) -> SubscriptionEvent | None:
        """See `Subscription.receive`."""
        while not self._outcomes:
            if self._ended:
                return None
            chunk = await self._read()
            if not chunk:
                self._ended = True
                self._parser.finish()
                return None
            self.bytes_received += len(chunk)
            self._outcomes.extend(self._parser.feed(chunk))
        outcome = self._outcomes.popleft()
        if isinstance(outcome, Exception):
            self._ended = True
            raise outcome
        return outcome

    async def _read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            self._ended = True
            raise SubscriptionConnectionError(f"the connection failed: {error or type(error).__name__}") from error

    async def close(self, *, suspect: bool = False) -> None:
        """See `Subscription.close`; the connection ends with its subscription anyway."""
        self._ended = True
        self._outcomes.clear()
        self._response.close()


class Http1Transport:
    """One connection per subscription. Bound to the event loop that first uses it."""

    name = "http1"

    def __init__(self, session: AwsSession, *, connect_timeout: timedelta) -> None:
        self._session = session
        self._url = session.endpoint_url("kinesis") + "/"
        self._connect_timeout_seconds = connect_timeout.total_seconds()
        self._http: aiohttp.ClientSession | None = None
        self._subscriptions: WeakSet[Http1Subscription] = WeakSet()

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._session.ssl_context() or True)
            # Silence is the publisher's to judge: the service is silent for seconds in a healthy subscription.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_seconds)
            self._http = aiohttp.ClientSession(
                connector=connector, timeout=timeout, read_bufsize=_READ_BUFFER_BYTES, auto_decompress=False
            )
        return self._http

    async def subscribe(self, request: SubscribeRequest) -> Http1Subscription:
        """See `SubscribeTransport.subscribe`."""
        body = request.body()
        # In a thread: expired credentials are fetched anew over the network.
        headers = await asyncio.to_thread(self._session.sign, "POST", self._url, REQUEST_HEADERS, body, "kinesis")
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                response = await self._open().post(self._url, data=body, headers=headers)
                if response.status == 200:
                    subscription = Http1Subscription(response)
                    self._subscriptions.add(subscription)
                    return subscription
                try:
                    answer = await response.content.read(MAX_ERROR_BODY_BYTES)
                finally:
                    response.close()
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise SubscriptionConnectionError(f"no answer from {self._url}: {reason}") from error
        lower = {name.lower(): value for name, value in response.headers.items()}
        raise service_error(OPERATION, response.status, lower, answer)

    async def close(self) -> None:
        """See `SubscribeTransport.close`."""
        # A session that closes does not wake those who read from its answers.
        for subscription in list(self._subscriptions):
            await subscription.close()
        http, self._http = self._http, None
        if http is not None:
            await http.close()
