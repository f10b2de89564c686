"""The registry of a service, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from penstock.aws import BackoffPolicy, retry
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2_grpc as pb_grpc
from penstock.registration._registry import holder_of
from penstock.registration._remote import messages
from penstock.registration._remote.heartbeats import HeartbeatStream
from penstock.registration._remote.status import (
    deadline_passed,
    is_transport_failure,
    registration_error,
)
from penstock.registration._values import AcquireRequest, Consumer, Heartbeat, Lease, Orphan
from penstock.registration.errors import AcquireTimeoutError, RegistryUnavailableError
from penstock.rpc import ClientSecurity, open_aio_channel

T = TypeVar("T")

_RECONNECT = BackoffPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=5), exponent=2.0, max_attempts=6)


class RemoteConsumerRegistry:
    """A ConsumerRegistry behind an endpoint (`host:port`).

    A registry that is away is called again with back-off; each call may be repeated safely. Heartbeats of all leases
    share one stream, which is opened again at the next heartbeat after it broke. Belongs to the event loop that first
    uses it.
    """

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None = None,
        *,
        reconnect: BackoffPolicy = _RECONNECT,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._security = security
        self._reconnect = reconnect
        self._sleep = sleep
        self._channel: grpc.aio.Channel | None = None
        self._heartbeats: HeartbeatStream | None = None

    async def acquire(self, request: AcquireRequest) -> Lease:
        """See ConsumerRegistry."""
        timeout = None if request.timeout is None else request.timeout.total_seconds()
        message = messages.acquire_message(request)
        with self._typed_errors("Acquire"):
            try:
                async with asyncio.timeout(timeout) as limit:
                    answer = await self._call(lambda stub: stub.Acquire(message, timeout=timeout))
            except (TimeoutError, grpc.RpcError) as error:
                passed = limit.expired() if isinstance(error, TimeoutError) else deadline_passed(error)
                if timeout is None or not passed:
                    raise
                raise AcquireTimeoutError(
                    stream_name=request.stream_name,
                    consumer_name=request.consumer_name,
                    timeout_seconds=timeout,
                    holder_job_id=await holder_of(self, request),
                ) from error
        return messages.lease_of(answer.lease)

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """See ConsumerRegistry."""
        request = pb.HeartbeatRequest(
            stream_name=lease.stream_name,
            stream_arn=lease.stream_arn,
            consumer_name=lease.consumer_name,
            job_id=lease.job_id,
            fencing_token=lease.fencing_token,
        )
        with self._typed_errors("Heartbeat"):
            answer = await self._beat(request)
        return Heartbeat(held=answer.held, time_to_live_seconds=answer.time_to_live_seconds)

    async def release(self, lease: Lease, *, disown: bool = False) -> bool:
        """See ConsumerRegistry."""
        message = pb.ReleaseRequest(
            stream_name=lease.stream_name,
            stream_arn=lease.stream_arn,
            consumer_name=lease.consumer_name,
            job_id=lease.job_id,
            fencing_token=lease.fencing_token,
            disowned_consumer_arn=lease.consumer_arn if disown else "",
        )
        answer: pb.ReleaseResponse = await self._ask("Release", message)
        return answer.will_deregister

    async def list_consumers(self, stream_name: str | None = None, *, with_state: bool = False) -> list[Consumer]:
        """See ConsumerRegistry."""
        message = pb.ListConsumersRequest(stream_name=stream_name or "", with_state=with_state)
        answer: pb.ListConsumersResponse = await self._ask("ListConsumers", message)
        return [messages.consumer_of(consumer) for consumer in answer.consumers]

    async def force_release(self, stream_name: str, consumer_name: str) -> Lease | None:
        """See RegistryAdministration."""
        message = pb.ForceReleaseRequest(stream_name=stream_name, consumer_name=consumer_name)
        answer: pb.ForceReleaseResponse = await self._ask("ForceRelease", message)
        return messages.lease_of(answer.lease) if answer.HasField("lease") else None

    async def adopt(self, stream_name: str, consumer_name: str, *, stream_arn: str | None = None) -> Consumer:
        """See RegistryAdministration."""
        message = pb.AdoptConsumerRequest(
            stream_name=stream_name, consumer_name=consumer_name, stream_arn=stream_arn or ""
        )
        answer: pb.AdoptConsumerResponse = await self._ask("AdoptConsumer", message)
        return messages.consumer_of(answer.consumer)

    async def collect_garbage(self, stream_name: str | None = None, *, dry_run: bool = False) -> list[Orphan]:
        """See RegistryAdministration."""
        message = pb.CollectGarbageRequest(stream_name=stream_name or "", dry_run=dry_run)
        answer: pb.CollectGarbageResponse = await self._ask("CollectGarbage", message)
        return [messages.orphan_of(orphan) for orphan in answer.orphans]

    async def close(self) -> None:
        """See ConsumerRegistry."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.end()
            await heartbeats.wait_ended()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _stub(self) -> Any:
        if self._channel is None:
            self._channel = open_aio_channel(self._endpoint, self._security)
        return pb_grpc.ConsumerRegistryServiceStub(self._channel)

    async def _ask(self, operation: str, message: Any) -> Any:
        with self._typed_errors(operation):
            return await self._call(lambda stub: getattr(stub, operation)(message))

    @contextmanager
    def _typed_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise registration_error(error, self._endpoint, operation) from error

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        async def once() -> T:
            return await call(self._stub())

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
        self._heartbeats = HeartbeatStream(self._stub().Heartbeat)
        return self._heartbeats, True
