"""The stage scheduler in this process."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Self

from penstock.operator_attributes._compile.compile import compile
from penstock.operator_attributes._compile.graph import JobGraph, Vertex
from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes._schedule.api import JobStatus, StageStatus
from penstock.operator_attributes._schedule.claims import ClaimBook
from penstock.operator_attributes._schedule.job_store import StoredJob, StoredState, StoreWriter
from penstock.operator_attributes._schedule.local_claims import ClaimCalls
from penstock.operator_attributes._schedule.scheduler import DEFAULT_MAX_ATTEMPTS, StageScheduler
from penstock.operator_attributes._schedule.states import SERVICE, StageEvent, StageMetrics
from penstock.operator_attributes.errors import InvalidOptionError, SchedulingError

if TYPE_CHECKING:
    from penstock.operator_attributes._schedule.sqlite_store import SqliteJobStore


class _Job:
    def __init__(self, job_id: str, scheduler: StageScheduler, *, version: int = 1) -> None:
        self.job_id = job_id
        self.content = _content(scheduler.plan.vertices), scheduler.plan.cyclic_regions
        self.scheduler = scheduler
        self.version = version
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
                    slots=stage.slots,
                )
                for stage in plan.stages
            ),
            deployable=tuple(stage.id for stage in self.scheduler.ready()),
            version=self.version,
            slots=self.scheduler.slots,
        )


class LocalStageScheduler(ClaimCalls):
    """The stage scheduler in this process, for the running event loop.

    It keeps jobs and claims in memory and, given a store, on a disk: what it answered is durable, and a scheduler that
    is made on the same store later continues from there.

    An async context manager: leaving it ends all watches.
    """

    def __init__(
        self,
        *,
        max_jobs: int = 1_000,
        store: "SqliteJobStore | None" = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Begin with the jobs of the store, or without any.

        Args:
            max_jobs: jobs that are remembered; the job that was submitted first, of those that have ended, is
                forgotten for a new one.
            store: keeps jobs and claims; closed with the scheduler.
            clock: seconds; monotonic unless given. With a store, the times of jobs are in seconds since 1970, which
                outlive a process; claims are judged by the monotonic clock also then.

        Raises:
            InvalidOptionError: `max_jobs` is less than 1.
            JobStoreError: the store cannot be read.
        """
        if max_jobs < 1:
            raise InvalidOptionError("max_jobs", max_jobs, "at least 1")
        self._max_jobs = max_jobs
        self._clock = clock or (time.monotonic if store is None else time.time)
        self._jobs: dict[str, _Job] = {}
        self._metrics = StageMetrics(SERVICE)
        state = StoredState() if store is None else store.load()
        claim_clock = clock or time.monotonic
        now = claim_clock()
        # What owners did while no scheduler ran was not seen: their leases are as long as ever, from now on.
        claims = [dataclasses.replace(one, expires_at=now + one.lease_seconds) for one in state.claims]
        super().__init__(ClaimBook(claims, last_token=state.last_token), StoreWriter(store), claim_clock)
        for stored in state.jobs:
            self._jobs[stored.job_id] = _restored(stored)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(
        self,
        job_id: str,
        graph: JobGraph,
        *,
        slots: int | None = None,
        max_attempts: int | None = None,
        cyclic_regions: CyclicRegions = CyclicRegions.READ_TWICE,
        restart: bool = False,
    ) -> JobStatus:
        """See `StageSchedulerApi.submit`."""
        self._check_open()
        if not job_id:
            raise InvalidOptionError("job_id", job_id, "a text that is not empty")

        async def submit() -> JobStatus:
            present = self._jobs.get(job_id)
            if present is not None and not restart:
                if present.content != (_content(graph.vertices), cyclic_regions):
                    raise SchedulingError.of("JOB_EXISTS", job_id=job_id)
                return present.status(self._clock())
            scheduler = StageScheduler(
                compile(graph, cyclic_regions=cyclic_regions),
                slots=slots,
                max_attempts=DEFAULT_MAX_ATTEMPTS if max_attempts is None else max_attempts,
            )
            if present is None:
                await self._make_room()
            stored = StoredJob(job_id=job_id, plan=scheduler.plan, slots=slots, max_attempts=scheduler.max_attempts)
            await self._writer.write(lambda store: store.add_job(stored))
            self._jobs.pop(job_id, None)  # it is the last one to be submitted now
            job = self._jobs[job_id] = _Job(job_id, scheduler)
            if present is not None:
                job.version = present.version + 1
                present.announce()
            return job.status(self._clock())

        return await self._writer.change(submit())

    async def report(self, job_id: str, event: StageEvent) -> JobStatus:
        """See `StageSchedulerApi.report`."""
        self._check_open()

        async def report() -> JobStatus:
            job = self._job(job_id)
            now = self._clock()
            dated = dataclasses.replace(event, at=now)
            job.scheduler.check(dated)
            await self._writer.write(lambda store: store.add_event(job_id, dated))
            job.scheduler.apply(dated)
            self._metrics.count(job.scheduler.plan.name, dated)
            job.announce()
            return job.status(now)

        return await self._writer.change(report())

    async def get_job(self, job_id: str) -> JobStatus:
        """See `StageSchedulerApi.get_job`."""
        return self._job(job_id).status(self._clock())

    async def get_plan(self, job_id: str) -> StagePlan:
        """See `StageSchedulerApi.get_plan`."""
        return self._job(job_id).scheduler.plan

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
            # A job that was restarted is another object; a job that was forgotten is shown in its last state.
            job = self._jobs.get(job_id, job)

    async def list_jobs(self) -> tuple[JobStatus, ...]:
        """See `StageSchedulerApi.list_jobs`."""
        self._check_open()
        now = self._clock()
        return tuple(self._jobs[job_id].status(now) for job_id in sorted(self._jobs))

    async def close(self) -> None:
        """End all watches and waiting claims with SCHEDULER_CLOSED, and refuse all further calls. May be repeated."""
        self._closed = True
        self._announce_claims()
        for job in self._jobs.values():
            job.changed.set()
        await self._writer.change(self._writer.write(lambda store: store.close()))

    def _job(self, job_id: str) -> _Job:
        self._check_open()
        try:
            return self._jobs[job_id]
        except KeyError:
            raise SchedulingError.of("UNKNOWN_JOB", job_id=job_id) from None

    async def _make_room(self) -> None:
        if len(self._jobs) < self._max_jobs:
            return
        ended = next((job_id for job_id, job in self._jobs.items() if job.scheduler.ended), None)
        if ended is None:
            raise SchedulingError.of("TOO_MANY_JOBS", limit=self._max_jobs)
        await self._writer.write(lambda store: store.remove_job(ended))
        del self._jobs[ended]


def _restored(stored: StoredJob) -> _Job:
    scheduler = StageScheduler(stored.plan, slots=stored.slots, max_attempts=stored.max_attempts)
    for event in stored.events:
        scheduler.apply(event)
    return _Job(stored.job_id, scheduler, version=1 + len(stored.events))


def _content(vertices: tuple[Vertex, ...]) -> tuple[Vertex, ...]:
    """What makes two graphs the same job: all but where, and in which order, they were written."""
    ordered = sorted(vertices, key=lambda vertex: vertex.name)
    return tuple(dataclasses.replace(vertex, call_site="") for vertex in ordered)
