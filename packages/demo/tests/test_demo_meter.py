import datetime as dt
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest

from penstock.demo._meter import create_meter, latency_percentile, read_counts


class RunBatch:
    """Counts the rows of a micro-batch, and where they are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        self.monkeypatch = monkeypatch
        self.file = file

    def __call__(self, batch_id: int, shards: list[str], millis: float = 50.0) -> None:
        self.monkeypatch.setattr(Context, "batch_id", batch_id)
        self.monkeypatch.setattr("penstock.demo._meter.time.time", lambda: 1_000.0)
        arrival = dt.datetime.fromtimestamp(1_000.0 - millis / 1000, tz=dt.UTC)
        batch = pa.record_batch(
            {
                "shardId": pa.array(shards),
                "approximateArrivalTimestamp": pa.array([arrival] * len(shards), pa.timestamp("us", "UTC")),
            }
        )
        assert sum(part.num_rows for part in create_meter(self.file)([batch])) == len(shards)


class Context:
    batch_id = 0

    @classmethod
    def get(cls) -> Self:
        return cls()

    def getLocalProperty(self, name: str) -> str:  # Spark's name
        assert name == "streaming.sql.batchId"
        return str(self.batch_id)


@pytest.fixture
def run_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunBatch:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "TaskContext", Context)
    return RunBatch(monkeypatch, tmp_path / "counts.sqlite")


def test_a_batch_that_runs_again_is_counted_once(run_batch: RunBatch) -> None:
    """Keys are batch and shard, so a retry overwrites; other batches add up."""
    run_batch(0, ["a", "a", "b"])
    run_batch(0, ["a", "a", "b"])
    run_batch(1, ["b"])
    assert [(count.batch_id, count.rows) for count in read_counts(run_batch.file)] == [(0, 3), (1, 1)]


def test_percentiles_are_within_the_width_of_a_bucket(run_batch: RunBatch) -> None:
    """Buckets are 5 % apart, so a percentile is right to 5 %."""
    run_batch(0, ["a"] * 99, millis=50.0)
    run_batch(1, ["a"], millis=4_000.0)
    latencies = sum(
        (count.latencies for count in read_counts(run_batch.file)), type(read_counts(run_batch.file)[0].latencies)()
    )
    assert latency_percentile(latencies, 0.5) == pytest.approx(50, rel=0.05)
    assert latency_percentile(latencies, 1.0) == pytest.approx(4_000, rel=0.05)
