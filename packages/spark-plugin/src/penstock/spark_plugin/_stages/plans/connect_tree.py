"""Messages of Spark Connect plans as trees.

The client's plan is not analyzed: SQL texts are asked of the server, everything else is read off the messages.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyspark import cloudpickle
from pyspark.sql.connect.proto import SQL, CallFunction, Expression, Origin, Plan, Relation, SetOperation
from pyspark.sql.connect.session import SparkSession

from penstock.spark_plugin._stages.fingerprints.code import Looked, digest, look_at, unique
from penstock.spark_plugin._stages.plans.plan import FULL_DAM, PlanNode, is_call_site, what_is_read, whole_texts

# Leaves whose message, with the files below it, says all about their rows.
_KNOWN_LEAVES = frozenset({"local_relation", "cached_local_relation", "chunked_cached_local_relation", "range"})
_FILE_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})
# By the names that classic plans have for the same.
_KINDS = {
    "aggregate": "Aggregate",
    "limit": "GlobalLimit",
    "group_map": "FlatMapGroupsInPandas",
    "co_group_map": "FlatMapCoGroupsInPandas",
    "with_watermark": "EventTimeWatermark",
    # Statistics, which Spark computes as aggregates.
    "summary": "Aggregate",
    "describe": "Aggregate",
    "crosstab": "Aggregate",
    "cov": "Aggregate",
    "corr": "Aggregate",
    "approx_quantile": "Aggregate",
    "freq_items": "Aggregate",
    "transpose": "Aggregate",
}
_SET_OPERATIONS = {
    SetOperation.SET_OP_TYPE_INTERSECT: "Intersect",
    SetOperation.SET_OP_TYPE_EXCEPT: "Except",
    SetOperation.SET_OP_TYPE_UNION: "Union",
}
_OPAQUE = frozenset({"sql", "cached_remote_relation", "extension"})
# In a projection without groups they make an aggregate of it.
_AGGREGATE = (
    "any|any_value|approx_count_distinct|approx_percentile|array_agg|avg|bit_and|bit_or|bit_xor|"
    "bitmap_construct_agg|bitmap_or_agg|bool_and|bool_or|collect_list|collect_set|corr|count|count_distinct|"
    "count_if|count_min_sketch|covar_pop|covar_samp|every|first|first_value|grouping|grouping_id|"
    "histogram_numeric|hll_sketch_agg|hll_union_agg|kurtosis|last|last_value|listagg|max|max_by|mean|median|"
    "min|min_by|mode|percentile|percentile_approx|percentile_cont|percentile_disc|regr_avgx|regr_avgy|"
    "regr_count|regr_intercept|regr_r2|regr_slope|regr_sxx|regr_sxy|regr_syy|schema_of_variant_agg|skewness|"
    "some|std|stddev|stddev_pop|stddev_samp|string_agg|sum|try_avg|try_sum|var_pop|var_samp|variance"
)
_AGGREGATES = frozenset(_AGGREGATE.split("|"))
_MAYBE_DAM = re.compile(rf"\bover\b|\b({_AGGREGATE})\s*\(", re.IGNORECASE)
_OPERATOR = re.compile(r"^[\s:|+\-~!']*([A-Z]\w+)(.*)$")
_COLUMN_ID = re.compile(r"#(\d+)")
_CALL = re.compile(r"\b(\w+)`?\s*\(")
# They give something else each time.
_CURRENT = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "curdate",
        "localtimestamp",
        "now",
        "session_user",
        "user",
    }
)
# Of these a message says nothing but where the server has them.
_HIDDEN = {
    "cached_remote_relation": "rows that the server keeps",
    "extension": "an extension of the server",
    "ml_relation": "a model that the server keeps",
}


def child_fields(relation: Relation) -> list[tuple[Message, FieldDescriptor]]:
    """Where a relation holds those that it reads, in the order of its inputs.

    What subqueries in its expressions refer to is not among them.
    """
    kind = relation.WhichOneof("rel_type")
    if kind is None:
        return []
    body: Message = getattr(relation, kind)
    fields = [
        field
        for field, _ in body.ListFields()
        if field.message_type is not None and field.message_type.full_name == Relation.DESCRIPTOR.full_name
    ]
    if kind == "with_relations":
        fields = [field for field in fields if field.name == "root"]
    return [(body, field) for field in fields]


def children(relation: Relation) -> list[Relation]:
    """The relations that one reads."""
    found: list[Relation] = []
    for body, field in child_fields(relation):
        found += parts_of(getattr(body, field.name))
    return found


def parts_of(value: Any) -> list[Any]:
    """The messages of a field, which may hold one or several."""
    return [value] if isinstance(value, Message) else list(value)


def relations(relation: Relation) -> Iterator[Relation]:
    """A relation, and all below it."""
    yield relation
    for child in children(relation):
        yield from relations(child)


def messages(message: Message, *, below: bool = False) -> Iterator[Message]:
    """All messages in a message; messages of the relations that it reads only with `below`."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = [one for one in value.values() if isinstance(one, Message)]
        else:
            parts = parts_of(value)
        for part in parts:
            if below or not isinstance(part, Relation):
                yield part
                yield from messages(part, below=below)


