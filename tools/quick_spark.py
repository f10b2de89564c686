"""A home of Spark for tests, whose processes are quick to start: PySpark's own one, with what it loads prepared.

`hatch run test` makes it once for an environment, which takes half a minute; the root's `conftest.py` names it to all
processes that tests start. Four things are of its own:

- An archive of the classes that Spark's JVMs load: they start in half the processor time. Java leaves an archive aside
  that is not of its own build and class path.
- `pyspark.zip`, from which Spark has its Python workers import PySpark, is a folder of compiled modules. Python keeps
  nothing that it compiles of a zip file, so each worker would compile all of PySpark again, most of a second's work;
  and it would read the zip file's directory sixteen times at the start of each task.
- The daemon of Python workers in it, which imports what they need before it forks them: each would do it again.
- The process of a streaming source in it, which connects to its JVM before it imports PySpark. Spark waits ten seconds
  for that, which no setting prolongs, and imports take longer on a busy machine.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from importlib.metadata import version
from pathlib import Path

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.streaming.pollingDelay=100"
"""The JVMs of tests live for minutes at most: they gain nothing from the second compiler, nor from several threads that
collect garbage, which take a quarter of the processor time. Nor need a query that waits for files list them 100 times a
second, as Spark has it, which takes a fifth of a processor."""
HOME = Path(sys.prefix) / "share" / f"spark-{version('pyspark')}-{zlib.crc32(Path(__file__).read_bytes()):08x}"
"""Created again for another PySpark, and when this file changes."""
ARCHIVE = HOME / "classes.jsa"
_OPTIONS = "JAVA_TOOL_OPTIONS"
_DAEMON = "pyspark/daemon.py"
_START = 'if __name__ == "__main__":\n'
_IMPORTING_START = """\
if __name__ == "__main__":
    if sys.argv[1] == "pyspark.worker":
        import importlib, importlib.util

        for name in ("pyspark.worker", "pandas", "pyspark_kinesis"):
            if importlib.util.find_spec(name):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()
"""
"""For workers of tasks, of which there are some at a time; of those that plan or commit there is one."""

_PACKAGE = "pyspark/__init__.py"
_JARLESS_START = """\
def _forget_jars():
    import sys

    for place in [*sys.path, *sys.path_importer_cache]:
        if ".jar" in place:
            sys.path_importer_cache.pop(place, None)
    sys.path[:] = [place for place in sys.path if not place.endswith(".jar")]


_forget_jars()
"""
"""Spark puts the archive of its classes on the path of modules, and Python reads its directory as often."""
_CONNECTING_START = """\
def _connect_first():
    import os, sys

    port, secret = (os.environ.get(f"PYTHON_WORKER_FACTORY_{name}") for name in ("PORT", "SECRET"))
    if not (port and secret) or "pyspark.sql.streaming.python_streaming_source_runner" not in sys.orig_argv:
        return None
    import socket

    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
    connection = socket.create_connection((host, int(port)))
    connection.sendall(len(secret.encode()).to_bytes(4, "big") + secret.encode())
    return connection


_connected_first = _connect_first()
"""
_CONNECTION = "pyspark/util.py"
_CONNECT = "    is_unix_domain_socket = isinstance(conn_info, str) and auth_secret is None\n"
_CONNECTED = """\
    import pyspark

    if pyspark._connected_first is not None:
        from pyspark.serializers import UTF8Deserializer

        sockfile = pyspark._connected_first.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536)))
        assert UTF8Deserializer().loads(sockfile) == "ok"
        return (sockfile, pyspark._connected_first)
"""

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


def use() -> None:
    """Let all processes that this one starts take the home, if it is there."""
    if ARCHIVE.exists():
        # Without Java's log: it would be among what a JVM prints.
        # The archive is used at its intended address: relocating it takes a tenth of a second in each JVM.
        in_place = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
        archive = f"-Xshare:auto -XX:SharedArchiveFile={ARCHIVE} {in_place} -Xlog:cds=off -Xlog:cds+dynamic=off"
        options = f"{FLAGS} {archive}"
        os.environ["SPARK_HOME"] = str(HOME)
    else:
        options = FLAGS
    os.environ[_OPTIONS] = f"{options} {os.environ.get(_OPTIONS, '')}".strip()


def make() -> bool:
    """Make the home if it is not there; whether it is now. The archive is made last: it says that all is there."""
    if ARCHIVE.exists():
        return True
    import pyspark

    installed = Path(pyspark.__file__).parent
    for part in ("bin", "data", "jars", "sbin"):
        _link(HOME / part, installed / part)
    libraries = HOME / "python" / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    for library in (installed / "python" / "lib").iterdir():
        _unpacked(library, libraries / library.name)
    return _archived()


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _unpacked(library: Path, folder: Path) -> None:
    """Make a folder of a zip file of modules, compiled, without PySpark's own tests."""
    with zipfile.ZipFile(library) as modules:
        names = [name for name in modules.namelist() if "/tests/" not in name]
        modules.extractall(folder, names)
    # Another Spark connects in another way, and is left as it is.
    changes = {_DAEMON: (_START, _IMPORTING_START), _PACKAGE: ("", _JARLESS_START)}
    if _CONNECTION in names and _CONNECT in (folder / _CONNECTION).read_text():
        changes |= {_PACKAGE: ("", _JARLESS_START + _CONNECTING_START), _CONNECTION: (_CONNECT, _CONNECTED + _CONNECT)}
    for name, (found, replacement) in changes.items():
        if name in names:
            module = folder / name
            module.write_text(module.read_text().replace(found, replacement, 1))
    compileall.compile_dir(folder, quiet=2)


def _archived() -> bool:
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        made = Path(folder) / ARCHIVE.name
        options = f"{FLAGS} -XX:ArchiveClassesAtExit={made} -Xlog:cds=off -Xlog:cds+dynamic=off"
        work = Path(folder) / "work.py"
        work.write_text(_WORK)
        ended = subprocess.run(
            [sys.executable, str(work), folder],
            env={**os.environ, _OPTIONS: options, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
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
