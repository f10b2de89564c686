"""The stage scheduler in this process."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from penstock.operator_attributes._api import JobStatus, StageStatus
from penstock.operator_attributes._compile import compile
from penstock.operator_attributes._events import StageEvent
from penstock.operator_attributes._graph import JobGraph, Vertex
from penstock.operator_attributes._scheduler import DEFAULT_MAX_ATTEMPTS, StageScheduler
from penstock.operator_attributes.errors import (
    InvalidOptionError,
    JobExistsError,
    SchedulerClosedError,
    TooManyJobsError,
    UnknownJobError,
)


class _Job:
    def __init__(self, job_id: str, content: tuple[Vertex, ...], scheduler: StageScheduler) -> None:
        self.job_id = job_id
        self.content = content
        self.scheduler = scheduler
        self.version = 1
        self.changed = asyncio.Event()

    def announce(self) -> None:
        """Wake all watchers; each waits for the next change on a new event."""
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def status(self, now: float) -> JobStatus:
        plan = self.scheduler.plan
        progress = self.scheduler.progress(now)
        return JobStatus(
            job_id=self.job_id,
            name=plan.name,
            stages=tuple(
                StageStatus(
                    stage_id=stage.id,
                    name=stage.name,
                    vertices=stage.vertices,
                    blocking_inputs=stage.blocking_inputs,
                    bounded=stage.bounded,
                    reason=stage.reason,
                    progress=progress[stage.id],
                )
                for stage in plan.stages
            ),
            deployable=tuple(stage.id for stage in self.scheduler.ready(now)),
            version=self.version,
        )


class LocalStageScheduler:
    """The stage scheduler in this process, for the running event loop. It keeps jobs in memory only.

    An async context manager: leaving it ends all watches.
    """

    def __init__(self, *, max_jobs: int = 1_000, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without jobs.

        Args:
            max_jobs: Jobs that are remembered; the job that was submitted first, of those that have ended, is
                forgotten for a new one.
            clock: Monotonic seconds.

        Raises:
            InvalidOptionError: `max_jobs` is less than 1.
        """
        if max_jobs < 1:
            raise InvalidOptionError("max_jobs", max_jobs, "at least 1")
        self._max_jobs = max_jobs
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(
        self, job_id: str, graph: JobGraph, *, slots: int | None = None, max_attempts: int | None = None
    ) -> JobStatus:
        """See `StageSchedulerApi.submit`."""
        self._check_open()
        if not job_id:
            raise InvalidOptionError("job_id", job_id, "a text that is not empty")
        content = _content(graph)
        present = self._jobs.get(job_id)
        if present is not None:
            if present.content != content:
                raise JobExistsError(job_id)
            return present.status(self._clock())
        scheduler = StageScheduler(
            compile(graph),
            slots=slots,
            max_attempts=DEFAULT_MAX_ATTEMPTS if max_attempts is None else max_attempts,
        )
        self._make_room()
        job = self._jobs[job_id] = _Job(job_id, content, scheduler)
        return job.status(self._clock())

    async def report(self, job_id: str, event: StageEvent) -> JobStatus:
        """See `StageSchedulerApi.report`."""
        job = self._job(job_id)
        now = self._clock()
        job.scheduler.apply(dataclasses.replace(event, at=now))
        job.announce()
        return job.status(now)

    async def get_job(self, job_id: str) -> JobStatus:
        """See `StageSchedulerApi.get_job`."""
        return self._job(job_id).status(self._clock())

    async def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """See `StageSchedulerApi.watch`."""
        job = self._job(job_id)
        while True:
            # Taken before the status, so that a change while the caller holds that status is not missed.
            changed = job.changed
            yield job.status(self._clock())
            if job.scheduler.ended and not changed.is_set():
                return
            await changed.wait()
            self._check_open()

    async def list_jobs(self) -> tuple[JobStatus, ...]:
        """See `StageSchedulerApi.list_jobs`."""
        self._check_open()
        now = self._clock()
        return tuple(self._jobs[job_id].status(now) for job_id in sorted(self._jobs))

    async def close(self) -> None:
        """End all watches with SchedulerClosedError, and refuse all calls from now on. May be repeated."""
        self._closed = True
        for job in self._jobs.values():
            job.changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise SchedulerClosedError

    def _job(self, job_id: str) -> _Job:
        self._check_open()
        try:
            return self._jobs[job_id]
        except KeyError:
            raise UnknownJobError(job_id) from None

    def _make_room(self) -> None:
        if len(self._jobs) < self._max_jobs:
            return
        for job_id, job in self._jobs.items():
            if job.scheduler.ended:
                del self._jobs[job_id]
                return
        raise TooManyJobsError(self._max_jobs)


def _content(graph: JobGraph) -> tuple[Vertex, ...]:
    """What makes two graphs the same job: all but where, and in which order, they were written."""
    vertices = sorted(graph.vertices, key=lambda vertex: vertex.name)
    return tuple(dataclasses.replace(vertex, call_site="") for vertex in vertices)
