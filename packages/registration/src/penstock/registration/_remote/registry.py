"""The registry of a service, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import grpc

from penstock.aws import BackoffPolicy, retry
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration._registry import ConsumerRegistry, RegistryAdministration, holder_of
from penstock.registration._remote.heartbeats import HeartbeatStream
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
                answer = await self._retried("Acquire", acquire_message(request), timeout)
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
            return await self._method(operation)(request, timeout=timeout)

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
                if is_new or not is_transport_failure(error):
                    raise
                answer = None
            except asyncio.CancelledError:
                # Whoever waits no longer has waited too long: the next heartbeat tries another stream.
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
