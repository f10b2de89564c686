"""A DataFrame's plan as a tree, whatever kind of session it comes from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FULL_DAM = frozenset(
    {
        "Aggregate",
        "Sort",
        "Window",
        "Deduplicate",
        "Distinct",
        "GlobalLimit",
        "Offset",
        "Tail",
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
    """The session's own: the JVM's, or a message of Spark Connect."""
    kind: str
    """Its class: `Aggregate`, `Join`, …"""
    number: int
    """Its place in the plan, counted from the top."""
    streaming: bool
    full_dam: bool
    """Whether it gives nothing before the end of its input."""
    call_site: str
    """`file:line` of the user's code, where Spark knows it; empty if not."""
    children: tuple["PlanNode", ...]

    @property
    def name(self) -> str:
        """Unique in the plan, and the same whenever the same plan is made: `Aggregate-3`."""
        return f"{self.kind}-{self.number}"

    def nodes(self) -> Iterator["PlanNode"]:
        """It, and all below it."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def dam(self) -> "PlanNode | None":
        """The uppermost full-dam operator in it."""
        return next((node for node in self.nodes() if node.full_dam), None)


def is_call_site(text: str) -> bool:
    """Whether a text is a place in the user's Python."""
    return _CALL_SITE.search(text) is not None
