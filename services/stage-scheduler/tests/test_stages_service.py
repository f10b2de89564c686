"""The service as a process, over its real socket."""

import asyncio
from contextlib import aclosing

import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    RemoteStageScheduler,
)
from penstock.operator_attributes.errors import SchedulerAwayError
from penstock.rpc.testing import service_process

MODULE = "penstock.services.stage_scheduler"
DEADLINE = 60


def job() -> JobGraph:
    graph = JobGraph("join")
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("daily", "history", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("joined", "live", "daily")
    return graph


async def test_sigterm_does_not_wait_for_watchers_of_live_jobs() -> None:
    """Open watches end at once, with an error that says why, not after the whole drain time."""
    with service_process(MODULE, ["serve", "--drain-seconds", "3600"]) as service:
        async with asyncio.timeout(DEADLINE), RemoteStageScheduler(service.address) as client:
            await client.submit("job", job())
            async with aclosing(client.watch("job")) as jobs:
                await anext(jobs)
                ended = asyncio.create_task(
                    asyncio.to_thread(service.terminate, DEADLINE), name="terminate the service"
                )
                with pytest.raises(SchedulerAwayError):
                    await anext(jobs)
                assert await ended == 0
