"""From a job graph to the plan of its stages."""

from opentelemetry import trace

from penstock.operator_attributes._compile.graph import JobGraph
from penstock.operator_attributes._compile.partition_types import Decisions, decide
from penstock.operator_attributes._compile.plan import BlockingReason, PlannedEdge, Stage, StageInput, StagePlan
from penstock.operator_attributes._compile.regions import CyclicRegions, RegionEdge, Regions, find_regions
from penstock.operator_attributes._compile.topology import CanonicalGraph, canonical

_MAX_NAMES = 3


def compile(
    graph: JobGraph,
    *,
    cyclic_regions: CyclicRegions = CyclicRegions.READ_TWICE,
    tracer: trace.Tracer | None = None,
) -> StagePlan:
    """Decide which edges block and cut the graph there into stages (FLIP-331).

    The plan depends on the graph's content alone, not on the order in which it was written. Makes the span
    `operator_attributes.compile`.

    Raises:
        CompileError (UNKNOWN_INPUT): an input is not a vertex of the graph.
        CompileError (INVALID_VERTEX): a sink is read.
        CompileError (GRAPH_CYCLE): vertices depend on themselves.
        FullDamOverUnboundedError: a full-dam operator reads from a source that never ends.
        CompileError (UNBOUNDED_BLOCKING_EDGE): an edge whose producer never ends was declared blocking.
    """
    tracer = tracer or trace.get_tracer("penstock.operator_attributes")
    with tracer.start_as_current_span(
        "operator_attributes.compile",
        attributes={"penstock.job.name": graph.name, "penstock.job.vertices": len(graph)},
    ) as span:
        numbered = canonical(graph)
        decisions = decide(numbered)
        regions = find_regions(numbered, decisions, cyclic_regions)
        plan = _plan(graph.name, numbered, decisions.blocking(regions.handed_over), regions, cyclic_regions)
        span.set_attribute("penstock.job.stages", len(plan.stages))
        span.set_attribute("penstock.job.blocking_edges", len(plan.blocking_edges))
        return plan


def _plan(
    name: str, graph: CanonicalGraph, decisions: Decisions, regions: Regions, cyclic_regions: CyclicRegions
) -> StagePlan:
    edges = tuple(_edge(graph, decisions, one) for one in regions.edges)
    leaving: list[dict[int, RegionEdge]] = [{} for _ in regions.vertices]
    entering: list[list[RegionEdge]] = [[] for _ in regions.vertices]
    feeding: list[set[int]] = [set() for _ in regions.vertices]
    merged = [False] * len(regions.vertices)
    for one, edge in zip(regions.edges, edges, strict=True):
        source = graph.edges[one.edge].source
        if one.source_region != one.target_region:
            leaving[one.source_region].setdefault(source, one)
            entering[one.target_region].append(one)
        else:
            feeding[one.source_region].add(source)
            merged[one.source_region] |= edge.blocking
    stages = []
    for region, vertices in enumerate(regions.vertices):
        names = tuple(graph.vertices[vertex].name for vertex in vertices)
        outputs = sorted(leaving[region])
        ends = [vertex for vertex in vertices if vertex in leaving[region] or vertex not in feeding[region]]
        stages.append(
            Stage(
                id=_stage_id(region),
                name=_stage_name(tuple(graph.vertices[vertex].name for vertex in ends)),
                vertices=names,
                inputs=tuple(
                    StageInput(
                        stage_id=_stage_id(one.source_region),
                        source=graph.vertices[graph.edges[one.edge].source].name,
                        target=graph.vertices[graph.edges[one.edge].target].name,
                    )
                    for one in sorted(entering[region], key=lambda one: one.source_region)
                ),
                outputs=tuple(graph.vertices[vertex].name for vertex in outputs),
                bounded=all(decisions.bounded[vertex] for vertex in vertices),
                slots=max(graph.vertices[vertex].parallelism for vertex in vertices),
                batch_vertices=tuple(
                    name
                    for vertex, name in zip(vertices, names, strict=True)
                    if decisions.chain[vertex] in decisions.dams
                ),
                reasons=tuple(
                    reason
                    for vertex in outputs
                    for reason in _reasons(graph, decisions, regions, vertex, leaving[region][vertex])
                ),
                merged=merged[region],
            )
        )
    return StagePlan(name, graph.vertices, edges, tuple(stages), cyclic_regions)


def _edge(graph: CanonicalGraph, decisions: Decisions, one: RegionEdge) -> PlannedEdge:
    edge = graph.edges[one.edge]
    source, target = graph.vertices[edge.source], graph.vertices[edge.target]
    return PlannedEdge(
        source=source.name,
        target=target.name,
        input_index=edge.input_index,
        partition_type=decisions.partition_types[one.edge],
        chained=decisions.chained[one.edge],
        keyed=edge.keyed,
        # A keyed full-dam operator gets its keyed inputs sorted, unless it sorts them itself.
        sorted=target.full_dam and edge.keyed and not target.attributes.internal_sorter_supported,
        source_stage=_stage_id(one.source_region),
        target_stage=_stage_id(one.target_region),
    )


def _stage_id(region: int) -> str:
    return f"stage-{region + 1}"


def _stage_name(ends: tuple[str, ...]) -> str:
    if len(ends) <= _MAX_NAMES:
        return "+".join(ends)
    return "+".join(ends[:_MAX_NAMES]) + f"+{len(ends) - _MAX_NAMES} more"


def _reasons(
    graph: CanonicalGraph, decisions: Decisions, regions: Regions, output: int, one: RegionEdge
) -> list[BlockingReason]:
    name = graph.vertices[output].name
    dams = [graph.vertices[dam] for dam in decisions.dams.get(decisions.chain[output], ())]
    if dams:
        return [BlockingReason(vertex=name, operator=dam.name, call_site=dam.call_site, declared=False) for dam in dams]
    written = graph.vertices[graph.edges[one.edge].target].call_site
    handed_over = one.edge in regions.handed_over
    return [
        BlockingReason(vertex=name, operator=name, call_site=written, declared=not handed_over, handed_over=handed_over)
    ]
