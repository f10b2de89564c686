"""A driver that tests kill: reads a stream into files, one for each micro-batch, replaced when that runs again.

It obeys files in its folder: `settings.json` are the query's options, of which new ones make it stop the query and go
on from its checkpoint; `end` makes it stop for good. A query that fails is told in `failures`, and goes on likewise.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark_plugin import KinesisDataSource, configure, ensure_java
from penstock.spark_plugin._reading.stream.plain_reader import PlainStreamReader
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._spark import SPARK_TELLS_LIMITS

FOLDER = Path(sys.argv[1])
HOSTS = sys.argv[2:]
"""Without any, all runs in the driver. Else these are workers of a cluster, where Spark speculates."""
SLOW_FIRST_ATTEMPTS = bool(HOSTS)
COLUMNS = ("shardId", "sequenceNumber", "subSequenceNumber", "partitionKey", "data")


class DawdlingReader(KinesisStreamReader):
    """Takes its time over each partition, so that a worker can be hit while it reads, and tells its process's id."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same rows, some at a time."""
        task = TaskContext.get()
        if task is not None and task.attemptNumber() > 0:
            (FOLDER / "attempts" / f"{task.stageId()}-{task.partitionId()}-{task.attemptNumber()}").touch()
        mark = FOLDER / "reads" / str(os.getpid())
        mark.touch()
        slow = SLOW_FIRST_ATTEMPTS and task is not None and task.partitionId() == 0 and task.attemptNumber() == 0
        for batch in super().read(partition):
            for first in range(0, batch.num_rows, 20):
                yield batch.slice(first, 20)
                time.sleep(3 if slow else 0.01)
                slow = False
        mark.unlink(missing_ok=True)


class DawdlingSource(KinesisDataSource):
    """The source, read by a `DawdlingReader`."""

    @classmethod
    def name(cls) -> str:
        return "dawdling_kinesis"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = DawdlingReader(self._parsed)
        return reader if SPARK_TELLS_LIMITS else PlainStreamReader(reader, self._parsed)


def write(frame: DataFrame, batch_id: int) -> None:
    rows: list[Any] = [[*row[:-1], bytes(row[-1]).decode()] for row in frame.select(*COLUMNS).collect()]
    temporary = FOLDER / f"batch-{os.getpid()}.tmp"
    temporary.write_text(json.dumps(rows))
    temporary.replace(FOLDER / "table" / f"{batch_id}.json")


def run_once(spark: SparkSession, settings: str) -> None:
    """Run the query until it fails, or a test wants something else."""
    parsed = json.loads(settings)
    try:
        frame = spark.readStream.format(parsed["format"]).options(**parsed["options"]).load()
        (FOLDER / "starting").touch()
        query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(FOLDER / "checkpoint")).start()
    except (PySparkException, Py4JJavaError) as refusal:  # the worker in which Spark looks at the source was killed
        note_failure(refusal)
        return
    while query.isActive:
        time.sleep(0.05)
        if (FOLDER / "end").exists() or (FOLDER / "settings.json").read_text() != settings:
            query.stop()
    error = query.exception()
    if error is not None:
        note_failure(error)


def note_failure(error: Exception) -> None:
    with (FOLDER / "failures").open("a") as file:
        file.write(str(error).replace("\n", " | ") + "\n")


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.4",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
    # A task that is the only one of its stage has no others to be compared with.
    "spark.speculation.task.duration.threshold": "500ms",
    "spark.cores.max": str(len(HOSTS)),
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def start_cluster() -> str:
    """A master, and a worker of one core on each of the hosts, in this JVM; gives its address.

    Spark does not speculate in `local`, and makes no copy of a task on the host of the first, as `local-cluster`'s only
    one is.
    """
    SparkContext._ensure_initialized(gateway=launch_gateway())  # type: ignore[no-untyped-call]  # not in its stub
    jvm: Any = SparkContext._jvm
    conf, deploy = jvm.org.apache.spark.SparkConf(), jvm.org.apache.spark.deploy
    conf.set("spark.worker.cleanup.enabled", "false")
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1()
    url = master.address().toSparkURL()
    urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]  # it is there by now
    urls[0] = url
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            *(host, 0, 0, 1, 600, urls, str(FOLDER / f"work-{number}"), jvm.scala.Some(number), conf),
            jvm.scala.Option.empty(),
        )
    return str(url)


def main() -> None:
    ensure_java()
    builder = configure(SparkSession.builder.master(start_cluster() if HOSTS else "local[2,8]"))
    for name, value in SPECULATION.items() if HOSTS else ():
        builder = builder.config(name, value)
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DawdlingSource)
    while not (FOLDER / "end").exists():
        run_once(spark, (FOLDER / "settings.json").read_text())
    (FOLDER / "ended").touch()
    spark.stop()


if __name__ == "__main__":
    main()