def reading(relation: Relation) -> Iterator[Relation]:
    """Those in a relation, and in what its expressions ask, whose rows lie somewhere else, or may do."""
    for one in (relation, *messages(relation, below=True)):
        if isinstance(one, Relation) and one.WhichOneof("rel_type") in ("read", "sql"):
            yield one


def functions_called(message: Message) -> Iterator[str]:
    """Names of the functions that a relation's expressions call, but those over a window."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in parts_of(value):
            if isinstance(part, Relation) or (isinstance(part, Expression) and part.HasField("window")):
                continue
            if isinstance(part, Expression.UnresolvedFunction):
                yield part.function_name.lower()
            yield from functions_called(part)


def relation_fingerprint(relation: Relation) -> tuple[str, Sequence[str]]:
    """The fingerprint of a plan: all but its places in the user's code, with ids counted from the plan's beginning.

    Returns:
        The fingerprint, and what its Python functions read of the world.
    """
    copy = Relation()
    copy.CopyFrom(relation)
    functions: list[Looked] = []
    ids: dict[int, int] = {}
    for one in [copy, *messages(copy, below=True)]:
        fields = {field.name for field in one.DESCRIPTOR.fields}
        message: Any = one
        if "origin" in fields and isinstance(message.origin, Origin):
            message.ClearField("origin")
        if "plan_id" in fields and message.HasField("plan_id"):
            message.plan_id = ids.setdefault(message.plan_id, len(ids))
        if "command" in fields and isinstance(message.command, bytes):
            functions.append(_pickled(message.command))
            message.ClearField("command")
    prints = (one.fingerprint for one in functions)
    return digest(copy.SerializeToString(deterministic=True).hex(), *prints), [
        reason for one in functions for reason in one.world
    ]


def without(relation: Relation, inputs: Sequence[Relation]) -> Relation:
    """A plan with a range in the place of each input, which has as many rows as the input's number."""
    numbers: dict[int, int] = {}
    for number, given in enumerate(inputs, 1):
        numbers.setdefault(given.common.plan_id, number)
    changed = Relation()
    changed.CopyFrom(relation)
    for one in (changed, *messages(changed, below=True)):
        # What was below an input is not in the plan any more; changing it has no effect.
        if isinstance(one, Relation) and one.common.plan_id in numbers:
            end = numbers[one.common.plan_id]
            one.Clear()
            one.range.end = end
    return changed


