"""Avro schemas of the registry: what they are in Spark, rows out of records, and columns that fit into them."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from penstock.efo_consumer import avro_reader
from penstock.spark_plugin.errors import MissingLibraryError, SchemaError

_TEXTS = (StringType, CharType, VarcharType)
_SPARK: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "enum": StringType(),
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
    "time-millis": IntegerType(),
    "time-micros": LongType(),
    "uuid": StringType(),
}
_WRITABLE: dict[str, tuple[type[DataType], ...]] = {
    "boolean": (BooleanType,),
    "int": (ByteType, ShortType, IntegerType),
    "long": (ByteType, ShortType, IntegerType, LongType),
    "float": (FloatType,),
    "double": (FloatType, DoubleType),
    "string": _TEXTS,
    "enum": _TEXTS,
    "uuid": _TEXTS,
    "bytes": (BinaryType,),
    "fixed": (BinaryType,),
    "date": (DateType,),
    "timestamp-millis": (TimestampType,),
    "timestamp-micros": (TimestampType,),
    "local-timestamp-millis": (TimestampNTZType,),
    "local-timestamp-micros": (TimestampNTZType,),
}
_WIDENED = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


@lru_cache(maxsize=256)
def parsed(definition: str) -> Any:
    """The schema, as fastavro takes it.

    Raises:
        MissingLibraryError: fastavro is not installed.
        SchemaError: the definition is not a schema of Avro.
    """
    try:
        import fastavro
    except ImportError as error:
        raise MissingLibraryError.of_extra("avro", "Avro", "fastavro") from error
    try:
        return fastavro.parse_schema(json.loads(definition))
    except Exception as error:  # fastavro has several, and none in common
        raise SchemaError("data", f"the registry's Avro schema cannot be read: {error}") from error


def avro_spark_type(definition: str) -> DataType:
    """What Spark makes of a schema, by the rules of its own `from_avro`.

    Raises:
        SchemaError: a part of it has no type in Spark: a union of other things than numbers and null, or a record
            within itself.
    """
    return _spark_type(parsed(definition), "", _Names(), ())[0]


class _Names:
    """Named types of a schema: where they are used again there are only their names."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def resolve(self, schema: Any) -> Any:
        """A schema, given as such or by its name."""
        if isinstance(schema, str):
            return self._known.get(schema, {"type": schema})
        if isinstance(schema, dict) and schema["type"] in ("record", "error", "enum", "fixed"):
            self._known[schema["name"]] = schema
        return schema


def _spark_type(schema: Any, path: str, names: _Names, within: tuple[str, ...]) -> tuple[DataType, bool]:
    """The type, and whether it may be null."""
    if isinstance(schema, list):
        branches = [one for one in schema if one != "null" and one != {"type": "null"}]
        kinds = frozenset(str(one if isinstance(one, str) else one["type"]) for one in branches)
        if kinds in _WIDENED:
            branches = [_WIDENED[kinds]]
        if len(branches) != 1:
            raise _no_type(path, f"is a union of {', '.join(sorted(kinds)) or 'null alone'}")
        return _spark_type(branches[0], path, names, within)[0], len(schema) > 1 and len(branches) < len(schema)
    schema = names.resolve(schema)
    kind = schema["type"]
    if isinstance(kind, (list, dict)):
        return _spark_type(kind, path, names, within)
    if kind in ("record", "error"):
        if schema["name"] in within:
            raise _no_type(path, f"holds {schema['name']} within itself")
        inner = (*within, schema["name"])
        fields = []
        for field in schema["fields"]:
            found, nullable = _spark_type(field["type"], _below(path, field["name"]), names, inner)
            fields.append(StructField(field["name"], found, nullable))
        return StructType(fields), False
    if kind == "array":
        found, nullable = _spark_type(schema["items"], _below(path, "element"), names, within)
        return ArrayType(found, nullable), False
    if kind == "map":
        found, nullable = _spark_type(schema["values"], _below(path, "value"), names, within)
        return MapType(StringType(), found, nullable), False
    if schema.get("logicalType") == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0)), False
    known = _SPARK.get(_logical(schema)) or _SPARK.get(kind)
    if known is None:
        raise _no_type(path, f"is {kind}")
    return known, False


