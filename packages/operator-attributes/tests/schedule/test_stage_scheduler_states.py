from typing import Any

import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    StageEvent,
    StageFailed,
    StageFinished,
    StagePlan,
    StageReused,
    StageScheduler,
    StageStarted,
    StageState,
    compile,
)
from penstock.operator_attributes.errors import InvalidOptionError, SchedulingError
from penstock.operator_attributes.testing import play

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
WAITING, READY, RUNNING = StageState.WAITING, StageState.READY, StageState.RUNNING


def two_branches() -> StagePlan:
    """stage-1 `a` and stage-2 `b` feed stage-3, the live `join`; stage-4 `report` needs `b` alone."""
    graph = JobGraph()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    for name in ("a", "b"):
        graph.add_source(f"{name}_source", boundedness=Boundedness.BOUNDED)
        graph.add_operator(name, f"{name}_source", attributes=FULL_DAM)
    graph.add_operator("join", "live", "a", "b")
    graph.add_sink("report", "b")
    plan = compile(graph)
    assert [stage.name for stage in plan.stages] == ["a", "b", "join", "report"]
    return plan


def names(scheduler: StageScheduler) -> list[str]:
    return [stage.name for stage in scheduler.ready()]


def started(stage_id: str, at: float = 0.0) -> StageEvent:
    return StageStarted(stage_id=stage_id, at=at)


def run(scheduler: StageScheduler, stage_id: str) -> None:
    scheduler.apply(started(stage_id))
    scheduler.apply(StageFinished(stage_id=stage_id, at=1.0))


def fail(scheduler: StageScheduler, stage_id: str, **more: bool) -> None:
    scheduler.apply(started(stage_id))
    scheduler.apply(StageFailed(stage_id=stage_id, at=1.0, error="no space left", **more))


def test_stages_without_blocking_inputs_are_ready_at_once() -> None:
    """The others wait."""
    scheduler = StageScheduler(two_branches())
    assert list(scheduler.states.values()) == [READY, READY, WAITING, WAITING]
    assert names(scheduler) == ["a", "b"]


def test_a_live_stage_is_ready_only_when_all_of_its_blocking_inputs_are_finished() -> None:
    """One of two is not enough."""
    scheduler = StageScheduler(two_branches())
    run(scheduler, "stage-2")
    assert scheduler.state("stage-3") is WAITING
    run(scheduler, "stage-1")
    assert scheduler.state("stage-3") is READY


def test_independent_stages_go_on_as_soon_as_their_own_inputs_are_finished() -> None:
    """The report does not wait for the branch that it does not read."""
    scheduler = StageScheduler(two_branches())
    scheduler.apply(started("stage-1"))
    run(scheduler, "stage-2")
    assert names(scheduler) == ["report"]


def test_a_failed_stage_alone_is_tried_again() -> None:
    """What is finished stays finished, and what depends on it waits."""
    scheduler = StageScheduler(two_branches(), max_attempts=2)
    run(scheduler, "stage-2")
    fail(scheduler, "stage-1")
    assert scheduler.state("stage-1") is READY
    assert scheduler.state("stage-2") is StageState.FINISHED
    assert scheduler.state("stage-3") is WAITING
    run(scheduler, "stage-1")
    assert scheduler.state("stage-3") is READY
    assert scheduler.progress(1.0)["stage-1"].attempts == 2
    assert scheduler.progress(1.0)["stage-1"].error == ""


def test_when_attempts_are_used_up_dependants_are_skipped_and_other_branches_go_on() -> None:
    """The skipped stage says why."""
    scheduler = StageScheduler(two_branches(), max_attempts=2)
    fail(scheduler, "stage-1")
    fail(scheduler, "stage-1")
    assert scheduler.state("stage-1") is StageState.FAILED
    assert scheduler.state("stage-3") is StageState.SKIPPED
    assert scheduler.progress(1.0)["stage-1"].error == "no space left"
    assert scheduler.progress(1.0)["stage-3"].error == "its input stage-1 (a) failed"
    run(scheduler, "stage-2")
    assert scheduler.state("stage-3") is StageState.SKIPPED
    run(scheduler, "stage-4")
    assert scheduler.ended
    assert not scheduler.succeeded