def looks_of(relation: Relation, server: "Server", root: Relation) -> tuple[str, list[str]]:
    """What the messages of a plan name and only the server knows.

    Args:
        relation: The plan, without its inputs.
        server: The server of the session.
        root: The plan with its inputs.

    Returns:
        A text that is the same as long as variables and SQL functions are, and what is read of the world, as text.
    """
    all_of_it = [relation, *messages(relation, below=True)]
    kinds = (one.WhichOneof("rel_type") or "" for one in all_of_it if isinstance(one, Relation))
    world = [_HIDDEN[kind] for kind in kinds if kind in _HIDDEN]
    called = (one for one in all_of_it if isinstance(one, CallFunction | Expression.UnresolvedFunction))
    names = {one.function_name.lower() for one in called}
    texts = [one.expression for one in all_of_it if isinstance(one, Expression.ExpressionString)]
    names |= {name.lower() for text in texts for name in _CALL.findall(text)}
    if any(name.isidentifier() for name in names):
        world += [f"the registered function {name!r}" for name in sorted(names & server.registered())]
    text = ""
    if texts or any(isinstance(one, SQL) for one in all_of_it):
        text = server.whole_text(root)
        names |= set(_CALL.findall(text))
    world += [f"{name}()" for name in sorted(names & _CURRENT)]
    return _COLUMN_ID.sub("#", text), world


def reads_files(relation: Relation) -> bool | None:
    """Whether a plan reads files; None where it reads what cannot be seen: SQL text, a table, a database."""
    found = False
    for one in relations(relation):
        kind = one.WhichOneof("rel_type")
        if kind == "with_relations" and one.with_relations.references:
            return None  # a subquery, whose files are not shown
        if kind == "read" and one.read.data_source.format.lower() in _FILE_FORMATS:
            found = True
        elif kind not in _KNOWN_LEAVES and not children(one):
            return None
    return found


def _pickled(command: bytes) -> Looked:
    try:
        value = cloudpickle.loads(command)
        return look_at(value[0] if isinstance(value, tuple) else value)
    except Exception:
        # What cannot be read cannot be compared either.
        return Looked(unique(), ("a Python function that cannot be read here",))


class Server:
    """Asks the server of a session what the messages do not say."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def is_streaming(self, relation: Relation) -> bool:
        """Whether a relation is a stream."""
        return bool(self._session.client._analyze(method="is_streaming", plan=Plan(root=relation)).is_streaming)

    def analyzed(self, relation: Relation) -> str:
        """The text of the analyzed plan."""
        text = self._session.client.explain_string(Plan(root=relation), "extended")
        # The line below the title has the columns.
        plan = text.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]
        return plan.partition("\n")[2]

    def whole_text(self, relation: Relation) -> str:
        """The text of the analyzed plan, with all of its columns."""
        with whole_texts(self._session):
            return self.analyzed(relation)

    def registered(self) -> set[str]:
        """Names of the session's own functions, in lower case."""
        found = self._session.sql("SHOW USER FUNCTIONS").collect()
        return {str(row[0]).rpartition(".")[2].lower() for row in found}

    def positions(self, cut: Relation, attributes: Sequence[Message]) -> list[int]:
        """Which columns of a relation some attributes are."""
        return _positions_in(self.whole_text(_projection(cut, attributes)), len(attributes))


def read_relation(root: Relation, server: Server) -> PlanNode:
    """The tree of a plan."""
    return _read(root, server, iter(range(1_000_000_000)))


def _read(relation: Relation, server: Server, numbers: Iterator[int]) -> PlanNode:
    number = next(numbers)
    opaque = _is_opaque(relation)
    below = [] if opaque else [_read(child, server, numbers) for child in children(relation)]
    kind = _kind(relation, server)
    if opaque:
        streaming = server.is_streaming(relation)
        full_dam = bool(_dams(server, relation)) and not streaming
    else:
        streaming = relation.read.is_streaming or any(child.streaming for child in below)
        full_dam = relation.sort.is_global if kind == "Sort" else kind in FULL_DAM
    return PlanNode(
        plan=relation,
        kind=kind,
        number=number,
        streaming=streaming,
        full_dam=full_dam,
        find_call_site=partial(_call_site, relation),
        children=tuple(below),
        reads="" if below else what_a_leaf_reads(relation),
    )


