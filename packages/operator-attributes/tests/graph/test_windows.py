from datetime import timedelta

import pytest

from penstock.operator_attributes import (
    Boundedness,
    GlobalWindows,
    Input,
    JobGraph,
    PlannedEdge,
    SessionWindows,
    SlidingWindows,
    StagePlan,
    TumblingWindows,
    WindowAssigner,
    compile,
    window_attributes,
)
from penstock.operator_attributes.errors import FullDamOverUnboundedError, InvalidOptionError

MINUTE = timedelta(minutes=1)
END_OF_STREAM = GlobalWindows.create_with_end_of_stream_trigger()
TIME_WINDOWS: list[WindowAssigner] = [
    TumblingWindows(MINUTE),
    TumblingWindows(MINUTE, offset=timedelta(seconds=-15)),
    SlidingWindows(5 * MINUTE, MINUTE),
    SessionWindows(MINUTE),
]


def two_sources(second: Boundedness = Boundedness.BOUNDED) -> JobGraph:
    graph = JobGraph()
    graph.add_source("left", boundedness=Boundedness.BOUNDED)
    graph.add_source("right", boundedness=second)
    return graph


def edges_into(plan: StagePlan, target: str) -> list[PlannedEdge]:
    return [edge for edge in plan.edges if edge.target == target]


def test_only_the_global_window_with_the_end_of_stream_trigger_is_full_dam() -> None:
    """All others give results before the input ends, or never."""
    assert window_attributes(END_OF_STREAM).output_only_after_end_of_stream
    others: list[WindowAssigner] = [GlobalWindows.create(), *TIME_WINDOWS]
    for window in others:
        assert not window_attributes(window).output_only_after_end_of_stream


@pytest.mark.parametrize("window", [GlobalWindows.create(), *TIME_WINDOWS], ids=repr)
def test_windows_of_time_hold_nothing_back(window: WindowAssigner) -> None:
    """They may read what never ends, in the stage of their reader."""
    graph = two_sources(Boundedness.UNBOUNDED)
    graph.add_operator("pairs", "left", "right", keyed=True, window=window)
    graph.add_sink("sink", "pairs")
    assert len(compile(graph).stages) == 1


def test_a_join_in_a_window_that_fires_at_the_end_is_a_stage_of_its_own() -> None:
    """Both inputs are keyed, flow into it, and are sorted; what reads it waits; no checkpoints are taken."""
    graph = two_sources()
    join = graph.add_operator("pairs", "left", "right", keyed=True, window=END_OF_STREAM)
    assert "test_windows.py" in join.call_site
    graph.add_sink("sink", "pairs")
    plan = compile(graph)
    assert [stage.vertices for stage in plan.stages] == [("left", "right", "pairs"), ("sink",)]
    assert [(edge.keyed, edge.sorted, edge.blocking) for edge in edges_into(plan, "pairs")] == [(True, True, False)] * 2
    assert [edge.blocking for edge in edges_into(plan, "sink")] == [True]
    assert not plan.stages[0].checkpointed
    assert plan.stages[0].batch_vertices == ("pairs",)


def test_a_co_group_that_sorts_internally_gets_its_inputs_as_they_come() -> None:
    """Sorting them twice would be waste."""
    graph = two_sources()
    attributes = window_attributes(END_OF_STREAM, internal_sorter_supported=True)
    graph.add_operator("pairs", "left", "right", keyed=True, attributes=attributes)
    assert not any(edge.sorted for edge in compile(graph).edges)


def test_only_the_keyed_inputs_of_an_operator_with_many_are_sorted() -> None:
    """Others are passed through: a broadcast side has no key to be sorted by."""
    graph = two_sources()
    graph.add_source("rates", boundedness=Boundedness.BOUNDED)
    graph.add_operator(
        "merged", Input("left", keyed=True), Input("rates"), Input("right", keyed=True), window=END_OF_STREAM
    )
    edges = edges_into(compile(graph), "merged")
    assert [(edge.source, edge.sorted) for edge in edges] == [("left", True), ("rates", False), ("right", True)]


def test_keyed_inputs_are_not_sorted_while_records_flow() -> None:
    """Sorting needs an end: a join in windows of time gets its records as they come."""
    graph = two_sources()
    graph.add_operator("pairs", "left", "right", keyed=True, window=TumblingWindows(MINUTE))
    assert not any(edge.sorted for edge in compile(graph).edges)


def test_a_join_at_the_end_of_an_input_without_end_is_refused() -> None:
    """One side that never ends is enough; it is named."""
    graph = two_sources(Boundedness.UNBOUNDED)
    graph.add_operator("pairs", "left", "right", keyed=True, window=END_OF_STREAM)
    with pytest.raises(FullDamOverUnboundedError) as caught:
        compile(graph)
    assert caught.value.unbounded_sources == ("right",)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: TumblingWindows(timedelta(0)), "size"),
        (lambda: TumblingWindows(MINUTE, offset=MINUTE), "offset"),
        (lambda: SlidingWindows(MINUTE, timedelta(0)), "slide"),
        (lambda: SlidingWindows(MINUTE, MINUTE, offset=-MINUTE), "offset"),
        (lambda: SessionWindows(-MINUTE), "gap"),
    ],
)
def test_impossible_windows_are_refused_by_option(make: object, option: str) -> None:
    """Sizes, slides and gaps are positive; an offset is smaller than what it shifts."""
    assert callable(make)
    with pytest.raises(InvalidOptionError) as caught:
        make()
    assert caught.value.option == option


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("keyed", [False, True])
def test_operators_of_any_number_of_inputs_say_the_same_of_themselves(number: int, keyed: bool) -> None:
    """One, two or many, with keys or over all records: all inputs flow in, keyed ones sorted; the result waits."""
    graph = JobGraph()
    names = [f"source-{index}" for index in range(number)]
    for name in names:
        graph.add_source(name, boundedness=Boundedness.BOUNDED)
    graph.add_operator("operator", *names, keyed=keyed, window=END_OF_STREAM)
    graph.add_sink("sink", "operator")
    plan = compile(graph)
    assert [set(stage.vertices) for stage in plan.stages] == [{*names, "operator"}, {"sink"}]
    assert [(edge.blocking, edge.sorted) for edge in edges_into(plan, "operator")] == [(False, keyed)] * number
    assert plan.stages[0].batch_vertices == ("operator",)
