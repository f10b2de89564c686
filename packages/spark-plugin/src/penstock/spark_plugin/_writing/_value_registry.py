"""Rows as records of the Glue Schema Registry: the schema version, found on the driver, and the encoder of tasks."""

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField

from penstock.efo_consumer import SchemaVersion, glue_header
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._schemas.registry import open_registry
from penstock.spark_plugin._writing._value_rows import Encoded, row_encoder
from penstock.spark_plugin.errors import ContradictoryOptionsError, MissingOptionError

_FORMATS = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def registered_schema(fields: Sequence[StructField], options: KinesisOptions) -> SchemaVersion:
    """The schema version that rows of these columns are written with; asks the registry.

    Raises:
        SchemaRegistryError: the schema does not exist, or the registry cannot be asked.
        SchemaCompatibilityError: the new version is not compatible with those before it.
        SchemaError: a column does not fit into the schema.
        ExtraMissingError: the library of its format is not installed here.
    """
    registry, name = options.schema_registry or "", _schema_name(options)
    client = open_registry(options)
    data_format = _FORMATS[options.value_format or ""]
    if options.schema_auto_register:
        definition = _definition(fields, data_format, name)
        version = client.registered(registry, name, data_format, definition, options.schema_compatibility.upper())
    else:
        version = client.version_of_name(registry, name, options.schema_version)
    if version.data_format != data_format:
        raise ContradictoryOptionsError(
            ("valueFormat", "schemaName"),
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
        raise MissingOptionError(
            "schemaName", "rows name their streams, so that there is no one stream to name it after"
        )
    return options.stream_name[0]


def _definition(fields: Sequence[StructField], data_format: str, name: str) -> str:
    if data_format == "AVRO":
        from penstock.spark_plugin._writing._value_avro import avro_schema_of

        return avro_schema_of(fields, with_defaults=True)
    from penstock.spark_plugin._schemas.json_schema import json_schema_of
    from penstock.spark_plugin._writing._value_formats import check_field_types

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
        from penstock.spark_plugin._writing._value_avro import avro_row_encoder

        payload_of: Callable[[Any], bytes] = avro_row_encoder(version.definition)
    else:
        from penstock.spark_plugin._schemas.protobuf import protobuf_encoder

        payload_of = protobuf_encoder(version.definition, options.schema_message)
    return row_encoder(lambda row: record(payload_of(row)), problem)


def _json_encoder(version: SchemaVersion, record: Callable[[bytes], bytes], problem: str) -> Callable[[Any], Encoded]:
    from penstock.spark_plugin._schemas.json_schema import json_check
    from penstock.spark_plugin._writing._value_json import json_rows

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
