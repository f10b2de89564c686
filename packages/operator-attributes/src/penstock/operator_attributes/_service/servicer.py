"""The gRPC face of a stage scheduler."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc

from penstock.operator_attributes._schedule.api import StageSchedulerApi
from penstock.operator_attributes._service.wire import (
    CYCLIC_REGIONS,
    STATUS_TABLE,
    claim_to_wire,
    cyclic_regions_from_wire,
    event_from_wire,
    graph_from_wire,
    graph_to_wire,
    job_to_wire,
    reference_from_wire,
)
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import MethodRights, ServiceRights, errors_as_status

_JOB: Final = {"jobs": ("job_id",)}
_STORE: Final = {"stores": ("store",)}
RIGHTS: Final = ServiceRights(
    "stage-scheduler",
    pb.DESCRIPTOR.services_by_name["StageSchedulerService"].full_name,
    {
        "Submit": MethodRights(resources=_JOB, change="submit"),
        "Report": MethodRights(resources=_JOB, change="report"),
        "GetJob": MethodRights(resources=_JOB),
        "GetGraph": MethodRights(resources=_JOB),
        "Watch": MethodRights(resources=_JOB),
        "ListJobs": MethodRights(all_of=("jobs",)),
        # A claim is renewed, committed and given up by its token, which only the claimer was given.
        "Claim": MethodRights(resources=_STORE, change="claim"),
        "RenewClaim": MethodRights(resources=_STORE),
        "CommitClaim": MethodRights(resources=_STORE, change="commit claim"),
        "ReleaseClaim": MethodRights(resources=_STORE, change="release claim"),
        "ForgetClaim": MethodRights(resources=_STORE, change="forget claim"),
    },
)
"""What the methods act on."""
_Context = grpc.aio.ServicerContext[Any, Any]


class StageSchedulerServicer(pb_grpc.StageSchedulerServiceServicer):
    """Serves any `StageSchedulerApi`; its typed errors become status codes, with their fields in the metadata."""

    rights: Final = RIGHTS
    """What its methods act on, for `GrpcServer(rights=…)`."""

    def __init__(self, scheduler: StageSchedulerApi) -> None:
        self._scheduler = scheduler

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        pb_grpc.add_StageSchedulerServiceServicer_to_server(self, server)

    async def Submit(self, request: pb.SubmitRequest, context: _Context) -> pb.SubmitResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            job = await self._scheduler.submit(
                request.job_id,
                graph_from_wire(request.graph),
                slots=request.slots or None,
                max_attempts=request.max_attempts or None,
                cyclic_regions=cyclic_regions_from_wire(request.cyclic_regions),
                restart=request.restart,
            )
            return pb.SubmitResponse(job=job_to_wire(job))

    async def Report(self, request: pb.ReportRequest, context: _Context) -> pb.ReportResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            job = await self._scheduler.report(request.job_id, event_from_wire(request))
            return pb.ReportResponse(job=job_to_wire(job))

    async def GetJob(self, request: pb.GetJobRequest, context: _Context) -> pb.GetJobResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            job = await self._scheduler.get_job(request.job_id)
            return pb.GetJobResponse(job=job_to_wire(job))

    async def GetGraph(self, request: pb.GetGraphRequest, context: _Context) -> pb.GetGraphResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            plan = await self._scheduler.get_plan(request.job_id)
            return pb.GetGraphResponse(
                graph=graph_to_wire(plan.graph), cyclic_regions=CYCLIC_REGIONS[plan.cyclic_regions]
            )

    async def Watch(self, request: pb.WatchRequest, context: _Context) -> AsyncIterator[pb.WatchResponse]:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE), aclosing(self._scheduler.watch(request.job_id)) as jobs:
            async for job in jobs:
                yield pb.WatchResponse(job=job_to_wire(job))

    async def ListJobs(self, request: pb.ListJobsRequest, context: _Context) -> pb.ListJobsResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            jobs = await self._scheduler.list_jobs()
            return pb.ListJobsResponse(jobs=[job_to_wire(job) for job in jobs])

    async def Claim(self, request: pb.ClaimRequest, context: _Context) -> pb.ClaimResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            claim = await self._scheduler.claim(
                request.store,
                request.fingerprint,
                owner=request.owner,
                lease_seconds=request.lease_seconds or None,
                wait_seconds=request.wait_seconds,
            )
            return claim_to_wire(claim)

    async def RenewClaim(self, request: pb.RenewClaimRequest, context: _Context) -> pb.RenewClaimResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            claim = await self._scheduler.renew_claim(reference_from_wire(request))
            return pb.RenewClaimResponse(expires_seconds=claim.expires_seconds, renewals=claim.renewals)

    async def CommitClaim(self, request: pb.CommitClaimRequest, context: _Context) -> pb.CommitClaimResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            await self._scheduler.commit_claim(
                reference_from_wire(request),
                location=request.location,
                rows=request.rows if request.HasField("rows") else None,
                size_bytes=request.size_bytes if request.HasField("size_bytes") else None,
            )
            return pb.CommitClaimResponse()

    async def ReleaseClaim(self, request: pb.ReleaseClaimRequest, context: _Context) -> pb.ReleaseClaimResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            await self._scheduler.release_claim(reference_from_wire(request))
            return pb.ReleaseClaimResponse()

    async def ForgetClaim(self, request: pb.ForgetClaimRequest, context: _Context) -> pb.ForgetClaimResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            await self._scheduler.forget_claim(reference_from_wire(request))
            return pb.ForgetClaimResponse()
