"""`from_glue`: a column of records with headers of the Glue Schema Registry, as a column of what is in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from penstock.aws import AwsOptions
from penstock.efo_consumer import SchemaVersion, decode_glue_record, json_value
from penstock.efo_consumer.errors import SchemaDecodeError, SchemaRegistryError
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import find_option
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._schemas.registry import (
    DEFAULT_REGISTRY,
    GlueSchemaRegistry,
    open_registry,
)
from penstock.spark_plugin.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column

Mode = Literal["FAILFAST", "PERMISSIVE"]
Gives = Literal["value", "text", "either"]

_TAKEN = {
    spec.name
    for spec in OPTIONS
    if spec.group == "credentials"
    or spec.name in ("region", "caBundle", "proxyUrl", "allowInsecureEndpoint", "glueEndpointUrl")
}


def from_glue(
    data: "Column | str",
    *,
    registry: str = DEFAULT_REGISTRY,
    schema_name: str | None = None,
    schema_version: int | None = None,
    schema: StructType | str | None = None,
    message: str | None = None,
    mode: Mode = "FAILFAST",
    options: Mapping[str, str] | None = None,
) -> "Column":
    """What is in records that were written with the AWS Glue Schema Registry: Avro, JSON or Protobuf, by their headers.

    Each record is read with the schema version that its header names; executors ask the registry for it once in a
    process. The column's type has to be known before: it is looked up here from `schema_version` of `schema_name`, or
    is `schema`. Avro records of other versions become rows of that one by Avro's rules; JSON and Protobuf give the
    fields that have the same names. A null stays null.

    Args:
        data: the column with the records, binary.
        registry: the registry of `schema_name`.
        schema_name: of the schema that all records have to be of.
        schema_version: of the schema that gives the type; the latest by default. A query keeps what it started with.
        schema: the type instead, as a `StructType` or DDL. Without `schema_name` it takes records of any schema.
        message: the Protobuf message, where the schema has several.
        mode: what becomes of a record without header, of another schema, of a version that there is not, or whose
            bytes are not what its schema says: FAILFAST fails the task, PERMISSIVE makes it null.
        options: `region`, `glueEndpointUrl`, and the credentials, as the data source names them.

    Raises:
        SchemaRegistryError: the schema does not exist, or the registry cannot be asked.
        SchemaError: the schema has no type in Spark.
        OptionError: an option is unknown, invalid, or has no effect here.
    """
    records = planned_records(
        registry=registry,
        schema_name=schema_name,
        schema_version=schema_version,
        schema=schema,
        message=message,
        mode=mode,
        options=options or {},
    )
    kind: Any = records.kind
    gives = records.gives
    column = _column(records, data)
    if gives == "value":
        return column
    # JSON is left to Spark itself; of what format a record is, it may say only itself.
    text = column if gives == "text" else column["text"]
    from_text = functions.from_json(text, kind, {"mode": mode})
    if gives == "text":
        return from_text
    return functions.when(text.isNotNull(), from_text).otherwise(column["value"])


def planned_records(
    *,
    registry: str = DEFAULT_REGISTRY,
    schema_name: str | None = None,
    schema_version: int | None = None,
    schema: StructType | str | None = None,
    message: str | None = None,
    mode: Mode = "FAILFAST",
    options: Mapping[str, str],
) -> "Records":
    """What tasks read records by; asks the registry where the type has to be found. See `from_glue`."""
    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise OptionError.invalid("mode", mode, "FAILFAST or PERMISSIVE")
    if schema_name is None and schema is None:
        raise OptionError.missing("schema_name", "it gives the column's type; or give `schema`")
    if schema_name is None and schema_version is not None:
        raise OptionError.missing("schema_name", "schema_version belongs to it")
    parsed = _parsed(options)
    client, reader, kind = open_registry(parsed), None, _as_type(schema)
    if schema_name is not None and (kind is None or schema_version is not None):
        reader = client.version_of_name(registry, schema_name, schema_version)
        if reader.data_format == "PROTOBUF":
            from penstock.spark_plugin._schemas.protobuf import proto_file

            message = str(proto_file(reader.definition).message(message, schema_name).full_name)
        kind = kind or spark_type_of(reader, message)
    assert kind is not None
    is_json = reader is not None and reader.data_format == "JSON"
    gives: Gives = "either" if reader is None else "text" if is_json else "value"
    return Records(
        aws=client.aws,
        endpoint_url=client.endpoint_url,
        of_schema=None if schema_name is None else (registry, schema_name),
        # With a type of the user's own, Avro's rules have no target version.
        reader=reader if schema is None else None,
        message=message,
        kind=kind,
        gives=gives,
        is_permissive=mode == "PERMISSIVE",
    )


def spark_type_of(version: SchemaVersion, message: str | None = None) -> DataType:
    """The type of Spark that records of a schema version have.

    Raises:
        SchemaError: the schema has no type in Spark.
    """
    if version.data_format == "AVRO":
        from penstock.spark_plugin._schemas.avro import avro_spark_type

        return avro_spark_type(version.definition)
    if version.data_format == "JSON":
        from penstock.spark_plugin._schemas.json_schema import json_spark_type

        return json_spark_type(version.definition)
    if version.data_format == "PROTOBUF":
        from penstock.spark_plugin._schemas.protobuf import protobuf_spark_type

        return protobuf_spark_type(version.definition, message, version.schema)
    raise SchemaError("data", f"{version} has a data format that is not known here")


def _parsed(options: Mapping[str, str]) -> KinesisOptions:
    for key in options:
        found = find_option(key)
        if found is None or found[0].name not in _TAKEN:
            raise OptionError.irrelevant(key, None, "from_glue, which takes options of credentials, region and Glue")
    return KinesisOptions.parse(options, stream_required=False)


def _as_type(schema: StructType | str | None) -> DataType | None:
    return StructType.fromDDL(schema) if isinstance(schema, str) else schema


def _column(records: "Records", data: "Column | str") -> "Column":
    column = functions.col(data) if isinstance(data, str) else data
    arrow_udf: Any = getattr(functions, "arrow_udf", None)
    if arrow_udf is None:  # before Spark 4.1

        def from_glue(record: Any) -> Any:
            return records.arrow([record]).to_pylist(maps_as_pydicts="strict")[0]

        return functions.udf(from_glue, records.result)(column)

    def from_glue_batch(batch: pa.Array) -> pa.Array:
        return records.arrow(batch.to_pylist())

    from_glue_batch.__name__ = "from_glue"
    made: Column = arrow_udf(from_glue_batch, records.result)(column)
    return made


@dataclass(frozen=True, kw_only=True)
class Records:
    """Decodes records in the tasks; travels there with the plan."""

    aws: AwsOptions = field(repr=False)
    endpoint_url: str | None
    of_schema: tuple[str, str] | None
    reader: SchemaVersion | None
    message: str | None
    kind: DataType
    gives: Gives
    is_permissive: bool

    @property
    def result(self) -> DataType:
        """The type of what it gives."""
        if self.gives == "either":
            return StructType([StructField("value", self.kind), StructField("text", StringType())])
        return StringType() if self.gives == "text" else self.kind

    def arrow(self, records: list[Any]) -> Any:
        """What is in the records, as an array of `result`."""
        kind, prepare = arrow_type(self.result), _preparation(self.result)
        readers: dict[UUID, Callable[[bytes], Any]] = {}
        values = [self._decoded(record, readers) for record in records]
        try:
            return pa.array(values if prepare is None else map(prepare, values), kind)
        except _MISFITS:
            return pa.array([self._fitting(value, kind, prepare) for value in values], kind)

    def _fitting(self, value: Any, kind: Any, prepare: "Callable[[Any], Any] | None") -> Any:
        value = value if prepare is None else prepare(value)
        try:
            pa.array([value], kind)
        except _MISFITS as error:
            if self.is_permissive:
                return None
            raise SchemaDecodeError(f"it does not fit the type {self.kind.simpleString()} ({error})") from error
        return value

    def _decoded(self, record: Any, readers: dict[UUID, Callable[[bytes], Any]]) -> Any:
        if record is None:
            return None
        if not isinstance(record, bytes):
            raise SchemaError("data", f"is {type(record).__name__}; records are binary")
        try:
            schema_version_id, payload = decode_glue_record(record)
            if schema_version_id not in readers:
                readers[schema_version_id] = self._reader(schema_version_id)
            return readers[schema_version_id](payload)
        except (SchemaDecodeError, SchemaRegistryError) as error:
            # What says nothing about the record fails the task in either mode.
            if not self.is_permissive or (isinstance(error, SchemaRegistryError) and not error.is_missing):
                raise
            return None

    def _reader(self, schema_version_id: UUID) -> Callable[[bytes], Any]:
        version = GlueSchemaRegistry(self.aws, self.endpoint_url).version_of_id(schema_version_id)
        if self.of_schema is not None and self.of_schema != (version.registry, version.schema):
            raise SchemaDecodeError(
                f"it is of {version} in registry {version.registry!r}, and not of {self.of_schema[1]!r}"
            )
        is_text = version.data_format == "JSON"
        read = self._text if is_text else self._decoder(version)
        if self.gives != "either":
            return read
        name = "text" if is_text else "value"
        return lambda payload: {name: read(payload)}

    def _text(self, payload: bytes) -> str:
        try:
            text = payload.decode()
        except ValueError as error:
            raise SchemaDecodeError(f"it is not JSON ({error})") from error
        if self.is_permissive:
            json_value(text)  # Spark would make a row of nulls of what is not JSON
        return text

    def _decoder(self, version: SchemaVersion) -> Callable[[bytes], Any]:
        return _decoder(version, None if self.reader is None else self.reader.definition, self.message, self.kind)


_MISFITS = (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError)


@lru_cache(maxsize=256)
def _decoder(version: SchemaVersion, reader: str | None, message: str | None, kind: DataType) -> Callable[[bytes], Any]:
    """By what a payload is read; a process remembers the last 256."""
    try:
        if version.data_format == "AVRO":
            from penstock.spark_plugin._schemas.avro import avro_decoder

            return avro_decoder(version.definition, reader)
        if version.data_format == "PROTOBUF":
            from penstock.spark_plugin._schemas.protobuf import protobuf_decoder

            return protobuf_decoder(version.definition, message, kind, version.schema)
    except SchemaError as error:
        raise SchemaDecodeError(f"it is of {version}: {error}") from error
    raise SchemaDecodeError(f"it is of {version}, whose data format is not known here")


_ARROW: dict[type[DataType], Any] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    CharType: pa.string(),
    DateType: pa.date32(),
    DayTimeIntervalType: pa.duration("us"),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    NullType: pa.null(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampNTZType: pa.timestamp("us"),
    TimestampType: pa.timestamp("us", tz="UTC"),
    VarcharType: pa.string(),
}


@lru_cache(maxsize=64)
def arrow_type(kind: DataType) -> Any:
    """The type of Arrow that Spark expects of a type; PySpark has no public function for that.

    Raises:
        SchemaError: records cannot have this type.
    """
    if isinstance(kind, StructType):
        return pa.struct([pa.field(one.name, arrow_type(one.dataType), one.nullable) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, MapType):
        value = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(kind.keyType), nullable=False), value)
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = _ARROW.get(type(kind))
    if found is None:
        raise SchemaError("data", f"{kind.simpleString()} is not a type of records: name another one in `schema`")
    return found


@lru_cache(maxsize=64)
def _preparation(kind: DataType) -> Callable[[Any], Any] | None:
    """What makes values of a type as Arrow takes them, where it does not take what the decoders give."""
    if isinstance(kind, StructType):
        fields = [(one.name, made) for one in kind.fields if (made := _preparation(one.dataType)) is not None]
        return None if not fields else lambda value: _prepared_fields(value, fields)
    if isinstance(kind, ArrayType):
        each = _preparation(kind.elementType)
        return None if each is None else lambda value: None if value is None else [each(one) for one in value]
    if isinstance(kind, MapType):
        return _map_preparation(_preparation(kind.valueType))
    return _prepared_text if isinstance(kind, StringType) else _PREPARED.get(type(kind))


def _prepared_fields(value: Any, fields: list[tuple[str, Callable[[Any], Any]]]) -> Any:
    if not isinstance(value, dict):
        return value
    return {**value, **{name: prepare(value[name]) for name, prepare in fields if name in value}}


def _map_preparation(each: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def prepare(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return list(value.items()) if each is None else [(key, each(one)) for key, one in value.items()]

    return prepare


def _prepared_text(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def _prepared_micros(value: Any) -> Any:
    if not isinstance(value, time):
        return value
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _prepared_millis(value: Any) -> Any:
    return _prepared_micros(value) // 1000 if isinstance(value, time) else value


_PREPARED: dict[type[DataType], Callable[[Any], Any]] = {LongType: _prepared_micros, IntegerType: _prepared_millis}
