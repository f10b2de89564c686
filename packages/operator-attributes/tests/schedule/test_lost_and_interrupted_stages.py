"""Re-execution: committed results that are gone, and drivers that died."""

import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageReused,
    StageScheduler,
    StageStarted,
    StageState,
    compile,
)
from penstock.operator_attributes.errors import SchedulingError

WAITING, READY, RUNNING = StageState.WAITING, StageState.READY, StageState.RUNNING
FINISHED, REUSED, INTERRUPTED = StageState.FINISHED, StageState.REUSED, StageState.INTERRUPTED
FAILED, SKIPPED = StageState.FAILED, StageState.SKIPPED


def chain(*, max_attempts: int = 3, slots: int | None = None) -> StageScheduler:
    """stage-1 `first` feeds stage-2 `second`, and that the live stage-3."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    full_dam = OperatorAttributes(output_only_after_end_of_stream=True)
    graph.add_operator("first", "source", attributes=full_dam)
    graph.add_operator("second", "first", attributes=full_dam)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_sink("sink", "second", "live")
    return StageScheduler(compile(graph), max_attempts=max_attempts, slots=slots)


def states(scheduler: StageScheduler) -> list[StageState]:
    return list(scheduler.states.values())


def start(scheduler: StageScheduler, number: int) -> None:
    scheduler.apply(StageStarted(stage_id=f"stage-{number}"))


def run(scheduler: StageScheduler, number: int) -> None:
    start(scheduler, number)
    scheduler.apply(StageFinished(stage_id=f"stage-{number}", at=1.0, rows=5))


def lose(scheduler: StageScheduler, number: int) -> None:
    scheduler.apply(StageLost(stage_id=f"stage-{number}", at=2.0, error="no such folder"))


def fail(scheduler: StageScheduler, number: int) -> None:
    scheduler.apply(StageFailed(stage_id=f"stage-{number}", at=3.0, error="out of disk"))


def test_a_committed_stage_whose_data_is_gone_is_run_again_and_its_readers_wait() -> None:
    """The reader that was READY is WAITING until the data is there again."""
    scheduler = chain()
    run(scheduler, 1)
    run(scheduler, 2)
    assert states(scheduler) == [FINISHED, FINISHED, READY]
    lose(scheduler, 2)
    assert (scheduler.state("stage-2"), scheduler.state("stage-3")) == (READY, WAITING)
    assert scheduler.progress(5.0)["stage-2"].rows is None
    assert scheduler.progress(5.0)["stage-2"].error == "no such folder"
    run(scheduler, 2)
    assert states(scheduler) == [FINISHED, FINISHED, READY]


def test_when_its_own_inputs_are_gone_too_they_are_run_first() -> None:
    """In whatever order the losses are reported."""
    for order in ((1, 2), (2, 1)):
        scheduler = chain()
        run(scheduler, 1)
        run(scheduler, 2)
        for number in order:
            lose(scheduler, number)
        assert states(scheduler) == [READY, WAITING, WAITING]
        run(scheduler, 1)
        assert states(scheduler) == [FINISHED, READY, WAITING]


def test_a_reused_stage_that_is_lost_needs_the_inputs_that_were_never_run() -> None:
    """What was skipped over is caught up on."""
    scheduler = chain()
    scheduler.apply(StageReused(stage_id="stage-2"))
    assert states(scheduler) == [READY, REUSED, READY]
    lose(scheduler, 2)
    assert states(scheduler) == [READY, WAITING, WAITING]


def test_a_running_reader_continues_and_waits_only_if_it_fails() -> None:
    """It may have read what it needs; if not, its retry finds the data again."""
    scheduler = chain()
    run(scheduler, 1)
    start(scheduler, 2)
    lose(scheduler, 1)
    assert states(scheduler) == [READY, RUNNING, WAITING]
    fail(scheduler, 2)
    assert states(scheduler) == [READY, WAITING, WAITING]
    run(scheduler, 1)
    assert states(scheduler) == [FINISHED, READY, WAITING]


def test_a_reader_that_has_committed_is_left_alone() -> None:
    """Its own result is still there."""
    scheduler = chain()
    run(scheduler, 1)
    run(scheduler, 2)
    lose(scheduler, 1)
    assert states(scheduler) == [READY, FINISHED, READY]


def test_a_lost_stage_begins_with_all_of_its_attempts() -> None:
    """Failures before its commit do not count against it."""
    scheduler = chain(max_attempts=2)
    start(scheduler, 1)
    fail(scheduler, 1)
    run(scheduler, 1)
    lose(scheduler, 1)
    start(scheduler, 1)
    fail(scheduler, 1)
    assert scheduler.state("stage-1") is READY
    start(scheduler, 1)
    fail(scheduler, 1)
    assert states(scheduler) == [FAILED, SKIPPED, SKIPPED]


def test_what_cannot_be_made_again_is_skipped() -> None:
    """A lost stage whose own input has failed finally is skipped, and so are its readers."""
    scheduler = chain(max_attempts=1)
    scheduler.apply(StageReused(stage_id="stage-2"))
    start(scheduler, 1)
    fail(scheduler, 1)
    assert states(scheduler) == [FAILED, REUSED, READY]
    lose(scheduler, 2)
    assert states(scheduler) == [FAILED, SKIPPED, SKIPPED]
    assert scheduler.ended


@pytest.mark.parametrize("end", ["failed", "interrupted"])
def test_a_running_reader_of_what_cannot_be_made_again_is_skipped_when_it_stops(end: str) -> None:
    """It does not wait for ever."""
    scheduler = chain(max_attempts=2)
    run(scheduler, 1)
    start(scheduler, 2)
    lose(scheduler, 1)
    for _ in range(2):
        start(scheduler, 1)
        fail(scheduler, 1)
    assert states(scheduler) == [FAILED, RUNNING, WAITING]
    if end == "failed":
        fail(scheduler, 2)
    else:
        scheduler.apply(StageInterrupted(stage_id="stage-2"))
    assert states(scheduler) == [FAILED, SKIPPED, SKIPPED]


def test_an_attempt_that_ended_with_its_driver_is_not_a_failure() -> None:
    """A driver that came back may deploy the stage again, as often as it dies."""
    scheduler = chain(max_attempts=1)
    for _ in range(3):
        start(scheduler, 1)
        scheduler.apply(StageInterrupted(stage_id="stage-1", at=4.0))
        assert scheduler.state("stage-1") is INTERRUPTED
        assert [stage.id for stage in scheduler.ready()] == ["stage-1"]
    run(scheduler, 1)
    assert scheduler.progress(9.0)["stage-1"].attempts == 4
    assert not scheduler.ended


def test_an_interrupted_stage_gives_its_slots_back() -> None:
    """Nothing of it runs any more."""
    scheduler = chain(slots=1)
    start(scheduler, 1)
    assert scheduler.slots_in_use == 1
    scheduler.apply(StageInterrupted(stage_id="stage-1"))
    assert scheduler.slots_in_use == 0


def test_an_interrupted_stage_may_turn_out_to_be_committed() -> None:
    """The driver died between its commit and its report."""
    scheduler = chain()
    start(scheduler, 1)
    scheduler.apply(StageInterrupted(stage_id="stage-1"))
    scheduler.apply(StageReused(stage_id="stage-1", rows=5))
    assert states(scheduler) == [REUSED, READY, WAITING]


def test_an_interrupted_reader_of_a_lost_stage_waits() -> None:
    """The data must be there before the stage is deployed again, whichever is reported first."""
    scheduler = chain()
    run(scheduler, 1)
    start(scheduler, 2)
    scheduler.apply(StageInterrupted(stage_id="stage-2"))
    lose(scheduler, 1)
    assert states(scheduler) == [READY, WAITING, WAITING]
    other = chain()
    run(other, 1)
    start(other, 2)
    lose(other, 1)
    other.apply(StageInterrupted(stage_id="stage-2"))
    assert states(other) == [READY, WAITING, WAITING]


def test_only_what_is_committed_can_be_lost_and_only_what_runs_interrupted() -> None:
    """Other reports are refused and change nothing."""
    scheduler = chain()
    for event in (StageLost(stage_id="stage-1"), StageInterrupted(stage_id="stage-1")):
        with pytest.raises(SchedulingError, match="ILLEGAL_EVENT"):
            scheduler.apply(event)
    assert states(scheduler) == [READY, WAITING, WAITING]
