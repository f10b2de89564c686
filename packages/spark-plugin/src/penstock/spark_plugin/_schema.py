"""Columns that are read, and columns that are written."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.columns import CHANGES, columns_of
from penstock.spark_plugin.errors import OptionError, SchemaError

RECORD_ID = "recordId"
"""The column that `recordIds` adds to the value."""
_STRING = (StringType,)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_MESSAGE = {"messageGroupId": _STRING, "messageDeduplicationId": _STRING, "delaySeconds": _INTEGERS}
"""Columns of a message, beside its body."""
_STEERING = ("partitionKey", "explicitHashKey", "streamName", "deliveryStreamName")

READ_SCHEMA = StructType(
    [
        StructField("data", BinaryType()),
        StructField("partitionKey", StringType()),
        StructField("streamName", StringType()),
        StructField("shardId", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("subSequenceNumber", LongType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
    ]
)
"""Columns of a DataFrame that is read; one row per user record."""

READ_SCHEMA_WITH_ENCRYPTION = StructType(
    [
        *READ_SCHEMA.fields,
        StructField("encryptionType", StringType()),
        StructField("explicitHashKey", StringType()),
    ]
)
"""The same with `includeEncryptionType`."""


CHANGE_SCHEMA = StructType(
    [
        StructField("eventID", StringType()),
        StructField("eventName", StringType()),
        StructField("keys", StringType()),
        StructField("newImage", StringType()),
        StructField("oldImage", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("approximateCreationDateTime", TimestampType()),
        StructField("sizeBytes", LongType()),
        StructField("streamViewType", StringType()),
        StructField(
            "userIdentity", StructType([StructField("principalId", StringType()), StructField("type", StringType())])
        ),
        StructField("shardId", StringType()),
        StructField("streamArn", StringType()),
    ]
)
"""Columns of format `dynamodb-streams`; one row per change of an item."""


def read_schema(options: KinesisOptions) -> StructType:
    """The schema of a DataFrame that is read with these options."""
    if options.columns == CHANGES:
        return CHANGE_SCHEMA
    schema = READ_SCHEMA_WITH_ENCRYPTION if options.include_encryption_type else READ_SCHEMA
    names = columns_of(options.columns)
    if names is None:
        return schema
    return StructType([StructField(name, schema[ours].dataType) for name, ours in names])


def check_read_schema(schema: StructType, options: KinesisOptions) -> None:
    """Spark accepts any schema of a user's; only the source's own can be answered.

    Raises:
        SchemaError: a column differs; the error names the first one.
    """
    expected = read_schema(options)
    for wanted, given in zip(expected.fields, schema.fields, strict=False):
        if (wanted.name, wanted.dataType) != (given.name, given.dataType):
            raise SchemaError(
                given.name,
                f"the source gives {wanted.name} {wanted.dataType.simpleString()} here; leave the schema out",
            )
    if len(schema.fields) != len(expected.fields):
        longer = max((schema, expected), key=len)
        surplus = longer.fields[min(len(schema), len(expected))].name
        raise SchemaError(surplus, f"the source gives the columns {', '.join(expected.names)}")


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where a writer finds the parts of a record; column indexes."""

    data: int | None
    """None: the data is made of `value`."""
    partition_key: int | None
    """None: the key is random or fixed, or the destination has no key."""
    explicit_hash_key: int | None
    stream_name: int | None = None
    """None: all rows go to the stream of the options."""
    value: tuple[int, ...] = ()
    """Columns that `valueFormat` makes the data of, in their order; for a table, the columns of the item."""
    message: tuple[int, ...] = ()
    """Columns of a message, beside its body."""


def _steering(kind: str) -> tuple[str, ...]:
    return tuple(_MESSAGE) if kind == "sqs" else _STEERING


def default_value_columns(schema: StructType, kind: str = "kinesis") -> list[str]:
    """Columns that `valueFormat` writes unless `valueColumns` says otherwise: those that do not steer the record."""
    return [name for name in schema.names if name not in _steering(kind)]


