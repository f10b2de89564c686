"""What `hatch run prove matrix` runs in each of its environments: a stream is read and written in all ways.

Prints a line of JSON for each check that is named: whether it holds, and what is to be said of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pyspark
from pyspark.sql import DataFrame, SparkSession

from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.spark_plugin import configure, ensure_java, kinesis_progress, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef
    from pyspark.sql.streaming.query import StreamingQuery

_PATIENCE_SECONDS = 180.0
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
_ORDERS = "orders"
Keys = set[tuple[str, str]]


class Stream:
    """A stream of the emulator, and what was put into it."""

    def __init__(self, endpoint: str, name: str, shards: int) -> None:
        self._client = boto3.client("kinesis", endpoint_url=endpoint)
        self._client.create_stream(StreamName=name, ShardCount=shards)
        self._client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        self.name = name
        self.keys: Keys = set()
        self.options = {"streamName": name, "endpointUrl": endpoint}

    def put(self, count: int) -> None:
        """Put so many records."""
        first = len(self.keys)
        records: list[PutRecordsRequestEntryTypeDef] = [
            {"Data": b"%d" % one, "PartitionKey": str(one)} for one in range(first, first + count)
        ]
        answer = self._client.put_records(StreamName=self.name, Records=records)
        self.keys |= {(one["ShardId"], one["SequenceNumber"]) for one in answer["Records"]}

    def split(self) -> None:
        """Split the first shard."""
        self._client.split_shard(
            StreamName=self.name, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
        )


class Table:
    """A file for each micro-batch, replaced when that runs again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, frame: DataFrame, number: int) -> None:
        """Take a micro-batch."""
        rows = [(row["shardId"], row["sequenceNumber"]) for row in frame.collect()]
        new = self._folder / f"{number}.new"
        new.write_text(json.dumps(rows))
        new.replace(self._folder / f"{number}.json")

    def batches(self) -> list[list[tuple[str, str]]]:
        """The rows of each micro-batch that had any, in order."""
        files = sorted(self._folder.glob("*.json"), key=lambda one: int(one.stem))
        read = [[(shard, number) for shard, number in json.loads(file.read_text())] for file in files]
        return [rows for rows in read if rows]

    def has_more_than(self, count: int) -> bool:
        """Whether there are more micro-batches with rows."""
        return len(self.batches()) > count

    def check(self, put: Keys) -> str:
        """Each record once, in the order of its shard.

        Raises:
            AssertionError: a record is missing, doubled or out of order.
        """
        rows = [row for batch in self.batches() for row in batch]
        assert len(rows) == len(set(rows)), f"{len(rows) - len(set(rows))} rows twice"
        assert set(rows) == put, f"{len(put - set(rows))} records of {len(put)} are missing"
        for shard in {shard for shard, _ in rows}:
            numbers = [int(number) for name, number in rows if name == shard]
            assert numbers == sorted(numbers), f"{shard} is out of order"
        return f"{len(rows)} records"


