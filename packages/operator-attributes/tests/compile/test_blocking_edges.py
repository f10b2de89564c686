from penstock.operator_attributes import (
    Boundedness,
    GlobalWindows,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    StagePlan,
    compile,
)

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
PIPELINED, BLOCKING = ResultPartitionType.PIPELINED, ResultPartitionType.BLOCKING


def bounded_job() -> JobGraph:
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    return graph


def kind(plan: StagePlan, source: str, target: str) -> ResultPartitionType:
    (only,) = {edge.partition_type for edge in plan.edges if (edge.source, edge.target) == (source, target)}
    return only


def test_the_edge_out_of_a_full_dam_operator_blocks_and_the_edge_into_it_does_not() -> None:
    """The operator's output waits for its end; its input flows."""
    graph = bounded_job()
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_sink("sink", "dam")
    plan = compile(graph)
    assert kind(plan, "source", "dam") is PIPELINED
    assert kind(plan, "dam", "sink") is BLOCKING
    assert [stage.vertices for stage in plan.stages] == [("source", "dam"), ("sink",)]


def test_a_window_operator_blocks_by_its_assigner() -> None:
    """A global window with the end-of-stream trigger blocks, one without it does not."""
    for window, expected in (
        (GlobalWindows.create_with_end_of_stream_trigger(), BLOCKING),
        (GlobalWindows.create(), PIPELINED),
    ):
        graph = bounded_job()
        graph.add_operator("window", "source", window=window, keyed=True)
        graph.add_sink("sink", "window")
        assert kind(compile(graph), "window", "sink") is expected


def test_edges_of_operators_that_emit_as_they_go_are_pipelined() -> None:
    """Without a full-dam operator everything is one stage."""
    graph = bounded_job()
    graph.add_operator("map", "source")
    graph.add_sink("sink", "map")
    plan = compile(graph)
    assert {edge.partition_type for edge in plan.edges} == {PIPELINED}
    assert len(plan.stages) == 1
    assert plan.stages[0].reason == ""


def test_an_edge_keeps_the_mode_that_was_declared_for_it() -> None:
    """A declared mode wins, whether the producer is full-dam or not."""
    graph = bounded_job()
    graph.add_operator("map", "source")
    graph.add_operator("dam", Input("map", partition_type=BLOCKING), attributes=FULL_DAM)
    graph.add_sink("sink", Input("dam", partition_type=PIPELINED))
    plan = compile(graph)
    assert kind(plan, "map", "dam") is BLOCKING
    assert kind(plan, "dam", "sink") is PIPELINED
    assert [stage.vertices for stage in plan.stages] == [("source", "map"), ("dam", "sink")]
    assert "declared blocking" in plan.stages[0].reason


def test_the_mark_spreads_down_an_operator_chain() -> None:
    """An operator that is chained after a full-dam operator emits only after its end."""
    graph = bounded_job()
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_operator("map", "dam")
    graph.add_operator("filter", "map")
    graph.add_sink("sink", "filter")
    plan = compile(graph)
    assert kind(plan, "dam", "map") is PIPELINED
    assert kind(plan, "filter", "sink") is BLOCKING
    assert plan.stages[0].vertices == ("source", "dam", "map", "filter")
    assert "'dam' emits only after the end of its input" in plan.stages[0].reason
    assert "'filter' is chained with it" in plan.stages[0].reason


def test_the_mark_spreads_up_an_operator_chain_to_its_side_branches() -> None:
    """Operators before and beside the full-dam operator block too if they are in its chain."""
    graph = bounded_job()
    graph.add_operator("head", "source", chained=False)
    graph.add_operator("dam", "head", attributes=FULL_DAM, chained=True)
    graph.add_operator("side", "head")
    graph.add_operator("tail", "side")
    graph.add_sink("of_head", "head")
    graph.add_sink("of_tail", "tail")
    plan = compile(graph)
    assert kind(plan, "head", "of_head") is BLOCKING
    assert kind(plan, "tail", "of_tail") is BLOCKING
    assert set(plan.stages[0].batch_vertices) == {"head", "dam", "side", "tail"}


