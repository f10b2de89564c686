"""Aggregates through Spark: the same user records in a stream and in a bounded read, and what progress says of them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from pyspark.sql import SparkSession

from penstock.efo_consumer import ShardPosition, ShardRange
from penstock.emulator.testing import OtherClock, UserRecord, aggregate, partition_keys_in, running_emulator
from penstock.rpc import ClientSecurity
from penstock.spark_plugin import KinesisOptions, kinesis_progress
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.stream.partition import KinesisPartition, read_partition
from penstock.spark_plugin.testing import endpoint_options

COLUMNS = ["shardId", "sequenceNumber", "subSequenceNumber", "partitionKey", "data"]
PARENT = "shardId-000000000000"
LOWER, UPPER = partition_keys_in(0, 2**127 - 1, 3), partition_keys_in(2**127, 2**128 - 1, 5)


class Reads:
    """Ways to read a stream from its beginning to now, each with all of its rows."""

    def __init__(self, spark: SparkSession, source: Any, collected: Any, folder: Path) -> None:
        self._spark = spark
        self._source = source
        self._collected = collected
        self._folder = folder

    def bounded(self, **options: str) -> list[Any]:
        frame = self._spark.read.format("kinesis").options(**self._source.options(**options)).load()
        return sorted(frame.select(COLUMNS).collect())

    def stream(self, name: str, **options: str) -> list[Any]:
        options = self._source.options(initialPosition="TRIM_HORIZON", **options)
        self._collected.batches = {}
        frame = self._spark.readStream.format("kinesis").options(**options).load().select(COLUMNS)
        writer = frame.writeStream.foreachBatch(self._collected).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / name)).start()
        query.awaitTermination()
        return sorted(row for rows in self._collected.batches.values() for row in rows)


@pytest.fixture
def reads_of(spark: SparkSession, collected: Any, tmp_path: Path) -> Callable[[Any], Reads]:
    return lambda source: Reads(spark, source, collected, tmp_path)


def data_of(rows: list[Any]) -> Counter[bytes]:
    return Counter(bytes(row["data"]) for row in rows)


def split(source: Any) -> None:
    """Split the only shard in halves, and put what the Kinesis Producer Library puts that has not seen it."""
    source.client.split_shard(StreamName=source.name, ShardToSplit=PARENT, NewStartingHashKey=str(2**127))
    source.client.get_waiter("stream_exists").wait(StreamName=source.name, WaiterConfig={"Delay": 1})
    put_stale(source.client, source.name)


def put_stale(client: Any, stream: str) -> None:
    """An aggregate of both children goes to the lower one, and what belongs to the upper one is sent again."""
    for keys in ([*LOWER, *UPPER], UPPER):
        records = [UserRecord(key.encode(), key) for key in keys]
        hash_key = str(records[0].hash_key)
        client.put_record(StreamName=stream, PartitionKey="a", ExplicitHashKey=hash_key, Data=aggregate(records))


def test_user_records_that_come_again_after_a_split_come_once_unless_all_are_asked_for(
    make_stream: Callable[[int], Any], reads_of: Callable[[Any], Reads]
) -> None:
    """By a stream and by a bounded read; with `deaggregate=all` they come as often as they were put."""
    source = make_stream(1)
    split(source)
    reads = reads_of(source)
    rows = reads.bounded()
    assert data_of(rows) == Counter(key.encode() for key in (*LOWER, *UPPER))
    assert reads.stream("polling") == rows
    every = reads.bounded(deaggregate="all")
    assert data_of(every) == Counter(key.encode() for key in (*LOWER, *UPPER, *UPPER))
    assert reads.stream("all", deaggregate="all") == every


def test_progress_counts_user_records_outside_of_their_shard(
    spark: SparkSession,
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Dropped ones and delivered ones apart; the report of a micro-batch has what was read before it."""
    source = make_stream(2)
    source.client.split_shard(StreamName=source.name, ShardToSplit=PARENT, NewStartingHashKey=str(2**126))
    source.client.get_waiter("stream_exists").wait(StreamName=source.name, WaiterConfig={"Delay": 1})
    own, of_sibling = partition_keys_in(0, 2**126 - 1, 2), partition_keys_in(2**126, 2**127 - 1, 4)
    data = aggregate(UserRecord(key.encode(), key) for key in (*own, *of_sibling, *UPPER))
    source.client.put_record(StreamName=source.name, PartitionKey="a", ExplicitHashKey="0", Data=data)
    frame = spark.readStream.format("kinesis").options(**source.options(initialPosition="TRIM_HORIZON")).load()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        until(lambda: len(collected.keys) == len(own) + len(UPPER), "user records are missing", query=query)
        source.put(1)

        def counts() -> list[tuple[int, int]]:
            numbers = [one.numbers for one in kinesis_progress(query)]
            return [(one.user_records_of_siblings, one.user_records_outside_shard) for one in numbers]

        expected = [(len(of_sibling), len(UPPER))]
        until(lambda: counts() == expected, lambda: f"progress counts {counts()}", query=query)
    finally:
        query.stop()


