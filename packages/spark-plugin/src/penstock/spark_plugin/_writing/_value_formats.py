"""The data of records, made of columns."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.efo_consumer import SchemaVersion
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._schema import RECORD_ID
from penstock.spark_plugin._writing._value_registry import registered_schema, registry_encoder
from penstock.spark_plugin._writing._value_rows import Encoded
from penstock.spark_plugin.errors import SchemaError

ValueEncoder = Callable[[Any], Encoded]
"""Makes a column of strings or binaries, one per row, of a record batch with the value's columns; and its bad rows."""

_PLAIN = (
    BinaryType,
    BooleanType,
    DateType,
    NullType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


def check_value_fields(fields: Sequence[StructField], options: KinesisOptions) -> SchemaVersion | str | None:
    """Check that the format can write the fields; their schema, if it has one: registered, or Avro's own as JSON.

    Raises:
        SchemaError: a column cannot be written; the error names the first one.
        SchemaRegistryError: the Glue Schema Registry has no such schema, refuses it, or cannot be asked.
        ExtraMissingError: the format's library is not installed here.
    """
    if options.schema_registry is not None:
        return registered_schema(_with_id(fields, options), options)
    if options.value_format == "avro":
        from penstock.spark_plugin._writing._value_avro import avro_encoder, avro_schema_of

        schema = avro_schema_of(_with_id(fields, options))
        avro_encoder(schema)
        return schema
    check_field_types(fields, nested=options.value_format == "json")
    return None


def check_field_types(fields: Sequence[StructField], *, nested: bool) -> None:
    """Check that JSON (`nested`), or CSV, has the types of the fields.

    Raises:
        SchemaError: a column has no type there; the error names the first one.
    """
    for field in fields:
        _check(field.dataType, field.name, nested=nested)


def value_encoder(options: KinesisOptions, schema: SchemaVersion | str | None) -> ValueEncoder:
    """The encoder of the option `valueFormat`; `schema` is what `check_value_fields` gave."""
    if isinstance(schema, SchemaVersion):
        return registry_encoder(options, schema)
    if options.value_format == "avro":
        from penstock.spark_plugin._writing._value_avro import avro_encoder

        return avro_encoder(schema or "")
    if options.value_format == "csv":
        from penstock.spark_plugin._writing._value_csv import csv_rows

        return lambda batch: (csv_rows(batch, options.csv_delimiter), {})
    from penstock.spark_plugin._writing._value_json import json_rows

    return lambda batch: (json_rows(batch), {})


def _with_id(fields: Sequence[StructField], options: KinesisOptions) -> list[StructField]:
    return [*([StructField(RECORD_ID, StringType(), False)] if options.record_ids else []), *fields]


def _check(kind: DataType, path: str, *, nested: bool) -> None:
    if isinstance(kind, _PLAIN):
        return
    if nested and isinstance(kind, StructType):
        for field in kind.fields:
            _check(field.dataType, f"{path}.{field.name}", nested=True)
    elif nested and isinstance(kind, ArrayType):
        _check(kind.elementType, f"{path}.element", nested=True)
    elif nested and isinstance(kind, MapType):
        _check(kind.keyType, f"{path}.key", nested=False)
        _check(kind.valueType, f"{path}.value", nested=True)
    else:
        cure = "cast it to string" if nested else "use valueFormat=json, or cast it to string (to_json)"
        raise SchemaError(path, f"is {kind.simpleString()}, which this valueFormat does not write: {cure}")
