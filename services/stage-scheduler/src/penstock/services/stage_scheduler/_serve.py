"""The stage scheduler as a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.operator_attributes import SERVICE_NAME, LocalStageScheduler, SqliteJobStore, StageSchedulerServicer
from penstock.rpc import GrpcServer, ServerSettings

_MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""No records come in with a request."""


@asynccontextmanager
async def stage_scheduler_server(
    settings: ServerSettings, *, max_jobs: int, store: Path | None = None
) -> AsyncIterator[GrpcServer]:
    """Serve a `LocalStageScheduler` between enter and exit; with a store, one that keeps its jobs.

    Raises:
        InvalidOptionError: `max_jobs` is less than 1.
        JobStoreError: the store cannot be used, or another service uses it.
        ServerStartError: the address cannot be bound.
    """
    kept = None if store is None else SqliteJobStore(store)
    try:
        scheduler = LocalStageScheduler(max_jobs=max_jobs, store=kept)
    except BaseException:
        if kept is not None:
            kept.close()
        raise
    servicer = StageSchedulerServicer(scheduler)
    try:
        async with GrpcServer(
            settings,
            register=[servicer.add_to],
            service_names=[SERVICE_NAME],
            rights=[servicer.rights],
            max_request_bytes=_MAX_REQUEST_BYTES,
        ) as server:
            try:
                yield server
            finally:
                # Before the server drains: a watch of a live job would keep it waiting for its whole grace period.
                await scheduler.close()
    finally:
        # Also when the address could not be bound: the store's file is let go. May be repeated.
        await scheduler.close()
