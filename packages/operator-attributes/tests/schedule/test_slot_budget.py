import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    StageFailed,
    StageFinished,
    StageScheduler,
    StageStarted,
    compile,
)
from penstock.operator_attributes.errors import SchedulingError
from penstock.operator_attributes.testing import play

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def job(**widths: int) -> JobGraph:
    """Independent stages of one source and one sink each; names that begin with `live` never end."""
    graph = JobGraph()
    for name, width in widths.items():
        kind = Boundedness.UNBOUNDED if name.startswith("live") else Boundedness.BOUNDED
        graph.add_source(f"{name}_in", boundedness=kind, parallelism=width)
        graph.add_sink(name, f"{name}_in", parallelism=width)
    return graph


def names(scheduler: StageScheduler) -> list[str]:
    return [stage.name for stage in scheduler.ready()]


def stage_id(scheduler: StageScheduler, name: str) -> str:
    return next(stage.id for stage in scheduler.plan.stages if stage.name == name)


def start(scheduler: StageScheduler, name: str) -> None:
    scheduler.apply(StageStarted(stage_id=stage_id(scheduler, name), at=0.0))


def finish(scheduler: StageScheduler, name: str) -> None:
    scheduler.apply(StageFinished(stage_id=stage_id(scheduler, name), at=0.0))


def test_without_a_budget_everything_that_is_ready_may_be_deployed() -> None:
    """The default knows no bound."""
    assert names(StageScheduler(compile(job(a=5, b=5, live=5)))) == ["a", "b", "live"]


def test_stages_are_deployed_side_by_side_as_far_as_the_budget_goes() -> None:
    """Those that do not fit wait for slots to come back."""
    scheduler = StageScheduler(compile(job(a=1, b=1, c=1)), slots=2)
    assert names(scheduler) == ["a", "b"]
    start(scheduler, "a")
    start(scheduler, "b")
    assert scheduler.slots_in_use == 2
    assert names(scheduler) == []
    finish(scheduler, "a")
    assert names(scheduler) == ["c"]


def test_a_narrow_stage_uses_slots_that_a_wide_one_cannot() -> None:
    """No slot stays empty while there is a stage for it."""
    scheduler = StageScheduler(compile(job(a=2, b=2, c=1)), slots=3)
    assert names(scheduler) == ["a", "c"]


def test_a_failed_stage_gives_its_slots_back() -> None:
    """Its retry has to fit like everything else."""
    scheduler = StageScheduler(compile(job(a=1, b=1)), slots=1)
    start(scheduler, "a")
    scheduler.apply(StageFailed(stage_id=stage_id(scheduler, "a"), at=0.0, error="lost"))
    assert scheduler.slots_in_use == 0
    assert names(scheduler) == ["a"]


def test_a_batch_stage_that_is_wider_than_the_budget_takes_all_of_it() -> None:
    """It runs more slowly instead of never."""
    scheduler = StageScheduler(compile(job(a=1, wide=8)), slots=2)
    start(scheduler, "a")
    assert names(scheduler) == []
    finish(scheduler, "a")
    assert names(scheduler) == ["wide"]
    start(scheduler, "wide")
    assert scheduler.slots_in_use == 2


def test_starting_a_stage_that_does_not_fit_is_refused() -> None:
    """The stage stays READY, and the error has its slots."""
    scheduler = StageScheduler(compile(job(a=2, b=1)), slots=2)
    start(scheduler, "a")
    with pytest.raises(SchedulingError, match="SLOT_BUDGET_EXCEEDED"):
        start(scheduler, "b")
    finish(scheduler, "a")
    start(scheduler, "b")


def test_live_stages_that_cannot_all_run_at_once_are_refused_at_the_beginning() -> None:
    """They never give a slot back, so one of them would never start."""
    with pytest.raises(SchedulingError, match="INSUFFICIENT_SLOTS") as caught:
        StageScheduler(compile(job(live1=2, live2=1)), slots=2)
    assert caught.value.facts == {"needed": 3, "slots": 2}


def test_a_live_stage_leaves_slots_for_batch_stages_that_are_still_to_run() -> None:
    """Deployed at once, it would hold the only slot for ever."""
    graph = job(live=1)
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_operator("first", "history", attributes=FULL_DAM)
    graph.add_operator("second", "first", attributes=FULL_DAM)
    graph.add_sink("report", "second")
    scheduler = StageScheduler(compile(graph), slots=1)
    for name in ("first", "second", "report"):
        assert names(scheduler) == [name]
        start(scheduler, name)
        with pytest.raises(SchedulingError, match="SLOT_BUDGET_EXCEEDED"):
            start(scheduler, "live")
        finish(scheduler, name)
    assert names(scheduler) == ["live"]


def test_a_live_stage_leaves_slots_for_a_wide_batch_stage_that_still_waits() -> None:
    """A slot that is free now may be needed when the next stage's inputs are finished."""
    graph = job(live=1)
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_operator("first", "history", attributes=FULL_DAM)
    graph.add_sink("report", "first", parallelism=2)
    scheduler = StageScheduler(compile(graph), slots=2)
    assert names(scheduler) == ["first"]
    start(scheduler, "first")
    assert names(scheduler) == []
    finish(scheduler, "first")
    assert names(scheduler) == ["report"]


def test_a_live_stage_starts_beside_batch_stages_when_there_is_room_for_both() -> None:
    """It is held back no longer than necessary."""
    graph = job(live=1)
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_operator("first", "history", attributes=FULL_DAM)
    graph.add_sink("report", "first")
    assert names(StageScheduler(compile(graph), slots=2)) == ["first", "live"]


@pytest.mark.parametrize("slots", [2, 3, 4, 5])
def test_every_stage_gets_its_turn_under_any_budget_that_holds_the_live_stages(slots: int) -> None:
    """However tight, the budget never locks the job."""
    graph = job(live1=1, live2=1, a=1, b=2, c=3)
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_operator("first", "history", attributes=FULL_DAM, parallelism=3)
    graph.add_sink("report", "first", parallelism=2)
    scheduler = StageScheduler(compile(graph), slots=slots)
    play(scheduler)
    assert scheduler.succeeded
