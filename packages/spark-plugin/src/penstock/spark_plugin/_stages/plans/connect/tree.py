"""The plan of a Spark Connect DataFrame as a tree.

The client's plan is not analyzed: SQL texts are asked of the server, everything else is read off the messages.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from pyspark.sql.connect.proto import Expression, Origin, Relation, SetOperation

from penstock.spark_plugin._stages.plans.connect.messages import children, functions_called, messages
from penstock.spark_plugin._stages.plans.tree import FULL_DAM, PlanNode, is_call_site, what_is_read

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


class Server(Protocol):
    """What has to be asked of the server."""

    def is_streaming(self, relation: Relation) -> bool:
        """Whether a relation is a stream."""

    def analyzed(self, relation: Relation) -> str:
        """The text of the analyzed plan."""


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
        call_site=_call_site(relation),
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
