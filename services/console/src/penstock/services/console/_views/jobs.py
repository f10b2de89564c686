"""Jobs and their stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.operator_attributes import StageState

if TYPE_CHECKING:
    from penstock.operator_attributes import JobStatus
    from penstock.services.console._views.view import View

MARKS = {
    StageState.WAITING: "○",
    StageState.READY: "◔",
    StageState.RUNNING: "▶",
    StageState.FINISHED: "✓",
    StageState.FAILED: "✗",
    StageState.SKIPPED: "⊘",
    StageState.REUSED: "↻",
    StageState.INTERRUPTED: "‖",
}
# Of jobs: whoever has to do something about one finds it at the top.
_ORDER = (
    StageState.FAILED,
    StageState.RUNNING,
    StageState.INTERRUPTED,
    StageState.READY,
    StageState.WAITING,
    StageState.FINISHED,
)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job, and one word for how it stands."""

    job: JobStatus
    state: StageState
    """The state of a stage that says most: running, failed, or finished when all are committed."""
    committed: int
    seconds: float
    """In stages, of all of them."""
    levels: int
    """Stages on the longest way through the graph."""


def job_rows(view: View) -> list[JobRow]:
    """One entry per job: those that failed first, then those that run, those that have ended last; then by id."""
    rows = [job_row(job) for job in view.snapshot.jobs]
    return sorted(rows, key=lambda row: (_ORDER.index(row.state), row.job.job_id))


def by_state(rows: list[JobRow]) -> list[tuple[str, int]]:
    """How many jobs stand how, in the order of `job_rows`."""
    counts = {state: sum(row.state is state for row in rows) for state in _ORDER}
    return [(state.value, count) for state, count in counts.items() if count]


def job_row(job: JobStatus) -> JobRow:
    """A job as a row."""
    return JobRow(
        job=job,
        state=_state(job),
        committed=sum(stage.progress.state.committed for stage in job.stages),
        seconds=sum(stage.progress.seconds for stage in job.stages),
        levels=_levels(job),
    )


def _state(job: JobStatus) -> StageState:
    states = {stage.progress.state for stage in job.stages}
    if job.ended:
        return StageState.FINISHED if job.succeeded else StageState.FAILED
    order = (StageState.FAILED, StageState.RUNNING, StageState.INTERRUPTED, StageState.READY)
    return next((state for state in order if state in states), StageState.WAITING)


def _levels(job: JobStatus) -> int:
    # Stages come in an order in which they can run: inputs are there before those that need them.
    depth: dict[str, int] = {}
    for stage in job.stages:
        depth[stage.stage_id] = 1 + max((depth.get(one, 0) for one in stage.blocking_inputs), default=0)
    return max(depth.values(), default=0)