def until(holds: Callable[[], bool], words: str, query: Any = None) -> None:
    """Wait for something."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        held = holds()
        # Asked behind it: one that fails in between has not just ended.
        if query is not None and query.exception() is not None:
            raise query.exception()
        if held:
            return
        assert time.monotonic() < end, words
        time.sleep(0.05)


def until_ended(query: StreamingQuery, words: str) -> None:
    """Wait for the end of a query, and raise what it failed with."""
    until(lambda: not query.isActive, words, query)


def session() -> SparkSession:
    """The session of this process."""
    builder = configure(SparkSession.builder.master("local[2]").appName("matrix"))
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def start(spark: SparkSession, options: dict[str, str], folder: Path, **trigger: Any) -> Any:
    """A query into the table of a folder."""
    table = Table(folder / "table")
    frame = spark.readStream.format("kinesis").options(**options, initialPosition="TRIM_HORIZON").load()
    writer = frame.writeStream.foreachBatch(table.write).option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start()


def read(endpoint: str, folder: Path, publisher: dict[str, str], name: str) -> str:
    """A stream that is split, read by two runs of a query."""
    stream, table, spark = Stream(endpoint, name, 2), Table(folder / "table"), session()

    def has(count: int) -> Callable[[], bool]:
        return lambda: sum(map(len, table.batches())) >= count

    stream.put(300)
    query = start(spark, stream.options | publisher, folder)
    until(has(300), "the first records do not come", query)
    stream.split()
    stream.put(300)
    until(has(600), "the records after the split do not come", query)
    query.stop()
    stream.put(300)
    query = start(spark, stream.options | publisher, folder)
    until(has(900), "the records of the second run do not come", query)
    query.stop()
    return table.check(stream.keys)


def polling(endpoint: str, folder: Path) -> str:
    """A query that polls."""
    return read(endpoint, folder, {}, "polling")


def efo(endpoint: str, folder: Path) -> str:
    """A query by enhanced fan-out."""
    publisher = {"recordPublisher": "efo", "efoConsumerName": "matrix", "registryStore": str(folder / "registry.db")}
    return read(endpoint, folder, publisher, "efo")


def write(endpoint: str, folder: Path) -> str:
    """The same rows of many types by a DataFrame and by micro-batches: the same records."""
    spark = session()
    rows = spark.range(1000).selectExpr(
        "id",
        "CAST(id AS STRING) AS text",
        "timestamp_micros(1700000000000000 + id) AS at",
        "CAST(id / 100 AS DECIMAL(10,2)) AS amount",
        "IF(id % 3 = 0, NULL, array(id)) AS list",
    )
    rows.write.parquet(str(folder / "rows"))
    written = []
    for name in ("batch", "stream"):
        stream = Stream(endpoint, f"written-{name}", 2)
        options = stream.options | {"valueFormat": "json", "partitionKeyColumn": "text"}
        if name == "batch":
            rows.write.format("kinesis").options(**options).mode("append").save()
        else:
            frame = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
            writer = frame.writeStream.format("kinesis").options(**options).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
            until_ended(query, "the write does not end")
        found = spark.read.format("kinesis").options(**stream.options).load().select("data", "partitionKey").collect()
        written.append(sorted((row["partitionKey"], bytes(row["data"])) for row in found))
    assert len(written[0]) == 1000, f"{len(written[0])} records of 1000"
    assert written[0] == written[1], "a DataFrame and micro-batches differ"
    return "1000 records each"


def available_now(endpoint: str, folder: Path) -> str:
    """Two runs that end by themselves, with a limit; and what the progress tells."""
    stream, table, spark = Stream(endpoint, "available-now", 1), Table(folder / "table"), session()
    sizes, numbers = [], False
    for _ in range(2):
        before = len(table.batches())
        stream.put(250)
        query = start(spark, stream.options | {"maxRecordsPerBatch": "100"}, folder, availableNow=True)
        until_ended(query, "the run does not end")
        sizes.append([len(rows) for rows in table.batches()[before:]])
        numbers = bool(kinesis_progress(query))
    table.check(stream.keys)
    return f"{sizes[0]} records a micro-batch with a limit of 100, {'' if numbers else 'no '}numbers in the progress"


def put_changes(emulator: RunningEmulator, first: int, count: int) -> None:
    """Put so many changes into the stream of the table, numbered from the first on."""

    def put() -> None:
        for number in range(first, first + count):
            keys = {"id": {"S": str(number)}}
            emulator.dynamodb_streams.change(_ORDERS, keys, new=keys)

    emulator.call(put)


def read_changes(spark: Any, folder: Path) -> str:
    """The stream of a table that is split between two runs of a query, and a bounded read of it."""
    # The streams of tables are made within the emulator's process: this one. Reads wait for a minute of the service.
    with running_emulator(tls=False, clock=OtherClock(0, rate=30)) as emulator:
        emulator.call(partial(emulator.dynamodb_streams.enable, _ORDERS))
        options = {"tableName": _ORDERS, "endpointUrl": emulator.endpoint_url, "initialPosition": "TRIM_HORIZON"}
        for run in range(2):
            put_changes(emulator, 20 * run, 20)
            frame = spark.readStream.format("dynamodb-streams").options(**options).load()
            writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
            query = writer.option("path", str(folder / "changes")).trigger(availableNow=True).start()
            until(lambda query=query: not query.isActive, "the run does not end", query)  # type: ignore[misc]
            emulator.call(partial(emulator.dynamodb_streams.split, _ORDERS))
        held = spark.read.format("dynamodb-streams").options(**options).load()
        for name, rows in (("query", spark.read.parquet(str(folder / "changes"))), ("bounded read", held)):
            found = sorted(int(json.loads(row["keys"])["id"]["S"]) for row in rows.select("keys").collect())
            assert found == list(range(40)), f"the {name} gives {len(found)} changes of 40, {len(set(found))} different"
    return "40 changes"


def changes(endpoint: str, folder: Path) -> str:
    """The stream of a DynamoDB table."""
    return read_changes(session(), folder)


def read_in_sql(spark: Any, stream: Stream, count: int) -> None:
    """The function `read_kinesis`, and a view."""
    register(spark)
    named = ", ".join(f"{name} => '{value}'" for name, value in stream.options.items())
    pairs = ", ".join(f"{name} '{value}'" for name, value in stream.options.items())
    spark.sql(f"CREATE TEMPORARY VIEW held USING kinesis OPTIONS ({pairs})")
    for relation in (f"read_kinesis({named})", "held"):
        found = spark.sql(f"SELECT count(*) AS n FROM {relation}").first()["n"]
        assert found == count, f"{found} rows of {count} of {relation}"


def sql(endpoint: str, folder: Path) -> str:
    """What SQL alone reads."""
    stream = Stream(endpoint, "sql", 2)
    stream.put(300)
    read_in_sql(session(), stream, 300)
    return "300 records each"


def kill(endpoint: str, folder: Path) -> str:
    """A driver that is killed twice, each time in the middle of its work."""
    stream, table = Stream(endpoint, "kill", 2), Table(folder / "table")
    for number in range(3):
        stream.put(400)
        before = len(table.batches())
        command = [sys.executable, __file__, endpoint, str(folder), "child"]
        with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as child:
            try:
                if number < 2:
                    until(partial(table.has_more_than, before), "the driver gives nothing")
                    stream.put(100)
                else:
                    until(lambda: sum(map(len, table.batches())) >= len(stream.keys), "records do not come")
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return table.check(stream.keys)


def child(endpoint: str, folder: Path) -> str:
    """The driver that is killed."""
    options = {"streamName": "kill", "endpointUrl": endpoint, "maxRecordsPerBatch": "50", "jobId": "matrix"}
    start(session(), options, folder).awaitTermination()
    return "nobody killed it"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The URL of a server of Spark Connect in a process of its own, at a port that is free."""
    # `remote("local")` would start one at port 15002, whoever has that already.
    settings = {**_SETTINGS, "spark.connect.grpc.binding.port": "0", "spark.sql.warehouse.dir": str(folder / "tables")}
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    log = folder / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder)

    def port() -> str | None:
        assert server.poll() is None, f"the server ended: {log.read_text()[-1000:]}"
        found = re.search(r"Spark Connect server started at: \S+:(\d+)", log.read_text())
        return found and found[1]

    try:
        until(lambda: port() is not None, "the server does not start")
        yield f"sc://127.0.0.1:{port()}"
    finally:
        server.terminate()
        server.wait()


