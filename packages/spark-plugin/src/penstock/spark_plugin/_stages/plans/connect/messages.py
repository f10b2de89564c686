"""Spark Connect's messages as trees: relations below relations, and the expressions of one relation."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyspark import cloudpickle
from pyspark.sql.connect.proto import Expression, Origin, Relation

from penstock.spark_plugin._stages.fingerprints.code import digest, function_fingerprint, unique

# Leaves whose message, with the files below it, says all about their rows.
_KNOWN_LEAVES = frozenset({"local_relation", "cached_local_relation", "chunked_cached_local_relation", "range"})
_FILE_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


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
    """All messages in a message; those of relations that it reads only with `below`."""
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


def relation_fingerprint(relation: Relation) -> str:
    """Of a plan: all but its places in the user's code, with ids counted from the plan's beginning."""
    copy = Relation()
    copy.CopyFrom(relation)
    functions: list[str] = []
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
    return digest(copy.SerializeToString(deterministic=True).hex(), *functions)


def reads_files(relation: Relation) -> bool | None:
    """Whether a plan reads files; None where it reads what cannot be seen: SQL text, a table, a database."""
    found = False
    for one in relations(relation):
        kind = one.WhichOneof("rel_type")
        if kind == "with_relations" and one.with_relations.references:
            return None  # a subquery, of whose files nothing is told
        if kind == "read" and one.read.data_source.format.lower() in _FILE_FORMATS:
            found = True
        elif kind not in _KNOWN_LEAVES and not _has_input(one):
            return None
    return found


def _has_input(relation: Relation) -> bool:
    body: Message = getattr(relation, relation.WhichOneof("rel_type") or "unknown")
    return any(
        field.message_type is not None and field.message_type.name == "Relation" for field, _ in body.ListFields()
    )


def _pickled(command: bytes) -> str:
    try:
        value = cloudpickle.loads(command)
        return function_fingerprint(value[0] if isinstance(value, tuple) else value)
    except Exception:
        # What cannot be read cannot be compared either.
        return unique()
