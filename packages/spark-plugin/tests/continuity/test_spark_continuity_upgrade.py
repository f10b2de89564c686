"""Checkpoints that earlier versions wrote: a query continues from them exactly."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin.testing import endpoint_options

DATA = Path(__file__).parents[1] / "data" / "checkpoint-v1"


class Old:
    """A query of version 1 that has read twenty records in three micro-batches, and its stream.

    The stream is made as it was then, shard by shard and record by record. Only its sequence numbers are others: in the
    copy of the checkpoint each of the old ones is replaced by the number of the same record.
    """

    def __init__(self, emulator: RunningEmulator, publisher: str, folder: Path) -> None:
        self.name = f"flights-{publisher}"
        self.checkpoint = folder / "checkpoint"
        self.endpoint_url = emulator.endpoint_url
        self.client = emulator.client()
        self.client.create_stream(StreamName=self.name, ShardCount=2)
        numbers = self.put(range(10))
        self.client.split_shard(
            StreamName=self.name, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
        )
        numbers += self.put(range(10, 20))
        shutil.copytree(DATA / publisher, self.checkpoint)
        records = json.loads((self.checkpoint / "records.json").read_text())
        (self.checkpoint / "records.json").unlink()
        self.batches: dict[str, list[int]] = records["batches"]
        for file in (self.checkpoint / "offsets").iterdir():
            text = file.read_text()
            for old, new in zip(records["numbers"], numbers, strict=True):
                text = text.replace(f'"{old}"', f'"{new}"')
            file.write_text(text)

    def put(self, names: range) -> list[str]:
        """Put a record for each number; give their sequence numbers."""
        return [
            self.client.put_record(StreamName=self.name, Data=str(one).encode(), PartitionKey=str(one))[
                "SequenceNumber"
            ]
            for one in names
        ]

    def offsets(self) -> dict[int, dict[str, Any]]:
        """The source's part of Spark's log, by micro-batch."""
        files = [file for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit()]
        return {int(file.name): json.loads(file.read_text().splitlines()[-1]) for file in files}

    def read(self, spark: SparkSession, collected: Any, publisher: str) -> dict[int, list[int]]:
        """One run of today's version; the numbers of the records of each micro-batch."""
        options = endpoint_options(self.endpoint_url, self.name, recordPublisher=publisher)
        if publisher == "efo":
            options |= {
                "efoConsumerName": "reader",
                "registryStore": str(self.checkpoint.with_name("registry.db")),
                "subscribeTransport": "http1",
            }
        frame = spark.readStream.format("kinesis").options(**options).load()
        writer = frame.writeStream.foreachBatch(collected).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()
        return {
            batch: sorted(int(bytes(row["data"])) for row in rows) for batch, rows in collected.batches.items() if rows
        }


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        yield running


@pytest.mark.parametrize(("before", "now"), [("polling", "efo")])
def test_a_query_goes_on_from_a_checkpoint_of_version_1(
    spark: SparkSession, collected: Any, emulator: RunningEmulator, tmp_path: Path, before: str, now: str
) -> None:
    """It reads what came since, once, and logs offsets of version 2 from then on."""
    old = Old(emulator, before, tmp_path)
    assert {one["version"] for one in old.offsets().values()} == {1}
    old.put(range(20, 30))
    rows = old.read(spark, collected, now)
    assert sorted(number for one in rows.values() for number in one) == [*range(20, 30)]
    logged = {batch: one for batch, one in old.offsets().items() if batch > 2}
    assert logged
    for one in logged.values():
        assert one["version"] == 2
        assert list(one["created"]) == [old.name]


@pytest.mark.parametrize("publisher", ["efo"])
def test_a_micro_batch_that_version_1_did_not_finish_has_the_same_rows(
    spark: SparkSession, collected: Any, emulator: RunningEmulator, tmp_path: Path, publisher: str
) -> None:
    """Logged but not committed when the query was ended, and upgraded meanwhile."""
    old = Old(emulator, publisher, tmp_path)
    (old.checkpoint / "commits" / "2").unlink()
    old.put(range(20, 30))
    rows = old.read(spark, collected, publisher)
    assert rows.pop(2) == old.batches["2"]
    assert sorted(number for one in rows.values() for number in one) == [*range(20, 30)]
