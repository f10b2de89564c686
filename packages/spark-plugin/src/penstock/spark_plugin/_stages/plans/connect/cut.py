"""Exchanges cuts of a Spark Connect plan for committed results.

The client's columns are names: `df.column` is a name with the id of a relation, under which the server looks it up.
Where that relation is within a cut, it is gone from the new plan; so are the aliases that `"a.column"` goes by. Columns
above a cut that refer to these are found out by asking the server which column of the cut each one is.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.connect.proto import Expression, Relation

from penstock.spark_plugin._stages.plans.connect.messages import child_fields, messages, parts_of, relations
from penstock.spark_plugin._stages.plans.tree import PlanNode
from penstock.spark_plugin.errors import PipelineDefinitionError

Attribute = Expression.UnresolvedAttribute
_TEXT = "unparsed_identifier"
_OTHERS = (Expression.UnresolvedStar, Expression.UnresolvedRegex)
_COLUMN_ID = re.compile(r"#(\d+)")
_QUALIFIER = re.compile(r"^\s*(?:`((?:[^`]|``)+)`|([^`.]+))\s*\.")


class Exchange:
    """A cut, the message of what is read instead, and the names of the cut's columns."""

    def __init__(
        self,
        cut: Relation,
        instead: Relation,
        names: Sequence[str],
        positions: Callable[[Relation, Sequence[Message]], Sequence[int]],
        hints: Sequence[Relation] = (),
    ) -> None:
        """`positions` says which columns of a relation some attributes are; it asks the server. `hints` are the cut's,
        for the join above it."""
        self._cut = cut
        self._instead = instead
        self._names = names
        self._positions = positions
        self._hints = hints
        self._inner = _Names(list(relations(cut))[1:])

    def put(self, above: Sequence[Message]) -> Relation:
        """What to put in the place of the cut; columns among the messages above it are changed to refer to that.

        Raises:
            PipelineDefinitionError: they are several columns of one name, which can no longer be distinguished; or
                `*` of something within the cut.
        """
        if any(self._inner.name(one) for one in above if isinstance(one, _OTHERS)):
            raise PipelineDefinitionError(
                "`*` of a part of what blocks: name its columns, or give an alias to the whole"
            )
        attributes: list[Any] = [one for one in above if isinstance(one, Attribute) and self._inner.name(one)]
        positions = self._positions(self._cut, attributes) if attributes else []
        hidden = self._twins(positions)
        # Twins of what is referred to get their names one step later, so that in the step before it is the only one.
        found = Relation()
        found.to_df.input.CopyFrom(self._instead)
        found.to_df.column_names.extend(hidden.get(index, name) for index, name in enumerate(self._names))
        inner_id = self._cut.common.plan_id
        if hidden:
            inner_id = found.common.plan_id = LogicalPlan._fresh_plan_id()
        for index, name in hidden.items():
            outer = Relation()
            outer.with_columns_renamed.input.CopyFrom(found)
            outer.with_columns_renamed.renames.add(col_name=name, new_col_name=self._names[index])
            found = outer
        if self._cut.HasField("subquery_alias"):
            outer = Relation()
            outer.subquery_alias.CopyFrom(self._cut.subquery_alias)
            outer.subquery_alias.input.CopyFrom(found)
            found = outer
        found.common.plan_id = self._cut.common.plan_id
        for hint in reversed(self._hints):
            outer = Relation()
            outer.hint.name = hint.hint.name
            outer.hint.parameters.extend(hint.hint.parameters)
            outer.hint.input.CopyFrom(found)
            outer.common.plan_id = LogicalPlan._fresh_plan_id()
            found = outer
        for attribute, position in zip(attributes, positions, strict=True):
            attribute.unparsed_identifier = quoted(self._names[position])
            attribute.plan_id = inner_id
        return found

    def _twins(self, positions: Sequence[int]) -> dict[int, str]:
        """Columns that share a name with one that is referred to, and what they are called as long as that matters."""
        lowered = [name.lower() for name in self._names]
        hidden: dict[int, str] = {}
        for position in set(positions):
            twins = [one for one, name in enumerate(lowered) if name == lowered[position] and one != position]
            if any(twin in positions for twin in twins):
                raise PipelineDefinitionError(
                    f"two columns {self._names[position]!r} of a blocking part are used above it: rename one of them"
                )
            hidden |= {twin: f"_penstock_{twin}" for twin in twins}
        return hidden


class _Names:
    """What columns of some relations go by: their ids, and aliases."""

    def __init__(self, found: Iterable[Relation]) -> None:
        kept = list(found)
        self._ids = {one.common.plan_id for one in kept}
        self._aliases = {one.subquery_alias.alias.lower() for one in kept if one.HasField("subquery_alias")}

    def name(self, one: Any) -> bool:
        """Whether a column, or `*`, goes by one of them."""
        if one.HasField("plan_id"):
            return one.plan_id in self._ids
        text = getattr(one, "unparsed_target" if isinstance(one, Expression.UnresolvedStar) else _TEXT, "")
        qualifier = _QUALIFIER.match(text)
        return qualifier is not None and (qualifier[1] or qualifier[2]).lower() in self._aliases


def belonging(attributes: Iterable[Any], cut: Relation) -> list[Any]:
    """Those of some attributes that say that they are columns of a cut."""
    names = _Names(relations(cut))
    return [one for one in attributes if names.name(one)]


def rebuild(root: PlanNode, exchanges: Mapping[str, Exchange]) -> Relation:
    """The plan with what is read instead of each cut, by the cut's name.

    Raises:
        PipelineDefinitionError: as in `Exchange.put`.
    """
    new = Relation()
    new.CopyFrom(root.plan)
    places: list[tuple[Relation, str]] = []

    def find(node: PlanNode, relation: Relation) -> None:
        slots = [part for body, field in child_fields(relation) for part in parts_of(getattr(body, field.name))]
        for child, slot in zip(node.children, slots if node.children else [], strict=True):
            if child.name in exchanges:
                places.append((slot, child.name))
            else:
                find(child, slot)

    find(root, new)
    # Emptied first: the columns that are left are those above the cuts.
    for slot, _ in places:
        slot.Clear()
    above = list(messages(new, below=True))
    for slot, name in places:
        slot.CopyFrom(exchanges[name].put(above))
    return new


def projection(cut: Relation, attributes: Sequence[Any]) -> Relation:
    """Attributes of a cut, and after them all of its columns."""
    probe = Relation()
    probe.project.input.CopyFrom(cut)
    for attribute in attributes:
        probe.project.expressions.add().unresolved_attribute.CopyFrom(attribute)
    probe.project.expressions.add().unresolved_star.SetInParent()
    return probe


def positions_in(plan: str, count: int) -> list[int]:
    """Which of a cut's columns `count` attributes are, by the analyzed plan of their `projection`."""
    ids = _COLUMN_ID.findall(plan.partition("\n")[0])
    asked, columns = ids[:count], ids[count:]
    return [columns.index(one) for one in asked]


def quoted(name: str) -> str:
    """A column's name as text that is parsed to that name."""
    return "`" + name.replace("`", "``") + "`"
