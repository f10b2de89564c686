"""The commands that ask a running service: `ls`, `watch`, `resume`, and `explain` of a job."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, TextIO

from penstock.operator_attributes import JobStatus, RemoteStageScheduler, StageProgress
from penstock.operator_attributes.errors import RemoteSchedulerError, SchedulerClosedError, UnknownJobError
from penstock.rpc import ClientSettings
from penstock.services.stage_scheduler._explain import render
from penstock.services.stage_scheduler._resume import resume
from penstock.services.stage_scheduler._serve import KIND
from penstock.services.stage_scheduler._show import change_row, job_document, jobs_table, stages_table
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
            job = await resume(scheduler, arguments.job, arguments.stage, force=arguments.force)
            row = Row(change_row(job.stage(arguments.stage)).cells, job_document(job))
            Screen(out, as_json=arguments.json).show_row(row)
            return ExitCode.OK
        with _Printer(Screen(out, as_json=arguments.json)) as printer:
            return await _watch(scheduler, arguments.job, printer, patience=arguments.patience, sleep=sleep)


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
        except (SchedulerClosedError, UnknownJobError, RemoteSchedulerError) as error:
            # A service that keeps its jobs comes back with them; else the driver submits its own again. What was never
            # there is reported at once.
            gone = not isinstance(error, RemoteSchedulerError) or error.code == "UNAVAILABLE"
            if not gone or left <= 0:
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
    """What makes a change: not that time goes on."""
    return progress.state, progress.attempts, progress.error, progress.rows, progress.size_bytes
