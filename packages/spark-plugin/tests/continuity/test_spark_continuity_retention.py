"""Queries at the edge of the retention: every record comes, or the query fails and names the shard."""

from collections.abc import Iterator
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


def run(spark: SparkSession, options: dict[str, str], checkpoint: Path, collected: Any) -> Keys:
    """One run with Trigger.AvailableNow; gives the rows of its micro-batches."""
    collected.batches.clear()
    frame = spark.readStream.format("kinesis").options(**options).load()
    writer = frame.writeStream.foreachBatch(collected).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    found: Keys = collected.keys
    return found


@pytest.mark.parametrize(("profile", "publisher"), [("hostile", "polling")])
def test_spark_fails_a_query_whose_records_have_expired(
    world: World, publisher: str, spark: SparkSession, collected: Any, tmp_path: Path
) -> None:
    """Its first micro-batch when that is run again, and the next one; with failOnDataLoss=false it reads the rest."""
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


@PROFILES
@PUBLISHERS
@FAILS
def test_restarted_query_reports_records_that_expired(world: World, publisher: str, fail: bool) -> None:
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
