"""The service as a process, over its real socket."""

import asyncio
from contextlib import aclosing

import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    RemoteStageScheduler,
    StageFinished,
    StageReused,
    StageStarted,
)
from penstock.operator_attributes.errors import SchedulerAwayError, SchedulingError
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


async def test_a_driver_and_a_watcher_meet_over_the_service() -> None:
    """What one client reports another one sees, to the end of the job."""
    with service_process(MODULE, ["serve"]) as service:
        async with (
            asyncio.timeout(DEADLINE),
            RemoteStageScheduler(service.address) as driver,
            RemoteStageScheduler(service.address) as watcher,
        ):
            submitted = await driver.submit("job", job(), slots=2)
            assert submitted.deployable == ("stage-1",)
            versions = []
            async with aclosing(watcher.watch("job")) as jobs:
                async for seen in jobs:
                    versions.append(seen.version)
                    match seen.version:
                        case 1:
                            await driver.report("job", StageStarted(stage_id="stage-1"))
                        case 2:
                            await driver.report("job", StageFinished(stage_id="stage-1", rows=9))
                        case 3:
                            assert seen.stage("stage-1").progress.rows == 9
                            assert seen.deployable == ("stage-2",)
                            await driver.report("job", StageReused(stage_id="stage-2"))
            assert versions == [1, 2, 3, 4]
            assert [one.job_id for one in await watcher.list_jobs()] == ["job"]


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
                with pytest.raises(SchedulingError) as caught:
                    await anext(jobs)
                assert isinstance(caught.value, SchedulerAwayError)
                assert await ended == 0
