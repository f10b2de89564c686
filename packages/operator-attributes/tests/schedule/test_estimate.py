import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    StageMeasure,
    StagePlan,
    StageProgress,
    StageState,
    compile,
    estimate,
    measures_of,
)
from penstock.operator_attributes.errors import InvalidOptionError, SchedulingError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def two_dams() -> StagePlan:
    """stage-1 `fast` and stage-2 `slow` feed the live stage-3, which takes two slots."""
    graph = JobGraph()
    for name in ("fast", "slow"):
        graph.add_source(f"{name}_source", boundedness=Boundedness.BOUNDED)
        graph.add_operator(name, f"{name}_source", attributes=FULL_DAM)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED, parallelism=2)
    graph.add_sink("sink", "live", "fast", "slow", parallelism=2)
    return compile(graph)


MEASURES = {
    "stage-1": StageMeasure(seconds=5, size_bytes=1_000),
    "stage-2": StageMeasure(seconds=20, size_bytes=4_000),
    "stage-3": StageMeasure(arriving_bytes_per_second=100, read_seconds=0.5),
}

seconds = st.floats(0, 1e6)


@st.composite
def chains(draw: st.DrawFn) -> tuple[StagePlan, dict[str, StageMeasure]]:
    """Random stages, each reading some before it, and perhaps a live one; with measures."""
    graph = JobGraph("random")
    names: list[str] = []
    for number in range(draw(st.integers(1, 8))):
        inputs = draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
        if not inputs:
            graph.add_source(f"source-{number}", boundedness=Boundedness.BOUNDED)
            inputs = [f"source-{number}"]
        parallelism = draw(st.integers(1, 4))
        name = f"dam-{number}"
        graph.add_operator(name, *inputs, attributes=FULL_DAM, parallelism=parallelism)
        names.append(name)
    if draw(st.booleans()):
        graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
        graph.add_sink("sink", "live", *names)
    plan = compile(graph)
    measures = {
        stage.id: StageMeasure(
            seconds=draw(seconds), size_bytes=draw(st.integers(0, 10**12)), arriving_bytes_per_second=draw(seconds)
        )
        for stage in plan.stages
    }
    return plan, measures


def test_slot_seconds_are_slots_times_blocking_seconds() -> None:
    """The live stage is held back by the slower of its inputs."""
    saved = estimate(two_dams(), MEASURES)
    assert saved.slot_seconds == 2 * 20
    assert saved.stage("stage-3").blocking_seconds == 20
    assert saved.stage("stage-1").slot_seconds == 0


def test_measured_blocking_seconds_are_preferred_to_the_longest_path() -> None:
    """Under a slot budget the inputs ran one after the other."""
    measures = {**MEASURES, "stage-3": StageMeasure(blocking_seconds=25)}
    assert estimate(two_dams(), measures).slot_seconds == 50


def test_under_a_slot_budget_stages_wait_for_slots_too() -> None:
    """With room for one stage at a time, the live stage is held back by both of its inputs, one after the other."""
    saved = estimate(two_dams(), MEASURES, slots=2)
    assert saved.stage("stage-3").blocking_seconds == 20
    graph = two_dams().graph
    wide = JobGraph("wide")
    for vertex in graph:
        wide.add(dataclasses.replace(vertex, parallelism=2))
    assert estimate(compile(wide), MEASURES, slots=2).stage("stage-3").blocking_seconds == 25
    with pytest.raises(SchedulingError, match="INSUFFICIENT_SLOTS"):
        estimate(two_dams(), MEASURES, slots=1)


def test_state_is_what_would_pile_up_and_what_a_streaming_join_would_hold() -> None:
    """Only live stages hold state."""
    saved = estimate(two_dams(), MEASURES)
    assert saved.stage("stage-3").arriving_bytes == 20 * 100
    assert saved.stage("stage-3").joined_bytes == 5_000
    assert saved.state_bytes == 7_000


def test_each_micro_batch_saves_what_it_would_compute_again() -> None:
    """Both inputs, less what reading their results takes; it pays back at the second batch."""
    stage = estimate(two_dams(), MEASURES).stage("stage-3")
    assert stage.recomputed_seconds == 24.5
    assert stage.break_even_batches == 2


def test_staging_never_pays_back_where_reading_is_as_slow_as_computing() -> None:
    """The estimate says so instead of a number."""
    measures = {**MEASURES, "stage-3": StageMeasure(read_seconds=30)}
    stage = estimate(two_dams(), measures).stage("stage-3")
    assert (stage.recomputed_seconds, stage.break_even_batches) == (0.0, None)


