import math
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operator_attributes import (
    BlockingStageScheduler,
    Boundedness,
    JobGraph,
    JobStatus,
    LocalStageScheduler,
    OperatorAttributes,
    StagedJob,
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageReused,
    StageScheduler,
    StageStarted,
    StageState,
    StageStatus,
    catch_up,
    compile,
)
from penstock.operator_attributes.errors import (
    InvalidDocumentError,
    InvalidOptionError,
    SchedulerAwayError,
    SchedulingError,
)

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
COMMITTED = (StageState.FINISHED, StageState.REUSED)
OPEN = (StageState.READY, StageState.INTERRUPTED)


def graph() -> JobGraph:
    graph = JobGraph("job")
    graph.add_source("left", boundedness=Boundedness.BOUNDED)
    graph.add_source("right", boundedness=Boundedness.BOUNDED)
    graph.add_source("stream", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("totals", "left", attributes=FULL_DAM)
    graph.add_operator("ranks", "totals", attributes=FULL_DAM)
    graph.add_operator("other", "right", attributes=FULL_DAM)
    graph.add_sink("out", "stream", "ranks", "other")
    graph.add_sink("side", "other")
    return graph


PLAN = compile(graph())
IDS = [stage.id for stage in PLAN.stages]


@st.composite
def events(draw: st.DrawFn) -> StageEvent:
    stage = draw(st.sampled_from(IDS))
    match draw(st.sampled_from((StageStarted, StageStarted, StageFinished, StageFailed, StageReused, StageLost))):
        case kind if kind is StageFailed:
            return StageFailed(stage_id=stage, error="made to fail", retryable=draw(st.booleans()))
        case kind:
            event: StageEvent = kind(stage_id=stage)
            return event


def play(scheduler: StageScheduler, told: list[StageEvent]) -> None:
    for event in told:
        try:
            scheduler.apply(event)
        except SchedulingError:
            continue  # not possible now


def status(scheduler: StageScheduler) -> JobStatus:
    stages = tuple(
        StageStatus(
            stage_id=stage.id,
            name=stage.name,
            vertices=stage.vertices,
            blocking_inputs=stage.blocking_inputs,
            bounded=stage.bounded,
            reason=stage.reason,
            progress=scheduler.progress(0.0)[stage.id],
        )
        for stage in scheduler.plan.stages
    )
    return JobStatus(job_id="job", name="job", stages=stages, deployable=(), version=1)


def essence(scheduler: StageScheduler) -> list[str]:
    def one(state: StageState) -> str:
        return "committed" if state in COMMITTED else "open" if state in OPEN else state.value

    return [one(state) for state in scheduler.states.values()]


@given(known=st.lists(events(), max_size=30), missed=st.lists(events(), max_size=30))
def test_a_scheduler_is_brought_to_where_the_driver_stands(known: list[StageEvent], missed: list[StageEvent]) -> None:
    """Whatever it missed, also all of it: the events can follow, and are all that it needs."""
    driver, service = StageScheduler(PLAN), StageScheduler(PLAN)
    for scheduler in (driver, service):
        play(scheduler, known)
    play(driver, missed)
    told = catch_up(status(service), driver.progress(0.0))
    if told is None:
        given_up = (StageState.FAILED, StageState.SKIPPED)
        assert any(service.states[one] in given_up and driver.states[one] not in given_up for one in IDS)
        service = StageScheduler(PLAN)
        told = catch_up(status(service), driver.progress(0.0))
    assert told is not None
    for event in told:
        service.apply(event)
    untold = [
        stage.id
        for stage in PLAN.stages
        if driver.states[stage.id] in (StageState.RUNNING, StageState.FAILED)
        and not all(driver.states[one].committed for one in stage.blocking_inputs)
    ]
    # A stage whose input was lost meanwhile can be reported only when the input is there again.
    if not untold:
        assert essence(service) == essence(driver)


class Unsteady(LocalStageScheduler):
    """A scheduler that can go away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = threading.Event()

    async def report(self, job_id: str, event: StageEvent) -> JobStatus:
        if self.away.is_set():
            raise SchedulerAwayError.of("SCHEDULER_CLOSED")
        return await super().report(job_id, event)

    async def get_job(self, job_id: str) -> JobStatus:
        if self.away.is_set():
            raise SchedulerAwayError.of("SCHEDULER_CLOSED")
        return await super().get_job(job_id)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def job_at(service: BlockingStageScheduler, *, slots: int | None = None) -> StagedJob:
    return StagedJob(PLAN, slots=slots, service=service, job_id="job", look_seconds=0.05)


def run_all_ready(job: StagedJob) -> None:
    while stages := [stage for stage in job.ready() if stage.bounded]:
        for stage in stages:
            job.apply(StageStarted(stage_id=stage.id))
            job.apply(StageFinished(stage_id=stage.id, rows=7))


def test_a_job_runs_without_its_scheduler_and_reports_later() -> None:
    """While it is away nothing waits for it; when it is back it knows all."""
    api = Unsteady()
    service = BlockingStageScheduler(lambda: api)
    job = job_at(service)
    assert job.begin() == ()
    job.go_on()
    first = job.ready()[0]
    job.apply(StageStarted(stage_id=first.id))
    wait_until(lambda: service.get_job("job").stage(first.id).progress.state is StageState.RUNNING)
    api.away.set()
    job.apply(StageFinished(stage_id=first.id, rows=7))
    run_all_ready(job)
    assert not job.in_touch
    api.away.clear()
    wait_until(lambda: job.in_touch)
    known = service.get_job("job")
    assert [stage.progress.state.committed for stage in known.stages] == [stage.bounded for stage in PLAN.stages]
    assert known.stage(first.id).progress.rows == 7
    job.close()


def test_a_driver_that_came_back_continues_its_job() -> None:
    """What ran is interrupted; what is committed, and still there, stays; the rest is lost."""
    api = LocalStageScheduler()
    service = BlockingStageScheduler(lambda: api)
    killed = job_at(service)
    killed.begin()
    killed.go_on()
    run_all_ready(killed)
    live = next(stage.id for stage in PLAN.stages if not stage.bounded)
    killed.apply(StageStarted(stage_id=live))
    wait_until(lambda: service.get_job("job").stage(live).progress.state is StageState.RUNNING)
    job = job_at(service)
    committed = job.begin()
    assert set(committed) == {stage.id for stage in PLAN.stages if stage.bounded}
    gone = PLAN.stage(live).blocking_inputs[0]
    kept = [one for one in committed if one != gone]
    for one in kept:
        job.apply(StageReused(stage_id=one))
    job.go_on()
    states = {stage.stage_id: stage.progress.state for stage in service.get_job("job").stages}
    assert states[gone] is StageState.READY
    assert all(states[one] is StageState.FINISHED for one in kept)
    assert states[live] is StageState.WAITING
    assert [stage.id for stage in job.ready()] == [gone]
    job.close()


def test_an_ended_job_and_another_budget_restart_the_job() -> None:
    """So does a driver with `resume=False`."""
    service = BlockingStageScheduler(LocalStageScheduler)
    for slots, resume in ((None, True), (4, True), (4, False)):
        job = job_at(service, slots=slots)
        assert job.begin(resume=resume) == ()
        job.go_on()
        run_all_ready(job)
        wait_until(lambda: not service.get_job("job").deployable or len(service.get_job("job").deployable) == 1)
        assert service.get_job("job").slots == slots


def test_interruptions_cost_no_attempt() -> None:
    """A stage that is tried again here is open there, however often that happens."""
    driver, service = StageScheduler(PLAN, max_attempts=9), StageScheduler(PLAN, max_attempts=1)
    for scheduler in (driver, service):
        scheduler.apply(StageStarted(stage_id=IDS[0]))
    driver.apply(StageFailed(stage_id=IDS[0], error="the machine"))
    assert catch_up(status(service), driver.progress(0.0)) == (StageInterrupted(stage_id=IDS[0]),)


def test_a_live_stage_does_not_wait_for_a_stage_that_failed_at_the_service() -> None:
    """It counts the failures of all drivers of the job, and has none left; this one tries the stage again, now."""
    service = BlockingStageScheduler(LocalStageScheduler)
    live = next(stage.id for stage in PLAN.stages if not stage.bounded)
    reader = next(stage.id for stage in PLAN.stages if stage.name == "side")

    def fail(job: StagedJob) -> None:
        job.apply(StageStarted(stage_id=reader))
        job.apply(StageFailed(stage_id=reader, error="the machine"))

    def driver() -> StagedJob:
        job = StagedJob(PLAN, max_attempts=2, service=service, job_id="job", look_seconds=0.05)
        for stage_id in job.begin():
            job.apply(StageReused(stage_id=stage_id))
        job.go_on()
        return job

    killed = driver()
    for stage in PLAN.stages:
        if stage.bounded and stage.id != reader:
            killed.apply(StageReused(stage_id=stage.id))
    fail(killed)
    wait_until(lambda: service.get_job("job").stage(reader).progress.attempts == 1)
    job = driver()
    job.apply(StageStarted(stage_id=live))
    fail(job)
    assert [stage.id for stage in job.ready()] == [reader]
    job.apply(StageStarted(stage_id=reader))
    wait_until(lambda: service.get_job("job").stage(reader).progress.state is StageState.RUNNING)
    job.close()


class OfAnotherRelease(LocalStageScheduler):
    """A scheduler that does not understand the reports, until it is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.understands = threading.Event()

    async def report(self, job_id: str, event: StageEvent) -> JobStatus:
        if not self.understands.is_set():
            raise InvalidDocumentError("event", "unknown value")
        return await super().report(job_id, event)


def test_an_unexpected_answer_counts_as_a_scheduler_that_is_away() -> None:
    """The job continues, and reports later; its reports do not end."""
    api = OfAnotherRelease()
    service = BlockingStageScheduler(lambda: api)
    job = job_at(service)
    job.begin()
    job.go_on()
    run_all_ready(job)
    assert not job.in_touch
    api.understands.set()
    wait_until(lambda: job.in_touch)
    known = service.get_job("job")
    assert [stage.progress.state.committed for stage in known.stages] == [stage.bounded for stage in PLAN.stages]
    job.close()


async def test_a_wait_that_is_not_a_number_is_refused() -> None:
    """It would never be over."""
    with pytest.raises(InvalidOptionError, match="wait_seconds"):
        await LocalStageScheduler().claim("store", "abc", owner="one", wait_seconds=math.nan)
