"""The stage scheduler as a server: its settings, and what it serves."""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from penstock.operator_attributes import SERVICE_NAME, LocalStageScheduler, SqliteJobStore, StageSchedulerServicer
from penstock.operator_attributes.errors import JobStoreError
from penstock.rpc import GrpcServer, ServerSettings, Setting, add_settings, read_path, read_settings
from penstock.rpc.service import ServiceKind

_MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""No records come in with a request."""
KIND: Final = ServiceKind("stages", (JobStoreError,), {"force": "--force"})
_OWN: Final = (
    Setting("max_jobs", "jobs that are remembered; ended ones are forgotten first; default 1000", int, least=1),
    Setting("store", "SQLite file that keeps jobs and claims; without it they end with the process"),
)


@dataclass(frozen=True, kw_only=True)
class StagesSettings:
    """All that the service needs to know."""

    server: ServerSettings
    max_jobs: int = 1_000
    """Jobs that are remembered."""
    store: Path | None = None
    """SQLite file of jobs and claims."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag for each setting, which falls back to `PENSTOCK_STAGES_<NAME>`."""
        ServerSettings.add_arguments(parser, KIND.prefix)
        add_settings(parser, KIND.prefix, _OWN)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError: a setting is wrong; the error names it.
        """
        own = read_settings(arguments, _OWN)
        return cls(
            server=ServerSettings.from_arguments(arguments, KIND.prefix, environment),
            max_jobs=own.get("max_jobs", 1_000),
            store=read_path("store", own["store"]) if own.get("store") else None,
        )


@asynccontextmanager
async def stage_scheduler_server(settings: StagesSettings) -> AsyncIterator[GrpcServer]:
    """Serve a `LocalStageScheduler` between enter and exit; with a store, one that keeps its jobs.

    Raises:
        JobStoreError: the store cannot be used, or another service uses it.
        ServerStartError: the address cannot be bound.
    """
    kept = None if settings.store is None else SqliteJobStore(settings.store)
    try:
        scheduler = LocalStageScheduler(max_jobs=settings.max_jobs, store=kept)
    except BaseException:
        if kept is not None:
            kept.close()
        raise
    servicer = StageSchedulerServicer(scheduler)
    try:
        async with GrpcServer(
            settings.server,
            register=[servicer.add_to],
            service_names=[SERVICE_NAME],
            max_request_bytes=_MAX_REQUEST_BYTES,
        ) as server:
            try:
                yield server
            finally:
                # Before the server drains: a watch of a live job would keep it waiting for its whole grace period.
                await scheduler.close()
    finally:
        # Also when the address could not be bound: the store's file is closed. May be repeated.
        await scheduler.close()