def connect(endpoint: str, folder: Path) -> str:
    """Read, written and streamed by a session of Spark Connect."""
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        os.environ.pop(name, None)
    with connect_server(folder) as url:
        spark = SparkSession.builder.remote(url).getOrCreate()
        try:
            return read_and_write_by(spark, endpoint, folder)
        finally:
            spark.stop()


def read_and_write_by(spark: SparkSession, endpoint: str, folder: Path) -> str:
    """What a session does with a stream, and with the stream of a table."""
    stream = Stream(endpoint, "connect", 1)
    rows = spark.range(300).selectExpr("CAST(id AS STRING) AS data", "CAST(id AS STRING) AS partitionKey")
    rows.write.format("kinesis").options(**stream.options).mode("append").save()
    assert spark.read.format("kinesis").options(**stream.options).load().count() == 300
    live = spark.readStream.format("kinesis").options(**stream.options, initialPosition="TRIM_HORIZON").load()
    writer = live.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("path", str(folder / "rows")).trigger(availableNow=True).start()
    until(lambda: not query.isActive, "the query does not end", query)
    count = spark.read.parquet(str(folder / "rows")).count()
    assert count == 300, f"{count} rows of 300"
    read_in_sql(spark, stream, 300)
    return f"300 records, {read_changes(spark, folder / 'orders')}"


CHECKS: dict[str, Callable[[str, Path], str]] = {
    "polling": polling,
    "efo": efo,
    "write": write,
    "available-now": available_now,
    "dynamodb-streams": changes,
    "sql": sql,
    "kill": kill,
    "connect": connect,
    "child": child,
}


def main(endpoint: str, folder: Path, *names: str) -> None:
    """Run the checks in order, each whatever became of those before."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "SPARK_LOCAL_IP": "127.0.0.1"}
    ensure_java()
    for name in names:
        place = folder if name == "child" else folder / name
        place.mkdir(parents=True, exist_ok=True)
        try:
            told = {"check": name, "passed": True, "words": CHECKS[name](endpoint, place)}
        except Exception as error:
            traceback.print_exc()
            told = {"check": name, "passed": False, "words": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
