"""Bounded operators that are needed twice, handed over by a blocking edge instead of done twice."""

from penstock.operator_attributes import (
    Boundedness,
    CyclicRegions,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    StagePlan,
    compile,
    explain,
)

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def shared(*, live: bool = False, mode: ResultPartitionType = ResultPartitionType.UNDECIDED) -> JobGraph:
    """`clean` is read by a full-dam operator, and again beside its result."""
    graph = JobGraph()
    graph.add_source("airports", boundedness=Boundedness.BOUNDED)
    graph.add_operator("clean", "airports")
    graph.add_operator("count", "clean", attributes=FULL_DAM)
    graph.add_operator("join", Input("clean", partition_type=mode), "count")
    if live:
        graph.add_source("flights", boundedness=Boundedness.UNBOUNDED)
        graph.add_operator("enrich", "flights", "join")
    return graph


def hand_over(graph: JobGraph) -> StagePlan:
    return compile(graph, cyclic_regions=CyclicRegions.HAND_OVER)


def stages(plan: StagePlan) -> list[tuple[str, ...]]:
    return [stage.vertices for stage in plan.stages]


def test_what_is_needed_twice_is_done_once_when_asked() -> None:
    """Its records go over a blocking edge to the stage that needs them later, and the plan says why."""
    plan = hand_over(shared())
    assert stages(plan) == [("airports", "clean", "count"), ("join",)]
    assert plan.stages[0].outputs == ("clean", "count")
    assert "'clean' is done once, and handed over to what needs it later" in explain(plan)
    assert "'count' emits only after the end of its input" in explain(plan)


def test_without_being_asked_it_is_done_twice() -> None:
    """A bounded source is read again in each stage that needs it, unless the user says otherwise."""
    assert stages(compile(shared())) == [("airports", "clean", "count"), ("airports", "clean", "join")]


def test_what_flows_into_the_live_stage_still_flows() -> None:
    """Only the edge that closes a circle is cut: the join is done with the live stage that reads it."""
    plan = hand_over(shared(live=True))
    assert stages(plan)[0] == ("airports", "clean", "count")
    assert set(stages(plan)[1]) == {"join", "flights", "enrich"}


def test_a_mode_that_the_user_declared_is_kept() -> None:
    """Declared pipelined, the edge cannot be cut, and the regions are merged."""
    plan = hand_over(shared(mode=ResultPartitionType.PIPELINED))
    assert stages(plan) == [("airports", "clean", "count", "join")]
    assert plan.stages[0].merged


def test_a_plan_without_circles_is_the_same_under_every_rule() -> None:
    """Nothing is handed over that need not be."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_sink("sink", "dam")
    assert hand_over(graph).stages == compile(graph).stages
    assert hand_over(graph).edges == compile(graph).edges
