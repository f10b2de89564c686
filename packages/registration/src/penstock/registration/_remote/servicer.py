"""Serves a ConsumerRegistry over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import grpc

from penstock.aws import AwsLocation, mismatch_message
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration._registry import ServedRegistry
from penstock.registration._remote.messages import CONTRACT, MESSAGES, STATUS, acquire_request, lease_named
from penstock.registration._remote.registry import HeartbeatInbox
from penstock.registration._values import AcquireRequest
from penstock.registration.errors import RegistrationError
from penstock.rpc import Servicer, errors_as_status, when_refused

SERVICE_NAME: Final = CONTRACT.service.full_name
"""For health checks and reflection."""

_ORPHANS_OF_A_PAGE: Final = 100
"""A page ends behind the stream that brings it to as many."""

Context = grpc.aio.ServicerContext[Any, Any]


class ConsumerRegistryServicer(Servicer):
    """Answers for a registry. `add_to` is what `GrpcServer(register=…)` wants.

    Args:
        registry: whose answers are given.
        location: where the registry's streams are; what callers mean is compared with it.
        endpoint_aliases: further URLs by which callers know its endpoint.
    """

    contract = CONTRACT

    def __init__(
        self, registry: ServedRegistry, location: AwsLocation | None = None, endpoint_aliases: Sequence[str] = ()
    ) -> None:
        super().__init__(registry)
        self._registry = registry
        self._location = location
        self._endpoint_aliases = endpoint_aliases
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """End the heartbeat streams between two heartbeats: they would keep the server up until its patience ends.

        Clients open them again, at the next heartbeat, with whoever serves then.
        """
        self._draining.set()

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireResponse:
        async with errors_as_status(context, STATUS):
            asked = acquire_request(request)
            await self._check_location(asked)
            lease = await self._registry.acquire(asked)
            when_refused(context, partial(self._registry.release, lease))
            return MESSAGES.to(pb.AcquireResponse, {"lease": lease})

    async def ListConsumers(self, request: pb.ListConsumersRequest, context: Context) -> pb.ListConsumersResponse:
        async with errors_as_status(context, STATUS):
            known = await self._registry.list_consumers(request.stream_name or None)
            page: pb.ListConsumersResponse = self.contract.response("list_consumers", known, request)
            if request.with_state:
                # Kinesis is asked about the streams of the page only.
                listed = {(one.stream_arn, one.consumer_name) for one in page.consumers}
                found = [one for one in known if (one.stream_arn, one.consumer_name) in listed]
                described = MESSAGES.to(pb.ListConsumersResponse, {"consumers": await self._registry.with_state(found)})
                described.next_page_token = page.next_page_token
                return described
            return page

    async def CollectGarbage(self, request: pb.CollectGarbageRequest, context: Context) -> pb.CollectGarbageResponse:
        page, arguments = pb.CollectGarbageResponse(), self.contract.arguments("collect_garbage", request)
        async with (
            errors_as_status(context, STATUS),
            aclosing(self._registry.orphans(**arguments, after=request.page_token)) as streams,
        ):
            async for stream, orphans in streams:
                page.MergeFrom(MESSAGES.to(pb.CollectGarbageResponse, {"orphans": orphans}))
                if len(page.orphans) >= _ORPHANS_OF_A_PAGE:
                    page.next_page_token = stream
                    break
        return page

    async def _check_location(self, request: AcquireRequest) -> None:
        """Refuse a stream of another place, before anything is registered there.

        Raises:
            RegistrationError: REGISTRY_LOCATION_MISMATCH.
        """
        if request.caller is None or self._location is None:
            return
        different = await request.caller.stream_mismatch(
            self._location, request.stream_arn or request.stream_name, self._registry.stream_arn, self._endpoint_aliases
        )
        if different is not None:
            facts = {"fact": different.fact, "caller": different.caller, "found": different.service}
            subject = f"stream {request.stream_name}"
            reason = mismatch_message(service="the registry", option="registryEndpoint", subject=subject, **facts)
            raise RegistrationError.of(
                "REGISTRY_LOCATION_MISMATCH", stream_name=request.stream_name, reason=reason, **facts
            )

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.HeartbeatRequest], context: Context
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        async with errors_as_status(context, STATUS), HeartbeatInbox(request_iterator, self._draining) as inbox:
            while requests := await inbox.take():
                leases = map(lease_named, requests)
                outcomes = await asyncio.gather(*map(self._registry.heartbeat, leases))
                for request, outcome in zip(requests, outcomes, strict=True):
                    yield pb.HeartbeatResponse(
                        stream_name=request.stream_name,
                        consumer_name=request.consumer_name,
                        held=outcome.held,
                        time_to_live_seconds=outcome.time_to_live_seconds,
                    )
