"""Queries at the edge of the retention: every record comes, or the query fails and names the shard."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from continuity_world import FAILS, PROFILES, PUBLISHERS, ROOT, Keys, Query, World, world_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.efo_consumer import DataLossError

LOST = f"flights/{ROOT}"
GOES_ON = {"failOnDataLoss": "false"}


@pytest.fixture
def world(profile: str) -> Iterator[World]:
    with world_of(profile) as found:
        yield found


@PROFILES
@PUBLISHERS
@FAILS
def test_a_restarted_query_is_told_what_expired_beyond_its_offset(world: World, publisher: str, fail: bool) -> None:
    """Where Kinesis refuses the offset, and where it reads on from it without a word."""
    query = Query(world.options(publisher, fail=fail))
    first = world.put(2)
    with query.running():
        assert query.read(2) == first
    world.pass_hours(1)
    lost = world.put(3)
    world.pass_hours(24.5)
    left = world.put(2)
    with query.running() as reader:
        if fail:
            with pytest.raises(DataLossError, match=LOST):
                query.read(2)
            return
        assert query.read(2) == left
        assert reader.reportLatestOffset()["losses"] == 1
    assert not set(lost) & set(query.keys)


@PROFILES
@PUBLISHERS
def test_what_is_left_of_the_retention_is_read_to_the_last_record(world: World, publisher: str) -> None:
    """A query that was stopped for almost a day goes on: nothing expired, and nothing is called lost."""
    query = Query(world.options(publisher))
    written = world.put(2)
    with query.running():
        query.read(2)
    world.pass_hours(0.5)
    written += world.put(3)
    world.pass_hours(23.4)
    written += world.put(2)
    with query.running() as reader:
        query.read(5)
        assert reader.reportLatestOffset()["losses"] == 0
    assert query.keys == written


@PROFILES
@PUBLISHERS
@FAILS
def test_a_running_query_is_told_what_expires_ahead_of_it(world: World, publisher: str, fail: bool) -> None:
    """Its buffers are full for a day; each of its positions stays valid, and Kinesis refuses nothing."""
    query = Query(world.options(publisher, fail=fail, bufferBytes="1", bufferBytesPerShard="1"))
    written = world.put(1)
    with query.running() as reader:
        assert query.read(1) == written
        written += world.put(1)
        query.next_offset()  # which fills the buffer
        # By fan-out more than sockets hold: what Kinesis has sent is not lost.
        lost = world.put(3) if publisher == "polling" else world.put(24, size=1_000_000)
        world.pass_hours(25)
        left = world.put(1)
        written += lost + left
        if fail:
            with pytest.raises(DataLossError, match=LOST):
                query.read(len(written))
        else:
            while left[0] not in query.keys:
                query.read(1)
            assert reader.reportLatestOffset()["losses"] == 1
    # In order, without what was lost, and nothing twice.
    assert query.keys == [key for key in written if key in query.keys]
    assert lost[-1] not in query.keys


@PROFILES
@pytest.mark.parametrize(
    ("publisher", "start"), [("polling", "LATEST"), ("polling", "TRIM_HORIZON"), ("efo", "AT_TIMESTAMP")]
)
def test_the_first_micro_batch_is_read_again_exactly_or_fails(world: World, publisher: str, start: str) -> None:
    """It began at a time or at the oldest record, which Kinesis never refuses: its records are compared."""
    options = world.options(publisher, initialPosition=start)
    if start == "AT_TIMESTAMP":
        began = datetime.fromtimestamp(world.clock.time() - 60, UTC)
        options |= {"initialTimestamp": began.strftime("%Y-%m-%dT%H:%M:%SZ")}
    query = Query(options)
    with query.running():
        older = world.put(2)
        world.pass_hours(1)
        written = older + world.put(2)
        # So the end of the micro-batch is proved for longer than its records are kept.
        world.pass_hours(6)
        while len(query.keys) < 4:
            # One micro-batch that has them all: those before it were not logged.
            del query.log[1:]
            query.log.append(query.next_offset())
            query.keys[:] = query.rows()
        assert query.keys == written
    assert query.again() == written
    world.pass_hours(17.5)
    later = world.put(1)
    with pytest.raises(DataLossError, match=LOST):
        query.again()
    assert query.again(**GOES_ON) == written[2:]
    world.pass_hours(1)
    with pytest.raises(DataLossError, match=LOST):
        query.again()
    with query.running(**GOES_ON):
        assert query.read(1) == later


def run(spark: SparkSession, options: dict[str, str], checkpoint: Path, collected: Any) -> Keys:
    """One run with Trigger.AvailableNow; gives the rows of its micro-batches."""
    collected.batches.clear()
    frame = spark.readStream.format("kinesis").options(**options).load()
    writer = frame.writeStream.foreachBatch(collected).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    found: Keys = collected.keys
    return found


@pytest.mark.parametrize(("profile", "publisher"), [("kind", "efo"), ("hostile", "polling")])
def test_spark_fails_a_query_whose_records_have_expired(
    world: World, publisher: str, spark: SparkSession, collected: Any, tmp_path: Path
) -> None:
    """Its first micro-batch when that is run again, and the next one; told to go on, it reads what is left."""
    checkpoint = tmp_path / "checkpoint"
    options = world.options(publisher)
    first = world.put(2)
    assert run(spark, options, checkpoint, collected) == first
    # As if the driver had been killed in the first micro-batch.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    world.pass_hours(25)
    left = world.put(2)
    with pytest.raises(StreamingQueryException, match=LOST):
        run(spark, options, checkpoint, collected)
    assert run(spark, options | GOES_ON, checkpoint, collected) == left
    world.pass_hours(1)
    world.put(3)
    world.pass_hours(24.5)
    world.put(1)
    with pytest.raises(StreamingQueryException, match=LOST):
        run(spark, options, checkpoint, collected)
