"""What callers of a stage scheduler depend on, wherever it runs."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from penstock.operator_attributes._compile.graph import JobGraph
from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes._schedule.claims import Claim
from penstock.operator_attributes._schedule.states import StageEvent, StageProgress
from penstock.operator_attributes.errors import SchedulingError


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """A stage of a job, and its progress."""

    stage_id: str
    name: str
    vertices: tuple[str, ...]
    """Producers first."""
    blocking_inputs: tuple[str, ...]
    """Ids of the stages that must be finished first."""
    bounded: bool
    reason: str
    """Why its output blocks, with the call site; empty when it does not."""
    progress: StageProgress
    slots: int = 0
    """The number of its slots; 0 if the scheduler does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one moment."""

    job_id: str
    name: str
    stages: tuple[StageStatus, ...]
    """In an order in which they can run."""
    deployable: tuple[str, ...]
    """Ids of the stages that may all be deployed now, under the slot budget; batch stages first."""
    version: int
    """Grows with each change."""
    slots: int | None = None
    """Slots for stages that run at the same time; None for no bound."""

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to any stage."""
        return all(stage.progress.state.ended for stage in self.stages)

    @property
    def succeeded(self) -> bool:
        """Whether every stage is finished or reused."""
        return all(stage.progress.state.committed for stage in self.stages)

    def stage(self, stage_id: str) -> StageStatus:
        """The stage with this id. Raises: SchedulingError (UNKNOWN_STAGE)."""
        for stage in self.stages:
            if stage.stage_id == stage_id:
                return stage
        raise SchedulingError.of("UNKNOWN_STAGE", stage_id=stage_id)


class StageSchedulerApi(Protocol):
    """Plans jobs and decides which of their stages may be deployed.

    `LocalStageScheduler` is in this process, `RemoteStageScheduler` behind gRPC.
    """

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
        """Compile a graph and begin to schedule it.

        Submitting the same graph (call sites aside) with the same job id again returns the job in its current state;
        the other arguments then have no effect.

        Args:
            job_id: chosen by the caller: the same for a restart of the same job.
            graph: to be compiled.
            slots: slots for stages that run at the same time; None for no bound.
            max_attempts: failures of a stage, since it last committed, after which it counts as failed; None leaves it
                to the scheduler.
            cyclic_regions: what to do with stages that would wait for each other.
            restart: start the job from the beginning: the history of a job of this id is forgotten, and the graph may
                be another one. Watches of the job continue.

        Raises:
            CompileError: the graph cannot become a plan.
            InvalidOptionError: an argument is outside of its range.
            SchedulingError (INSUFFICIENT_SLOTS): the live stages together need more slots than there are.
            SchedulingError (JOB_EXISTS): the job id belongs to another graph, and `restart` is False.
            SchedulingError (TOO_MANY_JOBS): the scheduler has reached its limit, and no job has ended.
        """
        ...

    async def report(self, job_id: str, event: StageEvent) -> JobStatus:
        """Report what happened to a stage.

        Raises:
            SchedulingError (UNKNOWN_JOB), SchedulingError (UNKNOWN_STAGE): the job or stage does not exist.
            SchedulingError (ILLEGAL_EVENT): the event does not follow from the stage's state.
            SchedulingError (SLOT_BUDGET_EXCEEDED): the stage was started without room for it.
        """
        ...

    async def get_job(self, job_id: str) -> JobStatus:
        """The current state of the job. Raises: SchedulingError (UNKNOWN_JOB)."""
        ...

    async def get_plan(self, job_id: str) -> StagePlan:
        """The stages of a job with all edges and call sites, to be explained or drawn.

        Raises:
            SchedulingError (UNKNOWN_JOB): the job does not exist.
        """
        ...

    def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """The current state of the job, and its state after each change, until it has ended.

        A slow caller misses states in between, never the last one.

        Raises:
            SchedulingError (UNKNOWN_JOB): the job does not exist.
            SchedulerAwayError (SCHEDULER_CLOSED): the scheduler is going away.
        """
        ...

    async def list_jobs(self) -> tuple[JobStatus, ...]:
        """All jobs that the scheduler knows, by job id."""
        ...

    async def claim(
        self,
        store: str,
        fingerprint: str,
        *,
        owner: str,
        lease_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> Claim:
        """Ask which driver computes the result of a stage, so that drivers that share a store compute it once.

        COMPUTE: the caller computes the result, renews the claim meanwhile, and commits it. WAIT: another driver
        computes it; ask again. REUSE: the result exists. When two drivers ask at once, one of them computes. A claim
        that is not renewed expires, and the next driver that asks computes. An owner with a secret that asks for what
        it holds already takes over its own claim with a new token: its first answer was lost, or it was restarted.

        Args:
            store: where the drivers keep their results: the same text in each of them.
            fingerprint: names the result: stage, code and data.
            owner: names the driver, with a secret after the first `#` that other drivers do not see: `night-job#…`.
            lease_seconds: time until the claim expires; None leaves it to the scheduler.
            wait_seconds: time for which the answer WAIT may be held back; bounded by the scheduler.

        Raises:
            InvalidOptionError: an argument is outside of its range.
        """
        ...

    async def renew_claim(self, claim: Claim) -> Claim:
        """Prolong a claim. Raises: ClaimLostError."""
        ...

    async def commit_claim(
        self, claim: Claim, *, location: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Report that the result is at `location`, for all drivers. May be repeated with the same claim.

        Raises:
            ClaimLostError: the claim expired and another driver got it: use that driver's result.
        """
        ...

    async def release_claim(self, claim: Claim) -> None:
        """Release a claim: another driver may compute the stage. No error if the claim was lost already."""
        ...

    async def forget_claim(self, claim: Claim) -> None:
        """Report that the data of the committed result of `claim` is gone. A newer result is kept."""
        ...

    async def close(self) -> None:
        """End all watches and release what the scheduler holds."""
        ...
