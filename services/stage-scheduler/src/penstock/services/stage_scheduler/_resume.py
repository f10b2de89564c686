"""Let a stage be deployed again: a running one whose driver is gone, or one that failed."""

from penstock.operator_attributes import (
    JobStatus,
    RemoteStageScheduler,
    StageInterrupted,
    StageReused,
    StageState,
    StageStatus,
)
from penstock.operator_attributes.errors import SchedulingError
from penstock.rpc import RpcOptionError


class NotResumableError(SchedulingError):
    """The stage cannot be resumed in its present state. The message says what to do instead."""


async def resume(scheduler: RemoteStageScheduler, job_id: str, stage_id: str, *, force: bool) -> JobStatus:
    """Resume a stage.

    A running stage becomes interrupted. For a failed stage the job begins again with what it has committed: the
    scheduler forgets the failures of all stages, and skipped stages wait again.

    Args:
        scheduler: of the job.
        job_id: the job.
        stage_id: one of its stages.
        force: whether a running stage is resumed, too.

    Raises:
        RpcOptionError: the stage is running, and `force` is not set.
        NotResumableError: the stage is in another state, or another stage of the job is running.
        SchedulingError: the scheduler cannot be asked, or does not know the stage. If it ends before all results were
            reported again, drivers report them, or compute them again.
    """
    job = await scheduler.get_job(job_id)
    stage = job.stage(stage_id)
    refusal = refusal_of(job, stage)
    if refusal is not None:
        raise NotResumableError(f"stage {stage_id!r} cannot be resumed: {refusal}")
    if stage.progress.state is StageState.RUNNING:
        if not force:
            reason = f"is missing: stage {stage_id!r} is running, and runs twice if its driver is still there"
            raise RpcOptionError("force", reason)
        return await scheduler.report(job_id, StageInterrupted(stage_id=stage_id))
    plan = await scheduler.get_plan(job_id)
    committed = [one for one in job.stages if one.progress.state.committed]
    job = await scheduler.submit(job_id, plan.graph, slots=job.slots, cyclic_regions=plan.cyclic_regions, restart=True)
    for one in committed:
        rows, size_bytes = one.progress.rows, one.progress.size_bytes
        job = await scheduler.report(job_id, StageReused(stage_id=one.stage_id, rows=rows, size_bytes=size_bytes))
    return job


def refusal_of(job: JobStatus, stage: StageStatus) -> str | None:
    """Why a stage cannot be resumed, and what to do instead; None if it can."""
    match stage.progress.state:
        case StageState.FAILED:
            running = [one.stage_id for one in job.stages if one.progress.state is StageState.RUNNING]
            if not running:
                return None
            return f"{', '.join(running)} of the job is running: wait for it, or resume it first if its driver is gone"
        case StageState.SKIPPED:
            return f"it was skipped because {stage.progress.error}: resume that stage"
        case StageState.WAITING:
            return "it waits for its inputs, and may be deployed when they are committed"
        case StageState.READY | StageState.INTERRUPTED:
            return "it may be deployed already: start its driver"
        case StageState.FINISHED | StageState.REUSED:
            return "its result is committed: run the pipeline with resume=False to compute it again"
    return None
