"""What can be done about a stage that does not go on, and why nothing can about the others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.operator_attributes import StageState

if TYPE_CHECKING:
    from penstock.operator_attributes import JobStatus, StageStatus


class How(Enum):
    """How a stage is resumed."""

    INTERRUPT = "interrupt"
    """Report to the scheduler that the driver of a running stage is gone."""
    RETRY = "retry"
    """The job begins anew with what it has committed, so that a failed stage may be deployed again."""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What resuming a stage means.

    Attributes:
        how: None when it cannot be resumed.
        words: what happens then; or why it cannot be, and what to do instead.
    """

    how: How | None = None
    words: str


def resumption(job: JobStatus, stage: StageStatus) -> Resumption:
    """Whether and how a stage of a job can be resumed as it stands now."""
    match stage.progress.state:
        case StageState.RUNNING:
            return Resumption(
                how=How.INTERRUPT,
                words=f"Stage {stage.name} counts as running. This says that its driver is gone: the next driver may "
                "deploy it, and this is not a failure of the stage. If its driver is alive, the stage may run twice.",
            )
        case StageState.FAILED:
            return _of_failed(job, stage)
        case StageState.SKIPPED:
            failed = _failed_before(job, stage)
            return Resumption(words=f"Skipped, because {_names(failed)} failed: resume that, and this one waits again.")
        case StageState.WAITING:
            missing = [
                one
                for one in (job.stage(input_id) for input_id in stage.blocking_inputs)
                if not one.progress.state.committed
            ]
            return Resumption(words=f"It waits for {_names(missing)} and goes on by itself.")
        case StageState.READY:
            return Resumption(words="It may be deployed: its driver does so as soon as there are slots.")
        case StageState.INTERRUPTED:
            return Resumption(words="It may be deployed again already: start its driver.")
        case StageState.FINISHED | StageState.REUSED:
            return Resumption(words="It is committed. To compute it again, start the driver with resume=False.")


def committed(job: JobStatus) -> list[StageStatus]:
    """Stages whose results are kept when the job begins anew, in an order in which they can be reported."""
    return [stage for stage in job.stages if stage.progress.state.committed]


def _of_failed(job: JobStatus, stage: StageStatus) -> Resumption:
    running = [one for one in job.stages if one.progress.state is StageState.RUNNING]
    if running:
        # Whoever runs them would lose the job under its feet.
        words = (
            f"It can be tried again when nothing of the job runs: {_names(running)} does. If the driver of that is "
            "gone, resume that first."
        )
        return Resumption(words=words)
    kept = len(committed(job))
    return Resumption(
        how=How.RETRY,
        words=f"Stage {stage.name} was given up after {_times(stage.progress.attempts)}. The scheduler forgets all "
        f"failures of the job, {_kept(kept)}, and what was skipped waits again; failures are counted from zero, up to "
        "the scheduler's own limit. The next driver deploys it. Mend the cause first; a Penstock pipeline that is "
        "started again does all of this by itself.",
    )


def _failed_before(job: JobStatus, stage: StageStatus) -> list[StageStatus]:
    found: dict[str, StageStatus] = {}
    seen: set[str] = set()
    waiting = list(stage.blocking_inputs)
    while waiting:
        one = job.stage(waiting.pop())
        if one.stage_id in seen:
            continue
        seen.add(one.stage_id)
        if one.progress.state is StageState.FAILED:
            found[one.stage_id] = one
        waiting += one.blocking_inputs
    return [found[one.stage_id] for one in job.stages if one.stage_id in found]


def _names(stages: list[StageStatus]) -> str:
    return " and ".join(stage.name for stage in stages) or "an input"


def _times(attempts: int) -> str:
    return "one attempt" if attempts == 1 else f"{attempts} attempts"


def _kept(count: int) -> str:
    if count == 0:
        return "has no result to keep"
    return "keeps the one that is committed" if count == 1 else f"keeps the {count} results that are committed"
