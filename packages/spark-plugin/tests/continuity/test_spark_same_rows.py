"""Copies of a task, and several actions on one frame, see the same rows in the same order."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exactly_once_tools as tools
import pytest
from pyspark.sql import DataFrame, Row, SparkSession


@pytest.mark.timeout(500)
@pytest.mark.skipif(sys.platform != "linux", reason="binds 127.0.0.2, as Linux does")
def test_speculative_copies_double_nothing(tmp_path: Path) -> None:
    """A task that dawdles is run twice, on another host of a cluster; its rows are in the table once, and in order."""
    number = tools.seed()
    table = tools.Table(tmp_path)
    with (
        tools.restless_kinesis(number) as kinesis,
        tools.Producer(kinesis, random.Random(number)) as producer,
    ):
        options = producer.options(
            tls=True,
            recordPublisher="efo",
            efoConsumerName="speculation",
            registryStore=str(tmp_path / "registry.db"),
            maxPartitions="2",
            maxRecordsPerBatch="300",
        )
        table.settings(options, "dawdling_kinesis")
        with table.driver("127.0.0.1", "127.0.0.2"):

            def copied() -> bool:
                # No task fails here: whatever is tried again is a copy.
                return len(list((tmp_path / "attempts").iterdir())) >= 3

            tools.wait_for(lambda: copied() and len(table.rows()) > 300, "no copies, or no rows")
            tools.finish(table, producer, kinesis, number)


@pytest.mark.parametrize("publisher", ["efo"])
def test_two_actions_on_one_frame_see_the_same_rows(
    publisher: str,
    spark: SparkSession,
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Counted, collected twice and written, while records arrive and a shard is split in between: always the same."""
    source = make_stream(2)
    source.put(100)
    columns = ["shardId", "sequenceNumber", "subSequenceNumber", "data"]
    seen: list[tuple[int, list[Row], list[Row]]] = []

    def act(frame: DataFrame, batch_id: int) -> None:
        count = frame.count()
        source.put(20)
        if batch_id == 0:
            source.split("shardId-000000000000")
        first = frame.select(*columns).collect()
        frame.select(*columns).write.mode("overwrite").parquet(str(tmp_path / "table" / str(batch_id)))
        seen.append((count, first, frame.select(*columns).collect()))

    # Small buffers: what the first action took from them, the next one reads again.
    options = source.options(
        initialPosition="TRIM_HORIZON",
        recordPublisher=publisher,
        maxRecordsPerBatch="70",
        maxPartitions="1",
        bufferBytes="512",
        bufferBytesPerShard="512",
        **({"efoConsumerName": "actions", "registryStore": str(tmp_path / "leases.db")} if publisher == "efo" else {}),
    )
    frame = spark.readStream.format("kinesis").options(**options).load()
    query = frame.writeStream.foreachBatch(act).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        until(lambda: len(seen) >= 4, lambda: f"only {len(seen)} micro-batches", query=query)
    finally:
        query.stop()
    for batch_id, (count, first, second) in enumerate(seen[:4]):
        assert count == len(first) > 0
        assert first == second
        assert sorted(spark.read.parquet(str(tmp_path / "table" / str(batch_id))).collect()) == sorted(first)
    keys = [(row["shardId"], row["sequenceNumber"]) for _, rows, _ in seen[:4] for row in rows]
    assert len(keys) == len(set(keys))
    assert set(keys) <= set(source.put_keys)
