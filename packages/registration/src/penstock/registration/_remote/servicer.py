"""Serves a ConsumerRegistry over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc

from penstock.aws import AwsLocation, mismatch_message
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration._registry import ServedRegistry
from penstock.registration._remote.messages import CONTRACT, MESSAGES, STATUS, acquire_request, lease_named
from penstock.registration._remote.registry import HeartbeatInbox
from penstock.registration._values import AcquireRequest
from penstock.registration.errors import RegistrationError
from penstock.rpc import MethodRights, Servicer, ServiceRights, errors_as_status

SERVICE_NAME: Final = CONTRACT.service.full_name
"""For health checks and reflection."""

_STREAM: Final = ("stream_name", "stream_arn")
_LEASE: Final = {"streams": _STREAM, "consumers": ("consumer_name",), "jobs": ("job_id",)}
RIGHTS: Final = ServiceRights(
    "consumer-registry",
    SERVICE_NAME,
    {
        "Acquire": MethodRights(
            resources={
                **_LEASE,
                "streams": (*_STREAM, "consumer_arn"),
                "consumers": ("consumer_name", "consumer_arn"),
            },
            owned="job_id",
            tells_owned=("lease.job_id",),
            admin_if=("conflict_policy", pb.CONFLICT_POLICY_TAKE_OVER),
            change="acquire",
        ),
        "Heartbeat": MethodRights(resources=_LEASE, owned="job_id"),
        "Release": MethodRights(resources=_LEASE, owned="job_id", change="release"),
        "ListConsumers": MethodRights(
            resources={"streams": ("stream_name",)}, all_of=("streams",), tells_owned=("consumers.lease.job_id",)
        ),
        "ForceRelease": MethodRights(
            resources={"streams": ("stream_name",), "consumers": ("consumer_name",)},
            tells_owned=("lease.job_id",),
            admin=True,
            change="force",
        ),
        "AdoptConsumer": MethodRights(
            resources={"streams": _STREAM, "consumers": ("consumer_name",)},
            tells_owned=("consumer.lease.job_id",),
            admin=True,
            change="adopt",
        ),
        "CollectGarbage": MethodRights(
            resources={"streams": ("stream_name",)}, all_of=("streams",), admin_unless="dry_run", change="collect"
        ),
    },
)
"""What the methods act on."""

Context = grpc.aio.ServicerContext[Any, Any]


class ConsumerRegistryServicer(Servicer):
    """Answers for a registry. `add_to` is what `GrpcServer(register=…)` wants.

    Args:
        registry: whose answers are given.
        location: where the registry's streams are; what callers mean is compared with it.
        endpoint_aliases: further URLs by which callers know its endpoint.
    """

    contract = CONTRACT
    rights = RIGHTS
    """What its methods act on, for `GrpcServer(rights=…)`."""

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
            return MESSAGES.to(pb.AcquireResponse, {"lease": lease})

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
