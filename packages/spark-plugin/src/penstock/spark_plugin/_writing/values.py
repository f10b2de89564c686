"""The data of records, made of columns: in a format, or with a schema of the Glue Schema Registry."""

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
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

from penstock.efo_consumer import SchemaVersion, glue_header
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._schema import RECORD_ID
from penstock.spark_plugin._schemas.registry import open_registry
from penstock.spark_plugin._writing.value_rows import Encoded, row_encoder
from penstock.spark_plugin.errors import OptionError, SchemaError

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
        MissingLibraryError: the format's library is not installed here.
    """
    if options.schema_registry is not None:
        return registered_schema(_with_id(fields, options), options)
    if options.value_format == "avro":
        from penstock.spark_plugin._writing.value_rows import avro_encoder, avro_schema_of

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
        from penstock.spark_plugin._writing.value_rows import avro_encoder

        return avro_encoder(schema or "")
    if options.value_format == "csv":
        from penstock.spark_plugin._writing.value_text import csv_rows

        return lambda batch: (csv_rows(batch, options.csv_delimiter), {})
    from penstock.spark_plugin._writing.value_text import json_rows

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


_DATA_FORMATS = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def registered_schema(fields: Sequence[StructField], options: KinesisOptions) -> SchemaVersion:
    """The schema version that rows of these columns are written with; asks the registry.

    Raises:
        SchemaRegistryError: the schema does not exist, or the registry cannot be asked.
        SparkPluginError: the new version is not compatible with those before it.
        SchemaError: a column does not fit into the schema.
        MissingLibraryError: the library of its format is not installed here.
    """
    registry, name = options.schema_registry or "", _schema_name(options)
    client = open_registry(options)
    data_format = _DATA_FORMATS[options.value_format or ""]
    if options.schema_auto_register:
        definition = _definition(fields, data_format, name)
        version = client.registered(registry, name, data_format, definition, options.schema_compatibility.upper())
    else:
        version = client.version_of_name(registry, name, options.schema_version)
    if version.data_format != data_format:
        raise OptionError.contradictory(
            "valueFormat",
            "schemaName",
            f"schema {name!r} is {version.data_format}, and what is written is {options.value_format}",
        )
    if data_format == "AVRO":
        from penstock.spark_plugin._schemas.avro import check_avro_fields

        check_avro_fields(fields, version.definition, name)
    elif data_format == "JSON":
        from penstock.spark_plugin._schemas.json_schema import json_check

        json_check(version.definition)
    else:
        from penstock.spark_plugin._schemas.protobuf import check_protobuf_fields

        check_protobuf_fields(fields, version.definition, options.schema_message, name)
    return version


def _schema_name(options: KinesisOptions) -> str:
    if options.schema_name is not None:
        return options.schema_name
    if len(options.stream_name) != 1:
        raise OptionError.missing("schemaName", "rows name their streams, and no single stream gives it a name")
    return options.stream_name[0]


def _definition(fields: Sequence[StructField], data_format: str, name: str) -> str:
    if data_format == "AVRO":
        from penstock.spark_plugin._writing.value_rows import avro_schema_of

        return avro_schema_of(fields, with_defaults=True)
    from penstock.spark_plugin._schemas.json_schema import json_schema_of

    check_field_types(fields, nested=True)
    return json_schema_of(fields, name)


def registry_encoder(options: KinesisOptions, version: SchemaVersion) -> Callable[[Any], Encoded]:
    """Makes records, with their header, of a record batch with the value's columns."""
    is_compressed = options.schema_compression == "zlib"
    header = glue_header(version.id, "zlib" if is_compressed else "none")
    problem = f"schema {version.schema!r} (version {version.number}) does not take it"

    def record(payload: bytes) -> bytes:
        return header + (zlib.compress(payload) if is_compressed else payload)

    if version.data_format == "JSON":
        return _json_encoder(version, record, problem)
    if version.data_format == "AVRO":
        from penstock.spark_plugin._writing.value_rows import avro_row_encoder

        payload_of: Callable[[Any], bytes] = avro_row_encoder(version.definition)
    else:
        from penstock.spark_plugin._schemas.protobuf import protobuf_encoder

        payload_of = protobuf_encoder(version.definition, options.schema_message)
    return row_encoder(lambda row: record(payload_of(row)), problem)


def _json_encoder(version: SchemaVersion, record: Callable[[bytes], bytes], problem: str) -> Callable[[Any], Encoded]:
    from penstock.spark_plugin._schemas.json_schema import json_check
    from penstock.spark_plugin._writing.value_text import json_rows

    check = json_check(version.definition)

    def encode(batch: Any) -> Encoded:
        values, faults = [], {}
        for index, text in enumerate(json_rows(batch).to_pylist()):
            fault = check(json.loads(text))
            if fault is not None:
                faults[index] = f"{problem}: {fault}"
            values.append(text.encode() if fault is not None else record(text.encode()))
        return pa.array(values, pa.binary()), faults

    return encode