def what_a_leaf_reads(leaf: Relation) -> str:
    """In words; empty where that is not said."""
    kind = leaf.WhichOneof("rel_type") or ""
    if kind == "read" and leaf.read.HasField("named_table"):
        return f"table {leaf.read.named_table.unparsed_identifier}"
    if kind == "read":
        source = leaf.read.data_source
        return what_is_read(source.format, source.options, source.paths)
    return "range" if kind == "range" else "local rows" if kind.endswith("local_relation") else ""


def _is_opaque(relation: Relation) -> bool:
    kind = relation.WhichOneof("rel_type")
    if kind == "with_relations":
        return _is_opaque(relation.with_relations.root)
    # A table may be a view: of a stream, or of an aggregate.
    return kind in _OPAQUE or (
        kind == "read" and relation.read.HasField("named_table") and not relation.read.is_streaming
    )


def _kind(relation: Relation, server: Server) -> str:
    kind = relation.WhichOneof("rel_type") or "unknown"
    if kind == "set_op":
        return _SET_OPERATIONS.get(relation.set_op.set_op_type, "Union")
    if kind == "deduplicate":
        return "DeduplicateWithinWatermark" if relation.deduplicate.within_watermark else "Deduplicate"
    if kind == "group_map" and relation.group_map.HasField("transform_with_state_info"):
        return "TransformWithState"
    if kind not in _KINDS:
        dam = _in_expressions(relation, server)
        if dam:
            return dam
    return _KINDS.get(kind) or "".join(word.capitalize() for word in kind.split("_"))


def _in_expressions(relation: Relation, server: Server) -> str:
    """The operator that Spark makes of a projection's expressions, where it waits for the end of its input."""
    if any(isinstance(one, Expression.Window) for one in messages(relation)):
        return "Window"
    kind = relation.WhichOneof("rel_type")
    if kind == "project" and _AGGREGATES.intersection(functions_called(relation)):
        return "Aggregate"
    texts = (one.expression for one in messages(relation) if isinstance(one, Expression.ExpressionString))
    if kind in ("project", "with_columns") and any(_MAYBE_DAM.search(text) for text in texts):
        added = Counter(_dams(server, relation))
        for child in children(relation):
            added.subtract(_dams(server, child))
        return next((dam for dam, count in added.items() if count > 0), "")
    return ""


def _dams(server: Server, relation: Relation) -> list[str]:
    """Classes of full-dam operators in what the server makes of a relation."""
    found = []
    for line in server.analyzed(relation).splitlines():
        match = _OPERATOR.match(line)
        if match and match[1] in FULL_DAM and (match[1] != "Sort" or line.rstrip().endswith(", true")):
            found.append(match[1])
    return found


def _call_site(relation: Relation) -> str:
    for one in messages(relation):
        if isinstance(one, Origin):
            site = one.python_origin.call_site
            if is_call_site(site):
                return site
    return ""


def _projection(cut: Relation, attributes: Sequence[Any]) -> Relation:
    """Attributes of a cut, and after them all of its columns."""
    probe = Relation()
    probe.project.input.CopyFrom(cut)
    for attribute in attributes:
        probe.project.expressions.add().unresolved_attribute.CopyFrom(attribute)
    probe.project.expressions.add().unresolved_star.SetInParent()
    return probe


def _positions_in(plan: str, count: int) -> list[int]:
    """Which of a cut's columns `count` attributes are, by the analyzed plan of their `_projection`."""
    ids = _COLUMN_ID.findall(plan.partition("\n")[0])
    asked, columns = ids[:count], ids[count:]
    return [columns.index(one) for one in asked]
