"""The commands that ask a running service: `ls`, `watch`, `resume`, and `explain` of a job."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, TextIO

from penstock.operator_attributes import (
    JobStatus,
    RemoteStageScheduler,
    StageInterrupted,
    StageProgress,
    StageReused,
    StageState,
    StageStatus,
)
from penstock.operator_attributes.errors import SchedulerAwayError, SchedulingError
from penstock.rpc import ClientSettings, RpcOptionError
from penstock.services.stage_scheduler._serve import KIND
from penstock.services.stage_scheduler._show import change_row, job_document, jobs_table, render, stages_table
from penstock.terminal import ExitCode, Form, Row, Screen, add_json_argument, positive_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_PAUSE_SECONDS = 0.5

Sleep = Callable[[float], Awaitable[None]]


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands."""
    listing = commands.add_parser("ls", help="list the jobs of a service")
    watching = commands.add_parser("watch", help="show a job of a service, and each change until its end")
    watching.add_argument("job", help="id of the job")
    watching.add_argument(
        "--patience",
        type=positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long to look for a service that went away; default: 30",
    )
    resuming = commands.add_parser("resume", help="let a stage that failed, or lost its driver, be deployed again")
    resuming.add_argument("job", help="id of the job")
    resuming.add_argument("stage", help="id of the stage, as watch and explain show it")
    resuming.add_argument("--force", action="store_true", help="needed for a running stage: its driver must be gone")
    for command in (listing, watching, resuming):
        add_json_argument(command)
        ClientSettings.add_arguments(command, KIND.prefix)


async def ask(
    arguments: argparse.Namespace, settings: ClientSettings, out: TextIO, *, sleep: Sleep = asyncio.sleep
) -> int:
    """Run a command. Returns the exit code: of `watch` 1 when the job ended with a stage that is not committed.

    Raises:
        RpcOptionError: a token would cross the network in plain text, or `resume` needs `--force`.
        SchedulingError: the service cannot be asked, knows no such job, or the stage cannot be resumed.
    """
    async with RemoteStageScheduler(settings.endpoint, settings.security) as scheduler:
        if arguments.command == "ls":
            Screen(out, as_json=arguments.json).show(jobs_table(await scheduler.list_jobs()))
            return ExitCode.OK
        if arguments.command == "explain":
            job = await scheduler.get_job(arguments.job)
            out.write(render(await scheduler.get_plan(arguments.job), arguments.format, job))
            return ExitCode.OK
        if arguments.command == "resume":
            job = await _resume(scheduler, arguments.job, arguments.stage, force=arguments.force)
            row = Row(change_row(job.stage(arguments.stage)).cells, job_document(job))
            Screen(out, as_json=arguments.json).show_row(row)
            return ExitCode.OK
        with _Printer(Screen(out, as_json=arguments.json)) as printer:
            return await _watch(scheduler, arguments.job, printer, patience=arguments.patience, sleep=sleep)


async def _resume(scheduler: RemoteStageScheduler, job_id: str, stage_id: str, *, force: bool) -> JobStatus:
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
        SchedulingError: STAGE_NOT_RESUMABLE: the stage is in another state, or another stage of the job is running.
        SchedulingError: the scheduler cannot be asked, or does not know the stage. If it ends before all results were
            reported again, drivers report them, or compute them again.
    """
    job = await scheduler.get_job(job_id)
    stage = job.stage(stage_id)
    refusal = _refusal_of(job, stage)
    if refusal is not None:
        raise SchedulingError.of("STAGE_NOT_RESUMABLE", stage_id=stage_id, reason=refusal)
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


def _refusal_of(job: JobStatus, stage: StageStatus) -> str | None:
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


async def _watch(
    scheduler: RemoteStageScheduler, job_id: str, printer: "_Printer", *, patience: float, sleep: Sleep
) -> int:
    left = 0.0
    while True:
        try:
            async with aclosing(scheduler.watch(job_id)) as jobs:
                async for job in jobs:
                    left = patience
                    printer.show(job)
                    if job.ended:
                        return ExitCode.OK if job.succeeded else ExitCode.FAILED
        except SchedulingError as error:
            # A service that keeps its jobs comes back with them; else the driver submits its own again. What was never
            # there is reported at once.
            away = isinstance(error, SchedulerAwayError) and error.status == "UNAVAILABLE"
            if not (away or error.code == "UNKNOWN_JOB") or left <= 0:
                raise
            left -= _PAUSE_SECONDS
            await sleep(_PAUSE_SECONDS)


class _Printer:
    """Shows a job again and again: in place on a terminal, elsewhere what changed."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown: dict[str, tuple[object, ...]] = {}
        self._version = -1
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, job: JobStatus) -> None:
        if job.version == self._version:
            return
        self._version = job.version
        screen = self._screen
        if screen.form is Form.TERMINAL:
            self._redraw(screen.render(stages_table(job)))
        elif screen.form is Form.JSON:
            screen.show_row(Row([], job_document(job)))
        else:
            for stage in job.stages:
                if self._shown.get(stage.stage_id) != _essence(stage.progress):
                    self._shown[stage.stage_id] = _essence(stage.progress)
                    screen.show_row(change_row(stage))
        screen.flush()

    def _redraw(self, drawn: "RenderableType") -> None:
        if self._live is None:
            # Here: a service draws nothing.
            from rich.live import Live

            self._live = Live(drawn, console=self._screen.console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._live.update(drawn, refresh=True)


def _essence(progress: StageProgress) -> tuple[object, ...]:
    """What counts as a change. Time that passes does not."""
    return progress.state, progress.attempts, progress.error, progress.rows, progress.size_bytes
