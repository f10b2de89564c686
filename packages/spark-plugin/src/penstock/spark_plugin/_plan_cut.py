"""Where a DataFrame's plan is cut: pure decisions, and the plan put together again around committed results."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

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
from penstock.spark_plugin._plan_tree import PlanNode, items

# Spark runs these on streams row by row, or by keeping state: they do not wait for an end there.
_INCREMENTAL = frozenset({"Deduplicate", "Distinct", "GlobalLimit"})


def find_cuts(root: PlanNode, *, output_mode: str = "append", site: str = "") -> tuple[PlanNode, ...]:
    """The largest bounded parts with a full-dam operator in them that streaming operators read.

    Args:
        root: The plan.
        output_mode: Of the query: in `update` and `complete` mode an aggregate of a stream gives rows early.
        site: Where the user asked, for operators of which Spark does not know the place.

    Raises:
        FullDamOverUnboundedError: An operator would wait for the end of a stream.
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


def job_graph(root: PlanNode, cuts: Sequence[PlanNode], *, name: str = "dataframe", site: str = "") -> JobGraph:
    """The plan as a job graph, without operators that pass on one input and do not block.

    `site`: where the user asked, for operators of which Spark does not know the place.
    """
    graph = JobGraph(name)
    cut_names = {cut.name for cut in cuts}

    def add(node: PlanNode) -> str:
        if len(node.children) == 1 and not node.full_dam and node.name not in cut_names:
            return add(node.children[0])
        inputs = [add(child) for child in node.children]
        if not inputs:
            bounded = Boundedness.UNBOUNDED if node.streaming else Boundedness.BOUNDED
            graph.add_source(node.name, boundedness=bounded, call_site=node.call_site)
            return node.name
        # Inside of a stage nothing is written: Spark runs all of it as one job.
        edges = [
            Input(
                one,
                partition_type=ResultPartitionType.UNDECIDED if one in cut_names else ResultPartitionType.PIPELINED,
            )
            for one in inputs
        ]
        dam = node.dam() if node.name in cut_names else None
        place = (dam.call_site or site) if dam is not None else node.call_site
        attributes = OperatorAttributes(output_only_after_end_of_stream=dam is not None)
        graph.add_operator(node.name, *edges, attributes=attributes, call_site=place)
        return node.name

    top = add(root)
    graph.add_sink("output", top, call_site="")
    return graph


def stage_plan(root: PlanNode, cuts: Sequence[PlanNode], *, site: str = "") -> StagePlan:
    """The stages of a plan; `site` as in `job_graph`."""
    return compile(job_graph(root, cuts, site=site))


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """A DataFrame of a plan that is analyzed already."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def part(spark: SparkSession, cut: PlanNode) -> DataFrame:
    """The rows of a cut; its columns are numbered, since they may have equal names."""
    frame = frame_of(spark, cut.plan)
    return frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))


def join_keys(root: PlanNode, cut: PlanNode) -> tuple[str, ...]:
    """The columns of `part` that a streaming join goes by; none where it is no join, or not by equal columns."""
    join = next((node for node in root.nodes() if node.kind == "Join" and cut in node.children), None)
    if join is None or not join.plan.condition().isDefined():
        return ()
    numbers = {column.exprId().id(): f"c{index}" for index, column in enumerate(items(cut.plan.output()))}
    keys: dict[str, None] = {}
    pending = [join.plan.condition().get()]
    while pending:
        expression = pending.pop(0)
        sides = list(items(expression.children()))
        if expression.getClass().getSimpleName() == "And":
            pending += sides
        elif expression.getClass().getSimpleName() == "EqualTo":
            columns = (one for one in sides if one.getClass().getSimpleName() == "AttributeReference")
            names = [numbers.get(one.exprId().id()) for one in columns]
            keys |= dict.fromkeys(name for name in names if name is not None)
    return tuple(keys)


def rebuild(spark: SparkSession, root: PlanNode, committed: Mapping[str, DataFrame]) -> DataFrame:
    """The plan with committed results, by name of their cut, in the place of what they were computed by."""
    return frame_of(spark, _rebuild(spark, root, committed))


def _rebuild(spark: SparkSession, node: PlanNode, committed: Mapping[str, DataFrame]) -> Any:
    if node.name in committed:
        return _as_before(spark, node.plan, committed[node.name])
    if not any(one.name in committed for one in node.nodes()):
        return node.plan
    children = [_rebuild(spark, child, committed) for child in node.children]
    jvm: Any = spark._jvm
    return node.plan.withNewChildren(jvm.PythonUtils.toSeq(children))


def _as_before(spark: SparkSession, plan: Any, frame: DataFrame) -> Any:
    """Committed columns under the names and ids that the operators above know them by."""
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    new = frame._jdf.queryExecution().analyzed()
    aliases = [
        jvm.org.apache.spark.sql.catalyst.expressions.Alias(
            column, before.name(), before.exprId(), before.qualifier(), none, jvm.PythonUtils.toSeq([])
        )
        for before, column in zip(items(plan.output()), items(new.output()), strict=True)
    ]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(aliases), new)


def _waits(node: PlanNode, output_mode: str) -> bool:
    if node.kind in _INCREMENTAL:
        return False
    if node.kind == "Aggregate":
        return output_mode == "append" and not any(one.kind == "EventTimeWatermark" for one in node.nodes())
    if node.kind == "Sort":
        return output_mode != "complete"
    return True
