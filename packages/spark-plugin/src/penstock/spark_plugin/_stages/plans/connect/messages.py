"""Spark Connect's messages as trees: relations below relations, and the expressions of one relation."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyspark.sql.connect.proto import Expression, Relation


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
