from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from penstock.operator_attributes import (
    Boundedness,
    CyclicRegions,
    JobGraph,
    LocalStageScheduler,
    OperatorAttributes,
    SqliteJobStore,
    StageReused,
    StageSchedulerApi,
    StageStarted,
    StageState,
    compile,
)
from penstock.operator_attributes.errors import SchedulingError
from penstock.operator_attributes.testing import running_stage_scheduler


@pytest.fixture(params=["local", "remote"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[StageSchedulerApi]:
    if request.param == "local":
        async with LocalStageScheduler() as scheduler:
            yield scheduler
    else:
        async with running_stage_scheduler() as (_, client):
            yield client


def sorted_job(*sinks: str) -> JobGraph:
    graph = JobGraph("sorted")
    graph.add_source("rows", boundedness=Boundedness.BOUNDED, call_site="job.py:1")
    graph.add_operator("sort", "rows", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    for sink in sinks:
        graph.add_sink(sink, "sort", "rows")
    return graph


async def test_a_job_restarts_with_another_graph_for_the_same_watchers(api: StageSchedulerApi) -> None:
    """What happened to it is forgotten, its version grows on, and a watch shows the new job to its end."""
    await api.submit("job", sorted_job("out"))
    before = await api.report("job", StageStarted(stage_id="stage-1"))
    async with aclosing(api.watch("job")) as watched:
        assert (await anext(watched)).stage("stage-1").progress.state is StageState.RUNNING
        restarted = await api.submit("job", sorted_job("out", "more"), restart=True, slots=3)
        assert (restarted.slots, restarted.deployable) == (3, ("stage-1",))
        assert restarted.version > before.version
        shown = await anext(watched)
        assert [stage.name for stage in shown.stages] == [stage.name for stage in restarted.stages]
        for stage in restarted.stages:
            await api.report("job", StageReused(stage_id=stage.stage_id))
        last = shown
        async for job in watched:
            last = job
        assert last.succeeded


async def test_the_plan_of_a_job_can_be_drawn_by_anybody(api: StageSchedulerApi) -> None:
    """It has the edges and call sites of the graph, under the job's own rule for circles."""
    await api.submit("job", sorted_job("out"), cyclic_regions=CyclicRegions.HAND_OVER)
    assert await api.get_plan("job") == compile(sorted_job("out"), cyclic_regions=CyclicRegions.HAND_OVER)
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
        await api.get_plan("other")


async def test_a_restarted_job_replaces_the_stored_one(tmp_path: Path) -> None:
    """A scheduler on the same file finds the new graph, and no event of the old one."""
    file = tmp_path / "stages.db"
    async with LocalStageScheduler(store=SqliteJobStore(file)) as scheduler:
        await scheduler.submit("job", sorted_job("out"))
        await scheduler.report("job", StageStarted(stage_id="stage-1"))
        await scheduler.submit("job", sorted_job("more"), restart=True)
    async with LocalStageScheduler(store=SqliteJobStore(file)) as scheduler:
        job = await scheduler.get_job("job")
        assert job.stages[-1].name == "more"
        assert {stage.progress.attempts for stage in job.stages} == {0}
