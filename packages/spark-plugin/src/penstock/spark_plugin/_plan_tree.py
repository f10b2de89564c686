"""A DataFrame's analyzed plan as a tree, read from the JVM of a classic session."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # no stubs published
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.spark_plugin.errors import PipelineDefinitionError

FULL_DAM = frozenset(
    {
        "Aggregate",
        "Sort",
        "Window",
        "Deduplicate",
        "Distinct",
        "GlobalLimit",
        "Offset",
        "Except",
        "Intersect",
        "FlatMapGroupsInPandas",
        "FlatMapGroupsInArrow",
        "FlatMapCoGroupsInPandas",
        "FlatMapCoGroupsInArrow",
    }
)
"""Classes of operators that give nothing before the end of their input. Others are taken for what lets rows through."""
_CALL_SITE = re.compile(r"^[^()]+:\d+$")
"""Of Python. Spark gives a place in the JVM where it does not know it."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanNode:
    """An operator of a plan."""

    plan: Any
    """The JVM's own."""
    kind: str
    """Its class: `Aggregate`, `Join`, …"""
    number: int
    """Its place in the plan, counted from the top."""
    streaming: bool
    call_site: str
    """`file:line` of the user's code, where Spark knows it; empty if not."""
    children: tuple["PlanNode", ...]

    @property
    def name(self) -> str:
        """Unique in the plan, and the same whenever the same plan is made: `Aggregate-3`."""
        return f"{self.kind}-{self.number}"

    @property
    def full_dam(self) -> bool:
        """Whether it gives nothing before the end of its input."""
        if self.kind == "Sort":
            return bool(getattr(self.plan, "global")())
        return self.kind in FULL_DAM

    def nodes(self) -> Iterator["PlanNode"]:
        """It, and all below it."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def dam(self) -> "PlanNode | None":
        """The uppermost full-dam operator in it."""
        return next((node for node in self.nodes() if node.full_dam), None)


def read_plan(frame: DataFrame) -> PlanNode:
    """The plan of a DataFrame, as Spark has analyzed it. Runs nothing.

    Raises:
        PipelineDefinitionError: A Spark Connect frame: its plan lies with the server.
    """
    if not hasattr(frame, "_jdf"):
        raise PipelineDefinitionError(
            "a Spark Connect DataFrame cannot be staged by itself: declare its stages with a Pipeline"
        )
    return _read(frame._jdf.queryExecution().analyzed(), iter(range(1_000_000_000)))


def analyzed(frame: DataFrame) -> Any:
    """The JVM's analyzed plan of a DataFrame."""
    return frame._jdf.queryExecution().analyzed()


def items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _read(plan: Any, numbers: Iterator[int]) -> PlanNode:
    number = next(numbers)
    return PlanNode(
        plan=plan,
        kind=plan.getClass().getSimpleName(),
        number=number,
        streaming=plan.isStreaming(),
        call_site=_call_site(plan),
        children=tuple(_read(child, numbers) for child in items(plan.children())),
    )


def _call_site(plan: Any) -> str:
    pending = list(items(plan.expressions()))
    while pending:
        expression = pending.pop(0)
        try:
            site = str(expression.origin().context().callSite())
        except (Py4JError, PySparkException):
            site = ""  # not made by a DataFrame's method: SQL, or a column's name
        if _CALL_SITE.search(site):
            return site
        pending += items(expression.children())
    return ""
