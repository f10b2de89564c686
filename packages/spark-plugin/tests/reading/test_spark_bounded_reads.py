import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.efo_consumer import ShardPosition, StreamPositions
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._reading.initial_positions import seam_millis
from penstock.spark_plugin.errors import OffsetError


def test_no_row_is_lost_or_doubled_at_the_seam(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, until: Callable[..., None], tmp_path: Path
) -> None:
    """Back-fill to now, then live from exactly there, with records and a split on both sides of the seam."""
    source = make_stream(2)
    pipeline = Pipeline("backfill", store=tmp_path / "store")
    seam = pipeline.seam("flights")
    past = source.options(endingPosition=seam)
    live = source.options(initialPosition=seam)
    target = str(tmp_path / "history")

    @pipeline.source(bounded=True)
    def history(spark: SparkSession) -> DataFrame:
        return spark.read.format("kinesis").options(**past).load()

    @pipeline.source(bounded=False)
    def flights(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("kinesis").options(**live).load()

    @pipeline.sink()
    def old(history: DataFrame) -> Any:
        return history.write.format("parquet").option("path", target)

    @pipeline.sink()
    def new(flights: DataFrame) -> Any:
        return flights.writeStream.foreachBatch(collected)

    source.put(100)
    source.split("shardId-000000000000")
    source.put(100)
    # The seam is here, and records keep arriving.
    now = ShardPosition.at_timestamp(time.time_ns() // 10**6 + 1)
    seam_millis(Path(seam), lambda: StreamPositions({source.name: {"shardId-000000000001": now}}))
    source.put(100)
    source.split("shardId-000000000001")
    source.put(100)
    run = pipeline.run(spark)
    source.put(50)
    rows = spark.read.parquet(target).select("shardId", "sequenceNumber").collect()
    before = [(row["shardId"], row["sequenceNumber"]) for row in rows]
    assert 200 <= len(before) < 300
    until(lambda: len(before) + len(collected.keys) >= 450, "rows are missing", query=run.queries["new"])
    run.stop()
    assert sorted(before + collected.keys) == sorted(source.put_keys)


def test_a_seam_is_made_once(tmp_path: Path) -> None:
    """The first read creates it."""
    path = tmp_path / "seams" / "a.json"

    def at(*millis: int) -> Callable[[], StreamPositions]:
        shards = {f"shardId-{number}": {"type": "AT_TIMESTAMP", "value": one} for number, one in enumerate(millis)}
        return lambda: StreamPositions.from_json({"version": 1, "streams": {"s": shards}})

    assert seam_millis(path, at(5000)) == 5000
    assert seam_millis(path, at(9000)) == 5000
    assert seam_millis(path, lambda: pytest.fail("Kinesis is asked again")) == 5000
    assert seam_millis(tmp_path / "seams" / "b.json", at(6000, 4000, 5000)) == 4000

    def while_another_makes_it() -> StreamPositions:
        seam_millis(tmp_path / "race.json", at(7000))
        return at(9000)()

    assert seam_millis(tmp_path / "race.json", while_another_makes_it) == 7000
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["race.json"]
    path.write_text("{}")
    with pytest.raises(OffsetError):
        seam_millis(path, at(1))
