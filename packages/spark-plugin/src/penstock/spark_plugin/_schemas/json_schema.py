"""JSON Schemas of the registry: their types in Spark, schemas of columns, and whether a document fits."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegralType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from penstock.spark_plugin.errors import MissingLibraryError, SchemaError

_DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest that the registry takes."""
_PLAIN: dict[str, DataType] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}


def json_spark_type(definition: str) -> DataType:
    """What Spark makes of documents of a schema: what it does not say in one type (`anyOf`, …) is a string of JSON.

    Raises:
        SchemaError: the schema is not a JSON Schema, or is not one of objects or arrays.
    """
    schema = _parsed(definition)
    found = _spark_type(schema, schema, ())
    if not isinstance(found, (StructType, ArrayType, MapType)):
        raise SchemaError(
            "data", "the registry's JSON Schema says nothing of its fields; name the columns that you need by `schema`"
        )
    return found


def _parsed(definition: str) -> Any:
    try:
        return json.loads(definition)
    except ValueError as error:
        raise SchemaError("data", f"the registry's JSON Schema cannot be read: {error}") from error


def _spark_type(schema: Any, root: Any, within: tuple[str, ...]) -> DataType:
    if not isinstance(schema, Mapping):
        return StringType()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found = _pointed(root, reference)
        if found is None or reference in within:
            return StringType()
        return _spark_type(found, root, (*within, reference))
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else [one for one in kinds or () if one != "null"]
    if set(kinds) == {"integer", "number"}:
        kinds = ["number"]
    if len(kinds) != 1:
        kinds = ["object"] if not kinds and "properties" in schema else [""]
    (kind,) = kinds
    if kind == "object":
        properties = schema.get("properties")
        if properties:
            # Each may be missing, or be null in a later version: nothing is promised.
            return StructType([StructField(name, _spark_type(one, root, within)) for name, one in properties.items()])
        values = schema.get("additionalProperties")
        return MapType(StringType(), _spark_type(values, root, within)) if isinstance(values, Mapping) else StringType()
    if kind == "array":
        items = schema.get("items")
        return ArrayType(_spark_type(items, root, within)) if isinstance(items, Mapping) else StringType()
    return _PLAIN.get(kind, StringType())


def _pointed(root: Any, reference: str) -> Any:
    """What a reference within the schema points at; None for others."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def json_schema_of(fields: Sequence[StructField], title: str) -> str:
    """The schema of the documents that `valueFormat=json` makes of these columns: null fields are left out."""
    return json.dumps({"$schema": _DRAFT, "title": title, **_object(fields)})


def _object(fields: Sequence[StructField]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": {one.name: _schema(one.dataType) for one in fields}}
    required = [one.name for one in fields if not one.nullable]
    return {**made, "required": required} if required else made


def _schema(kind: DataType) -> dict[str, Any]:
    if isinstance(kind, StructType):
        return _object(kind.fields)
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _or_null(kind.elementType, nullable=kind.containsNull)}
    if isinstance(kind, MapType):
        return {
            "type": "object",
            "additionalProperties": _or_null(kind.valueType, nullable=kind.valueContainsNull),
        }
    if isinstance(kind, BooleanType):
        return {"type": "boolean"}
    if isinstance(kind, IntegralType):
        return {"type": "integer"}
    return {"type": "number" if isinstance(kind, NumericType) else "string"}


def _or_null(kind: DataType, *, nullable: bool) -> dict[str, Any]:
    schema = _schema(kind)
    return {**schema, "type": [schema["type"], "null"]} if nullable else schema


@lru_cache(maxsize=64)
def json_check(definition: str) -> Callable[[Any], str | None]:
    """Why a document does not fit a schema, or None. Nothing is fetched that the schema refers to.

    Raises:
        MissingLibraryError: jsonschema is not installed.
        SchemaError: the schema is not a JSON Schema.
    """
    try:
        from jsonschema import SchemaError as InvalidSchemaError  # type: ignore[import-untyped]  # has no stubs
        from jsonschema.validators import Draft7Validator, validator_for  # type: ignore[import-untyped]
        from referencing import Registry
    except ImportError as error:
        raise MissingLibraryError.of_extra(
            "json-schema", "valueFormat=json with schemaRegistry", "jsonschema"
        ) from error
    schema = _parsed(definition)
    kind = validator_for(schema, default=Draft7Validator)
    try:
        kind.check_schema(schema)
    except InvalidSchemaError as error:
        raise SchemaError("data", f"the registry's JSON Schema is invalid: {error.message}") from error
    validator = kind(schema, registry=Registry())

    def check(document: Any) -> str | None:
        found = next(validator.iter_errors(document), None)
        if found is None:
            return None
        place = ".".join(map(str, found.absolute_path))
        return f"{place}: {found.message}" if place else str(found.message)

    return check
