"""Jobs as tables for a terminal, as plain lines for a pipe, and as JSON lines for programs."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from penstock.operator_attributes import JobStatus, StageState, StageStatus

_COLOURS = {
    StageState.RUNNING: "36",
    StageState.FINISHED: "32",
    StageState.REUSED: "32",
    StageState.FAILED: "31",
    StageState.SKIPPED: "33",
    StageState.INTERRUPTED: "35",
}


def jobs_table(jobs: Iterable[JobStatus], *, colour: bool = False) -> str:
    """One line per job under a line of headings, columns aligned."""
    rows = [(job.job_id, job.name, job_state(job), _done(job), _counts(job)) for job in jobs]
    return _table(("JOB", "NAME", "STATE", "COMMITTED", "STAGES"), rows, colour=colour)


def job_lines(jobs: Iterable[JobStatus]) -> str:
    """One line per job: id, name, state, committed stages and number of stages, separated by tabs."""
    return "".join(
        "\t".join((_plain(job.job_id), _plain(job.name), job_state(job), *_done(job).split("/"))) + "\n" for job in jobs
    )


def stages_table(job: JobStatus, *, colour: bool = False) -> str:
    """A job with one line per stage."""
    rows = [
        (
            stage.stage_id,
            stage.name,
            "batch" if stage.bounded else "stream",
            stage.progress.state.value.upper(),
            *_figures(stage),
            ", ".join(stage.blocking_inputs) or "-",
            stage.progress.error or "-",
        )
        for stage in job.stages
    ]
    headings = ("STAGE", "NAME", "RUNS AS", "STATE", "ATTEMPTS", "SECONDS", "ROWS", "BYTES", "AFTER", "ERROR")
    return f"{_plain(job.job_id)}: {job_state(job)}, {_done(job)} committed\n" + _table(headings, rows, colour=colour)


def change_line(stage: StageStatus) -> str:
    """What a stage is now: id, name, state, attempts, seconds, rows, bytes and error, separated by tabs."""
    progress = stage.progress
    cells = (stage.stage_id, stage.name, progress.state.value.upper(), *_figures(stage), progress.error or "-")
    return "\t".join(map(_plain, cells)) + "\n"


def job_json(job: JobStatus) -> str:
    """A job on one line, with all fields."""
    return json.dumps({**asdict(job), "state": job_state(job)}) + "\n"


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


def _plain(text: str) -> str:
    """Text that can neither end a line or a cell, nor steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, colour: bool) -> str:
    lines = [headings, *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        if colour:
            cells = [_bold(cell) if number == 0 else _coloured(cell) for cell in cells]
        text.append("  ".join(cells).rstrip() + "\n")
    return "".join(text)


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def _coloured(cell: str) -> str:
    for state, code in _COLOURS.items():
        if cell.strip() == state.value.upper():
            return f"\x1b[{code}m{cell}\x1b[0m"
    return cell
