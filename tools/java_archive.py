"""Classes that Spark's JVMs have loaded, archived: those of the tests start in half the processor time.

`hatch run test` makes it once for an environment, which takes half a minute; the root's `conftest.py` names it to all
JVMs that tests start. Java leaves an archive aside that is not of its own build and class path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVMs of tests live for minutes at most: they gain nothing from the second compiler, nor from several threads that
collect garbage, which take a quarter of the processor time."""
ARCHIVE = Path(sys.prefix) / "share" / f"spark-{version('pyspark')}-classes.jsa"
# Without the log: it would be among what a JVM prints.
USING = f"{FLAGS} -Xshare:auto -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"

# What most tests have Spark do. A server of Spark Connect starts beside the session.
_WORK = """\
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader


class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        yield (1,)


class StreamReader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def read(self, start):
        return iter([(start["at"],)]), {"at": start["at"] + 1}

    def readBetweenOffsets(self, start, end):
        return iter([(start["at"],)])


class Source(DataSource):
    @classmethod
    def name(cls):
        return "work"

    def schema(self):
        return "number int"

    def reader(self, schema):
        return Reader()

    def simpleStreamReader(self, schema):
        return StreamReader()


folder = Path(sys.argv[1])
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": str(folder / "warehouse"),
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": "0",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Source)
rows = spark.range(100).withColumn("key", F.col("id") % 3).withColumn("text", F.col("id").cast("string"))
rows.createOrReplaceTempView("rows")
grouped = spark.sql("SELECT key, count(*) AS n, max(text) AS most FROM rows GROUP BY key ORDER BY key")
joined = grouped.join(rows, "key")
joined.mapInArrow(lambda batches: batches, joined.schema).collect()
rows.write.mode("overwrite").parquet(str(folder / "table"))
spark.read.parquet(str(folder / "table")).where("id > 3").toPandas()
spark.createDataFrame([(1, "a")], "id long, name string").collect()
spark.read.format("work").load().count()
stream = spark.readStream.format("work").load()
writer = stream.writeStream.foreachBatch(lambda frame, batch_id: frame.collect()).trigger(availableNow=True)
writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def make() -> bool:
    """Make the archive if it is not there; whether it is now."""
    if ARCHIVE.exists():
        return True
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        options = f"{FLAGS} -XX:ArchiveClassesAtExit={made} -Xlog:cds=off -Xlog:cds+dynamic=off"
        work = Path(folder) / "work.py"
        work.write_text(_WORK)
        ended = subprocess.run(
            [sys.executable, str(work), folder],
            env={**os.environ, "JAVA_TOOL_OPTIONS": options, "PYSPARK_PYTHON": sys.executable},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if ended.returncode or not made.exists():
            print(f"no archive of Java classes, so JVMs start more slowly:\n{ended.stderr[-2000:]}", file=sys.stderr)
            return False
        made.replace(ARCHIVE)
    return True


if __name__ == "__main__":
    make()
