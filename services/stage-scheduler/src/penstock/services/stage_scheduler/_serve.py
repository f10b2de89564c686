"""The stage scheduler as a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.operator_attributes import SERVICE_NAME, LocalStageScheduler, StageSchedulerServicer
from penstock.rpc import GrpcServer, ServerSettings


@asynccontextmanager
async def stage_scheduler_server(settings: ServerSettings, *, max_jobs: int) -> AsyncIterator[GrpcServer]:
    """Serve a `LocalStageScheduler` between enter and exit.

    Raises:
        InvalidOptionError: `max_jobs` is less than 1.
        ServerStartError: The address cannot be bound.
    """
    scheduler = LocalStageScheduler(max_jobs=max_jobs)
    servicer = StageSchedulerServicer(scheduler)
    async with GrpcServer(settings, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
        try:
            yield server
        finally:
            # Before the server drains: a watch of a live job would keep it waiting for its whole grace period.
            await scheduler.close()
