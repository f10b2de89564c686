"""Runs of a streaming query without Spark: the calls that Spark makes, in its order."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader


@dataclass
class Runs:
    """A query over its runs: Spark's log of offsets, and an idempotent table of its rows."""

    log: list[dict[str, Any]] = field(default_factory=list)
    """Ends of micro-batches, as they came back from JSON."""
    batches: list[list[tuple[str, str, str]]] = field(default_factory=list)
    """Stream, shard and sequence number of the rows, by micro-batch."""

    before_batch: Callable[["Runs"], None] = lambda _: None
    """Called between the planning of a micro-batch's end and its reading."""

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Shard and sequence number of all rows."""
        return [(shard, number) for rows in self.batches for _, shard, number in rows]

    @property
    def streams(self) -> list[str]:
        """Streams of all rows."""
        return [stream for rows in self.batches for stream, _, _ in rows]

    def available_now(self, options: dict[str, str], *, most: int = 200) -> list[int]:
        """One run with Trigger.AvailableNow; gives the rows of each of its micro-batches."""
        sizes: list[int] = []
        with_reader = KinesisStreamReader(KinesisOptions.parse(options))
        try:
            with_reader.prepareForTriggerAvailableNow()
            initial = with_reader.initialOffset() if not self.log else {}
            for _ in range(most):
                start = self.log[-1] if self.log else initial
                end = json.loads(json.dumps(with_reader.latestOffset(start, with_reader.getDefaultReadLimit())))
                if end == start:
                    return sizes
                sizes.append(self._batch(with_reader, start, end))
            raise AssertionError(f"the run does not end: {sizes}")
        finally:
            with_reader.stop()

    def again(self, options: dict[str, str]) -> list[tuple[str, str, str]]:
        """The rows of the last micro-batch, planned again by a new process."""
        reader = KinesisStreamReader(KinesisOptions.parse(options))
        try:
            start = self.log[-2] if len(self.log) > 1 else reader.initialOffset()
            return rows_of(reader, start, self.log[-1])
        finally:
            reader.stop()

    def _batch(self, reader: KinesisStreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
        self.before_batch(self)
        self.log.append(end)
        if len(self.log) > 1:
            reader.commit(start)
        rows = rows_of(reader, start, end)
        self.batches.append(rows)
        return len(rows)


def rows_of(reader: KinesisStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Stream, shard and sequence number of a micro-batch, partition by partition."""
    return [row for rows in partitions_of(reader, start, end) for row in rows]


def partitions_of(
    reader: KinesisStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[list[tuple[str, str, str]]]:
    """The same, by partition."""
    found = []
    for partition in reader.partitions(start, end):
        rows = []
        for batch in reader.read(partition):
            columns = (batch.column(name).to_pylist() for name in ("streamName", "shardId", "sequenceNumber"))
            rows += list(zip(*columns, strict=True))
        found.append(rows)
    return found
