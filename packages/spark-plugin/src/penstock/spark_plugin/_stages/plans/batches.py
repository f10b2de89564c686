"""Which part of a live query's plan its micro-batches may be computed without: pure decisions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.spark_plugin._stages.plans.plans import Plans
from penstock.spark_plugin._stages.plans.tree import PlanNode

# Each gives the same of a micro-batch's rows as of a stream's: it keeps nothing from one micro-batch to the next.
_ROW_BY_ROW = frozenset(
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "Filter",
        "Generate",
        "Join",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "PythonMapInArrow",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
    }
)
_NOT_ROW_BY_ROW = {"EventTimeWatermark": "a watermark", "CollectMetrics": "observed metrics"}


class NotByBatchError(Exception):
    """A query has to be started again to read another result; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """What is to be computed of each micro-batch of a stream, so that a query writes the rows of its plan."""

    plans: Plans
    root: PlanNode
    stream: PlanNode
    schema: StructType
    """Of a micro-batch."""

    def rows(self, batch: DataFrame) -> DataFrame:
        """Of a micro-batch."""
        return self.plans.rebuild(batch, self.root, {self.stream.name: batch})


def batch_plan(frame: DataFrame, plans: Plans, is_result: Callable[[PlanNode], bool]) -> tuple[BatchPlan, DataFrame]:
    """Divide the plan of a query into a stream, and what is done with each of its micro-batches and of the results.

    Args:
        frame: What the query writes.
        plans: Of its session.
        is_result: Whether a node is a committed result.

    Raises:
        NotByBatchError: what stands above the results keeps state, or knows the time of a micro-batch.
    """
    root = plans.read(frame)
    mixed = list(_above(root, is_result))
    if not mixed:
        raise NotByBatchError("the plan of its query does not hold the result as it was handed over")
    for node in mixed:
        if node.kind not in _ROW_BY_ROW:
            what = _NOT_ROW_BY_ROW.get(node.kind, f"{node.kind}, for which Spark keeps state,")
            at = f" at {node.call_site}" if node.call_site else ""
            raise NotByBatchError(f"{what}{at} stands behind the join with the result")
        if plans.knows_the_time(node):
            raise NotByBatchError("the time of the micro-batch is used behind the join with the result")
        if node.kind == "Join" and not _is_of_streams(node, kind := plans.join_type(node)):
            raise NotByBatchError(f"Spark has no {kind} join with a stream on that side")
    among = {id(node) for node in mixed}
    streams = [child for node in mixed for child in node.children if child.streaming and id(child) not in among]
    if len(streams) != 1:
        raise NotByBatchError(f"it joins the result with {len(streams)} streams")
    if plans.has_subqueries(streams[0]):
        raise NotByBatchError("a subquery stands before the join with the result")
    rows = plans.part(frame, streams[0])
    return BatchPlan(plans=plans, root=root, stream=streams[0], schema=rows.schema), rows


def _above(root: PlanNode, is_result: Callable[[PlanNode], bool]) -> Iterator[PlanNode]:
    """Streaming nodes that have a result below them."""
    if root.streaming and any(not node.streaming and is_result(node) for node in root.nodes()):
        yield root
        for child in root.children:
            yield from _above(child, is_result)


def _is_of_streams(join: PlanNode, kind: str) -> bool:
    """Whether each row of the stream gives what it gives alone, as Spark wants it."""
    left, right = join.children
    if kind in ("INNER", "CROSS"):
        return True
    return left.streaming if kind.startswith("LEFT") else kind == "RIGHT OUTER" and right.streaming
