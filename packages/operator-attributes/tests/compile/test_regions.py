from penstock.operator_attributes import (
    Boundedness,
    CyclicRegions,
    JobGraph,
    OperatorAttributes,
    StagePlan,
    compile,
)

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def vertices(plan: StagePlan) -> list[tuple[str, ...]]:
    return [stage.vertices for stage in plan.stages]


def shared_source(*, live: bool) -> JobGraph:
    """A source that is read by a full-dam operator, and again beside its result."""
    graph = JobGraph()
    graph.add_source("airports", boundedness=Boundedness.BOUNDED)
    graph.add_operator("count", "airports", attributes=FULL_DAM)
    graph.add_operator("join", "airports", "count")
    if live:
        graph.add_source("flights", boundedness=Boundedness.UNBOUNDED)
        graph.add_operator("enrich", "flights", "join")
    return graph


def test_pipelined_edges_join_vertices_to_one_stage() -> None:
    """Branches that meet anywhere over pipelined edges are deployed together."""
    graph = JobGraph()
    graph.add_source("a", boundedness=Boundedness.BOUNDED)
    graph.add_source("b", boundedness=Boundedness.BOUNDED)
    graph.add_operator("join", "a", "b")
    graph.add_sink("one", "join")
    graph.add_sink("two", "a")
    assert [set(stage) for stage in vertices(compile(graph))] == [{"a", "b", "join", "one", "two"}]


def test_branches_that_share_nothing_are_stages_of_their_own() -> None:
    """Independent work can run side by side."""
    graph = JobGraph()
    for name in ("a", "b"):
        graph.add_source(name, boundedness=Boundedness.BOUNDED)
        graph.add_sink(f"{name}_sink", name)
    assert vertices(compile(graph)) == [("a", "a_sink"), ("b", "b_sink")]


def test_the_live_stage_waits_for_every_stage_that_it_reads() -> None:
    """All blocking inputs are named, each stage once."""
    graph = JobGraph()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    for name in ("a", "b"):
        graph.add_source(name, boundedness=Boundedness.BOUNDED)
        graph.add_operator(f"{name}_dam", name, attributes=FULL_DAM)
    graph.add_operator("join", "live", "a_dam", "b_dam", "a_dam")
    plan = compile(graph)
    first, second, last = plan.stages
    assert (first.blocking_inputs, second.blocking_inputs) == ((), ())
    assert last.blocking_inputs == (first.id, second.id)
    assert last.vertices == ("live", "join")
    assert not last.bounded
    assert [one.source for one in last.inputs] == ["a_dam", "a_dam", "b_dam"]


def test_a_bounded_input_without_full_dam_stays_in_the_live_stage() -> None:
    """Waiting for a pipelined input would save nothing."""
    graph = JobGraph()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_source("static", boundedness=Boundedness.BOUNDED)
    graph.add_operator("join", "live", "static")
    assert len(compile(graph).stages) == 1


def test_a_source_on_both_sides_of_a_blocking_edge_is_read_twice() -> None:
    """The region would wait for itself; reading the source again lets its full-dam part run first."""
    plan = compile(shared_source(live=False))
    assert vertices(plan) == [("airports", "count"), ("airports", "join")]
    assert [stage.id for stage in plan.stages_of("airports")] == ["stage-1", "stage-2"]
    assert plan.stages[1].blocking_inputs == ("stage-1",)


def test_cyclic_regions_are_merged_on_request() -> None:
    """Then the blocking edge lies inside of the one stage, which says so."""
    plan = compile(shared_source(live=False), cyclic_regions=CyclicRegions.MERGE)
    assert vertices(plan) == [("airports", "count", "join")]
    assert plan.stages[0].merged
    assert plan.blocking_edges == ()


def test_two_regions_that_wait_for_each_other_are_merged_or_read_apart() -> None:
    """Crossed blocking edges: neither region could start first."""
    graph = JobGraph()
    for here, there in (("a", "b"), ("b", "a")):
        graph.add_source(here, boundedness=Boundedness.BOUNDED)
        graph.add_operator(f"{here}_dam", here, attributes=FULL_DAM)
        graph.add_operator(f"{here}_join", here, f"{there}_dam")
    assert len(compile(graph, cyclic_regions=CyclicRegions.MERGE).stages) == 1
    assert vertices(compile(graph)) == [
        ("a", "a_dam"),
        ("b", "b_dam"),
        ("a", "a_join"),
        ("b", "b_join"),
    ]


