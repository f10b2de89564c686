import re
import xml.etree.ElementTree as ET
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operator_attributes import (
    Boundedness,
    CyclicRegions,
    GlobalWindows,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StagePlan,
    StageScheduler,
    StageStarted,
    StageState,
    TumblingWindows,
    Vertex,
    VertexKind,
    compile,
    explain,
    graphviz,
    mermaid,
    svg,
    window_attributes,
)
from penstock.operator_attributes.errors import CompileError, FullDamOverUnboundedError
from penstock.operator_attributes.testing import play

CYCLIC = st.sampled_from(CyclicRegions)
AT_END = GlobalWindows.create_with_end_of_stream_trigger()
ATTRIBUTES = [
    OperatorAttributes(),
    window_attributes(GlobalWindows.create()),
    window_attributes(TumblingWindows(timedelta(minutes=1))),
    window_attributes(AT_END),
    window_attributes(AT_END, internal_sorter_supported=True),
]
"""The first three are of operators that give records as they go."""


@st.composite
def graphs(draw: st.DrawFn, *, valid: bool = True) -> JobGraph:
    """Random graphs without cycles; with `valid`, full-dam operators and blocking edges only over bounded inputs."""
    graph = JobGraph("random")
    readable: list[str] = []
    bounded: dict[str, bool] = {}
    for number in range(draw(st.integers(1, 14))):
        # Names do not show the order of the edges, which the plan must find.
        name = f"v{draw(st.integers(0, 99))}-{number}" + "-long" * draw(st.sampled_from((0, 4)))
        kind = draw(st.sampled_from(VertexKind)) if readable else VertexKind.SOURCE
        if kind is VertexKind.SOURCE:
            bounded[name] = draw(st.booleans())
            graph.add_source(
                name,
                boundedness=Boundedness.BOUNDED if bounded[name] else Boundedness.UNBOUNDED,
                parallelism=draw(st.integers(1, 3)),
            )
            readable.append(name)
            continue
        sources = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3))
        bounded[name] = all(bounded[source] for source in sources)
        modes = [mode for mode in ResultPartitionType if mode is not ResultPartitionType.BLOCKING]
        inputs = tuple(
            Input(
                source,
                draw(st.booleans()),
                draw(st.sampled_from(ResultPartitionType if bounded[source] or not valid else modes)),
            )
            for source in sources
        )
        attributes = OperatorAttributes()
        if kind is VertexKind.OPERATOR:
            attributes = draw(st.sampled_from(ATTRIBUTES if bounded[name] or not valid else ATTRIBUTES[:3]))
        graph.add(
            Vertex(
                name=name,
                kind=kind,
                inputs=inputs,
                attributes=attributes,
                chained=draw(st.booleans()),
                parallelism=draw(st.integers(1, 3)),
                call_site="job.py:1",
            )
        )
        if kind is VertexKind.OPERATOR:
            readable.append(name)
    return graph


def unbounded_above(graph: JobGraph, name: str) -> bool:
    vertex = graph[name]
    return vertex.boundedness is Boundedness.UNBOUNDED or any(
        unbounded_above(graph, one.source) for one in vertex.inputs
    )


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    def holds(self, point: tuple[float, float], margin: float) -> bool:
        x, y = point
        inside_x = self.x - margin < x < self.x + self.width + margin
        return inside_x and self.y - margin < y < self.y + self.height + margin


def rects(picture: ET.Element, *kinds: str) -> list[Rect]:
    found = [one for one in picture.iter() if one.tag.endswith("}rect") and one.get("class") in kinds]
    return [Rect(*(float(one.get(name, "")) for name in Rect._fields)) for one in found]


def lines(picture: ET.Element) -> list[list[tuple[float, float]]]:
    """Points of each edge, close to each other: of lines, and of curves of the third degree."""
    found = []
    for path in (one for one in picture.iter() if one.tag.endswith("}path") and one.get("marker-end")):
        points: list[tuple[float, float]] = []
        for step, text in re.findall(r"([MLC])([^MLC]*)", path.get("d", "")):
            numbers = [float(number) for number in text.split()]
            corners = list(zip(numbers[::2], numbers[1::2], strict=True))
            if step == "M":
                points.append(corners[0])
                continue
            begin, end = points[-1], corners[-1]
            one, two = corners[:2] if step == "C" else (begin, end)
            for part in range(1, 41):
                t = part / 40
                a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
                points.append(
                    (
                        a * begin[0] + b * one[0] + c * two[0] + d * end[0],
                        a * begin[1] + b * one[1] + c * two[1] + d * end[1],
                    )
                )
        found.append(points)
    return found


