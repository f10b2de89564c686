"""Count what the source gave to each micro-batch, so that a row read twice is seen.

The counts stand in a table keyed by batch and shard: a batch that runs again, after a crash, writes the same keys
again, and a second row for the same key can only come from a second reading of other records.
"""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

_GROWTH = log(1.05)

_SCHEMA = """
create table if not exists counts (
    batch integer, shard text, rows integer, ended real, latencies text, primary key (batch, shard)
)
"""


def _bucket(millis: float) -> int:
    # Buckets 5 % apart: percentiles are exact enough to print, and a batch of any size needs a few hundred numbers.
    return int(log(max(millis, 1.0)) / _GROWTH)


def _millis(bucket: int) -> float:
    return float(1.05 ** (bucket + 0.5))


def _open(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=60)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=normal")
    connection.execute(_SCHEMA)
    return connection


def create_meter(file: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that lets batches through and writes their counts to the table when a task ends."""

    def meter(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch_id = int((context and context.getLocalProperty("streaming.sql.batchId")) or 0)
        rows: Counter[str] = Counter()
        latencies: dict[str, Counter[int]] = {}
        for batch in batches:
            now_micros = time.time() * 1e6
            arrival = batch.column("approximateArrivalTimestamp").cast(pa.int64())
            for shard in pc.unique(batch.column("shardId")).to_pylist():
                mask = pc.equal(batch.column("shardId"), shard)
                waited = pc.subtract(now_micros, pc.filter(arrival, mask)).to_numpy(zero_copy_only=False)
                rows[shard] += len(waited)
                latencies.setdefault(shard, Counter()).update(_bucket(micros / 1000) for micros in waited)
            yield batch
        with _open(file) as connection:
            connection.executemany(
                "insert or replace into counts values (?, ?, ?, ?, ?)",
                [(batch_id, shard, count, time.time(), json.dumps(latencies[shard])) for shard, count in rows.items()],
            )
        connection.close()

    return meter


@dataclass(frozen=True)
class BatchCount:
    """What the source gave to one micro-batch."""

    batch_id: int
    rows: int
    ended: float
    """Seconds since 1970."""
    latencies: Counter[int]
    """Records per latency bucket."""


def latency_percentile(latencies: Counter[int], share: float) -> float:
    """Milliseconds that `share` of the records did not exceed; 0 when there are none."""
    wanted = share * sum(latencies.values())
    seen = 0
    for bucket in sorted(latencies):
        seen += latencies[bucket]
        if seen >= wanted:
            return _millis(bucket)
    return 0.0


def read_counts(file: Path) -> list[BatchCount]:
    """The table, one entry per micro-batch, in order; empty before the table exists."""
    if not file.exists():
        return []
    connection = _open(file)
    try:
        rows = connection.execute("select batch, rows, ended, latencies from counts order by batch").fetchall()
    finally:
        connection.close()
    counts: dict[int, BatchCount] = {}
    for batch, count, ended, latencies in rows:
        histogram = Counter({int(bucket): number for bucket, number in json.loads(latencies).items()})
        before = counts.get(batch)
        if before is not None:
            count, ended, histogram = before.rows + count, max(before.ended, ended), before.latencies + histogram
        counts[batch] = BatchCount(batch, count, ended, histogram)
    return [counts[batch] for batch in sorted(counts)]
