"""The streaming source before Spark 4.2, which tells it neither start nor limit of a micro-batch, nor the trigger."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._spark import SPARK_TELLS_LIMITS, ReadAllAvailable, ReadLimit

_log = logging.getLogger(__name__)


def stream_reader(options: KinesisOptions) -> DataSourceStreamReader:
    """The reader that this version of Spark can ask."""
    reader = KinesisStreamReader(options)
    return reader if SPARK_TELLS_LIMITS else PlainStreamReader(reader, options)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the reason for the missing reader, whatever Spark calls.

    What a source's `streamReader` raises itself ends in Spark's process as an `UnboundLocalError` of its own.
    """

    def __init__(self, error: Exception) -> None:
        """Make it of the reason."""
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """The first call of a new query."""
        raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # parameters say that it takes limits
        """A call of a running query."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The first call of a query that continues with a logged micro-batch."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A call of a task, which never comes without partitions."""
        raise self._error


class PlainStreamReader(DataSourceStreamReader):
    """Asks a `KinesisStreamReader` what Spark 4.2 would.

    The start is known all the same: it is the end of the last micro-batch, which older ones show as a range of its own
    when a query continues from a checkpoint, before anything else; without a checkpoint it is the initial offset.

    A run that ends on its own (`Trigger.AvailableNow`, `Trigger.Once`) is one micro-batch there, and cannot be
    distinguished from others. So the first micro-batch of every run reads all that was there when the run began,
    whatever the limit: otherwise such a run would leave the rest. The limits bound the micro-batches that follow.
    """

    def __init__(self, reader: KinesisStreamReader, options: KinesisOptions) -> None:
        """Make it around the reader of the same options."""
        self._reader = reader
        self._options = options
        self._start: dict[str, Any] | None = None
        self._is_first = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks need its `read` alone.
        return type(self), (self._reader, self._options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        return self._reader.initialOffset()

    # Newer versions ask a method without parameters as 4.0 and 4.1 do, too.
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # the signature before Spark 4.2
        """What is there beyond the last micro-batch."""
        self._start = self._reader.latestOffset(self._start or self.initialOffset(), self._limit())
        self._is_first = False
        return self._start

    def _limit(self) -> ReadLimit:
        if not self._is_first:
            return self._reader.getDefaultReadLimit()
        options = self._options
        limits = (
            options.max_records_per_batch,
            options.max_bytes_per_batch,
            options.max_records_per_shard_per_batch,
        )
        if any(limits):
            _log.warning(
                "before Spark 4.2 maxRecordsPerBatch, maxBytesPerBatch and maxRecordsPerShardPerBatch do not bound the "
                "first micro-batch of a run, which reads all that is there: it may be the only one"
            )
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets; the first two say where a query continues."""
        self._start = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, as Arrow batches."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Let the reader drop what lies before `end`."""
        self._reader.commit(end)

    def stop(self) -> None:
        """End the subscriptions and give the stream consumers back."""
        self._reader.stop()
