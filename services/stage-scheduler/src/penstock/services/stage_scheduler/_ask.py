"""The commands that ask a running service: `ls`, `watch`, and `explain` of a job."""

import argparse
import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TextIO

from penstock.operator_attributes import JobStatus, RemoteStageScheduler, StageProgress
from penstock.operator_attributes.errors import RemoteSchedulerError, SchedulerClosedError
from penstock.services.stage_scheduler._client import add_client_arguments, client_from_arguments
from penstock.services.stage_scheduler._explain import render
from penstock.services.stage_scheduler._show import (
    change_line,
    job_json,
    job_lines,
    jobs_table,
    stages_table,
)

FAILED_CODE = 3
_PAUSE_SECONDS = 0.5

Sleep = Callable[[float], Awaitable[None]]


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands."""
    listing = commands.add_parser("ls", help="list the jobs of a service")
    watching = commands.add_parser("watch", help="show a job of a service, and each change until its end")
    watching.add_argument("job", help="id of the job")
    watching.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to look for a service that went away; default: 30",
    )
    for command in (listing, watching):
        command.add_argument("--json", action="store_true", help="one JSON object a line, with all fields")
        add_client_arguments(command)


async def ask(arguments: argparse.Namespace, out: TextIO, *, sleep: Sleep = asyncio.sleep) -> int:
    """Run a command. Returns the exit code: of `watch` 3 when the job ended with a stage that is not committed.

    Raises:
        RpcOptionError: For wrong settings.
        SchedulingError: The service cannot be asked, or knows no such job.
    """
    endpoint, security = client_from_arguments(arguments)
    async with RemoteStageScheduler(endpoint, security) as scheduler:
        if arguments.command == "ls":
            return await _list(scheduler, out, as_json=arguments.json)
        if arguments.command == "explain":
            job = await scheduler.get_job(arguments.job)
            out.write(render(await scheduler.get_plan(arguments.job), arguments.format, job))
            return 0
        printer = _Printer(out, as_json=arguments.json)
        return await _watch(scheduler, arguments.job, printer, patience=arguments.patience, sleep=sleep)


async def _list(scheduler: RemoteStageScheduler, out: TextIO, *, as_json: bool) -> int:
    jobs = await scheduler.list_jobs()
    if as_json:
        out.write("".join(map(job_json, jobs)))
    elif out.isatty():
        out.write(jobs_table(jobs, colour=_colour()))
    else:
        out.write(job_lines(jobs))
    return 0


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
                        return 0 if job.succeeded else FAILED_CODE
        except (SchedulerClosedError, RemoteSchedulerError) as error:
            # A service that keeps its jobs comes back with them. One that was never there is told at once.
            gone = isinstance(error, SchedulerClosedError) or error.code == "UNAVAILABLE"
            if not gone or left <= 0:
                raise
            left -= _PAUSE_SECONDS
            await sleep(_PAUSE_SECONDS)


class _Printer:
    """Shows a job again and again: in place on a terminal, elsewhere what changed."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._shown: dict[str, tuple[object, ...]] = {}
        self._version = -1
        self._lines = 0

    def show(self, job: JobStatus) -> None:
        if job.version == self._version:
            return
        self._version = job.version
        if self._as_json:
            self._out.write(job_json(job))
        elif self._out.isatty():
            self._redraw(stages_table(job, colour=_colour()))
        else:
            for stage in job.stages:
                if self._shown.get(stage.stage_id) != _essence(stage.progress):
                    self._shown[stage.stage_id] = _essence(stage.progress)
                    self._out.write(change_line(stage))
        self._out.flush()

    def _redraw(self, text: str) -> None:
        # Up to where the last one began, and clear what is below. One that did not fit has scrolled away: it stays.
        rows = shutil.get_terminal_size().lines
        if 0 < self._lines < rows:
            self._out.write(f"\x1b[{self._lines}F\x1b[J")
        self._out.write(text)
        self._lines = text.count("\n")


def _essence(progress: StageProgress) -> tuple[object, ...]:
    """What makes a change: not that time goes on."""
    return progress.state, progress.attempts, progress.error, progress.rows, progress.size_bytes


def _colour() -> bool:
    # https://no-color.org
    return not os.environ.get("NO_COLOR")
