"""Outages of Kinesis under Spark: they cost time, no query and no rows; progress says what is the matter."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.emulator.testing import RunningEmulator
from penstock.spark_plugin import kinesis_progress
from penstock.spark_plugin._spark import SPARK_TELLS_LIMITS

PUBLISHERS = {
    "polling": {"recordPublisher": "polling"},
    "efo": {"recordPublisher": "efo", "efoConsumerName": "tests"},
}


@pytest.fixture(autouse=True)
def no_faults(kinesis: RunningEmulator) -> Iterator[None]:
    """All tests share the emulator."""
    yield
    kinesis.faults.clear()


def fail(kinesis: RunningEmulator, stream: str) -> None:
    """Let every call that reads the stream fail, and cut its subscriptions."""
    for operation in ("SubscribeToShard", "GetShardIterator", "GetRecords"):
        kinesis.faults.add("error", operation=operation, code="InternalFailure", stream=stream)
    kinesis.faults.add("reset", operation="SubscribeToShard", stream=stream, count=1)


def hits(kinesis: RunningEmulator) -> int:
    return sum(fault["hits"] for fault in kinesis.faults.list())


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_a_query_lives_through_seconds_of_failures(
    spark: SparkSession,
    kinesis: RunningEmulator,
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
    publisher: str,
) -> None:
    """With the default options; meanwhile `lastProgress` has the cause, and a lag that grows."""
    source = make_stream(1)
    source.put(20)
    options = source.options(initialPosition="TRIM_HORIZON", **PUBLISHERS[publisher])
    if publisher == "efo":
        options["registryStore"] = str(tmp_path / "registry.db")
    frame = spark.readStream.format("kinesis").options(**options).load()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    until(lambda: len(collected.keys) >= 20, "the records do not arrive", query=query)
    fail(kinesis, source.name)
    source.put(20)
    until(lambda: hits(kinesis) >= 4, "nothing fails", query=query)
    if SPARK_TELLS_LIMITS:

        def is_told() -> bool:
            (one,) = kinesis_progress(query)
            numbers = one.numbers
            return numbers.shards_refused == 1 and numbers.max_millis_behind_latest > 1000

        until(is_told, lambda: f"not told: {query.lastProgress}", query=query)
        (progress,) = kinesis_progress(query)
        assert progress.numbers.condition.startswith(f"{source.name}/shardId-000000000000: refused since 20")
        assert "InternalFailure" in progress.numbers.condition
    kinesis.faults.clear()
    until(lambda: len(collected.keys) >= 40, "the query does not continue", query=query)
    query.stop()
    assert collected.data == source.put_keys


def test_a_bounded_read_bears_failures(
    spark: SparkSession, kinesis: RunningEmulator, make_stream: Callable[[int], Any]
) -> None:
    """Both the calls of its plan and of its tasks fail far more often than Flink's three times."""
    source = make_stream(2)
    source.put(40)
    for operation in ("ListShards", "GetShardIterator", "GetRecords"):
        kinesis.faults.add("error", operation=operation, code="ServiceUnavailable", stream=source.name, count=12)
    options = source.options(getRecordsBackoffBase="10", getRecordsBackoffMax="50")
    rows = spark.read.format("kinesis").options(**options).load().collect()
    assert {bytes(row["data"]) for row in rows} == set(source.put_keys.values())
    assert len(rows) == 40
    assert hits(kinesis) == 36


def test_past_the_patience_a_query_ends_with_all_that_is_known(
    spark: SparkSession,
    kinesis: RunningEmulator,
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """The shard, the call, since when, the last error, and what to do."""
    source = make_stream(1)
    fail(kinesis, source.name)
    options = source.options(initialPosition="TRIM_HORIZON", retryPatience="1s")
    frame = spark.readStream.format("kinesis").options(**options).load()
    query = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "at")).start()
    until(lambda: query.exception() is not None, "the query lives on")
    words = str(query.exception())
    for part in (f"{source.name}/shardId-000000000000", "GetShardIterator", "since 20", "retryPatience", "endpoint"):
        assert part in words


def test_a_counted_key_decides_once_it_is_given(
    spark: SparkSession, kinesis: RunningEmulator, make_stream: Callable[[int], Any]
) -> None:
    """And the remedy has the name that was written; throttling counts, as with Flink."""
    source = make_stream(1)
    source.put(1)
    kinesis.faults.add("throttle", operation="GetRecords", stream=source.name)
    for key, told in (
        ("flink.shard.getrecords.maxretries", r"flink\.shard\.getrecords\.maxretries"),
        ("getRecordsMaxRetries", "getRecordsMaxRetries"),
    ):
        options = source.options() | {key: "2", "getRecordsBackoffBase": "10"}
        with pytest.raises(Exception, match=rf"(?s)3 attempts in a row failed, since .*give {told} a larger value"):
            spark.read.format("kinesis").options(**options).load().collect()
