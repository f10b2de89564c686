"""The scheduler for callers without an event loop, in both of its homes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.operator_attributes import (
    BlockingStageScheduler,
    Boundedness,
    ClaimDecision,
    JobGraph,
    OperatorAttributes,
    StageFinished,
    StageReused,
    StageStarted,
    StageState,
    open_stage_scheduler,
)
from penstock.operator_attributes.errors import ClaimLostError, JobStoreError, SchedulerAwayError, SchedulingError
from penstock.operator_attributes.testing import StageSchedulerServer


def job() -> JobGraph:
    graph = JobGraph("join")
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("daily", "history", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("joined", "live", "daily")
    return graph


@pytest.fixture(params=["here", "here, with a file", "remote"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockingStageScheduler]:
    if request.param == "remote":
        with StageSchedulerServer() as server, open_stage_scheduler(server.address) as opened:
            yield opened
    else:
        path = tmp_path / "stages.db" if "file" in request.param else None
        with open_stage_scheduler(store_path=path) as opened:
            yield opened


def test_a_driver_without_an_event_loop_runs_a_job_to_its_end(scheduler: BlockingStageScheduler) -> None:
    """Submit, report and get give what the asynchronous calls give."""
    assert scheduler.submit("job", job(), slots=2).deployable == ("stage-1",)
    scheduler.report("job", StageStarted(stage_id="stage-1"))
    after = scheduler.report("job", StageFinished(stage_id="stage-1", rows=9))
    assert after.deployable == ("stage-2",)
    assert scheduler.get_job("job").stage("stage-1").progress.rows == 9
    assert scheduler.get_job("job").stage("stage-1").slots == 1
    assert [one.job_id for one in scheduler.list_jobs()] == ["job"]
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
        scheduler.get_job("nothing")


def test_a_watch_is_an_iterator(scheduler: BlockingStageScheduler) -> None:
    """It gives each state, ends with the job, and can be closed before."""
    scheduler.submit("job", job())
    early = scheduler.watch("job")
    assert next(early).version == 1
    early.close()  # type: ignore[attr-defined]  # it is a generator
    states = []
    for seen in scheduler.watch("job"):
        states.append(seen.stage("stage-1").progress.state)
        stage_id = {1: "stage-1", 2: "stage-2"}.get(seen.version)
        if stage_id is not None:
            scheduler.report("job", StageReused(stage_id=stage_id))
    assert states[0] is StageState.READY
    assert states[-1] is StageState.REUSED


def test_a_claim_is_renewed_in_the_background_until_it_is_committed(scheduler: BlockingStageScheduler) -> None:
    """Another driver waits for longer than the claim's lease, and then uses the result."""
    claim = scheduler.claim("store", "abc", owner="one", lease_seconds=1.5)
    assert claim.decision is ClaimDecision.COMPUTE
    assert scheduler.claim("store", "abc", owner="two", wait_seconds=2.0).decision is ClaimDecision.WAIT
    scheduler.commit_claim(claim, location="s3://results/abc", rows=3)
    reused = scheduler.claim("store", "abc", owner="two")
    assert (reused.decision, reused.location, reused.rows) == (ClaimDecision.REUSE, "s3://results/abc", 3)


def test_two_threads_that_ask_at_once_compute_once(scheduler: BlockingStageScheduler) -> None:
    """One computes, the other gets an answer as soon as the result is there."""
    decisions: list[ClaimDecision] = []
    both = threading.Barrier(2)

    def drive(owner: str) -> None:
        both.wait(10)
        claim = scheduler.claim("store", "abc", owner=owner, wait_seconds=10)
        decisions.append(claim.decision)
        if claim.decision is ClaimDecision.COMPUTE:
            scheduler.commit_claim(claim, location="here")

    threads = [threading.Thread(target=drive, args=(owner,)) for owner in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(decisions) == [ClaimDecision.COMPUTE, ClaimDecision.REUSE]


def test_a_released_claim_is_free_and_cannot_commit(scheduler: BlockingStageScheduler) -> None:
    """A stage that failed here may be computed there."""
    claim = scheduler.claim("store", "abc", owner="one")
    scheduler.release_claim(claim)
    scheduler.release_claim(claim)
    assert scheduler.claim("store", "abc", owner="two").decision is ClaimDecision.COMPUTE
    with pytest.raises(ClaimLostError) as caught:
        scheduler.commit_claim(claim, location="here")
    assert caught.value.fingerprint == "abc"


def test_a_closed_scheduler_refuses_calls(scheduler: BlockingStageScheduler) -> None:
    """Closing may be repeated."""
    scheduler.close()
    scheduler.close()
    with pytest.raises(SchedulerAwayError, match="SCHEDULER_CLOSED"):
        scheduler.list_jobs()


def test_a_file_that_is_in_use_is_refused(tmp_path: Path) -> None:
    """The caller gets the typed error, and no thread is left."""
    path = tmp_path / "stages.db"
    with open_stage_scheduler(store_path=path), pytest.raises(JobStoreError, match="another scheduler uses it"):
        open_stage_scheduler(store_path=path)
    with open_stage_scheduler(store_path=path) as scheduler:
        assert scheduler.list_jobs() == ()
