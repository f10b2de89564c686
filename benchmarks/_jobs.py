"""A Spark session for benchmarks, tables for it to read, and streams of files."""

import atexit
import functools
import shutil
import tempfile
import uuid
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

from penstock.emulator.testing import EmulatorProcess
from penstock.spark_plugin import configure, ensure_java
from penstock.spark_plugin.testing import endpoint_options

FILES = 8


@functools.cache
def session() -> SparkSession:
    """A local session on two cores, with the plugin's settings."""
    ensure_java()
    builder = configure(SparkSession.builder.master("local[2]").appName("penstock bench"))
    settings = {
        "spark.driver.memory": "6g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@functools.cache
def folder() -> Path:
    """A folder for the whole benchmark; it goes with the process."""
    made = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def fresh(name: str) -> Path:
    """A new path in the folder."""
    return folder() / f"{name}-{uuid.uuid4().hex[:8]}"


@functools.cache
def table(rows: int, keys: int, files: int = 4, *, text: bool = False) -> str:
    """A Parquet table of `k` (or `name`, the same as text) and `v`; every key about equally often."""
    path = str(fresh("table"))
    spark = session()
    key = F.col("id") * 7919 % keys
    value = (F.col("id") % 1000).alias("v")
    columns = (name_of(key) if text else key.alias("k"), value)
    spark.range(rows, numPartitions=files).select(*columns).write.parquet(path)
    return path


def name_of(key: Column) -> Column:
    """A key as text, in the column `name`."""
    return F.format_string("key-%06d", key).alias("name")


@functools.cache
def stream_files(rows: int, keys: int, files: int = FILES) -> str:
    """Files that a stream takes one by one."""
    path = str(fresh("stream"))
    spark = session()
    spark.range(rows * files, numPartitions=files).select((F.col("id") % keys).alias("k")).write.parquet(path)
    return path


def stream(path: str, schema: str = "k long") -> DataFrame:
    """A stream of one file per micro-batch."""
    return session().readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)


def batch_millis(query: StreamingQuery, *, first: int = 1) -> list[float]:
    """Milliseconds of each micro-batch with rows, from number `first` on."""
    return [
        float(one["durationMs"]["triggerExecution"])
        for one in query.recentProgress
        if one["batchId"] >= first and one["numInputRows"] > 0
    ]


def fan_out_options(emulator: EmulatorProcess, stream: str, **more: str) -> dict[str, str]:
    """Options of a read of all of an emulator's stream by a stream consumer and a registry of its own, over TLS."""
    return endpoint_options(
        emulator.tls_endpoint_url,
        stream,
        caBundle=str(emulator.ca_file),
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="bench",
        registryStore=str(fresh("registry")),
        **more,
    )