def test_skipping_reaches_stages_behind_skipped_ones() -> None:
    """A chain of stages falls as a whole."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    before = "source"
    for name in ("one", "two", "three"):
        before = graph.add_operator(name, before, attributes=FULL_DAM).name
    graph.add_sink("sink", before)
    scheduler = StageScheduler(compile(graph), max_attempts=1)
    fail(scheduler, "stage-1")
    assert set(scheduler.states.values()) == {StageState.FAILED, StageState.SKIPPED}


def test_a_failure_that_would_repeat_itself_is_not_tried_again() -> None:
    """The driver knows which failures are final."""
    scheduler = StageScheduler(two_branches(), max_attempts=5)
    fail(scheduler, "stage-1", retryable=False)
    assert scheduler.state("stage-1") is StageState.FAILED


def test_a_reused_stage_counts_as_finished() -> None:
    """What an earlier run committed need not run, whether its own inputs are there or not."""
    scheduler = StageScheduler(two_branches())
    scheduler.apply(StageReused(stage_id="stage-1", at=0.0, rows=10))
    scheduler.apply(StageReused(stage_id="stage-2", at=0.0))
    scheduler.apply(StageReused(stage_id="stage-4", at=0.0))
    assert names(scheduler) == ["join"]
    assert scheduler.state("stage-1") is StageState.REUSED
    assert scheduler.progress(5.0)["stage-1"].rows == 10
    assert scheduler.progress(5.0)["stage-1"].seconds == 0.0
    run(scheduler, "stage-3")
    assert scheduler.succeeded


def test_progress_counts_seconds_from_the_last_deployment() -> None:
    """The time of a running stage grows, the time of an ended stage stays, and a retry starts at 0."""
    scheduler = StageScheduler(two_branches())
    scheduler.apply(started("stage-1", at=100.0))
    assert scheduler.progress(103.0)["stage-1"].seconds == 3.0
    scheduler.apply(StageFailed(stage_id="stage-1", at=105.0, error="lost"))
    assert scheduler.progress(200.0)["stage-1"].seconds == 5.0
    scheduler.apply(started("stage-1", at=200.0))
    scheduler.apply(StageFinished(stage_id="stage-1", at=201.0, rows=7, size_bytes=70))
    progress = scheduler.progress(300.0)["stage-1"]
    assert (progress.seconds, progress.attempts, progress.rows, progress.size_bytes) == (1.0, 2, 7, 70)


@pytest.mark.parametrize(
    "event",
    [
        StageStarted(stage_id="stage-3", at=0.0),
        StageFinished(stage_id="stage-1", at=0.0),
        StageFailed(stage_id="stage-1", at=0.0, error="early"),
    ],
    ids=["start of a waiting stage", "end of a stage that was not started", "failure of one"],
)
def test_an_event_that_cannot_follow_is_refused_and_changes_nothing(event: StageEvent) -> None:
    """The error names stage, state and event."""
    scheduler = StageScheduler(two_branches())
    before = scheduler.states
    with pytest.raises(SchedulingError, match="ILLEGAL_EVENT"):
        scheduler.apply(event)
    assert scheduler.states == before


def test_an_ended_stage_takes_no_more_events() -> None:
    """Late reports of a driver that counted as dead are refused."""
    scheduler = StageScheduler(two_branches())
    run(scheduler, "stage-1")
    for event in (started("stage-1"), StageReused(stage_id="stage-1", at=1.0)):
        with pytest.raises(SchedulingError, match="ILLEGAL_EVENT"):
            scheduler.apply(event)


def test_an_unknown_stage_is_refused() -> None:
    """Events of another plan do not fit."""
    scheduler = StageScheduler(two_branches())
    with pytest.raises(SchedulingError, match="UNKNOWN_STAGE"):
        scheduler.apply(started("stage-9"))
    with pytest.raises(SchedulingError, match="UNKNOWN_STAGE"):
        scheduler.state("stage-9")


def test_impossible_settings_are_refused_by_name() -> None:
    """Slots and attempts count from one."""
    plan = two_branches()
    with pytest.raises(InvalidOptionError, match="slots"):
        StageScheduler(plan, slots=0)
    with pytest.raises(InvalidOptionError, match="max_attempts"):
        StageScheduler(plan, max_attempts=0)


def test_a_job_can_be_played_to_its_end() -> None:
    """The play of the testing module deploys, fails and finishes as told."""
    scheduler = StageScheduler(two_branches())
    events = play(scheduler, failures={"stage-1": 1})
    assert scheduler.succeeded
    assert [event.stage_id for event in events if isinstance(event, StageFailed)] == ["stage-1"]


@pytest.mark.parametrize("given", [{"slots": 0}, {"slots": 1.5}, {"max_attempts": 0}, {"max_attempts": 1.5}])
def test_counts_are_whole_numbers(given: dict[str, Any]) -> None:
    """Half a slot would silently be no slot."""
    with pytest.raises(InvalidOptionError, match=next(iter(given))):
        StageScheduler(two_branches(), **given)