def test_the_mark_never_crosses_an_edge_that_is_not_chained() -> None:
    """Neither the producer before the full-dam operator nor the consumer after it blocks."""
    graph = bounded_job()
    graph.add_operator("before", "source")
    graph.add_operator("dam", "before", attributes=FULL_DAM)
    graph.add_operator("after", "dam", chained=False)
    graph.add_sink("of_before", "before")
    graph.add_sink("of_after", "after")
    plan = compile(graph)
    assert kind(plan, "before", "dam") is PIPELINED
    assert kind(plan, "before", "of_before") is PIPELINED
    assert kind(plan, "after", "of_after") is PIPELINED


def test_operators_are_chained_only_where_records_can_be_handed_over_in_place() -> None:
    """Two inputs, a key, another parallelism or a blocking edge each break a chain that was asked for.

    By default operators of one input are chained, as Flink does; full-dam ones and sinks only if they say so.
    """
    graph = bounded_job()
    graph.add_operator("one", "source")
    graph.add_operator("asked", "source", attributes=FULL_DAM, chained=True)
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_operator("opted_out", "source", chained=False)
    graph.add_sink("sink", "source")
    graph.add_operator("two_inputs", "source", "one", chained=True)
    graph.add_operator("keyed", "source", chained=True, keyed=True)
    graph.add_operator("wider", "source", chained=True, parallelism=2)
    graph.add_operator("apart", Input("source", partition_type=BLOCKING), chained=True)
    assert {edge.target for edge in compile(graph).edges if edge.chained} == {"one", "asked"}


def test_keyed_inputs_of_a_full_dam_operator_are_sorted_and_others_pass_through() -> None:
    """Batch mode gives a keyed operator its records key by key."""
    graph = bounded_job()
    graph.add_source("other", boundedness=Boundedness.BOUNDED)
    graph.add_operator("dam", Input("source", keyed=True), "other", attributes=FULL_DAM)
    graph.add_operator("map", "other", keyed=True)
    plan = compile(graph)
    assert {(edge.source, edge.target): edge.sorted for edge in plan.edges} == {
        ("source", "dam"): True,
        ("other", "dam"): False,
        ("other", "map"): False,
    }


def test_an_operator_that_sorts_internally_gets_its_input_unsorted() -> None:
    """Nothing is sorted twice."""
    graph = bounded_job()
    attributes = OperatorAttributes(output_only_after_end_of_stream=True, internal_sorter_supported=True)
    graph.add_operator("dam", "source", keyed=True, attributes=attributes)
    assert [edge.sorted for edge in compile(graph).edges] == [False]


def test_only_the_chain_of_a_full_dam_operator_runs_in_batch_mode() -> None:
    """Its neighbours over unchained edges do not."""
    graph = bounded_job()
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_sink("sink", "dam", chained=True)
    graph.add_sink("apart", "dam")
    plan = compile(graph)
    assert [stage.batch_vertices for stage in plan.stages] == [("dam", "sink"), ()]


def test_batch_stages_take_no_checkpoints_and_live_stages_do() -> None:
    """A batch stage reads its inputs again after a failure instead."""
    graph = bounded_job()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_operator("join", "live", "dam")
    plan = compile(graph)
    assert [(stage.bounded, stage.checkpointed) for stage in plan.stages] == [(True, False), (False, True)]


def test_the_reason_names_the_operator_and_its_call_site() -> None:
    """A reader of the plan finds the line that makes a stage wait."""
    graph = bounded_job()
    graph.add_operator("dam", "source", attributes=FULL_DAM, call_site="job.py:12")
    graph.add_sink("sink", "dam")
    (reason,) = compile(graph).stages[0].reasons
    assert (reason.operator, reason.call_site, reason.declared) == ("dam", "job.py:12", False)
    assert compile(graph).stages[0].reason == "'dam' emits only after the end of its input (job.py:12)"


def test_a_call_site_is_the_line_of_the_user() -> None:
    """Unless told otherwise a vertex remembers the line that added it."""
    graph = JobGraph()
    vertex = graph.add_source("source", boundedness=Boundedness.BOUNDED)
    assert vertex.call_site.rpartition(":")[0] == __file__
