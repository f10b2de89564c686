"""SubscribeToShard over HTTP/2 by awscrt, which needs TLS with ALPN.

awscrt calls back on its own thread with chunks of 8 kB. They are parsed there; whole events are handed to asyncio. The
window is credited only as the consumer takes events, so that a slow consumer slows Kinesis. The connection's window
stays open meanwhile: one stalled stream does not hold up another.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from awscrt import http
from awscrt.exceptions import AwsCrtError

from penstock.aws import AwsServiceError, AwsSession, date_seconds, service_error
from penstock.efo_consumer._wire.http2_connections import Http2Pool, ReceiveWindow, StreamSlot, keep_thread_state
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
    from collections.abc import Callable
    from concurrent.futures import Future
    from datetime import timedelta


_END_GRACE_SECONDS = 1.0


class Http2Subscription:
    """A SubscribeToShard answer on a stream of a shared connection.

    Methods that start with `on_` run on the connection's thread, the others on the event loop.

    There may be thousands, which nearly always wait for a small event: so it holds no deque, nor an `asyncio.Event`,
    which has one: 700 bytes each.
    """

    __slots__ = (
        "_closed",
        "_count_bytes",
        "_error_body",
        "_failed",
        "_headers",
        "_lock",
        "_loop",
        "_outcomes",
        "_parser",
        "_pending_bytes",
        "_slot",
        "_status",
        "_stream",
        "_uncounted_bytes",
        "_waiter",
        "_waking",
        "_window",
        "bytes_received",
    )

    def __init__(self, slot: StreamSlot, *, window_bytes: int) -> None:
        self._slot = slot
        self._loop = asyncio.get_running_loop()
        self._parser = SubscriptionParser()
        self._window = ReceiveWindow(window_bytes)
        self._pending_bytes = 0
        self._uncounted_bytes = 0
        # Chunks that complete no event are counted in bulk.
        self._count_bytes = window_bytes // 8
        self._lock = threading.Lock()
        self._outcomes: list[tuple[Outcome | None, int]] = []
        self._status = 0
        self._headers: dict[str, str] = {}
        self._error_body = bytearray()
        self._failed = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._waking = False
        self._stream: http.Http2ClientStream | None = None
        self.bytes_received = 0

    def start(self, request: http.HttpRequest) -> None:
        """Send the request.

        Raises:
            AwsCrtError: the connection accepts no more streams.
        """
        stream = self._slot.connection.request(request, self.on_response, self.on_body)
        self._stream = stream
        stream.completion_future.add_done_callback(self.on_complete)
        stream.activate()

    async def started(self) -> None:
        """Wait until the service has accepted the request.

        Raises:
            AwsServiceError: it refused.
            SubscriptionConnectionError: no answer came.
        """
        while self._status != 200 and not self._outcomes:
            await self._woken()
        if self._status != 200:
            outcome, _ = self._outcomes[0]
            assert isinstance(outcome, Exception)  # an answer other than 200 ends in an error
            raise outcome

    @property
    def answered_at(self) -> float | None:
        """See `Subscription.answered_at`."""
        return date_seconds(self._headers.get("date"))

    @property
    def is_pending(self) -> bool:
        """See `Subscription.is_pending`."""
        return bool(self._outcomes) or self._pending_bytes > 0

    @property
    def waits_since(self) -> float | None:
        """See `Subscription.waits_since`."""
        # Copied in one step: the connection's thread appends meanwhile. Of thousands that are asked few have any.
        return first_arrival(outcome for outcome, _ in self._outcomes.copy()) if self._outcomes else None

    async def receive(self) -> SubscriptionEvent | None:
        """See `Subscription.receive`."""
        while not self._outcomes:
            await self._woken()
        outcome, cost = self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is None:
            return None
        del self._outcomes[0]
        with self._lock:
            credit = self._window.taken(cost, self._pending_bytes)
        self._credit(credit)
        return outcome

    async def close(self, *, suspect: bool = False) -> None:
        """See `Subscription.close`."""
        if suspect:
            self._slot.retire()
        self._closed = True
        self._outcomes.clear()
        # At the end of a shard, or after an exception, the service closes the stream itself within a moment.
        self._loop.call_later(_END_GRACE_SECONDS, self._slot.abandon)

    async def _woken(self) -> None:
        # What is signalled from here on wakes: that is done on this loop, and so not before the waiter is there.
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _credit(self, size_bytes: int) -> None:
        if size_bytes and self._stream is not None and not self._failed:
            self._stream.update_window(size_bytes)

    def on_response(self, *, status_code: int, headers: list[tuple[str, str]], **_: Any) -> None:
        """The answer's headers arrived."""
        keep_thread_state()
        accepted = status_code == 200
        # Those of a refusal say why.
        self._headers = {name.lower(): value for name, value in headers if not accepted or name.lower() == "date"}
        self._status = status_code
        self._signal()

    def on_body(self, *, chunk: bytes, **_: Any) -> None:
        """A chunk of the answer arrived."""
        if self._closed or self._failed:
            return
        if self._status != 200:
            if len(self._error_body) < MAX_ERROR_BODY_BYTES:
                self._error_body += chunk
            return
        self.bytes_received += len(chunk)
        self._uncounted_bytes += len(chunk)
        outcomes = self._parser.feed(chunk)
        if not outcomes and self._uncounted_bytes < self._count_bytes:
            return
        received_bytes, self._uncounted_bytes = self._uncounted_bytes, 0
        completed = [event.wire_bytes for event in outcomes if isinstance(event, SubscriptionEvent)]
        # Only the accounting is locked: the event loop must not wait while a large event is decoded.
        with self._lock:
            self._pending_bytes = self._parser.pending_bytes
            credit, costs = self._window.received(received_bytes, completed, self._pending_bytes)
        if not outcomes:
            self._credit(credit)
            return
        if len(costs) < len(outcomes):
            self._failed = True
            costs.append(0)
        self._outcomes.extend(zip(outcomes, costs, strict=True))
        self._credit(credit)
        self._signal()

    def on_complete(self, completion: Future[int]) -> None:
        """The stream was closed by either side."""
        if not self._failed:
            self._outcomes.append((self._ending(completion), 0))
        self._failed = True
        self._signal()
        self._call_soon(self._slot.ended)

    def _ending(self, completion: Future[int]) -> EfoConsumerError | AwsServiceError | None:
        error = completion.exception()
        if error is not None:
            failure = SubscriptionConnectionError(f"the stream failed: {error}")
            failure.__cause__ = error
            return failure
        if self._status != 200:
            return service_error(OPERATION, self._status, self._headers, bytes(self._error_body))
        return self._parser.finish()

    def _signal(self) -> None:
        if not self._waking:
            self._waking = True
            self._call_soon(self._on_signal)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        # A closed loop has no waiters; the stream ends with its connection.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _on_signal(self) -> None:
        self._waking = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Http2Transport:
    """Many subscriptions on few connections. Bound to the event loop that first uses it."""

    name = "http2"

    def __init__(self, session: AwsSession, *, window_bytes: int, connect_timeout: timedelta) -> None:
        self._session = session
        self._url = session.endpoint_url("kinesis") + "/"
        self._host = urlsplit(self._url).netloc
        self._window_bytes = window_bytes
        self._connect_timeout_seconds = connect_timeout.total_seconds()
        self._pool = Http2Pool(
            endpoint_url=self._url,
            ca_bundle=session.ca_bundle,
            window_bytes=window_bytes,
            connect_timeout=connect_timeout,
            proxy=session.proxy("kinesis"),
        )

    async def subscribe(self, request: SubscribeRequest) -> Http2Subscription:
        """See `SubscribeTransport.subscribe`."""
        message = await self._message(request.body())
        slot = await self._pool.acquire()
        subscription = Http2Subscription(slot, window_bytes=self._window_bytes)
        try:
            subscription.start(message)
        except AwsCrtError as error:
            slot.retire()
            slot.ended()
            raise SubscriptionConnectionError(f"the connection accepts no stream: {error}") from error
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                await subscription.started()
        except BaseException as error:
            await subscription.close(suspect=isinstance(error, TimeoutError))
            if isinstance(error, TimeoutError):
                raise SubscriptionConnectionError(f"no answer from {self._host} in time") from error
            raise
        return subscription

    async def close(self) -> None:
        """See `SubscribeTransport.close`."""
        await self._pool.close()

    async def _message(self, body: bytes) -> http.HttpRequest:
        signed = await self._session.signed("POST", self._url, REQUEST_HEADERS, body)
        headers = http.HttpHeaders([("host", self._host), ("content-length", str(len(body)))])
        for name, value in signed.items():
            if name.lower() not in ("host", "content-length"):
                headers.add(name.lower(), value)
        return http.HttpRequest("POST", "/", headers, io.BytesIO(body))
