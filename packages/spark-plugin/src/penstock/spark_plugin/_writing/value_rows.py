"""Rows as values that are made one by one, such as Avro: a row that cannot be made spoils no other."""

import json
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import count
from typing import Any

import pyarrow as pa
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

from penstock.spark_plugin._writing.value_text import json_rows
from penstock.spark_plugin.errors import MissingLibraryError, SchemaError

Encoded = tuple[Any, dict[int, str]]
"""A column of binaries, and why the format or the schema does not take rows, by their place: JSON instead."""


def row_encoder(encode_row: Callable[[Any], bytes], problem: str) -> Callable[[Any], Encoded]:
    """Makes values of a record batch by what makes one of a row, a dictionary; `problem` is said before its errors."""

    def encode_rows(batch: Any) -> list[bytes]:
        return [encode_row(row) for row in batch.to_pylist(maps_as_pydicts="strict")]

    def encode(batch: Any) -> Encoded:
        faults: dict[int, str] = {}
        try:
            values = encode_rows(batch)
        except Exception:  # whatever the libraries say of a value: of which row, is found out one by one
            values = []
            for index in range(batch.num_rows):
                row = batch.slice(index, 1)
                try:
                    values += encode_rows(row)
                except Exception as error:
                    values.append(b"")
                    faults[index] = f"{problem}: {_column_of(row)}{str(error) or type(error).__name__}"
            # All at once, and taken out: a slice has the lists and maps of all rows, made JSON each time.
            texts = json_rows(batch.take(pa.array(list(faults), pa.int64()))).to_pylist() if faults else []
            for index, text in zip(faults, texts, strict=True):
                values[index] = text.encode()
        return pa.array(values, pa.binary()), faults

    return encode


def _column_of(row: Any) -> str:
    """Which column has a value that Python does not: a text that is not UTF-8, a date after the year 9999."""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            column.to_pylist(maps_as_pydicts="strict")
        except Exception:
            return f"column {name!r}: "
    return ""


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: dict[type[DataType], Any] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    CharType: "string",
    VarcharType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema(schema: StructType, columns: Sequence[str] = ()) -> str:
    """The Avro schema, as JSON, of the records that `valueFormat=avro` makes of rows of this Spark schema.

    `columns` are the `valueColumns`; by default all but the partition key's, the hash key's and the stream's, as
    the writer has them. Readers need it: `from_avro(data, avro_schema(df.schema))`.

    Raises:
        SchemaError: a column has a type, or a name, that Avro does not have.
    """
    from penstock.spark_plugin._schema import default_value_columns

    return avro_schema_of([schema[name] for name in columns or default_value_columns(schema)])


def avro_schema_of(fields: Sequence[StructField], *, with_defaults: bool = False) -> str:
    """The schema of a record of these fields; each is a union with null where it may be null.

    `with_defaults` null comes first in it, and is the default: a version with such a field more can read what was
    written before.
    """
    return json.dumps(_record("topLevelRecord", "", fields, set(), with_defaults=with_defaults))


def _record(
    name: str, path: str, fields: Sequence[StructField], taken: set[str], *, with_defaults: bool
) -> dict[str, Any]:
    # Names of records are unique within a schema; Spark's structs have none, and `a.b` is written as `a_b` is.
    name = next(one for number in count(1) if (one := name if number == 1 else f"{name}_{number}") not in taken)
    taken.add(name)
    made = []
    for field in fields:
        full = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            raise SchemaError(full, "is not a name in Avro, which has letters, digits and _; rename it with 'alias'")
        kind = _type(field.dataType, full, taken, with_defaults=with_defaults)
        if field.nullable and with_defaults:
            made.append({"name": field.name, "type": ["null", kind], "default": None})
        else:
            made.append({"name": field.name, "type": [kind, "null"] if field.nullable else kind})
    return {"type": "record", "name": name, "fields": made}


def _type(kind: DataType, path: str, taken: set[str], *, with_defaults: bool) -> Any:
    if isinstance(kind, StructType):
        return _record("record_" + re.sub(r"\W", "_", path), path, kind.fields, taken, with_defaults=with_defaults)
    if isinstance(kind, ArrayType):
        items = _type(kind.elementType, f"{path}.element", taken, with_defaults=with_defaults)
        return {"type": "array", "items": [items, "null"] if kind.containsNull else items}
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise SchemaError(path, f"has keys of {kind.keyType.simpleString()}; keys of Avro's maps are strings")
        values = _type(kind.valueType, f"{path}.value", taken, with_defaults=with_defaults)
        return {"type": "map", "values": [values, "null"] if kind.valueContainsNull else values}
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = _PLAIN.get(type(kind))
    if found is None:
        raise SchemaError(path, f"is {kind.simpleString()}, which valueFormat=avro does not write; cast it to string")
    return found


def avro_encoder(schema_json: str) -> Callable[[Any], Encoded]:
    """Makes a column of binaries of a record batch.

    Raises:
        MissingLibraryError: fastavro is not installed.
    """
    return row_encoder(avro_row_encoder(schema_json), "it cannot be encoded as Avro")


def avro_row_encoder(schema_json: str) -> Callable[[Any], bytes]:
    """Makes the bytes of one row, a dictionary; the encoder raises what fastavro raises for values that do not fit.

    Raises:
        MissingLibraryError: fastavro is not installed.
    """
    try:
        import fastavro
    except ImportError as error:
        raise MissingLibraryError.of_extra("avro", "valueFormat=avro", "fastavro") from error

    schema, buffer = fastavro.parse_schema(json.loads(schema_json)), BytesIO()

    def encode(row: Any) -> bytes:
        buffer.seek(0)
        buffer.truncate()
        fastavro.schemaless_writer(buffer, schema, row)
        return buffer.getvalue()

    return encode
