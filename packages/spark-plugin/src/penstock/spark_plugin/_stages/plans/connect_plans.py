"""Plans of Spark Connect: read and exchanged as messages, which the server analyzes again.

The client's columns are names: `df.column` is a name with the id of a relation, under which the server looks it up.
Where that relation is within a cut, it is gone from the new plan; so are the aliases that `"a.column"` goes by. Columns
above a cut that refer to these are found out by asking the server which column of the cut each one is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from google.protobuf.message import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.connect.proto import Expression, Plan, Relation
from pyspark.sql.connect.session import SparkSession

from penstock.spark_plugin._stages.fingerprints.code import digest
from penstock.spark_plugin._stages.plans.connect_tree import (
    Server,
    child_fields,
    looks_of,
    messages,
    parts_of,
    read_relation,
    reading,
    reads_files,
    relation_fingerprint,
    relations,
    what_a_leaf_reads,
    without,
)
from penstock.spark_plugin._stages.plans.plan import LiveSource, Look, PlanNode
from penstock.spark_plugin.errors import PipelineDefinitionError

Attribute = Expression.UnresolvedAttribute
_TEXT = "unparsed_identifier"
_OTHERS = (Expression.UnresolvedStar, Expression.UnresolvedRegex)
_QUALIFIER = re.compile(r"^\s*(?:`((?:[^`]|``)+)`|([^`.]+))\s*\.")
_NOT_TO_BE_CUT = (
    "columns above a blocking part are not found in its result: refer to them by name, or declare the stages "
    "with a Pipeline"
)


class Exchange:
    """A cut, the message of what is read instead, and the names of the cut's columns."""

    def __init__(
        self,
        cut: Relation,
        instead: Relation,
        names: Sequence[str],
        server: Server,
        hints: Sequence[Relation] = (),
    ) -> None:
        """`hints`: the hints of the cut, for the join above it."""
        self._cut = cut
        self._instead = instead
        self._names = names
        self._server = server
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
        positions = self._server.positions(self._cut, attributes) if attributes else []
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


def quoted(name: str) -> str:
    """A column's name as text that is parsed to that name."""
    return "`" + name.replace("`", "``") + "`"


class ConnectPlans:
    """See `Plans`."""

    def read(self, frame: DataFrame) -> PlanNode:
        return read_relation(_relation(frame), Server(_session(frame)))

    def part(self, frame: DataFrame, cut: PlanNode) -> DataFrame:
        rows = _frame(_session(frame), cut.plan)
        return rows.toDF(*(f"c{index}" for index in range(len(rows.columns))))

    def join_keys(self, frame: DataFrame, root: PlanNode, cut: PlanNode) -> tuple[str, ...]:
        join = next((node for node in root.nodes() if node.kind == "Join" and cut in node.children), None)
        if join is None or cut.hints():
            return ()
        session = _session(frame)
        names = _frame(session, cut.plan).columns
        using = list(join.plan.join.using_columns)
        if using:
            found = [index for name in using for index, one in enumerate(names) if one.lower() == name.lower()]
        else:
            columns = belonging(_compared(join.plan.join.join_condition), cut.plan)
            found = Server(session).positions(cut.plan, columns) if columns else []
        return tuple(dict.fromkeys(f"c{index}" for index in found))

    def rebuild(self, frame: DataFrame, root: PlanNode, committed: Mapping[str, DataFrame]) -> DataFrame:
        session = _session(frame)
        server = Server(session)
        cuts = {node.name: node for node in root.nodes() if node.name in committed}
        exchanges = {
            name: Exchange(
                cut.plan,
                _relation(committed[name]),
                _frame(session, cut.plan).columns,
                server,
                [hint.plan for hint in cut.hints()],
            )
            for name, cut in cuts.items()
        }
        return _frame(session, rebuild(root, exchanges))

    def check(self, frame: DataFrame, root: PlanNode, cuts: Sequence[PlanNode]) -> None:
        try:
            rebuilt = self.rebuild(frame, root, {cut.name: self.part(frame, cut) for cut in cuts})
            found, wanted = rebuilt.columns, frame.columns
        except AnalysisException as error:
            raise PipelineDefinitionError(_NOT_TO_BE_CUT) from error
        if found != wanted:
            raise PipelineDefinitionError(_NOT_TO_BE_CUT)

    def written(self, writer: Any) -> DataFrame:
        return ConnectDataFrame(writer._write_stream._child, writer._session)

    def output_mode(self, writer: Any) -> str:
        return str(writer._write_proto.output_mode).lower() or "append"

    def options(self, writer: Any) -> dict[str, str]:
        proto = writer._write_proto
        found = {str(name).lower(): str(value) for name, value in proto.options.items()}
        return found | ({"queryname": str(proto.query_name)} if proto.query_name else {})

    def live_sources(self, frame: DataFrame) -> list[LiveSource]:
        reads = (one.read for one in relations(_relation(frame)) if one.HasField("read") and one.read.is_streaming)
        return [LiveSource(one.data_source.format.lower(), dict(one.data_source.options)) for one in reads]

    def write_instead(self, writer: Any, frame: DataFrame) -> Any:
        # Spark has no public way to copy a writer.
        writer._write_stream._child = cast(ConnectDataFrame, frame)._plan
        return writer

    def look(self, frame: DataFrame, inputs: Sequence[DataFrame] | None = None) -> Look:
        whole = _relation(frame)
        given = [_relation(one) for one in inputs or ()]
        relation = without(whole, given)
        fingerprint, world = relation_fingerprint(relation)
        text, more = looks_of(relation, Server(_session(frame)), whole)
        if inputs is not None:
            known = {relation_fingerprint(leaf)[0] for one in given for leaf in reading(one)}
            leaves = (leaf for leaf in reading(relation) if relation_fingerprint(leaf)[0] not in known)
            more += [what_a_leaf_reads(leaf) or "SQL text" for leaf in leaves]
        return Look(digest(frame.schema.json(), fingerprint, text), tuple(dict.fromkeys([*world, *more])))

    def files(self, frame: DataFrame) -> list[str] | None:
        relation = _relation(frame)
        found = reads_files(relation)
        if not found:
            return [] if found is False else None
        # The frame's own method remembers its first answer.
        answer = _session(frame).client._analyze(method="input_files", plan=Plan(root=relation))
        return list(answer.input_files or ()) or None

    def streams(self, frame: DataFrame) -> list[Mapping[str, str]]:
        return []  # a plan that reads Kinesis is one whose rows cannot be seen


class _Given(LogicalPlan):
    """A plan of the client's that is a message already."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(None)
        self._relation = relation
        # Columns of a frame go by the id of its plan.
        self._root_plan_id = relation.common.plan_id

    def plan(self, session: Any) -> Relation:
        return self._relation


def _compared(condition: Expression) -> Iterator[Any]:
    """Columns that a join's condition wants to be equal to something."""
    call = condition.unresolved_function
    if call.function_name == "and":
        for one in call.arguments:
            yield from _compared(one)
    elif call.function_name == "==":
        for one in call.arguments:
            if one.HasField("unresolved_attribute"):
                attribute: Attribute = one.unresolved_attribute
                yield attribute


def _relation(frame: DataFrame) -> Relation:
    return cast(ConnectDataFrame, frame)._plan.plan(_session(frame).client)


def _session(frame: DataFrame) -> SparkSession:
    return cast(SparkSession, frame.sparkSession)


def _frame(session: SparkSession, relation: Relation) -> DataFrame:
    return ConnectDataFrame(_Given(relation), session)
