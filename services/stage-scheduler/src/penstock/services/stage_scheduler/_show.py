"""Jobs and stages as rows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from penstock.operator_attributes import JobStatus, StageState, StageStatus
from penstock.terminal import Cell, Column, Row, Table, age, size

_STYLES = {
    StageState.RUNNING: "cyan",
    StageState.FINISHED: "green",
    StageState.REUSED: "green",
    StageState.FAILED: "red",
    StageState.SKIPPED: "yellow",
    StageState.INTERRUPTED: "magenta",
}
_JOB_STYLES = {"SUCCEEDED": "green", **{state.value.upper(): style for state, style in _STYLES.items()}}
_JOB_COLUMNS = (Column("JOB"), Column("NAME"), Column("STATE"), Column("COMMITTED"), Column("STAGES"))
_STAGE_COLUMNS = (
    *map(Column, ("STAGE", "NAME", "RUNS AS", "STATE")),
    *(Column(heading, justify="right") for heading in ("ATTEMPTS", "TIME", "ROWS", "SIZE")),
    *map(Column, ("AFTER", "ERROR")),
)


def jobs_table(jobs: Iterable[JobStatus]) -> Table:
    """One row per job; in a pipe: id, name, state, committed stages, number of stages."""
    return Table(columns=_JOB_COLUMNS, rows=[*map(_job_row, jobs)], empty="no jobs")


def stages_table(job: JobStatus) -> Table:
    """A job with one row per stage."""
    title = f"{job.job_id}: {job_state(job)}, {_done(job)} committed"
    return Table(columns=_STAGE_COLUMNS, rows=[*map(_stage_row, job.stages)], title=title)


def change_row(stage: StageStatus) -> Row:
    """What a stage is now: id, name, state, attempts, seconds, rows, bytes and error."""
    progress = stage.progress
    return Row([stage.stage_id, stage.name, progress.state.value.upper(), *_figures(stage), progress.error or "-"])


def job_document(job: JobStatus) -> dict[str, object]:
    """A job with all fields."""
    return {**asdict(job), "state": job_state(job)}


def _job_row(job: JobStatus) -> Row:
    state = job_state(job)
    committed = sum(stage.progress.state.committed for stage in job.stages)
    share = committed / len(job.stages) if job.stages else 0.0
    cells: list[Cell | str] = [
        job.job_id,
        job.name,
        Cell(state, style=_JOB_STYLES.get(state, "")),
        Cell(_done(job), raw=str(committed), share=share),
        Cell(_counts(job), raw=str(len(job.stages))),
    ]
    return Row(cells, job_document(job))


def _stage_row(stage: StageStatus) -> Row:
    progress = stage.progress
    attempts, seconds, rows, size_bytes = _figures(stage)
    cells: list[Cell | str] = [
        stage.stage_id,
        stage.name,
        "batch" if stage.bounded else "stream",
        Cell(progress.state.value.upper(), style=_STYLES.get(progress.state, "")),
        attempts,
        seconds if not progress.attempts or progress.seconds < 60 else age(progress.seconds),
        rows,
        size_bytes if progress.size_bytes is None else size(progress.size_bytes),
        ", ".join(stage.blocking_inputs) or "-",
        Cell(progress.error or "-", style="red" if progress.error else "dim"),
    ]
    return Row(cells)


def job_state(job: JobStatus) -> str:
    """One word for a job: what is most important about its stages."""
    states = {stage.progress.state for stage in job.stages}
    if job.ended:
        return "SUCCEEDED" if job.succeeded else "FAILED"
    for state in (StageState.RUNNING, StageState.INTERRUPTED):
        if state in states:
            return state.value.upper()
    return "READY"


def _figures(stage: StageStatus) -> tuple[str, str, str, str]:
    progress = stage.progress
    return (
        str(progress.attempts),
        f"{progress.seconds:.1f}" if progress.attempts else "-",
        "-" if progress.rows is None else str(progress.rows),
        "-" if progress.size_bytes is None else str(progress.size_bytes),
    )


def _done(job: JobStatus) -> str:
    return f"{sum(stage.progress.state.committed for stage in job.stages)}/{len(job.stages)}"


def _counts(job: JobStatus) -> str:
    counts = Counter(stage.progress.state for stage in job.stages)
    return ", ".join(f"{counts[state]} {state.value}" for state in StageState if counts[state])
