"""The registry of a service, over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import grpc

from penstock.aws import BackoffPolicy, retry
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration._registry import ConsumerRegistry, RegistryAdministration, holder_of
from penstock.registration._remote.messages import (
    CONTRACT,
    MESSAGES,
    acquire_message,
    deadline_passed,
    is_transport_failure,
    registration_error,
)
from penstock.registration._values import AcquireRequest, Heartbeat, Lease
from penstock.registration.errors import AcquireTimeoutError, RegistryUnavailableError
from penstock.rpc import ClientSecurity, RemoteApi, calls

_IN_FLIGHT: Final = 1_000
"""Heartbeats without an answer; further ones wait."""


class HeartbeatStream:
    """Sends heartbeats without waiting for the answers of earlier ones. Over once any of them fails."""

    def __init__(self, call: Callable[[AsyncIterator[pb.HeartbeatRequest]], Any]) -> None:
        # Room for all that are in flight, and for the end.
        self._requests: asyncio.Queue[pb.HeartbeatRequest | None] = asyncio.Queue(_IN_FLIGHT + 1)
        self._places = asyncio.Semaphore(_IN_FLIGHT)
        self._unanswered: deque[asyncio.Future[pb.HeartbeatResponse | None]] = deque()
        # The requests are an iterator, because gRPC's own queue leaks a task when an intercepted call is cancelled.
        self._call = call(self._send())
        self._reading = asyncio.create_task(self._read(), name="read answers to heartbeats")

    @property
    def is_over(self) -> bool:
        """Whether no more answers come."""
        return self._reading.done()

    async def beat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse | None:
        """The answer to a heartbeat; None when the registry ended the stream before.

        Cancelling stops the waiting; the answer is dropped when it comes.

        Raises:
            grpc.RpcError: the stream broke.
        """
        async with self._places:
            if self.is_over:
                return None
            answer: asyncio.Future[pb.HeartbeatResponse | None] = asyncio.get_running_loop().create_future()
            # Both at once: answers are matched by their order.
            self._unanswered.append(answer)
            self._requests.put_nowait(request)
            return await answer

    def end(self) -> None:
        """Close the stream. Heartbeats without an answer count as ended by the registry."""
        self._call.cancel()
        self._reading.cancel()

    async def wait_ended(self) -> None:
        """Return when nothing of the stream is left."""
        await asyncio.wait({self._reading})

    async def _send(self) -> AsyncIterator[pb.HeartbeatRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        error: BaseException | None = None
        try:
            async for response in self._call:
                answer = self._unanswered.popleft()
                if not answer.done():
                    answer.set_result(response)
        except grpc.RpcError as broken:
            error = broken
        finally:
            self._requests_end()
            while self._unanswered:
                answer = self._unanswered.popleft()
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)

    def _requests_end(self) -> None:
        """Let the sender end: what it would send is not read any more."""
        while not self._requests.empty():
            self._requests.get_nowait()
        self._requests.put_nowait(None)


_WAITING: Final = 1_000
"""Heartbeats that wait; a client that sends faster than they are written is held back by HTTP/2's flow control."""


class HeartbeatInbox:
    """Reads requests ahead, so that those that arrive while the store writes are written together next.

    An async context manager: its task ends with it.
    """

    def __init__(self, requests: AsyncIterator[pb.HeartbeatRequest], draining: asyncio.Event) -> None:
        self._requests = requests
        self._draining = draining
        self._queue: asyncio.Queue[pb.HeartbeatRequest | None] = asyncio.Queue(_WAITING)
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._read(), name="read heartbeats"),
            asyncio.create_task(self._wait_for_drain(), name="wait for drain"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self) -> list[pb.HeartbeatRequest]:
        """All that have arrived, at least one; none when the client closed its side or the server drains."""
        taken: list[pb.HeartbeatRequest] = []
        while not self._ended and (not taken or not self._queue.empty()):
            request = await self._queue.get()
            if request is None:
                self._ended = True
            else:
                taken.append(request)
        return taken

    async def _read(self) -> None:
        # A call that breaks ends like one that is closed. Not after a cancellation: the queue may stay full.
        with contextlib.suppress(Exception):
            async for request in self._requests:
                await self._queue.put(request)
        await self._queue.put(None)

    async def _wait_for_drain(self) -> None:
        await self._draining.wait()
        await self._queue.put(None)


