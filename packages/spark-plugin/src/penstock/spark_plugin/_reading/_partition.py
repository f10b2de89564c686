"""A partition of a micro-batch, and how a Spark task reads it."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from opentelemetry.trace import Status, StatusCode, use_span
from pyspark.sql.datasource import InputPartition

from penstock.efo_consumer import ReaderUnavailableError, ShardRange, read_ranges
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._garbage import freeze_garbage
from penstock.spark_plugin._reading._reachability import forget, nearest, unreachable
from penstock.spark_plugin._telemetry import parent_context, tracer

SERVICE_PATIENCE_SECONDS = 60.0
"""How long tasks wait for shard-reader services that went away: a container that is started anew takes less."""


class KinesisPartition(InputPartition):
    """Ranges that one task reads, and how it reaches the reader. Holds a token: its repr does not show it."""

    def __init__(
        self,
        *,
        address: str,
        security: ClientSecurity,
        session_id: str,
        ranges: tuple[ShardRange, ...],
        with_encryption_type: bool,
        traceparent: str | None,
        patience_seconds: float = 0.0,
        socket_path: Path | None = None,
        fail_on_data_loss: bool = True,
        retry_patience_seconds: float | None = None,
    ) -> None:
        super().__init__(None)
        self.address = address
        self.security = security
        self.session_id = session_id
        self.ranges = ranges
        self.with_encryption_type = with_encryption_type
        self.traceparent = traceparent
        self.patience_seconds = patience_seconds
        """How long a reader that went away is waited for: a service comes back, and a driver does not."""
        self.socket_path = socket_path
        """Unix socket of the same reader, for tasks on the driver's machine."""
        self.fail_on_data_loss = fail_on_data_loss
        """Told with each read, as the next one: a service that was started anew knows nothing of the session."""
        self.retry_patience_seconds = retry_patience_seconds
        """How long the reader retries errors of Kinesis that may pass."""

    def __repr__(self) -> str:
        ranges = ", ".join(f"{one.stream_name}/{one.shard_id}" for one in self.ranges)
        return f"KinesisPartition({ranges})"


def read_partition(partition: KinesisPartition) -> Iterator[pa.RecordBatch]:
    """The records of a partition's ranges, in order within each shard, as Arrow batches of the read schema.

    The span is current only while the next batch is fetched: between two of them this generator's caller runs.
    """
    freeze_garbage()
    span = tracer().start_span(
        "spark_plugin.read_partition",
        context=parent_context(partition.traceparent),
        attributes={
            "penstock.shards": [one.shard_id for one in partition.ranges],
            "penstock.session_id": partition.session_id,
        },
    )
    rows = 0
    try:
        with use_span(span, end_on_exit=False):
            address = partition.address
            if not partition.patience_seconds:  # services may be away for a while
                address = nearest(address, partition.socket_path)
            batches = iter(
                read_ranges(
                    address,
                    partition.security,
                    partition.session_id,
                    partition.ranges,
                    with_encryption_type=partition.with_encryption_type,
                    patience_seconds=partition.patience_seconds,
                    fail_on_data_loss=partition.fail_on_data_loss,
                    retry_patience_seconds=partition.retry_patience_seconds,
                )
            )
        while True:
            with use_span(span, end_on_exit=False):
                batch = next(batches, None)
            if batch is None:
                break
            rows += batch.num_rows
            yield batch
    except Exception as error:
        told = error
        if isinstance(error, ReaderUnavailableError):
            forget(f"unix:{partition.socket_path}")
            told = unreachable(error, partition.address, is_service=bool(partition.patience_seconds))
        span.record_exception(told)
        span.set_status(Status(StatusCode.ERROR, str(told)))
        if told is error:
            raise
        raise told from error
    finally:
        span.set_attribute("penstock.records", rows)
        span.end()
