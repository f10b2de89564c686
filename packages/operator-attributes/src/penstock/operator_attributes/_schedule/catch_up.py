"""The events that make a scheduler stand where its driver stands."""

from collections.abc import Iterator, Mapping

from penstock.operator_attributes._schedule.api import JobStatus, StageStatus
from penstock.operator_attributes._schedule.states import (
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageProgress,
    StageReused,
    StageStarted,
    StageState,
)

_GIVEN_UP = (StageState.FAILED, StageState.SKIPPED)


def catch_up(job: JobStatus, progress: Mapping[str, StageProgress]) -> tuple[StageEvent, ...] | None:
    """The events that bring a job from where its scheduler sees it to where its driver does.

    They are in an order in which they can follow. What cannot be reported yet is left out: that a stage runs whose
    input was lost, or for which the other stages' slots must be given back first.

    Args:
        job: as the scheduler sees it.
        progress: as the driver does, by stage id.

    Returns:
        The events; None when the scheduler gave a stage up that the driver did not: nothing can follow that, and the
        job has to begin anew there.
    """
    for stage in job.stages:
        if stage.progress.state in _GIVEN_UP and progress[stage.stage_id].state not in _GIVEN_UP:
            return None
    return tuple(
        event for step in (_ended, _lost, _committed, _failed, _started) for event in step(job.stages, progress)
    )


def _ended(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    """Of those that run there, and no longer here. First of all: they give slots back."""
    for stage in stages:
        one = progress[stage.stage_id]
        if stage.progress.state is not StageState.RUNNING or one.state is StageState.RUNNING:
            continue
        if one.state is StageState.FINISHED:
            yield StageFinished(stage_id=stage.stage_id, rows=one.rows, size_bytes=one.size_bytes)
        elif one.state is StageState.REUSED:
            yield StageReused(stage_id=stage.stage_id, rows=one.rows, size_bytes=one.size_bytes)
        elif one.state is not StageState.FAILED:
            # It will be tried again. How often it may is counted here, over a life that is shorter than the job's.
            yield StageInterrupted(stage_id=stage.stage_id)


def _lost(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    for stage in stages:
        one = progress[stage.stage_id]
        if stage.progress.state.committed and not one.state.committed:
            yield StageLost(stage_id=stage.stage_id, error=one.error)


def _committed(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    """Of those that were never seen to run there: their results are used, whoever made them."""
    for stage in stages:
        one = progress[stage.stage_id]
        reported = stage.progress.state.committed or stage.progress.state is StageState.RUNNING
        if one.state.committed and not reported:
            yield StageReused(stage_id=stage.stage_id, rows=one.rows, size_bytes=one.size_bytes)


def _failed(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    """After what is committed: stages that are skipped for it stay so."""
    for stage in stages:
        one = progress[stage.stage_id]
        if one.state is not StageState.FAILED or stage.progress.state is StageState.FAILED:
            continue
        if stage.progress.state is not StageState.RUNNING:
            if not _inputs_are_there(stage, progress):
                continue
            yield StageStarted(stage_id=stage.stage_id)
        yield StageFailed(stage_id=stage.stage_id, error=one.error, retryable=False)


def _started(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    for stage in stages:
        runs = progress[stage.stage_id].state is StageState.RUNNING
        if runs and stage.progress.state is not StageState.RUNNING and _inputs_are_there(stage, progress):
            yield StageStarted(stage_id=stage.stage_id)


def _inputs_are_there(stage: StageStatus, progress: Mapping[str, StageProgress]) -> bool:
    return all(progress[one].state.committed for one in stage.blocking_inputs)