_RECONNECT = BackoffPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=5), exponent=2.0, max_attempts=6)


class RemoteConsumerRegistry(RemoteApi):
    """A ConsumerRegistry behind an endpoint (`host:port`).

    A registry that is away is called again with back-off; each call may be repeated safely. Heartbeats of all leases
    share one stream, which is opened again at the next heartbeat after it broke. Belongs to the event loop that first
    uses it.
    """

    contract = CONTRACT

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None = None,
        *,
        reconnect: BackoffPolicy = _RECONNECT,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(endpoint, security)
        self._reconnect = reconnect
        self._sleep = sleep
        self._heartbeats: HeartbeatStream | None = None

    async def acquire(self, request: AcquireRequest) -> Lease:
        """See ConsumerRegistry."""
        timeout = None if request.timeout is None else request.timeout.total_seconds()
        try:
            async with asyncio.timeout(timeout) as limit:
                answer = await self._acquire(request, timeout)
        except (TimeoutError, grpc.RpcError) as error:
            passed = limit.expired() if isinstance(error, TimeoutError) else deadline_passed(error)
            if timeout is not None and passed:
                raise AcquireTimeoutError(
                    stream_name=request.stream_name,
                    consumer_name=request.consumer_name,
                    timeout_seconds=timeout,
                    holder_job_id=await holder_of(self, request),
                ) from error
            if isinstance(error, grpc.RpcError):
                raise self._error(error, "Acquire") from error
            raise
        return MESSAGES.of(Lease, answer.lease)

    async def _acquire(self, request: AcquireRequest, timeout: float | None) -> pb.AcquireResponse:
        while True:
            try:
                answer: pb.AcquireResponse = await self._retried("Acquire", acquire_message(request), timeout)
                return answer
            except grpc.RpcError as error:
                # The service ends long waits; the caller decides how long it waits in all.
                if not isinstance(self._error(error, "Acquire"), AcquireTimeoutError):
                    raise

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """See ConsumerRegistry."""
        try:
            return MESSAGES.of(Heartbeat, await self._beat(MESSAGES.to(pb.HeartbeatRequest, lease)))
        except grpc.RpcError as error:
            raise self._error(error, "Heartbeat") from error

    release = calls(ConsumerRegistry.release)
    list_consumers = calls(ConsumerRegistry.list_consumers)
    force_release = calls(RegistryAdministration.force_release)
    adopt = calls(RegistryAdministration.adopt)
    collect_garbage = calls(RegistryAdministration.collect_garbage)

    async def close(self) -> None:
        """See ConsumerRegistry."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.end()
            await heartbeats.wait_ended()
        await super().close()

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        return registration_error(error, self._endpoint, operation)

    async def _ask(self, operation: str, request: Any, arguments: Mapping[str, Any]) -> Any:
        try:
            return await self._retried(operation, request)
        except grpc.RpcError as error:
            raise self._error(error, operation) from error

    async def _retried(self, operation: str, request: Any, timeout: float | None = None) -> Any:
        async def once() -> Any:
            return await self._call(operation, request, timeout)

        def is_retryable(error: BaseException) -> bool:
            return isinstance(error, grpc.RpcError) and is_transport_failure(error)

        return await retry(once, self._reconnect, is_retryable=is_retryable, sleep=self._sleep)

    async def _beat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """One heartbeat. A stream that broke or was ended since the last one is opened again, once."""
        while True:
            stream, is_new = self._heartbeat_stream()
            try:
                answer = await stream.beat(request)
            except grpc.RpcError as error:
                if is_new or not (is_transport_failure(error) or self._security.may_be_renewed(error)):
                    raise
                answer = None
            except asyncio.CancelledError:
                # A caller that stops waiting has waited too long: the next heartbeat uses another stream.
                stream.end()
                raise
            if answer is not None:
                return answer
            if is_new:
                raise RegistryUnavailableError(
                    where=f"the registry at {self._endpoint}", reason="it ended the stream of heartbeats"
                )

    def _heartbeat_stream(self) -> tuple[HeartbeatStream, bool]:
        """The open stream, and whether it was opened for this heartbeat."""
        if self._heartbeats is not None and not self._heartbeats.is_over:
            return self._heartbeats, False
        self._heartbeats = HeartbeatStream(self._method("Heartbeat"))
        return self._heartbeats, True
