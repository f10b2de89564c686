"""The stage scheduler behind gRPC."""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

import grpc

from penstock.operator_attributes import errors
from penstock.operator_attributes._compile.compile import compile
from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes._graph.graph import JobGraph
from penstock.operator_attributes._schedule.api import JobStatus
from penstock.operator_attributes._schedule.claims import Claim
from penstock.operator_attributes._schedule.states import StageEvent
from penstock.operator_attributes._service.wire import (
    CYCLIC_REGIONS,
    claim_from_wire,
    commit_to_wire,
    cyclic_regions_from_wire,
    event_to_wire,
    graph_from_wire,
    graph_to_wire,
    job_from_wire,
)
from penstock.operator_attributes.errors import InvalidOptionError, OperatorAttributesError, RemoteSchedulerError
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import ClientSecurity, open_aio_channel, typed_error

T = TypeVar("T")
_ERRORS = tuple(
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OperatorAttributesError) and kind is not OperatorAttributesError
)


class RemoteStageScheduler:
    """The stage scheduler behind gRPC, for the running event loop: the calls and errors of `StageSchedulerApi`.

    An async context manager: leaving it closes the channel.
    """

    def __init__(self, endpoint: str, security: ClientSecurity | None = None, *, timeout_seconds: float = 30.0) -> None:
        """Open a channel; it connects at the first call.

        Args:
            endpoint: `host:port` of the service.
            security: TLS and token; none unless given.
            timeout_seconds: deadline of every call but `watch`, which has none.

        Raises:
            RpcOptionError: a file cannot be read, or the token would cross the network in plain text.
            InvalidOptionError: the timeout is not positive.
        """
        if timeout_seconds <= 0:
            raise InvalidOptionError("timeout_seconds", timeout_seconds, "greater than 0")
        self._channel = open_aio_channel(endpoint, security)
        self._stub = pb_grpc.StageSchedulerServiceStub(self._channel)
        self._timeout = timeout_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(
        self,
        job_id: str,
        graph: JobGraph,
        *,
        slots: int | None = None,
        max_attempts: int | None = None,
        cyclic_regions: CyclicRegions = CyclicRegions.READ_TWICE,
        restart: bool = False,
    ) -> JobStatus:
        """See `StageSchedulerApi.submit`. May be repeated after RemoteSchedulerError."""
        # Zero has a meaning of its own on the wire, so these are checked on this side.
        for option, value in (("slots", slots), ("max_attempts", max_attempts)):
            if value is not None and value < 1:
                raise InvalidOptionError(option, value, "at least 1")
        request = pb.SubmitRequest(
            job_id=job_id,
            graph=graph_to_wire(graph),
            slots=slots or 0,
            max_attempts=max_attempts or 0,
            cyclic_regions=CYCLIC_REGIONS[cyclic_regions],
            restart=restart,
        )
        response = await self._call(self._stub.Submit, request)
        return job_from_wire(response.job)

    async def report(self, job_id: str, event: StageEvent) -> JobStatus:
        """See `StageSchedulerApi.report`.

        After RemoteSchedulerError the event may or may not have arrived: ask `get_job`.
        """
        response = await self._call(self._stub.Report, event_to_wire(job_id, event))
        return job_from_wire(response.job)

    async def get_job(self, job_id: str) -> JobStatus:
        """See `StageSchedulerApi.get_job`."""
        response = await self._call(self._stub.GetJob, pb.GetJobRequest(job_id=job_id))
        return job_from_wire(response.job)

    async def get_plan(self, job_id: str) -> StagePlan:
        """See `StageSchedulerApi.get_plan`: compiled again here, from the graph."""
        response = await self._call(self._stub.GetGraph, pb.GetGraphRequest(job_id=job_id))
        regions = cyclic_regions_from_wire(response.cyclic_regions)
        return compile(graph_from_wire(response.graph), cyclic_regions=regions)

    async def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """See `StageSchedulerApi.watch`. Closing the generator ends the call."""
        call = self._stub.Watch(pb.WatchRequest(job_id=job_id))
        try:
            with _typed_errors():
                async for response in call:
                    yield job_from_wire(response.job)
        finally:
            call.cancel()

    async def list_jobs(self) -> tuple[JobStatus, ...]:
        """See `StageSchedulerApi.list_jobs`."""
        response = await self._call(self._stub.ListJobs, pb.ListJobsRequest())
        return tuple(job_from_wire(job) for job in response.jobs)

    async def claim(
        self,
        store: str,
        fingerprint: str,
        *,
        owner: str,
        lease_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> Claim:
        """See `StageSchedulerApi.claim`. May be repeated after RemoteSchedulerError."""
        # Zero has a meaning of its own on the wire, so this is checked on this side.
        if lease_seconds is not None and lease_seconds <= 0:
            raise InvalidOptionError("lease_seconds", lease_seconds, "more than 0")
        request = pb.ClaimRequest(
            store=store,
            fingerprint=fingerprint,
            owner=owner,
            lease_seconds=lease_seconds or 0.0,
            wait_seconds=wait_seconds,
        )
        response = await self._call(self._stub.Claim, request, wait_seconds)
        return claim_from_wire(store, fingerprint, response)

    async def renew_claim(self, claim: Claim) -> Claim:
        """See `StageSchedulerApi.renew_claim`."""
        request = pb.RenewClaimRequest(store=claim.store, fingerprint=claim.fingerprint, token=claim.token)
        response = await self._call(self._stub.RenewClaim, request)
        return dataclasses.replace(claim, expires_seconds=response.expires_seconds, renewals=response.renewals)

    async def commit_claim(
        self, claim: Claim, *, location: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """See `StageSchedulerApi.commit_claim`. May be repeated after RemoteSchedulerError."""
        request = commit_to_wire(claim, location=location, rows=rows, size_bytes=size_bytes)
        await self._call(self._stub.CommitClaim, request)

    async def release_claim(self, claim: Claim) -> None:
        """See `StageSchedulerApi.release_claim`."""
        request = pb.ReleaseClaimRequest(store=claim.store, fingerprint=claim.fingerprint, token=claim.token)
        await self._call(self._stub.ReleaseClaim, request)

    async def forget_claim(self, claim: Claim) -> None:
        """See `StageSchedulerApi.forget_claim`."""
        request = pb.ForgetClaimRequest(store=claim.store, fingerprint=claim.fingerprint, token=claim.token)
        await self._call(self._stub.ForgetClaim, request)

    async def close(self) -> None:
        """Close the channel. May be repeated."""
        await self._channel.close(None)

    async def _call(self, method: Callable[..., Awaitable[T]], request: object, wait_seconds: float = 0.0) -> T:
        with _typed_errors():
            return await method(request, timeout=self._timeout + max(0.0, wait_seconds))


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Raise the package's errors in the place of gRPC's."""
    try:
        yield
    except grpc.RpcError as error:
        known = typed_error(error, _ERRORS)
        if known is None and isinstance(error, grpc.aio.AioRpcError):
            known = RemoteSchedulerError(error.code().name, error.details() or "")
        raise known or RemoteSchedulerError("UNKNOWN", str(error)) from error
