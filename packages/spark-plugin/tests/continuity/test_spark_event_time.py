"""Windows in event time over a backlog, and over shards that are unlike: they add up to what a bounded read gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_fixtures import wait_until

from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.rpc.testing import service_process
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin.testing import endpoint_options

MINUTE = 60.0
STREAM = "flights"
WAYS = pytest.mark.parametrize("publisher", ["polling", "efo"])


class Backlog:
    """A stream that was written for an hour before anybody reads it."""

    def __init__(self, emulator: RunningEmulator, clock: OtherClock, shards: int) -> None:
        self.emulator = emulator
        self.clock = clock
        self.client: Any = emulator.client()
        self.client.create_stream(StreamName=STREAM, ShardCount=shards)
        self.arn = self.client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
        self.count = 0

    def put(self, shard: int, count: int, *, size: int = 10) -> None:
        """Put records into one of the open shards, in the order of their ids."""
        key = str(self._open_shards()[shard].hash_keys.start)
        entry = {"PartitionKey": "k", "ExplicitHashKey": key}
        entries = [{**entry, "Data": str(self.count + number).encode().ljust(size)} for number in range(count)]
        self.count += count
        for at in range(0, count, 500):
            answer = self.client.put_records(StreamName=STREAM, Records=entries[at : at + 500])
            assert not answer["FailedRecordCount"]

    def split(self, shard: int) -> None:
        """Split one of the open shards, and wait until the stream is active again."""
        parent = self._open_shards()[shard]
        middle = (parent.hash_keys.start + parent.hash_keys.end) // 2
        self.client.split_shard(StreamName=STREAM, ShardToSplit=str(parent.id), NewStartingHashKey=str(middle))
        wait_until(self._is_active, "the stream is not active")

    def _open_shards(self) -> list[Any]:
        # A listing of a hostile service lags behind.
        stream = self.emulator.kinesis.streams[STREAM]
        return self.emulator.call(lambda: [shard for shard in stream.shards if shard.is_open])

    def _is_active(self) -> bool:
        summary = self.client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
        return bool(summary["StreamStatus"] == "ACTIVE")

    def options(self, publisher: str = "polling", **options: str) -> dict[str, str]:
        """Options of a query that begins with what there is."""
        options = {"initialPosition": "TRIM_HORIZON", "recordPublisher": publisher, **options}
        if publisher == "efo":
            names = [one["ConsumerName"] for one in self.client.list_stream_consumers(StreamARN=self.arn)["Consumers"]]
            if "reader" not in names:
                self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName="reader")
            consumer = self.client.describe_stream_consumer(StreamARN=self.arn, ConsumerName="reader")
            arn = consumer["ConsumerDescription"]["ConsumerARN"]
            options |= {"efoRegistration": "none", f"efoConsumerArn.{STREAM}": arn}
        return endpoint_options(self.emulator.endpoint_url, STREAM, **options)


@contextmanager
def backlog(shards: int) -> Iterator[Backlog]:
    """A stream whose service's clock is an hour behind and can be moved on."""
    clock = OtherClock(-61 * MINUTE)
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        yield Backlog(emulator, clock, shards)


@pytest.fixture
def make_backlog() -> Iterator[Callable[[int], Any]]:
    """Makes a stream with a number of shards."""
    with ExitStack() as stack:
        yield lambda shards: stack.enter_context(backlog(shards))


def write_unlike_shards(
    source: Backlog, *, minutes: int = 60, loads: tuple[int, ...] = (1, 50), size: int = 10
) -> None:
    """Write for an hour, each shard as many records a minute as its load."""
    for _ in range(minutes):
        for shard, load in enumerate(loads):
            source.put(shard, load, size=size)
        source.clock.advance(MINUTE)


