"""Columns that are read, and columns that are written."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin.errors import SchemaError

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


def read_schema(options: KinesisOptions) -> StructType:
    """The schema of a DataFrame that is read with these options."""
    return READ_SCHEMA_WITH_ENCRYPTION if options.include_encryption_type else READ_SCHEMA


def check_read_schema(schema: StructType, options: KinesisOptions) -> None:
    """Spark accepts any schema of a user's; only the source's own can be answered.

    Raises:
        SchemaError: Naming the first column that differs.
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

    data: int
    partition_key: int | None
    """None: a random key for each record."""
    explicit_hash_key: int | None


def sink_columns(schema: StructType, options: KinesisOptions) -> SinkColumns:
    """Find the columns of a DataFrame that is written.

    Raises:
        SchemaError: Naming the column that is missing or has another type.
    """
    names = schema.names
    data = _column(schema, "data", (BinaryType(), StringType()))
    if data is None:
        raise SchemaError("data", f"a writer needs it (binary or string); the DataFrame has {_spell(names)}")
    key = None
    if not options.random_partition_key:
        wanted = options.partition_key_column
        key = _column(schema, wanted, (StringType(),))
        if key is None:
            raise SchemaError(
                wanted,
                f"a writer needs it (string); the DataFrame has {_spell(names)}. Name another one with the option "
                "'partitionKeyColumn', or set 'randomPartitionKey'",
            )
    hash_key = _column(schema, "explicitHashKey", (StringType(),))
    known = {"data", options.partition_key_column, "explicitHashKey"}
    for name in names:
        if name not in known or (name == options.partition_key_column and key is None):
            raise SchemaError(name, "is not written; select data, a partition key and, if you need it, explicitHashKey")
    return SinkColumns(data, key, hash_key)


def _column(schema: StructType, name: str, types: Sequence[BinaryType | StringType]) -> int | None:
    if name not in schema.names:
        return None
    index = schema.names.index(name)
    found = schema.fields[index].dataType
    if not isinstance(found, tuple(type(one) for one in types)):
        wanted = " or ".join(one.simpleString() for one in types)
        raise SchemaError(name, f"is {found.simpleString()}; it must be {wanted}")
    return index


def _spell(names: Sequence[str]) -> str:
    return ", ".join(names) or "no columns"