def test_a_stage_that_several_read_is_counted_once_in_a_micro_batch() -> None:
    """A diamond computes its top once, in the naive way too."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    graph.add_operator("top", "source", attributes=FULL_DAM)
    for name in ("left", "right"):
        graph.add_operator(name, "top", attributes=FULL_DAM)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_sink("sink", "live", "left", "right")
    plan = compile(graph)
    measures = {stage.id: StageMeasure(seconds=1) for stage in plan.stages if stage.bounded}
    assert estimate(plan, measures).recomputed_seconds_per_batch == 3


def test_the_explanation_shows_the_inputs() -> None:
    """A reader can check the sum."""
    text = estimate(two_dams(), MEASURES).explain()
    assert text.startswith("staging saves 40.0 slot-seconds, 7,000 bytes of state and 24.5 s of each micro-batch\n")
    assert "2 slots x 20.0 s blocked = 40.0 slot-seconds" in text
    assert "2,000 bytes arriving meanwhile + 5,000 bytes joined = 7,000 bytes of state" in text
    assert "24.5 s less in each micro-batch, paid back after 2 micro-batches" in text


def test_measures_come_from_the_progress_of_a_run() -> None:
    """Seconds, rows and bytes as they were reported."""
    progress = {"stage-1": StageProgress(state=StageState.FINISHED, seconds=2.5, rows=7)}
    assert measures_of(progress) == {"stage-1": StageMeasure(seconds=2.5, rows=7)}


def test_wrong_measures_are_refused() -> None:
    """Nothing takes less than no time; and a measure belongs to a stage."""
    for option in ("seconds", "size_bytes", "read_seconds"):
        with pytest.raises(InvalidOptionError, match=option):
            StageMeasure(**{option: -1})
    with pytest.raises(InvalidOptionError, match="seconds"):
        StageMeasure(seconds=math.nan)
    with pytest.raises(SchedulingError, match="UNKNOWN_STAGE"):
        estimate(two_dams(), {"stage-9": StageMeasure()})


@given(job=chains())
def test_savings_are_never_negative_and_first_stages_save_nothing(
    job: tuple[StagePlan, dict[str, StageMeasure]],
) -> None:
    """Whatever was measured; what reads no committed result was never held back."""
    plan, measures = job
    saved = estimate(plan, measures)
    for stage, one in zip(plan.stages, saved.stages, strict=True):
        assert min(one.slot_seconds, one.state_bytes, one.recomputed_seconds) >= 0
        if not stage.inputs:
            assert (one.slot_seconds, one.arriving_bytes, one.recomputed_seconds) == (0, 0, 0)
        if stage.bounded:
            assert (one.state_bytes, one.recomputed_seconds) == (0, 0)


@given(job=chains())
def test_a_budget_that_all_stages_fit_changes_nothing(job: tuple[StagePlan, dict[str, StageMeasure]]) -> None:
    """Playing the run and the longest path are one and the same."""
    plan, measures = job
    room = sum(stage.slots for stage in plan.stages)
    free, played = estimate(plan, measures), estimate(plan, measures, slots=room)
    for one, other in zip(free.stages, played.stages, strict=True):
        assert one.blocking_seconds == pytest.approx(other.blocking_seconds)


@given(job=chains(), slots=st.integers(1, 6))
def test_no_budget_makes_a_stage_ready_sooner(job: tuple[StagePlan, dict[str, StageMeasure]], slots: int) -> None:
    """No stage is held back for less time than the longest path to it takes."""
    plan, measures = job
    free, played = estimate(plan, measures), estimate(plan, measures, slots=slots)
    for one, other in zip(free.stages, played.stages, strict=True):
        assert other.blocking_seconds >= one.blocking_seconds * (1 - 1e-9)


@given(job=chains(), factor=st.sampled_from([0.5, 2.0, 4.0]))
def test_savings_grow_in_proportion_to_seconds(job: tuple[StagePlan, dict[str, StageMeasure]], factor: float) -> None:
    """Twice as slow stages save twice as many slot-seconds; the number of batches to break even stays."""
    plan, measures = job
    slower = {
        stage_id: StageMeasure(seconds=one.seconds * factor, size_bytes=one.size_bytes)
        for stage_id, one in measures.items()
    }
    before, after = estimate(plan, measures), estimate(plan, slower)
    assert after.slot_seconds == pytest.approx(before.slot_seconds * factor)
    assert after.recomputed_seconds_per_batch == pytest.approx(before.recomputed_seconds_per_batch * factor)


@given(job=chains(), more=st.floats(0, 1e6), data=st.data())
def test_a_slower_stage_never_lowers_what_staging_saves(
    job: tuple[StagePlan, dict[str, StageMeasure]], more: float, data: st.DataObject
) -> None:
    """Savings grow with each stage's time, by its slots at the very most along each path."""
    plan, measures = job
    slow = data.draw(st.sampled_from(plan.stages)).id
    slower = {**measures, slow: StageMeasure(seconds=measures[slow].seconds + more)}
    before, after = estimate(plan, measures), estimate(plan, slower)
    assert after.slot_seconds >= before.slot_seconds
    assert after.slot_seconds - before.slot_seconds <= sum(stage.slots for stage in plan.stages) * more + 1e-3