@pytest.mark.parametrize("deaggregates", [True, "all"])
def test_task_that_reads_in_place_of_its_reader_does_what_that_does(
    make_stream: Callable[[int], Any], deaggregates: Any
) -> None:
    """No reader is at the address: the task reads the range from Kinesis."""
    source = make_stream(1)
    split(source)
    lower = "shardId-000000000001"
    part = ShardRange(source.name, lower, ShardPosition.trim_horizon(), ShardPosition.shard_end())
    source.client.split_shard(StreamName=source.name, ShardToSplit=lower, NewStartingHashKey=str(2**126))
    partition = KinesisPartition(
        address="127.0.0.1:1",
        security=ClientSecurity(),
        session_id="none",
        ranges=(part,),
        with_encryption_type=False,
        traceparent=None,
        patience_seconds=60.0,
        deaggregates=deaggregates,
    )
    batches = read_partition(partition, KinesisOptions.parse(source.options()))
    expected = [*LOWER, *UPPER] if deaggregates == "all" else LOWER
    assert [data for batch in batches for data in batch.column("data").to_pylist()] == [
        key.encode() for key in expected
    ]


def test_bounded_read_that_begins_after_a_parent_ended_drops_what_a_stream_drops() -> None:
    """The list of shards since a time has neither the parent nor a sibling that was split as well."""
    clock = OtherClock(0.0)
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.split_shard(StreamName="flights", ShardToSplit=PARENT, NewStartingHashKey=str(2**127))
        # ListShards of a hostile service lags behind.
        upper = emulator.call(lambda: str(emulator.kinesis.streams["flights"].shards[2].id))
        client.split_shard(StreamName="flights", ShardToSplit=upper, NewStartingHashKey=str(2**127 + 2**126))
        clock.advance(600)
        begin = clock.time()
        clock.advance(600)
        put_stale(client, "flights")
        options = endpoint_options(emulator.endpoint_url, "flights", startingPosition=f"{begin:.0f}")
        reader = KinesisBatchReader(KinesisOptions.parse(options))
        rows = [
            data
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for data in batch.column("data").to_pylist()
        ]
    assert sorted(rows) == sorted(key.encode() for key in (*LOWER, *UPPER))


def test_user_records_of_any_key_arrive_in_a_stream_of_two_shards(
    make_stream: Callable[[int], Any], reads_of: Callable[[Any], Reads]
) -> None:
    """AWS's own aggregator packs them without regard to shards, and sends none of them again."""
    source = make_stream(2)
    packed = RecordAggregator()
    for number in range(1_000):
        packed.add_user_record(f"key {number}", b"%d" % number)
    key, _, data = packed.clear_and_get().get_contents()
    source.client.put_record(StreamName=source.name, PartitionKey=key, Data=bytes(data))
    reads = reads_of(source)
    rows = reads.bounded()
    assert data_of(rows) == Counter(b"%d" % number for number in range(1_000))
    assert [row["subSequenceNumber"] for row in rows] == [*range(1_000)]
    assert reads.stream("polling") == rows
    efo = {"recordPublisher": "efo", "efoConsumerName": "aggregates", "efoRegistration": "eager"}
    assert reads.stream("efo", **efo) == rows
