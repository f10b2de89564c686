"""The sinks: each write task returns when Kinesis has accepted all of its records."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from opentelemetry import context as context_api
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.async_sink import AsyncSinkConfig, KinesisStreamsSink, write_batches
from penstock.spark_plugin._connections import aws_options, service_security
from penstock.spark_plugin._garbage import freeze_garbage
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._schema import SinkColumns, sink_columns
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, parent_context, task_property, tracer
from penstock.spark_plugin.errors import ContradictoryOptionsError

if TYPE_CHECKING:
    from penstock.async_sink import RemoteSink

_log = logging.getLogger(__name__)
_RANDOM_KEY_BYTES = 16
_NUMBERS = ("records", "bytes", "requests", "retries", "throttled")


@dataclass(frozen=True)
class WriteSummary(WriterCommitMessage):
    """What one write task did; the sink's commit message."""

    records: int
    """Acknowledged by Kinesis, each counted once."""
    bytes: int
    """Their data and partition keys."""
    requests: int
    retries: int
    """Records that were sent again, counted each time."""
    throttled: int
    """Records that were refused because the stream was full, counted each time."""


class _KinesisWriter:
    def __init__(self, options: KinesisOptions, schema: StructType) -> None:
        if len(options.stream_name) != 1:
            raise ContradictoryOptionsError(("streamName", "streamName"), "a writer writes one stream")
        self._options = options
        self._columns = sink_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteSummary:
        """Write a task's rows, and return when every one of them is acknowledged.

        Raises:
            penstock.async_sink.errors.SinkError: A record was refused for good; the message names it.
        """
        freeze_garbage()
        options = self._options
        parent = parent_context(task_property(TRACEPARENT_PROPERTY), options.traceparent)
        with tracer().start_as_current_span(
            "spark_plugin.write_partition",
            context=parent if parent is not None else context_api.get_current(),
            attributes={"penstock.streams": list(options.stream_name)},
        ) as span:
            summary = write_batches(make_sink(options), (record_columns(batch, self._columns) for batch in iterator))
            span.set_attribute("penstock.records", summary.records)
            return WriteSummary(**{name: getattr(summary, name) for name in _NUMBERS})

    def _log_commit(self, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
        _log.info("wrote %s to %s: %s", what, self._options.stream_name[0], total(messages))


class KinesisBatchWriter(_KinesisWriter, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note what was written: it is in the stream since each task ended."""
        self._log_commit(messages, "a DataFrame")


class KinesisStreamWriter(_KinesisWriter, DataSourceStreamArrowWriter):
    """Writes each micro-batch; at least once, since Spark may run a micro-batch again."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Note what was written: it is in the stream since each task ended."""
        self._log_commit(messages, f"micro-batch {batchId}")


def make_sink(options: KinesisOptions) -> "KinesisStreamsSink | RemoteSink":
    """The sink that a write task uses: its own, or the gateway that all tasks share."""
    stream = options.stream_name[0]
    config = AsyncSinkConfig(
        max_batch_size=options.max_batch_size,
        max_in_flight_requests=options.max_in_flight_requests,
        max_buffered_requests=options.max_buffered_requests,
        max_batch_size_in_bytes=options.max_batch_size_in_bytes,
        max_record_size_in_bytes=options.max_record_size_in_bytes,
        max_time_in_buffer=timedelta(milliseconds=options.max_time_in_buffer),
        fail_on_error=options.fail_on_error,
    )
    if options.sink_endpoint is not None:
        from penstock.async_sink import RemoteSink

        return RemoteSink(
            options.sink_endpoint,
            service_security(options),
            kind="kinesis",
            destination=options.stream_arn or stream,
            config=config,
        )
    return KinesisStreamsSink(
        aws_options(options),
        stream_name=None if options.stream_arn else stream,
        stream_arn=options.stream_arn,
        config=config,
    )


def record_columns(batch: pa.RecordBatch, columns: SinkColumns) -> pa.RecordBatch:
    """The columns `data`, `partitionKey` and, where there is one, `explicitHashKey`, as the sink takes them."""
    data = batch.column(columns.data)
    if not pa.types.is_binary(data.type):
        data = data.cast(pa.binary())
    arrays = [data, _keys(batch, columns.partition_key)]
    names = ["data", "partitionKey"]
    if columns.explicit_hash_key is not None:
        arrays.append(batch.column(columns.explicit_hash_key).cast(pa.string()))
        names.append("explicitHashKey")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _keys(batch: pa.RecordBatch, column: int | None) -> pa.Array:
    if column is not None:
        return batch.column(column).cast(pa.string())
    random = os.urandom(_RANDOM_KEY_BYTES * batch.num_rows).hex()
    step = 2 * _RANDOM_KEY_BYTES
    return pa.array([random[at : at + step] for at in range(0, len(random), step)], pa.string())


def total(messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
    """The sum of the commit messages of a micro-batch or job."""
    summaries = [one for one in messages if isinstance(one, WriteSummary)]
    return WriteSummary(**{name: sum(getattr(one, name) for one in summaries) for name in _NUMBERS})
