"""Streams that Kinesis is still creating: reads, queries and writes wait for them, and say so."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.emulator._operations.perform import OPERATIONS
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.stream.query_streams import QueryStreams
from penstock.spark_plugin.testing import endpoint_options

DATA = [b"%d" % number for number in range(5)]


class World:
    """An emulator whose streams take an hour of a clock that can be moved."""

    def __init__(self, emulator: RunningEmulator, clock: OtherClock) -> None:
        self.emulator, self.clock = emulator, clock
        self.client = emulator.client()
        self.looked = threading.Event()
        """Set when somebody has asked for the status of a stream."""

    def create(self, name: str = "flights") -> None:
        self.client.create_stream(StreamName=name, ShardCount=1)

    def options(self, **options: str) -> dict[str, str]:
        return endpoint_options(self.emulator.endpoint_url, "flights", **options)

    def finish(self, *, with_records: bool) -> None:
        """Let the stream be ACTIVE as soon as somebody waits for it."""

        def finish() -> None:
            assert self.looked.wait(60)
            self.clock.advance(3600)
            if with_records:
                records = [{"Data": one, "PartitionKey": "k"} for one in DATA]
                self.client.put_records(StreamName="flights", Records=records)

        threading.Thread(target=finish, name="finish the stream", daemon=True).start()

    def held(self) -> list[bytes]:
        shard = {"StreamName": "flights", "ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self.client.get_shard_iterator(**shard)["ShardIterator"]
        return sorted(one["Data"] for one in self.client.get_records(ShardIterator=iterator)["Records"])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = OtherClock(0)
    delay = timedelta(hours=1)
    with running_emulator(
        clock=clock, enforce_limits=False, stream_creation_delay=delay, stream_deletion_delay=delay
    ) as emulator:
        found = World(emulator, clock)
        describe = OPERATIONS["DescribeStreamSummary"]

        def noted(*arguments: Any) -> Any:
            answer = describe(*arguments)
            found.looked.set()
            return answer

        monkeypatch.setitem(OPERATIONS, "DescribeStreamSummary", noted)
        yield found


def test_bounded_read_waits_for_the_stream(spark: SparkSession, world: World) -> None:
    """It ends at the time at which the stream is there."""
    world.create()
    world.finish(with_records=True)
    rows = spark.read.format("kinesis").options(**world.options()).load().select("data").collect()
    assert sorted(bytes(row.data) for row in rows) == DATA


@pytest.mark.parametrize("publisher", ["polling", "efo"])
def test_query_waits_for_the_stream(
    spark: SparkSession, world: World, until: Callable[..., None], publisher: str
) -> None:
    """A stream consumer is registered when the stream is there."""
    world.create()
    world.finish(with_records=True)
    options = world.options(initialPosition="TRIM_HORIZON", recordPublisher=publisher)
    if publisher == "efo":
        options |= {"efoConsumerName": "c", "endpointUrl": world.emulator.tls_endpoint_url}
        options |= {"caBundle": str(world.emulator.ca_file)}
    frame = spark.readStream.format("kinesis").options(**options).load()
    name = f"creating_{publisher}"
    query = frame.writeStream.format("memory").queryName(name).start()
    until(lambda: spark.table(name).count() == len(DATA), "the records do not come")
    query.stop()


def test_write_waits_for_the_stream(spark: SparkSession, world: World) -> None:
    """Its records are there, each once."""
    world.create()
    world.finish(with_records=False)
    frame = spark.createDataFrame([(one, "k") for one in DATA], "data binary, partitionKey string").coalesce(1)
    options = world.options(aggregation="true", maxAttempts="1")
    frame.write.format("kinesis").options(**options).mode("append").save()
    rows = spark.read.format("kinesis").options(**world.options()).load().select("data").collect()
    assert sorted(bytes(row.data) for row in rows) == DATA


def test_read_ends_with_the_status_when_its_patience_is_over(world: World) -> None:
    """By every way to read."""
    world.create()
    options = world.options(retryPatience="1s")
    for read in (
        KinesisBatchReader(KinesisOptions.parse(options)).partitions,
        QueryStreams(KinesisOptions.parse(options)).initial,
    ):
        with pytest.raises(Exception, match=r"flights.*CREATING"):
            read()
