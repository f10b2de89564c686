"""Fingerprints of Spark Connect's messages: equal for the same plan, whenever and wherever it was made."""

from typing import Any

from google.protobuf.message import Message
from pyspark import cloudpickle
from pyspark.sql.connect.proto import Origin, Relation

from penstock.spark_plugin._stages.fingerprints.code import digest, function_fingerprint, unique
from penstock.spark_plugin._stages.plans.connect.messages import messages, relations

# Leaves whose message, with the files below it, says all about their rows.
_KNOWN_LEAVES = frozenset({"local_relation", "cached_local_relation", "chunked_cached_local_relation", "range"})
_FILE_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


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
