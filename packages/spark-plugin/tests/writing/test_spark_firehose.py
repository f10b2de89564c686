import csv
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_SECONDS
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from penstock.emulator.testing import RunningEmulator
from penstock.spark_plugin import FirehoseDataSource
from penstock.spark_plugin.errors import OptionError, SparkPluginError
from penstock.spark_plugin.testing import endpoint_options

DATA = StructType([StructField("data", StringType())])


def make_delivery_stream(emulator: RunningEmulator) -> str:
    name = f"delivery-{uuid.uuid4().hex[:8]}"
    emulator.client("firehose").create_delivery_stream(DeliveryStreamName=name)
    return name


def delivered(emulator: RunningEmulator, name: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((emulator.firehose_folder / name).iterdir()))


def options(emulator: RunningEmulator, name: str | None, **given: str) -> dict[str, str]:
    common = endpoint_options(emulator.endpoints["firehose"], "", **given)
    del common["streamName"]
    return common if name is None else common | {"deliveryStreamName": name}


def test_frames_and_streams_are_delivered(
    spark: SparkSession,
    kinesis: RunningEmulator,
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """`write` and `writeStream` deliver every row as a line of its own, to the delivery stream that a row names."""
    first, second = make_delivery_stream(kinesis), make_delivery_stream(kinesis)
    frame = spark.range(40, numPartitions=2).select(
        "id", F.lit('a,"b"').alias("text"), F.when(F.col("id") < 10, first).otherwise(second).alias("streamName")
    )
    given = options(kinesis, None, valueFormat="csv", recordDelimiter="\n")
    frame.write.format("firehose").options(**given).mode("append").save()
    for name, ids in ((first, range(10)), (second, range(10, 40))):
        rows = list(csv.reader(io.StringIO(delivered(kinesis, name).decode(), newline="")))
        assert sorted(rows) == sorted([str(number), 'a,"b"'] for number in ids)

    source, target = make_stream(1), make_delivery_stream(kinesis)
    source.put(20)
    stream = spark.readStream.format("kinesis").options(**source.options(initialPosition="TRIM_HORIZON")).load()
    numbers = stream.select(F.col("data").cast("string").alias("number"))
    writer = numbers.writeStream.format("firehose").trigger(availableNow=True)
    given = options(kinesis, target, valueFormat="json", recordDelimiter="\\n", recordIds="true")
    query = writer.options(**given).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    before = [json.loads(line) for line in delivered(kinesis, target).splitlines()]
    assert {one["number"] for one in before} == {data.decode() for data in source.put_keys.values()}
    assert len({one["recordId"] for one in before}) == 20

    # A driver that dies after the sink's commit, before Spark's own: the micro-batch runs again, with the same ids.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for path in (commits[0], commits[0].with_name(f".{commits[0].name}.crc")):
        path.unlink(missing_ok=True)
    query = writer.options(**given).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    after = [json.loads(line) for line in delivered(kinesis, target).splitlines()]
    assert len(after) == 40
    assert {(one["recordId"], one["number"]) for one in after} == {(one["recordId"], one["number"]) for one in before}


def test_firehose_cannot_be_read(spark: SparkSession) -> None:
    """The error says what to read instead, for frames and for streams."""
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="format 'kinesis'"):
            reader.format("firehose").option("deliveryStreamName", "d").load()
    with pytest.raises(SparkPluginError, match="WRITE_ONLY"):
        FirehoseDataSource({}).reader(DATA)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"deliveryStreamNam": "d"}, "UNKNOWN_OPTION", "did you mean 'deliveryStreamName'"),
        ({"deliveryStreamName": "d", "initialPosition": "LATEST"}, "IRRELEVANT_OPTION", "initialPosition"),
        ({"deliveryStreamName": "d", "partitionKeyColumn": "k"}, "IRRELEVANT_OPTION", "partitionKeyColumn"),
        ({"deliveryStreamName": "d", "streamName": "d"}, "CONTRADICTORY_OPTIONS", "deliveryStreamName"),
        ({"deliveryStreamName": "d", "aggregation": "true"}, "IRRELEVANT_OPTION", "aggregation"),
    ],
)
def test_options_without_effect_are_refused(given: dict[str, str], code: str, words: str) -> None:
    """An option of reading, or of streams with keys, would change nothing: it is an error, as is an unknown one."""
    with pytest.raises(OptionError, match=f"{code}.*{words}"):
        FirehoseDataSource(given).writer(DATA, overwrite=False)
