"""What the leaves of a classic session's plans read: the plan's text does not say it."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

# Leaves that can be told apart by their text, or by what `leaf_text` adds to it; files are looked up one by one.
_KNOWN = frozenset({"LocalRelation", "Range", "OneRowRelation"})


def items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def all_plans(frame: DataFrame) -> list[Any]:
    """The plan of a frame, and those of the subqueries in its expressions."""
    plan = frame._jdf.queryExecution().analyzed()
    return [plan, *items(plan.subqueriesAll())]


def all_leaves(frame: DataFrame) -> list[Any]:
    """The leaves of all of its plans."""
    return [leaf for plan in all_plans(frame) for leaf in items(plan.collectLeaves())]


def leaf_text(leaf: Any) -> str:
    """What the text of a leaf leaves out: the options that its files are read with, or its rows."""
    if reads_files(leaf):
        entries = items(leaf.relation().options().toSeq())
        return "|".join(sorted(f"{entry._1()}={entry._2()}" for entry in entries))
    if leaf.nodeName() == "LocalRelation":
        return f"{leaf.data().size()} rows of {leaf.data().hashCode()}"
    return ""


def reads_files(leaf: Any) -> bool:
    """Whether it is a table of files; others that look alike are tables of databases."""
    return _is_relation(leaf) and str(leaf.relation().getClass().getSimpleName()) == "HadoopFsRelation"


def is_known(leaf: Any) -> bool:
    """Whether its rows can be told from others."""
    return reads_files(leaf) or str(leaf.nodeName()).split()[0] in _KNOWN


def files_of(frame: DataFrame, leaves: Sequence[Any]) -> list[str]:
    """URLs of the files of some leaves, which are all that a frame has and that read files."""
    optimized = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    if sum(_is_relation(leaf) for leaf in items(optimized)) == len(leaves):
        # Without those of partitions that are not read.
        return frame.inputFiles()
    # What is cached, or in a subquery, is left out there.
    return [str(file) for leaf in leaves for file in leaf.relation().location().inputFiles()]


def _is_relation(leaf: Any) -> bool:
    return str(leaf.nodeName()).split()[0] == "LogicalRelation"
