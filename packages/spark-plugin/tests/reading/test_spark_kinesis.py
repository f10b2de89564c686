import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_SECONDS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.spark_plugin._spark import SPARK_TELLS_LIMITS


def transport(publisher: str, tmp_path: Path) -> dict[str, str]:
    if publisher == "polling":
        return {"recordPublisher": "polling"}
    return {"recordPublisher": "efo", "efoConsumerName": "tests", "registryStore": str(tmp_path / "registry.db")}


def read_stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("kinesis").options(**options).load()


def start(frame: DataFrame, sink: Any, checkpoint: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


@pytest.mark.parametrize(("publisher", "tls"), [("polling", False), ("efo", True)])
def test_every_record_passes_through_exactly_once(
    spark: SparkSession,
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
    publisher: str,
    tls: bool,
) -> None:
    """Read, with a shard split in mid-stream, and write on: each record once, with its bytes, in its shard's order."""
    source, target = make_stream(3), make_stream(2)
    source.put(300)
    options = source.options(tls=tls, initialPosition="TRIM_HORIZON", **transport(publisher, tmp_path))
    frame = read_stream(spark, options)
    reading = start(frame, collected, tmp_path / "read")
    until(lambda: len(collected.keys) >= 300, "the first records do not arrive", query=reading)
    source.split("shardId-000000000001")
    source.put(300)
    until(lambda: len(collected.keys) >= 600, "the records after the split do not arrive", query=reading)
    reading.stop()
    assert len(collected.keys) == 600
    assert collected.data == source.put_keys
    assert {shard for shard, _ in source.put_keys} == {shard for shard, _ in collected.keys}
    for name in {shard for shard, _ in collected.keys}:
        numbers = [int(number) for shard, number in collected.keys if shard == name]
        assert numbers == sorted(numbers)
    if publisher == "efo":
        until(lambda: source.consumers() == [], "the consumer is not deregistered")

    bounded = spark.read.format("kinesis").options(**source.options()).load()
    bounded.select("data", "partitionKey").write.format("kinesis").options(**target.options()).mode("append").save()
    assert sorted(target.held()) == sorted(source.put_keys.values())


def test_a_query_writes_every_record_of_its_stream(
    spark: SparkSession, make_stream: Callable[[int], Any], until: Callable[..., None], tmp_path: Path
) -> None:
    """`readStream` to `writeStream`, both of this source; progress shows the lag."""
    source, target = make_stream(2), make_stream(2)
    source.put(200)
    frame = read_stream(spark, source.options(initialPosition="TRIM_HORIZON"))
    rows = frame.select(F.upper(F.concat(F.lit("x"), F.col("data").cast("string"))).alias("data"), "partitionKey")
    writer = rows.writeStream.format("kinesis").options(**target.options())
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until(lambda: len(target.held()) >= 200, "the records are not written", query=query)
    until(lambda: query.lastProgress is not None and query.lastProgress.numInputRows > 0, "no progress")
    progress = query.lastProgress
    query.stop()
    assert sorted(target.held()) == sorted(b"X" + data for data in source.put_keys.values())
    if SPARK_TELLS_LIMITS:
        assert progress is not None
        assert "millisBehindLatest" in progress.sources[0].latestOffset


def test_latest_begins_with_the_query(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, until: Callable[..., None], tmp_path: Path
) -> None:
    """By default a query gives what is put after its start, on idle shards and after a restart too."""
    source = make_stream(2)
    source.put(20)
    before = dict(source.put_keys)
    time.sleep(1.1)  # Kinesis tells its time in whole seconds
    frame = read_stream(spark, source.options())
    query = start(frame, collected, tmp_path / "checkpoint")
    until(lambda: query.lastProgress is not None, "no micro-batch", query=query)
    query.stop()
    source.put(20)
    query = start(frame, collected, tmp_path / "checkpoint")
    until(lambda: len(collected.keys) >= 20, "no rows", query=query)
    query.stop()
    assert collected.data == {key: data for key, data in source.put_keys.items() if key not in before}


def test_restarted_query_continues_from_its_checkpoint(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, until: Callable[..., None], tmp_path: Path
) -> None:
    """Stopped and started again, with the other publisher: nothing is lost, nothing read twice."""
    source = make_stream(2)
    common = source.options(initialPosition="TRIM_HORIZON")
    for run, publisher in enumerate(("polling", "efo", "polling")):
        source.put(100)
        query = start(read_stream(spark, common | transport(publisher, tmp_path)), collected, tmp_path / "checkpoint")
        until(lambda run=run: len(collected.keys) >= 100 * (run + 1), "records do not arrive", query=query)
        query.stop()
    assert len(collected.keys) == 300
    assert collected.data == source.put_keys


def test_registration_follows_the_strategy(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, until: Callable[..., None], tmp_path: Path
) -> None:
    """`eager` registers with the DataFrame and deregisters with the query; `none` leaves the user's consumer alone."""
    source = make_stream(1)
    source.put(10)
    common = source.options(
        initialPosition="TRIM_HORIZON", recordPublisher="efo", registryStore=str(tmp_path / "registry.db")
    )
    frame = read_stream(spark, common | {"efoRegistration": "eager", "efoConsumerName": "early"})
    assert source.consumers() == ["early"]
    query = start(frame, collected, tmp_path / "eager")
    until(lambda: len(collected.keys) >= 10, "no rows", query=query)
    query.stop()
    until(lambda: source.consumers() == [], "the consumer is not deregistered")

    arn = source.register("mine")
    collected.batches.clear()
    none = {"efoRegistration": "none", f"efoConsumerArn.{source.name}": arn}
    query = start(read_stream(spark, common | none), collected, tmp_path / "none")
    until(lambda: len(collected.keys) >= 10, "no rows", query=query)
    query.stop()
    assert collected.data == source.put_keys
    assert source.consumers() == ["mine"]


def test_one_query_reads_many_streams(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, tmp_path: Path
) -> None:
    """Streams share a query and its partitions; rows say whose they are."""
    streams = [make_stream(1), make_stream(2)]
    for stream in streams:
        stream.put(20)
    names = ",".join(stream.name for stream in streams)
    options = streams[0].options(initialPosition="TRIM_HORIZON") | {"streamName": names}
    query = start(read_stream(spark, options), collected, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(PATIENCE_SECONDS)
    rows = [row for rows in collected.batches.values() for row in rows]
    for stream in streams:
        mine = {(row["shardId"], row["sequenceNumber"]) for row in rows if row["streamName"] == stream.name}
        assert mine == set(stream.put_keys)
    assert len(rows) == 40


def test_available_now_ends_at_what_there_is_in_bounded_micro_batches(
    spark: SparkSession, make_stream: Callable[[int], Any], collected: Any, tmp_path: Path
) -> None:
    """The trigger ends on its own; no micro-batch exceeds the limit if Spark passes it, as 4.2 and later do."""
    source = make_stream(2)
    source.put(250)
    options = source.options(initialPosition="TRIM_HORIZON", maxRecordsPerBatch="100")
    query = start(read_stream(spark, options), collected, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert collected.data == source.put_keys
    sizes = [100, 100, 50] if SPARK_TELLS_LIMITS else [250]
    assert [len(rows) for rows in collected.batches.values()] == sizes
    source.put(150)
    query = start(read_stream(spark, options), collected, tmp_path / "checkpoint", once=True)
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert collected.data == source.put_keys
    assert [len(rows) for rows in collected.batches.values()][len(sizes) :] == [150]  # whatever the limit


def test_sql_finds_the_source_by_its_name(spark: SparkSession, make_stream: Callable[[int], Any]) -> None:
    """Nothing is registered: the name is enough, in SQL too."""
    source = make_stream(1)
    source.put(5)
    listed = ", ".join(f"{name} '{value}'" for name, value in source.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING kinesis OPTIONS ({listed})")
    assert spark.sql("SELECT count(*) AS n FROM records").first()["n"] == 5  # type: ignore[index]  # one row
