import inspect
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from penstock.efo_consumer import READ_SCHEMA as ARROW_READ_SCHEMA
from penstock.efo_consumer import READ_SCHEMA_WITH_ENCRYPTION as ARROW_READ_SCHEMA_WITH_ENCRYPTION
from penstock.rpc import ClientSecurity
from penstock.spark_plugin import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION, KinesisDataSource, KinesisOptions
from penstock.spark_plugin._reading.stream import reader as stream_reader
from penstock.spark_plugin._reading.stream.partition import KinesisPartition
from penstock.spark_plugin._schema import SinkColumns, check_read_schema, read_schema, sink_columns
from penstock.spark_plugin._writing.records import RecordMaker
from penstock.spark_plugin._writing.sink_task import WriteSummary, make_sink, total
from penstock.spark_plugin.errors import OptionError, SchemaError, SparkPluginError

OPTIONS = KinesisOptions(stream_name=("out",))


def schema(**columns: type) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("spark", "arrow"),
    [(READ_SCHEMA, ARROW_READ_SCHEMA), (READ_SCHEMA_WITH_ENCRYPTION, ARROW_READ_SCHEMA_WITH_ENCRYPTION)],
)
def test_batches_of_the_reader_have_exactly_sparks_schema(spark: StructType, arrow: pa.Schema) -> None:
    """Spark refuses a batch whose Arrow schema differs in any type, unit, zone or order."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.1 knows no other zone, and no such parameter.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    assert to_arrow_schema(spark, **zone).equals(arrow)


def test_a_users_schema_must_be_the_sources_own() -> None:
    """Spark accepts any schema; a wrong one is refused here, naming the column."""
    check_read_schema(READ_SCHEMA, OPTIONS)
    with pytest.raises(SchemaError, match="data"):
        check_read_schema(schema(data=StringType), OPTIONS)
    with pytest.raises(SchemaError, match="encryptionType"):
        check_read_schema(READ_SCHEMA_WITH_ENCRYPTION, OPTIONS)


@pytest.mark.parametrize("layout", ["penstock", "databricks", "aws"])
def test_a_stream_has_the_columns_of_its_schema(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names and in the order of the connector that is asked for, whatever the reader hands out."""
    options = KinesisOptions(stream_name=("flights",), columns=layout)
    row = dict.fromkeys(ARROW_READ_SCHEMA.names) | {"data": b"x", "streamName": "flights"}
    handed_out = pa.RecordBatch.from_pylist([row], schema=ARROW_READ_SCHEMA)
    monkeypatch.setattr(stream_reader, "read_partition", lambda *_: iter([handed_out]))
    partition = KinesisPartition(
        address="127.0.0.1:1",
        security=ClientSecurity(),
        session_id="s",
        ranges=(),
        with_encryption_type=False,
        traceparent=None,
    )
    (batch,) = stream_reader.KinesisStreamReader(options).read(partition)
    assert batch.schema.names == read_schema(options).names
    assert (batch.to_pylist()[0]["data"], "flights" in batch.to_pylist()[0].values()) == (b"x", True)


def test_columns_are_found_in_any_order() -> None:
    """The writer goes by names."""
    found = sink_columns(schema(explicitHashKey=StringType, data=BinaryType, partitionKey=StringType), OPTIONS)
    assert found == SinkColumns(data=1, partition_key=2, explicit_hash_key=0)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"partitionKey": StringType}, "data"),
        ({"data": IntegerType, "partitionKey": StringType}, "data"),
        ({"data": StringType}, "partitionKey"),
        ({"data": StringType, "partitionKey": BinaryType}, "partitionKey"),
        ({"data": StringType, "partitionKey": StringType, "explicitHashKey": IntegerType}, "explicitHashKey"),
        ({"data": StringType, "partitionKey": StringType, "shardId": StringType}, "shardId"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(columns: dict[str, type], named: str) -> None:
    """Missing, wrongly typed and surplus columns are refused when the write is planned."""
    with pytest.raises(SchemaError) as caught:
        sink_columns(schema(**columns), OPTIONS)
    assert caught.value.column == named


def test_the_key_may_come_from_another_column_or_from_chance() -> None:
    """`partitionKeyColumn` and `randomPartitionKey` replace the column `partitionKey`."""
    by_name = KinesisOptions(stream_name=("out",), partition_key_column="origin")
    assert sink_columns(schema(data=StringType, origin=StringType), by_name).partition_key == 1
    by_chance = KinesisOptions(stream_name=("out",), random_partition_key=True)
    assert sink_columns(schema(data=StringType), by_chance).partition_key is None


def test_strings_are_written_as_utf_8() -> None:
    """A string column of data becomes its bytes; the order of columns is the sink's."""
    batch = pa.record_batch({"partitionKey": ["k", "l"], "data": ["ä", "b"]})
    columns = SinkColumns(data=1, partition_key=0, explicit_hash_key=None)
    written = RecordMaker(columns, OPTIONS).of(batch).batch
    assert written.schema.names == ["data", "partitionKey"]
    assert written.column("data").to_pylist() == ["ä".encode(), b"b"]


def test_random_keys_differ() -> None:
    """Records without a key spread over all shards."""
    batch = pa.record_batch({"data": [b"x"] * 100})
    columns = SinkColumns(data=0, partition_key=None, explicit_hash_key=None)
    keys = RecordMaker(columns, OPTIONS).of(batch).batch.column("partitionKey")
    assert len(set(keys.to_pylist())) == 100


def test_commit_messages_add_up() -> None:
    """The sum over tasks leaves failed tasks out."""
    one = WriteSummary(records=2, bytes=20, requests=1, retries=0, throttled=0)
    two = WriteSummary(records=3, bytes=30, requests=2, retries=1, throttled=1)
    assert total([one, None, two]) == WriteSummary(records=5, bytes=50, requests=3, retries=1, throttled=1)


def test_a_writer_writes_one_stream() -> None:
    """Several streams are for reading."""
    source = KinesisDataSource({"streamName": "a,b"})
    with pytest.raises(OptionError, match="CONTRADICTORY_OPTIONS"):
        source.writer(schema(data=BinaryType, partitionKey=StringType), overwrite=False)


def test_a_stream_cannot_be_overwritten() -> None:
    """Mode overwrite would have to delete records."""
    source = KinesisDataSource({"streamName": "a"})
    with pytest.raises(SparkPluginError, match="append"):
        source.writer(schema(data=BinaryType, partitionKey=StringType), overwrite=True)
    with pytest.raises(SparkPluginError) as caught:
        source.streamWriter(schema(data=BinaryType, partitionKey=StringType), overwrite=True)
    assert str(caught.value) == "a stream cannot be overwritten: write with outputMode('append'), or 'update'"


@pytest.mark.parametrize("endpoint", [None, "127.0.0.1:1"])
def test_the_writers_options_count_in_both_homes(endpoint: str | None) -> None:
    """The sink uses the limits that a user sets, in-process and through the gateway."""
    options = KinesisOptions(stream_name=("out",), region="us-east-1", sink_endpoint=endpoint, max_batch_size=7)
    assert make_sink(options).create_writer().config.max_batch_size == 7
