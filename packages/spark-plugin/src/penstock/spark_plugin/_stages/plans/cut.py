"""Where a DataFrame's plan is cut: pure decisions."""

from collections.abc import Sequence

from penstock.operator_attributes import (
    Boundedness,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    StagePlan,
    compile,
)
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin._stages.plans.tree import PlanNode, titles

# Spark runs these on streams row by row, or by keeping state: they do not wait for an end there.
_INCREMENTAL = frozenset({"Deduplicate", "Distinct", "GlobalLimit"})


def find_cuts(root: PlanNode, *, output_mode: str = "append", site: str = "") -> tuple[PlanNode, ...]:
    """The largest bounded parts with a full-dam operator in them that streaming operators read.

    Args:
        root: The plan.
        output_mode: Of the query: in `update` and `complete` mode an aggregate of a stream gives rows early.
        site: Where the user asked, for operators of which Spark does not know the place.

    Raises:
        FullDamOverUnboundedError: an operator would wait for the end of a stream.
    """
    cuts: list[PlanNode] = []
    for node in root.nodes():
        if not node.streaming:
            continue
        if node.full_dam and _waits(node, output_mode):
            sources = [one.name for one in node.nodes() if one.streaming and not one.children]
            raise FullDamOverUnboundedError(node.name, node.call_site or site, sources)
        cuts += [child for child in node.children if not child.streaming and child.dam() is not None]
    return tuple(cuts)


def job_graph(root: PlanNode, cuts: Sequence[PlanNode], *, name: str = "dataframe") -> JobGraph:
    """The plan as a job graph, without operators that pass on one input and do not block."""
    graph = JobGraph(name)
    called = titles(root, cuts)
    cut_titles = {called[cut.name] for cut in cuts}

    def add(node: PlanNode) -> str:
        title = called[node.name]
        if len(node.children) == 1 and not node.full_dam and title not in cut_titles:
            return add(node.children[0])
        below = node.children
        dam = node.dam() if title in cut_titles else None
        if dam is not None and not node.full_dam:
            # What lies between it and what blocks is of no interest, unless there are several.
            while len(below) == 1 and below[0] is not dam:
                below = below[0].children
            below = dam.children if len(below) == 1 else node.children
        inputs = [add(child) for child in below]
        if not inputs:
            bounded = Boundedness.UNBOUNDED if node.streaming else Boundedness.BOUNDED
            # SQL text that blocks is all in one: what it reads and what it does.
            source = f"{title}-input" if title in cut_titles else title
            graph.add_source(source, boundedness=bounded, call_site=node.call_site)
            if title not in cut_titles:
                return source
            inputs = [source]
        # Inside of a stage nothing is written: Spark runs all of it as one job.
        edges = [
            Input(
                one,
                partition_type=ResultPartitionType.UNDECIDED if one in cut_titles else ResultPartitionType.PIPELINED,
            )
            for one in inputs
        ]
        attributes = OperatorAttributes(output_only_after_end_of_stream=dam is not None)
        place = dam.call_site if dam is not None else node.call_site
        graph.add_operator(title, *edges, attributes=attributes, chained=False, call_site=place)
        return title

    top = add(root)
    graph.add_sink("output", top, call_site="")
    return graph


def stage_plan(root: PlanNode, cuts: Sequence[PlanNode]) -> StagePlan:
    """The stages of a plan."""
    return compile(job_graph(root, cuts))


def _waits(node: PlanNode, output_mode: str) -> bool:
    if node.kind in _INCREMENTAL:
        return False
    if node.kind == "Aggregate":
        return output_mode == "append" and not any(one.kind == "EventTimeWatermark" for one in node.nodes())
    if node.kind == "Sort":
        return output_mode != "complete"
    return True