def check_edges(plan: StagePlan) -> None:
    """No edge touches a vertex but at its ends, enters a stage of neither of its ends, or turns back."""
    picture = ET.fromstring(svg(plan))
    nodes, stages = rects(picture, "node"), rects(picture, "batch", "stream")
    edges = lines(picture)
    assert len(edges) == len({(one.source_stage, one.source, one.target_stage, one.target) for one in plan.edges})
    for points in edges:
        assert all(x <= next_x + 1e-6 for (x, _), (next_x, _) in pairwise(points))
        own = [one for one in nodes if one.holds(points[0], 0.2) or one.holds(points[-1], 0.2)]
        assert len(own) == 2
        for node in nodes:
            margin = -0.2 if node in own else 2.0
            assert not any(node.holds(point, margin) for point in points), (node, points)
        for stage in stages:
            if not any(stage.holds(end, 0.0) for end in (points[0], points[-1])):
                assert not any(stage.holds(point, 0.0) for point in points), (stage, points)


@given(graph=graphs(), cyclic=CYCLIC)
def test_no_edge_of_a_picture_crosses_a_vertex(graph: JobGraph, cyclic: CyclicRegions) -> None:
    """Of any plan: edges go around what they do not belong to."""
    check_edges(compile(graph, cyclic_regions=cyclic))


@pytest.mark.parametrize("streams", range(1, 5))
@pytest.mark.parametrize("dams", range(1, 4))
def test_blocking_edges_go_around_the_sources_of_the_live_stage(streams: int, dams: int) -> None:
    """Short and long names, in one column: sources, and the places at which results come in."""
    graph = JobGraph("several sources")
    for number in range(dams):
        graph.add_source(f"table {number}", boundedness=Boundedness.BOUNDED)
        graph.add_operator(f"total {number}", f"table {number}", attributes=ATTRIBUTES[3])
    for number in range(streams):
        graph.add_source("s" * (1 + 8 * number), boundedness=Boundedness.UNBOUNDED)
    sources = ["s" * (1 + 8 * number) for number in range(streams)]
    graph.add_operator("joined", *sources, *(f"total {number}" for number in range(dams)))
    graph.add_operator("joined again", "joined", "total 0")
    graph.add_sink("out", "joined again")
    graph.add_sink("o", sources[-1], f"total {dams - 1}")
    check_edges(compile(graph))


@given(graph=graphs(), cyclic=CYCLIC)
def test_every_stage_can_run_after_the_stages_before_it(graph: JobGraph, cyclic: CyclicRegions) -> None:
    """Blocking inputs stand earlier in the plan and end by themselves; what a stage reads is there."""
    plan = compile(graph, cyclic_regions=cyclic)
    seen: dict[str, set[str]] = {}
    for stage in plan.stages:
        for one in stage.inputs:
            assert plan.stage(one.stage_id).bounded
            assert one.source in plan.stage(one.stage_id).outputs
            assert one.source in seen[one.stage_id]
        seen[stage.id] = set(stage.vertices)
        brought = set(stage.vertices) | {one.source for one in stage.inputs}
        for name in stage.vertices:
            assert {one.source for one in graph[name].inputs} <= brought


@given(graph=graphs(), cyclic=CYCLIC)
def test_every_vertex_is_in_a_stage_and_only_bounded_ones_are_in_several(
    graph: JobGraph, cyclic: CyclicRegions
) -> None:
    """Nothing is lost; what never ends is deployed once; merging reads nothing twice."""
    plan = compile(graph, cyclic_regions=cyclic)
    for vertex in graph:
        stages = plan.stages_of(vertex.name)
        assert stages
        if unbounded_above(graph, vertex.name) or cyclic in (CyclicRegions.MERGE, CyclicRegions.HAND_OVER):
            assert len(stages) == 1
        if vertex.kind is VertexKind.SINK:
            assert len(stages) == 1


@given(graph=graphs())
def test_no_blocking_edge_lies_inside_of_a_stage_when_sources_may_be_read_twice(graph: JobGraph) -> None:
    """Whatever the graph, each full-dam operator is finished before its result is read over a blocking edge."""
    plan = compile(graph)
    assert not any(stage.merged for stage in plan.stages)
    assert all(edge.blocking == (edge.source_stage != edge.target_stage) for edge in plan.edges)


def may_be_chained(graph: JobGraph, vertex: Vertex) -> bool:
    (first, *others) = vertex.inputs
    return (
        bool(vertex.chained)
        and not others
        and not first.keyed
        and graph[first.source].parallelism == vertex.parallelism
        and first.partition_type is not ResultPartitionType.BLOCKING
    )


