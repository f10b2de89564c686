"""Jobs and stages as rows, and plans in each format."""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from penstock.operator_attributes import (
    JobGraph,
    JobStatus,
    StagePlan,
    StageState,
    StageStatus,
    compile,
    estimate,
    explain,
    graphviz,
    html,
    measures_of,
    mermaid,
    svg,
)
from penstock.operator_attributes.errors import CompileError, InvalidDocumentError, InvalidOptionError
from penstock.services.stage_scheduler._serve import KIND
from penstock.terminal import Cell, Column, ExitCode, Row, Table, age, size

FORMATS = ("text", "mermaid", "dot", "svg", "html", "json")
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


def explain_file(path: str, form: str) -> int:
    """Print the plan of the graph in a file, `-` being standard input, in one of `FORMATS`. Returns the exit code."""
    try:
        # Not as the locale has it.
        document = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        sys.stdout.write(render(compile(JobGraph.from_json(document.decode())), form))
    except BrokenPipeError:
        raise
    except OSError as error:
        cure = "name a file that holds a job graph as JSON, or - for standard input"
        return KIND.refuse(f"{path!r} cannot be read ({error.strerror}): {cure}")
    except (UnicodeDecodeError, InvalidDocumentError) as error:
        return KIND.refuse(f"{path!r} holds no job graph ({error}): `Pipeline.graph().to_json()` gives one")
    except (CompileError, InvalidOptionError) as error:
        return KIND.refuse(error, code=ExitCode.FAILED)
    return ExitCode.OK


def render(plan: StagePlan, form: str, job: JobStatus | None = None) -> str:
    """A plan in one of `FORMATS`; with a job, how far each stage has come, but for JSON.

    What staging saves is reported as soon as all batch stages have been measured.
    """
    progress = {stage.stage_id: stage.progress for stage in job.stages} if job is not None else {}
    committed = {stage_id for stage_id, one in progress.items() if one.state.committed}
    measured = bool(progress) and committed.issuperset(stage.id for stage in plan.stages if stage.bounded)
    saved = estimate(plan, measures_of(progress)) if measured else None
    match form:
        case "mermaid":
            return mermaid(plan, progress)
        case "dot":
            return graphviz(plan, progress)
        case "svg":
            return svg(plan, progress, estimate=saved)
        case "html":
            return html(plan, progress, estimate=saved)
        case "json":
            return plan.to_json()
        case _:
            return explain(plan, progress)