def windows(spark: SparkSession, options: dict[str, str], folder: Path, delay: str) -> dict[Any, int]:
    """Count by windows of five minutes of arrival, with a watermark, by a query that reads what there is."""
    counted: dict[Any, int] = {}

    def take(frame: DataFrame, _batch: int) -> None:
        counted.update({row["start"]: row["count"] for row in frame.collect()})

    query = (
        by_window(spark.readStream.format("kinesis").options(**options).load().withWatermark(TIME, delay))
        .writeStream.outputMode("update")
        .foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    dropped = [
        state["numRowsDroppedByWatermark"] for progress in query.recentProgress for state in progress["stateOperators"]
    ]
    assert sum(dropped) == 0
    return counted


TIME = "approximateArrivalTimestamp"


def by_window(frame: DataFrame) -> DataFrame:
    """Count by windows of five minutes of arrival."""
    return frame.groupBy(F.window(TIME, "5 minutes")).count().select("window.start", "count")


def bounded(spark: SparkSession, source: Backlog) -> dict[Any, int]:
    """The same of a bounded read."""
    frame = by_window(spark.read.format("kinesis").options(**source.options()).load())
    return {row["start"]: row["count"] for row in frame.collect()}


@pytest.mark.parametrize(
    ("publisher", "limits"),
    [
        pytest.param("polling", {"maxRecordsPerBatch": "300"}, id="records"),
        pytest.param("efo", {"maxRecordsPerShardPerBatch": "150"}, id="records of a shard"),
        pytest.param("polling", {"maxBytesPerBatch": "2k"}, id="bytes"),
        pytest.param("efo", {"bufferBytesPerShard": "64k", "getRecordsMaxRecords": "100"}, id="buffers"),
    ],
)
def test_windows_over_a_backlog_of_unlike_shards_are_whole(
    spark: SparkSession,
    make_backlog: Callable[[int], Backlog],
    tmp_path: Path,
    publisher: str,
    limits: dict[str, str],
) -> None:
    """One shard has fifty times the load of another: however small a micro-batch is, they stay together."""
    source = make_backlog(2)
    write_unlike_shards(source, size=1000 if "bufferBytesPerShard" in limits else 10)
    counted = windows(spark, source.options(publisher, **limits), tmp_path, "5 minutes")
    assert sum(counted.values()) == source.count == 60 * 51
    assert counted == bounded(spark, source)


def test_a_join_of_two_streams_over_a_backlog_finds_every_pair(
    spark: SparkSession, make_backlog: Callable[[int], Backlog], tmp_path: Path
) -> None:
    """Each side is unlike in its shards; state that the watermark has passed is gone."""
    sides = []
    for _ in range(2):
        source = make_backlog(2)
        write_unlike_shards(source, minutes=30, loads=(1, 20))
        rows = spark.readStream.format("kinesis").options(**source.options(maxRecordsPerBatch="100")).load()
        sides.append(rows.withWatermark(TIME, "5 minutes").select("data", TIME))
    left, right = sides[0].alias("a"), sides[1].alias("b")
    near = F.expr(f"a.data = b.data AND abs(timestampdiff(SECOND, a.{TIME}, b.{TIME})) <= 120")
    lasts = F.expr(f"a.{TIME} >= b.{TIME} - INTERVAL 2 MINUTES AND a.{TIME} <= b.{TIME} + INTERVAL 2 MINUTES")
    assert read_what_is_there(left.join(right, near & lasts), tmp_path) == source.count


def read_what_is_there(frame: DataFrame, folder: Path) -> int:
    """Count the rows of a query that reads what there is."""
    counts: list[int] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(300)
    return sum(counts)


def lateness(options: dict[str, str]) -> tuple[int, float]:
    """Read what there is by the calls that Spark makes.

    Returns the number of rows, and by how many seconds one was older than the latest of all earlier micro-batches.
    """
    reader = KinesisStreamReader(KinesisOptions.parse(options))
    try:
        reader.prepareForTriggerAvailableNow()
        start, rows, latest, late = reader.initialOffset(), 0, float("-inf"), 0.0
        while True:
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            if end == start:
                return rows, late
            batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
            times = [time.timestamp() for batch in batches for time in batch.column(TIME).to_pylist()]
            rows += len(times)
            late = max(late, latest - min(times, default=latest))
            latest = max([latest, *times])
            reader.commit(start)
            start = end
    finally:
        reader.stop()


@WAYS
@pytest.mark.parametrize("services", [0, 2])
def test_micro_batches_are_in_order_wherever_shards_are_read(
    make_backlog: Callable[[int], Backlog], tmp_path: Path, publisher: str, services: int
) -> None:
    """By the query's own reader, by a service and by two of them: within a minute, and a second for arrival times."""
    source = make_backlog(3)
    write_unlike_shards(source, minutes=30, loads=(1, 5, 30))
    source.split(1)
    write_unlike_shards(source, minutes=20, loads=(1, 30, 2, 2))
    options = source.options(publisher, maxRecordsPerBatch="250")
    with ExitStack() as stack:
        if services:
            addresses = [stack.enter_context(shard_reader(source, tmp_path)) for _ in range(services)]
            options |= {"readerEndpoint": ",".join(addresses), "serviceToken": TOKEN}
        rows, late = lateness(options)
    assert rows == source.count
    assert late <= 61.0


def test_off_gives_each_micro_batch_what_was_read(make_backlog: Callable[[int], Backlog]) -> None:
    """Shards may be far apart then."""
    source = make_backlog(1)
    for _ in range(4):
        for _ in range(10):
            source.put(0, 1)
            source.put(-1, 1)
            source.clock.advance(MINUTE)
        source.split(-1)
    rows, late = lateness(source.options(maxShardSkew="off"))
    assert rows == source.count
    assert late > 600


TOKEN = "a-secret-of-these-tests-that-is-long-enough"


@contextmanager
def shard_reader(source: Backlog, folder: Path) -> Iterator[str]:
    """The address of a shard-reader service."""
    token = folder / "token"
    token.write_text(TOKEN)
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "PATH": ""}
    url = source.emulator.endpoint_url
    command = ["serve", "--region", "us-east-1", "--endpoint-url", url, "--token-file", str(token)]
    with service_process("penstock.services.shard_reader", command, environment) as service:
        yield service.address