@given(graph=graphs(), cyclic=st.sampled_from([CyclicRegions.READ_TWICE, CyclicRegions.MERGE]))
def test_every_edge_has_the_mode_of_flinks_rules(graph: JobGraph, cyclic: CyclicRegions) -> None:
    """A declared one, or blocking behind a chain with a full-dam operator; as told by spreading marks step by step."""
    chained = {
        (vertex.inputs[0].source, vertex.name) for vertex in graph if vertex.inputs and may_be_chained(graph, vertex)
    }
    marked = {vertex.name for vertex in graph if vertex.full_dam}
    while more := {one for edge in chained if set(edge) & marked for one in edge} - marked:
        marked |= more
    plan = compile(graph, cyclic_regions=cyclic)
    assert {name for stage in plan.stages for name in stage.batch_vertices} == marked
    for edge in plan.edges:
        target = graph[edge.target]
        declared = target.inputs[edge.input_index].partition_type
        joined = (edge.source, edge.target) in chained
        blocking = edge.source in marked and not joined
        wanted = ResultPartitionType.BLOCKING if blocking else ResultPartitionType.PIPELINED
        assert edge.partition_type is (wanted if declared is ResultPartitionType.UNDECIDED else declared)
        assert edge.chained == joined
        assert edge.sorted == (
            target.full_dam
            and target.inputs[edge.input_index].keyed
            and not target.attributes.internal_sorter_supported
        )


@given(graph=graphs())
def test_handing_over_does_nothing_twice(graph: JobGraph) -> None:
    """In any graph each vertex is in one stage, and a stage is merged only where an edge is declared pipelined."""
    plan = compile(graph, cyclic_regions=CyclicRegions.HAND_OVER)
    assert all(len(plan.stages_of(vertex.name)) == 1 for vertex in graph)
    declared = any(one.partition_type is ResultPartitionType.PIPELINED for vertex in graph for one in vertex.inputs)
    assert declared or not any(stage.merged for stage in plan.stages)


@given(graph=graphs())
def test_each_result_of_bounded_stages_is_apart(graph: JobGraph) -> None:
    """Except for results of one full-dam chain, and results of results. Blocking edges stay the same."""
    plan, together = compile(graph, cyclic_regions=CyclicRegions.PER_RESULT), compile(graph)
    assert not any(stage.merged for stage in plan.stages)
    assert {(edge.source, edge.target, edge.partition_type) for edge in plan.edges} == {
        (edge.source, edge.target, edge.partition_type) for edge in together.edges
    }
    for stage in plan.stages:
        read = {edge.source for edge in plan.edges if edge.target_stage == edge.source_stage == stage.id}
        results = set(stage.outputs) | (set(stage.vertices) - read)
        if stage.bounded and not stage.batch_vertices and not results & read:
            assert len(results) == 1
    for name in {name for stage in plan.stages for name in stage.outputs}:
        assert len([stage for stage in plan.stages if name in stage.outputs]) == 1


@given(graph=graphs(valid=False), cyclic=CYCLIC)
def test_no_unbounded_input_ever_feeds_a_full_dam_operator(graph: JobGraph, cyclic: CyclicRegions) -> None:
    """A graph compiles if and only if every full-dam operator and every declared blocking edge has an end."""
    wrong_dams = {vertex.name for vertex in graph if vertex.full_dam and unbounded_above(graph, vertex.name)}
    wrong_edges = {
        (one.source, vertex.name)
        for vertex in graph
        for one in vertex.inputs
        if one.partition_type is ResultPartitionType.BLOCKING and unbounded_above(graph, one.source)
    }
    if wrong_dams:
        with pytest.raises(FullDamOverUnboundedError) as dam:
            compile(graph, cyclic_regions=cyclic)
        assert dam.value.operator in wrong_dams
    elif wrong_edges:
        with pytest.raises(CompileError, match="UNBOUNDED_BLOCKING_EDGE") as edge:
            compile(graph, cyclic_regions=cyclic)
        assert (edge.value.facts["source"], edge.value.facts["target"]) in wrong_edges
    else:
        plan = compile(graph, cyclic_regions=cyclic)
        assert all(stage.bounded for stage in plan.stages if stage.outputs)


@given(graph=graphs(), cyclic=CYCLIC, data=st.data())
def test_the_plan_does_not_depend_on_the_order_of_writing(
    graph: JobGraph, cyclic: CyclicRegions, data: st.DataObject
) -> None:
    """Any order of the same vertices gives the same plan, in every byte."""
    shuffled = JobGraph(graph.name)
    for vertex in data.draw(st.permutations(graph.vertices)):
        shuffled.add(vertex)
    plan = compile(graph, cyclic_regions=cyclic)
    assert compile(shuffled, cyclic_regions=cyclic) == plan
    assert compile(shuffled, cyclic_regions=cyclic).to_json() == plan.to_json()


@given(graph=graphs(), cyclic=CYCLIC)
def test_graphs_and_plans_survive_json(graph: JobGraph, cyclic: CyclicRegions) -> None:
    """Written and read again, both are equal to what they were."""
    plan = compile(graph, cyclic_regions=cyclic)
    assert JobGraph.from_json(graph.to_json()) == graph
    assert StagePlan.from_json(plan.to_json()) == plan
    assert explain(plan)
    assert mermaid(plan).count("==>") == graphviz(plan).count("style=bold")