def _logical(schema: Any) -> str:
    """The logical type, where the schema has one that is known; else its type."""
    logical = schema.get("logicalType", "")
    return str(logical if logical in _SPARK else schema["type"])


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _no_type(path: str, reason: str) -> SchemaError:
    return SchemaError(
        path or "data", f"{reason}, which is not a type of Spark; name the columns that you need by `schema`"
    )


def avro_decoder(writer: str, reader: str | None) -> Callable[[bytes], Any]:
    """What reads a payload of the writer's schema: as the reader's, by Avro's rules of resolution, if there is one."""
    for one in filter(None, (writer, reader)):
        parsed(one)
    return avro_reader(writer, "its Avro schema", reader)


def check_avro_fields(fields: Sequence[StructField], definition: str, schema_name: str) -> None:
    """Check that rows of these columns can be written with a registered schema, by their types.

    Raises:
        SchemaError: a column has no field, or a field no column; the error names the first one.
    """
    names = _Names()
    root = names.resolve(parsed(definition))
    if not isinstance(root, dict) or root["type"] != "record":
        raise SchemaError("data", f"schema {schema_name!r} is not a record: its data cannot be made of columns")
    _check_record(fields, root, "", names, schema_name)


def _check_record(fields: Sequence[StructField], record: Any, path: str, names: _Names, schema_name: str) -> None:
    known = {field["name"]: field for field in record["fields"]}
    given = {field.name: field for field in fields}
    for name in given:
        if name not in known:
            raise SchemaError(
                _below(path, name),
                f"schema {schema_name!r} has no such field, and {', '.join(known)}: leave the column out "
                "('valueColumns'), rename it, or register a version of the schema that has it",
            )
    # In the schema's order: a name means the type that was described before it.
    for name, field in known.items():
        if name in given:
            _check(given[name].dataType, field["type"], _below(path, name), names, schema_name)
        else:
            _spark_free(field["type"], names)
            if "default" not in field and not _takes_null(field["type"]):
                raise SchemaError(
                    _below(path, name), f"schema {schema_name!r} needs it, and the rows lack the column: add it"
                )


def _takes_null(schema: Any) -> bool:
    return "null" in schema if isinstance(schema, list) else schema in ("null", {"type": "null"})


def _spark_free(schema: Any, names: _Names) -> None:
    """Note the named types of a part that no column is compared with."""
    if isinstance(schema, list):
        for one in schema:
            _spark_free(one, names)
    elif isinstance(schema, dict):
        names.resolve(schema)
        for inner in (schema.get("items"), schema.get("values"), *(one["type"] for one in schema.get("fields", ()))):
            _spark_free(inner, names)


def _check(kind: DataType, schema: Any, path: str, names: _Names, schema_name: str) -> None:
    if isinstance(schema, list):
        first: SchemaError | None = None
        for branch in schema:
            if branch == "null":
                continue
            try:
                return _check(kind, branch, path, names, schema_name)
            except SchemaError as error:
                first = first or error
        raise first or SchemaError(path, f"is always null in schema {schema_name!r}: leave the column out")
    schema = names.resolve(schema)
    found = schema["type"]
    if isinstance(found, (list, dict)):
        return _check(kind, found, path, names, schema_name)
    if found == "record" and isinstance(kind, StructType):
        return _check_record(kind.fields, schema, path, names, schema_name)
    if found == "array" and isinstance(kind, ArrayType):
        return _check(kind.elementType, schema["items"], _below(path, "element"), names, schema_name)
    if found == "map" and isinstance(kind, MapType) and isinstance(kind.keyType, _TEXTS):
        return _check(kind.valueType, schema["values"], _below(path, "value"), names, schema_name)
    if schema.get("logicalType") == "decimal":
        if isinstance(kind, DecimalType) and _holds(schema["precision"], schema.get("scale", 0), kind):
            return None
        wanted = f"decimal({schema['precision']},{schema.get('scale', 0)})"
        raise SchemaError(path, f"is {kind.simpleString()}, and {wanted} in schema {schema_name!r}: cast it")
    if not isinstance(kind, _WRITABLE.get(_logical(schema), ())):
        wanted = _logical(schema)
        raise SchemaError(path, f"is {kind.simpleString()}, and {wanted} in schema {schema_name!r}: cast it")
    return None


def _holds(precision: int, scale: int, kind: DecimalType) -> bool:
    return kind.scale <= scale and kind.precision - kind.scale <= precision - scale
