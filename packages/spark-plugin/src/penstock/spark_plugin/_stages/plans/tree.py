"""A DataFrame's plan as a tree, whatever kind of session it comes from."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.spark_plugin._stages.store.pins import safe_name

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
_MOST_LEAVES = 2
_LONGEST = 60
_NAMES = ("streamName", "streamNamePattern", "subscribe", "topic", "dbtable")
"""Options that name what is read."""
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
    reads: str = ""
    """Of a leaf: what it reads, for people: `csv weather.csv`, `kinesis flights`; empty where that cannot be seen."""

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

    def hints(self) -> list["PlanNode"]:
        """What it tells the join that it is an input of, from the top: Spark looks for it below operators of one input,
        and there alone."""
        found, node = [], self
        while len(node.children) == 1:
            if node.kind in ("ResolvedHint", "Hint"):
                found.append(node)
            (node,) = node.children
        return found


def what_is_read(format: str, options: Mapping[str, str], paths: Sequence[str] = ()) -> str:
    """A source, for people: its format, and the stream, table or end of the path that it reads, where that is said."""
    given = {key.lower(): value for key, value in options.items()}
    found = [value for key in _NAMES if (value := given.get(key.lower()))]
    found += [path.rstrip("/").rpartition("/")[2] for path in (*paths, *filter(None, [given.get("path")]))]
    name = found[0] if found else ""
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}…"
    return f"{format.lower()} {name}".strip()


def titles(root: PlanNode, cuts: Sequence[PlanNode]) -> Mapping[str, str]:
    """What the nodes of a plan are called in pictures, by name; different also as folders.

    A leaf is called by what it reads, a cut by what blocks in it and what that reads, any other by its name.
    """
    found = {node.name: node.reads or node.name for node in root.nodes()}
    for cut in cuts:
        leaves = list(dict.fromkeys(found[node.name] for node in cut.nodes() if not node.children))
        if (dam := cut.dam()) is not None and dam.children:
            more = f" and {len(leaves) - _MOST_LEAVES} more" if len(leaves) > _MOST_LEAVES else ""
            found[cut.name] = f"{dam.kind} of {', '.join(leaves[:_MOST_LEAVES])}{more}"
    counted = Counter(safe_name(title).lower() for title in found.values())
    return {
        name: f"{title} ({name.rpartition('-')[2]})" if counted[safe_name(title).lower()] > 1 else title
        for name, title in found.items()
    }


def is_call_site(text: str) -> bool:
    """Whether a text is a place in the user's Python."""
    return _CALL_SITE.search(text) is not None