def test_a_bounded_part_is_cut_out_of_a_region_that_never_ends() -> None:
    """A live stage never ends, so no stage may wait for it: the full-dam part gets its own stage."""
    graph = JobGraph()
    graph.add_source("airports", boundedness=Boundedness.BOUNDED)
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED)
    graph.add_source("delays", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("count", "airports", attributes=FULL_DAM)
    graph.add_operator("enrich", "flights", "airports")
    graph.add_operator("rank", "delays", "count")
    plan = compile(graph)
    assert [(set(stage.vertices), stage.bounded) for stage in plan.stages] == [
        ({"airports", "count"}, True),
        ({"airports", "flights", "enrich"}, False),
        ({"delays", "rank"}, False),
    ]
    merged = compile(graph, cyclic_regions=CyclicRegions.MERGE)
    assert len(merged.stages) == 1


def test_merging_reaches_everything_that_would_wait_for_a_region_without_end() -> None:
    """Also stages that depend on it indirectly."""
    graph = JobGraph()
    graph.add_source("airports", boundedness=Boundedness.BOUNDED)
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("enrich", "flights", "airports")
    graph.add_operator("count", "airports", attributes=FULL_DAM)
    graph.add_operator("rank", "count", attributes=FULL_DAM)
    graph.add_sink("table", "rank")
    assert len(compile(graph, cyclic_regions=CyclicRegions.MERGE).stages) == 1
    assert [stage.bounded for stage in compile(graph).stages] == [True, False, True, True]


def test_what_is_computed_on_the_way_is_done_again_where_it_is_needed() -> None:
    """An operator between a source that is read twice and its readers is in both stages."""
    graph = shared_source(live=True)
    plan = compile(graph)
    assert [(stage.vertices, stage.bounded) for stage in plan.stages] == [
        (("airports", "count"), True),
        (("airports", "flights", "join", "enrich"), False),
    ]


def test_a_job_that_would_be_done_many_times_over_is_merged_instead() -> None:
    """A long preparation that each of a hundred stages in a row reads is not done a hundred times."""
    graph = JobGraph()
    before = graph.add_source("source", boundedness=Boundedness.BOUNDED)
    for number in range(100):
        before = graph.add_operator(f"prepare{number}", before)
    prepared = dam = before
    for number in range(100):
        dam = graph.add_operator(f"dam{number}", prepared, dam, attributes=FULL_DAM)
    plan = compile(graph)
    assert [stage.merged for stage in plan.stages] == [True]
    assert len(plan.stages[0].vertices) == len(graph)


def test_a_graph_without_circles_reads_nothing_twice() -> None:
    """A source with two readers that do not wait for each other is read once."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    graph.add_operator("dam", "source", attributes=FULL_DAM)
    graph.add_operator("map", "source")
    graph.add_operator("behind", "dam")
    plan, merged = compile(graph), compile(graph, cyclic_regions=CyclicRegions.MERGE)
    assert (plan.stages, plan.edges) == (merged.stages, merged.edges)
    assert len(plan.stages_of("source")) == 1


def test_the_slots_of_a_stage_are_those_of_its_widest_vertex() -> None:
    """Vertices of a stage share slots."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED, parallelism=4)
    graph.add_sink("sink", "source", parallelism=2)
    assert compile(graph).stages[0].slots == 4


def test_a_stage_is_named_after_what_leaves_it() -> None:
    """Results and sinks make the name; long lists are cut."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    graph.add_operator("daily", "source", attributes=FULL_DAM)
    for number in range(5):
        graph.add_sink(f"sink{number}", "source")
    graph.add_sink("report", "daily")
    assert [stage.name for stage in compile(graph).stages] == ["daily+sink0+sink1+3 more", "report"]


def test_a_self_join_keeps_both_of_its_edges() -> None:
    """Two inputs from one vertex are two edges."""
    graph = JobGraph()
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    graph.add_operator("join", "source", "source")
    assert [(edge.source, edge.input_index) for edge in compile(graph).edges] == [
        ("source", 0),
        ("source", 1),
    ]


def siblings() -> JobGraph:
    """Two full-dam operators and a sink on one source, and one behind both."""
    graph = JobGraph()
    graph.add_source("weather", boundedness=Boundedness.BOUNDED)
    graph.add_operator("clean", "weather")
    graph.add_operator("daily", "clean", attributes=FULL_DAM)
    graph.add_operator("hourly", "clean", attributes=FULL_DAM)
    graph.add_operator("celsius", "hourly")
    graph.add_operator("kelvin", "hourly")
    graph.add_sink("copy", "clean")
    graph.add_sink("report", "daily", "celsius", "kelvin")
    return graph


def test_results_of_one_source_are_one_stage_unless_asked() -> None:
    """As Flink deploys them: what pipelined edges join is one region."""
    assert vertices(compile(siblings())) == [
        ("weather", "clean", "copy", "daily", "hourly", "celsius", "kelvin"),
        ("report",),
    ]


def test_each_result_is_a_stage_of_its_own_when_asked() -> None:
    """The source is read by each; what comes from one full-dam operator stays together, so that it is done once."""
    plan = compile(siblings(), cyclic_regions=CyclicRegions.PER_RESULT)
    assert vertices(plan) == [
        ("weather", "clean", "copy"),
        ("weather", "clean", "daily"),
        ("weather", "clean", "hourly", "celsius", "kelvin"),
        ("report",),
    ]
    assert [stage.name for stage in plan.stages] == ["copy", "daily", "celsius+kelvin", "report"]
    assert plan.stages[-1].blocking_inputs == ("stage-2", "stage-3")


def test_a_circle_is_untangled_where_results_are_apart() -> None:
    """What is read twice for that is read in the stage of each result, and nothing waits for itself."""
    graph = shared_source(live=True)
    graph.add_sink("copy", "airports")
    plan = compile(graph, cyclic_regions=CyclicRegions.PER_RESULT)
    assert vertices(plan) == [("airports", "copy"), ("airports", "count"), ("airports", "flights", "join", "enrich")]