def sink_columns(schema: StructType, options: KinesisOptions, kind: str = "kinesis") -> SinkColumns:
    """Find the columns of a DataFrame that is written.

    Raises:
        SchemaError: a column is missing, is there twice, has another type, or would not be written; the error names it.
        OptionError: the stream's name is neither in the options nor in a column.
    """
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(name, "is there more than once; give each column a name of its own")
    if options.record_ids and options.value_format is not None and RECORD_ID in names:
        raise SchemaError(RECORD_ID, "is what the option 'recordIds' adds; rename the column, or leave the option out")
    if kind == "dynamodb":
        if not options.stream_name:
            raise OptionError.missing("tableName", "it says which table is written")
        return SinkColumns(None, None, None, value=tuple(range(len(names))))
    value = _value_columns(schema, options, kind)
    data = None if options.value_format is not None else _data_column(schema, kind)
    key = hash_key = None
    if kind == "kinesis":
        key = _key_column(schema, options)
        hash_key = _column(schema, "explicitHashKey", _STRING)
    stream = _stream_column(schema, options, kind)
    parts = [_column(schema, name, types) for name, types in _MESSAGE.items()] if kind == "sqs" else []
    message = tuple(index for index in parts if index is not None)
    found = {names[index] for index in (data, key, hash_key, stream, *value, *message) if index is not None}
    for name in names:
        if name not in found:
            # With valueColumns a user says what is in the value: other columns are left out on purpose.
            if options.value_columns and name not in _steering(kind):
                continue
            wanted = {
                "kinesis": "data, a partition key and, if you need them, explicitHashKey, streamName",
                "firehose": "data",
                "sqs": f"body and, if you need them, {', '.join(_MESSAGE)}",
            }[kind]
            # INSERT INTO knows a view by the columns that it reads, and fills all of them.
            hint = (
                "; INSERT INTO a view gives all columns: use write.save()"
                if names == read_schema(options).names
                else ""
            )
            raise SchemaError(name, f"is not written; select {wanted}, or set 'valueFormat' to write all columns{hint}")
    return SinkColumns(data, key, hash_key, stream, value, message)


def _data_column(schema: StructType, kind: str) -> int:
    name = "body" if kind == "sqs" else "data"
    data = _column(schema, name, (BinaryType, StringType))
    if data is None:
        raise SchemaError(
            name,
            f"a writer needs it (binary or string); the DataFrame has {_spell(schema.names)}. Make it, or set the "
            "option 'valueFormat' to json, avro or csv to write all columns",
        )
    return data


def _key_column(schema: StructType, options: KinesisOptions) -> int | None:
    if options.random_partition_key:
        return None
    wanted = options.partition_key_column
    key = _column(schema, wanted, (*_STRING, *_INTEGERS))
    if key is None:
        raise SchemaError(
            wanted,
            f"a writer needs it (string or integer); the DataFrame has {_spell(schema.names)}. Name another one with "
            "the option 'partitionKeyColumn', or set 'randomPartitionKey'",
        )
    return key


def _stream_column(schema: StructType, options: KinesisOptions, kind: str) -> int | None:
    if kind == "sqs":
        if not options.stream_name:
            raise OptionError.missing("queueUrl", "it says which queue is written")
        return None
    option = "deliveryStreamName" if kind == "firehose" else "streamName"
    present = [name for name in dict.fromkeys((option, "streamName")) if name in schema.names]
    if len(present) > 1:
        raise SchemaError(present[1], f"says the same as the column {present[0]!r}; drop one of them")
    if present:
        return _column(schema, present[0], _STRING)
    if len(options.stream_name) != 1:
        if options.stream_name:
            raise OptionError.contradictory(option, option, "a writer writes one stream; give rows a column with it")
        raise OptionError.missing(option, f"the rows have no column {option!r} with their destination")
    return None


def _value_columns(schema: StructType, options: KinesisOptions, kind: str) -> tuple[int, ...]:
    if options.value_format is None:
        return ()
    names = list(options.value_columns) or default_value_columns(schema, kind)
    for name in names:
        if name not in schema.names:
            raise SchemaError(
                name, f"'valueColumns' names it, and the DataFrame has {_spell(schema.names)}; correct the option"
            )
    if not names:
        raise SchemaError("data", "the value has no column; add one, or name some with 'valueColumns'")
    return tuple(schema.names.index(name) for name in names)


def _column(schema: StructType, name: str, types: Sequence[type[DataType]]) -> int | None:
    if name not in schema.names:
        return None
    index = schema.names.index(name)
    found = schema.fields[index].dataType
    if not isinstance(found, tuple(types)):
        wanted = " or ".join(one.typeName() for one in types)
        raise SchemaError(name, f"is {found.simpleString()}; it must be {wanted}: cast it")
    return index


def _spell(names: Sequence[str]) -> str:
    return ", ".join(names) or "no columns"
