"""Queries over reshards on kinesis-local, whose subscriptions to closed shards do not end."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kinesis_local import running_kinesis_local
from pyspark.sql import DataFrame, SparkSession

from penstock.emulator.testing import kinesis_client
from penstock.spark_plugin.testing import endpoint_options

ROOT, OTHER, CHILD = "shardId-000000000000", "shardId-000000000001", "shardId-000000000003"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_kinesis_local() as running:
        yield running


class Stream:
    """A stream of two shards, and the data that was put into it."""

    def __init__(self, endpoint: str) -> None:
        self.client = kinesis_client(endpoint)
        self.name = f"flights-{uuid.uuid4().hex[:8]}"
        self.rows: list[str] = []
        self.client.create_stream(StreamName=self.name, ShardCount=2)
        self.settle()

    def settle(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            summary: Any = self.client.describe_stream_summary(StreamName=self.name)
            if summary["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def put(self) -> None:
        rows = [f"row-{number}" for number in range(len(self.rows), len(self.rows) + 60)]
        records: list[Any] = [{"Data": row.encode(), "PartitionKey": row} for row in rows]
        assert not self.client.put_records(StreamName=self.name, Records=records)["FailedRecordCount"]
        self.rows += rows


@pytest.mark.parametrize("publisher", ["efo", "polling"])
def test_every_record_comes_once_over_a_split_and_a_merge(
    spark: SparkSession, endpoint: str, publisher: str, until: Callable[..., None], tmp_path: Path
) -> None:
    """Those of children too, which only the end of their parents leads to."""
    stream = Stream(endpoint)
    found: dict[int, list[str]] = {}

    def keep(frame: DataFrame, batch_id: int) -> None:
        found[batch_id] = [bytes(row.data).decode() for row in frame.select("data").collect()]

    options = endpoint_options(endpoint, stream.name, initialPosition="TRIM_HORIZON", recordPublisher=publisher)
    if publisher == "efo":
        options |= {"efoConsumerName": stream.name, "registryStore": str(tmp_path / "registry.db")}
    frame = spark.readStream.format("kinesis").options(**options).load()
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def rows() -> list[str]:
        return [row for batch in list(found.values()) for row in batch]

    def await_all() -> None:
        until(lambda: len(rows()) >= len(stream.rows), lambda: f"{len(rows())} of {len(stream.rows)}", query=query)

    try:
        stream.put()
        await_all()
        stream.client.split_shard(StreamName=stream.name, ShardToSplit=ROOT, NewStartingHashKey=str(2**126))
        stream.settle()
        stream.put()
        await_all()
        stream.client.merge_shards(StreamName=stream.name, ShardToMerge=CHILD, AdjacentShardToMerge=OTHER)
        stream.settle()
        stream.put()
        await_all()
    finally:
        query.stop()
    assert sorted(rows()) == sorted(stream.rows)
