"""A service that is frozen, as by SIGSTOP or a machine that stalls: its sockets stay open, and it answers nothing."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.operator_attributes import (
    BlockingStageScheduler,
    Boundedness,
    ClaimDecision,
    JobGraph,
    OperatorAttributes,
    StagedJob,
    StageFinished,
    StageReused,
    StageStarted,
    compile,
    open_stage_scheduler,
)
from penstock.operator_attributes.errors import SchedulerAwayError
from penstock.rpc.testing import ServiceProcess, service_process

MODULE = "penstock.services.stage_scheduler"
LOGGER = "penstock.operator_attributes"
FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
STAGES = 8
ONCE_SECONDS = 15.0
"""Much more than the two seconds that an outage may cost, much less than two seconds for each of the calls."""


def chain() -> JobGraph:
    """Stages that run one after the other."""
    graph = JobGraph("chain")
    graph.add_source("rows", boundedness=Boundedness.BOUNDED)
    before = "rows"
    for number in range(STAGES - 1):
        graph.add_operator(f"step {number}", before, attributes=FULL_DAM)
        before = f"step {number}"
    graph.add_sink("table", before)
    return graph


PLAN = compile(chain())


@pytest.fixture
def service() -> Iterator[ServiceProcess]:
    with service_process(MODULE, ["serve"]) as one:
        yield one


def freeze(service: ServiceProcess) -> None:
    os.kill(service.process.pid, signal.SIGSTOP)


def thaw(service: ServiceProcess) -> None:
    os.kill(service.process.pid, signal.SIGCONT)


def driver(service: ServiceProcess) -> StagedJob:
    job = StagedJob(PLAN, service=open_stage_scheduler(service.address), job_id="chain", look_seconds=0.1)
    for stage_id in job.begin():
        job.apply(StageReused(stage_id=stage_id))
    job.go_on()
    return job


def run(job: StagedJob, *, at_stage: int = -1, do: Callable[[], None] = lambda: None) -> None:
    number = 0
    while stages := job.ready():
        for stage in stages:
            job.apply(StageStarted(stage_id=stage.id))
            if number == at_stage:
                do()
            job.apply(StageFinished(stage_id=stage.id, rows=number))
            number += 1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answers(client: BlockingStageScheduler) -> bool:
    try:
        client.list_jobs()
    except SchedulerAwayError:
        return False
    return True


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_frozen_service_costs_a_job_one_wait_and_learns_all_when_it_is_back(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """With one warning when it is away, and one line when it is back."""
    caplog.set_level(logging.INFO, LOGGER)
    job = driver(service)
    began = time.monotonic()
    run(job, at_stage=1, do=lambda: freeze(service))
    assert time.monotonic() - began < ONCE_SECONDS
    assert not job.in_touch
    (warning,) = warnings(caplog)
    assert "does not answer" in warning
    thaw(service)
    wait_until(lambda: job.in_touch)
    with open_stage_scheduler(service.address) as client:
        wait_until(lambda: client.get_job("chain").succeeded)
        assert client.get_job("chain").stage("stage-8").progress.rows == 7
    job.close()
    assert warnings(caplog) == [warning]
    assert sum("answers again" in one.getMessage() for one in caplog.records) == 1


def test_a_job_that_ends_while_its_service_is_frozen_is_reported_at_the_close(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The service is tried once more, though it was away when the driver looked last."""
    job = StagedJob(PLAN, service=open_stage_scheduler(service.address), job_id="chain", look_seconds=600.0)
    job.begin()
    job.go_on()
    run(job, at_stage=1, do=lambda: freeze(service))
    wait_until(lambda: not job.in_touch)
    thaw(service)
    job.close()
    with open_stage_scheduler(service.address) as client:
        assert client.get_job("chain").succeeded
    assert len(warnings(caplog)) == 1


def test_a_job_that_closed_before_its_service_was_back_is_repaired_by_the_next_run(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing takes no longer than one more wait; until the next run the service shows the last report."""
    job = driver(service)
    run(job, at_stage=1, do=lambda: freeze(service))
    began = time.monotonic()
    job.close()
    assert time.monotonic() - began < ONCE_SECONDS
    assert len(warnings(caplog)) == 1
    thaw(service)
    with open_stage_scheduler(service.address) as client:
        assert not client.get_job("chain").ended
        again = driver(service)
        run(again)
        again.close()
        assert client.get_job("chain").succeeded


def test_claims_cost_one_wait_while_the_service_is_frozen(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver asks for a claim, commits, releases and forgets one for each stage."""
    caplog.set_level(logging.INFO, LOGGER)
    with open_stage_scheduler(service.address) as client:
        client.expect_answers(within_seconds=2.0)
        held = client.claim("store", "held", owner="driver", lease_seconds=300.0)
        freeze(service)
        began = time.monotonic()
        for number in range(10):
            with pytest.raises(SchedulerAwayError):
                client.claim("store", f"stage {number}", owner="driver")
            with pytest.raises(SchedulerAwayError):
                client.commit_claim(held, location="here")
            with pytest.raises(SchedulerAwayError):
                client.forget_claim(held)
        with pytest.raises(SchedulerAwayError):
            client.release_claim(held)
        assert time.monotonic() - began < ONCE_SECONDS
        assert client.is_away
        assert len(warnings(caplog)) == 1
        thaw(service)
        wait_until(lambda: answers(client))
        assert client.claim("store", "held", owner="driver").decision is ClaimDecision.WAIT
        assert len(warnings(caplog)) == 1