@settings(max_examples=200)
@given(graph=graphs(), slots=st.none() | st.integers(1, 8), cyclic=CYCLIC, data=st.data())
def test_no_stage_starts_before_all_of_its_blocking_inputs_are_finished(
    graph: JobGraph, slots: int | None, cyclic: CyclicRegions, data: st.DataObject
) -> None:
    """Under any slot budget and any failures, and the budget is kept; every stage ends."""
    plan = compile(graph, cyclic_regions=cyclic)
    live = sum(stage.slots for stage in plan.stages if not stage.bounded)
    budget = None if slots is None else max(slots, live)
    scheduler = StageScheduler(plan, slots=budget, max_attempts=2)
    failures = {stage.id: data.draw(st.integers(0, 3)) for stage in plan.stages}
    finished: set[str] = set()
    running: set[str] = set()
    for event in play(scheduler, failures=failures):
        if isinstance(event, StageStarted):
            assert set(plan.stage(event.stage_id).blocking_inputs) <= finished
            running.add(event.stage_id)
        else:
            running.remove(event.stage_id)
        if isinstance(event, StageFinished):
            finished.add(event.stage_id)
        if budget is not None:
            assert sum(min(plan.stage(stage_id).slots, budget) for stage_id in running) <= budget
    assert scheduler.ended
    assert finished == {stage_id for stage_id, state in scheduler.states.items() if state.committed}
    hopeless = {stage_id for stage_id, count in failures.items() if count >= 2}
    for stage in plan.stages:
        assert (stage.id in finished) == (
            stage.id not in hopeless and all(one in finished for one in stage.blocking_inputs)
        )


@given(graph=graphs(), slots=st.none() | st.integers(1, 8), cyclic=CYCLIC, data=st.data())
def test_the_same_job_is_deployed_in_the_same_order(
    graph: JobGraph, slots: int | None, cyclic: CyclicRegions, data: st.DataObject
) -> None:
    """However its graph was written, under any budget, and with the same failures."""
    plan = compile(graph, cyclic_regions=cyclic)
    shuffled = JobGraph(graph.name)
    for vertex in data.draw(st.permutations(graph.vertices)):
        shuffled.add(vertex)
    live = sum(stage.slots for stage in plan.stages if not stage.bounded)
    budget = None if slots is None else max(slots, live)
    failures = {stage.id: data.draw(st.integers(0, 2)) for stage in plan.stages}
    first, second = (
        list(play(StageScheduler(one, slots=budget, max_attempts=2), failures=dict(failures)))
        for one in (plan, compile(shuffled, cyclic_regions=cyclic))
    )
    assert first == second


@settings(max_examples=200)
@given(graph=graphs(), cyclic=CYCLIC, slots=st.none() | st.integers(1, 8), data=st.data())
def test_whatever_is_lost_fails_or_is_interrupted_no_stage_is_deployed_without_its_inputs(
    graph: JobGraph, cyclic: CyclicRegions, slots: int | None, data: st.DataObject
) -> None:
    """At each moment, all deployable stages have their inputs and fit the budget; and every job can end."""
    plan = compile(graph, cyclic_regions=cyclic)
    live = sum(stage.slots for stage in plan.stages if not stage.bounded)
    scheduler = StageScheduler(plan, slots=None if slots is None else max(slots, live), max_attempts=2)

    def committed() -> set[str]:
        return {stage_id for stage_id, state in scheduler.states.items() if state.committed}

    for _ in range(data.draw(st.integers(0, 25))):
        running = [stage_id for stage_id, state in scheduler.states.items() if state is StageState.RUNNING]
        events: list[StageEvent] = [StageStarted(stage_id=stage.id) for stage in scheduler.ready()]
        for stage_id in running:
            events += [StageFinished(stage_id=stage_id), StageInterrupted(stage_id=stage_id)]
            events.append(StageFailed(stage_id=stage_id, error="made to fail"))
        events += [StageLost(stage_id=stage_id) for stage_id in sorted(committed()) if plan.stage(stage_id).bounded]
        if not events:
            break
        scheduler.apply(data.draw(st.sampled_from(events)))
        for stage in plan.stages:
            inputs = {scheduler.state(one) for one in stage.blocking_inputs}
            if scheduler.state(stage.id).deployable:
                assert all(state.committed for state in inputs)
            if scheduler.state(stage.id) is StageState.WAITING:
                assert not all(state.committed for state in inputs)
    for stage_id, state in scheduler.states.items():
        if state is StageState.RUNNING:
            scheduler.apply(StageInterrupted(stage_id=stage_id))
    play(scheduler)
    assert scheduler.ended
