"""What the tests share: services with names and jobs in them, and the console in front."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.operator_attributes import Boundedness, GlobalWindows, JobGraph, StageFinished, StageStarted
from penstock.rpc import ServerSettings
from penstock.services.console.testing import (
    ConsoleServer,
    Endpoint,
    FakeServices,
    fake_services,
    running_console,
    session,
    shard_stats,
)

__all__ = ["HOSTILE", "World", "console", "session", "shard_stats", "shot_folder", "submit", "world"]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
END = GlobalWindows.create_with_end_of_stream_trigger()
World = FakeServices
world = fake_services


def two_stages(job_id: str, *names: str) -> JobGraph:
    """A batch stage, and a live one that waits for it."""
    first, second, third = names or ("weather", "daily", "alerts")
    graph = JobGraph(f"{job_id} as written")
    graph.add_source(first, boundedness=Boundedness.BOUNDED)
    graph.add_operator(second, first, keyed=True, window=END)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("joined", "live", second)
    graph.add_sink(third, "joined")
    return graph


async def submit(services: World, job_id: str, *names: str) -> None:
    """A job of two stages, of which the first is committed and the second runs."""
    job = await services.stages.submit(job_id, two_stages(job_id, *names))
    batch = job.deployable[0]
    await services.stages.report(job_id, StageStarted(stage_id=batch))
    job = await services.stages.report(job_id, StageFinished(stage_id=batch, rows=1_095, size_bytes=20_480))
    await services.stages.report(job_id, StageStarted(stage_id=job.deployable[0]))


@asynccontextmanager
async def console(endpoints: Sequence[Endpoint] = (), **options: Any) -> AsyncIterator[ConsoleServer]:
    """The console, in this process."""
    server = ServerSettings(**{"drain_seconds": 0.2, **options.pop("server", {})})
    async with running_console(endpoints, server=server, **options) as running:
        yield running


def shot_folder() -> Path | None:
    """Where pictures of pages are kept for people; None unless asked for."""
    folder = os.environ.get("PENSTOCK_CONSOLE_SHOTS")
    return Path(folder) if folder else None
