"""A partition of a micro-batch, and how a Spark task reads it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from opentelemetry.trace import Status, StatusCode, use_span
from pyspark.sql.datasource import InputPartition

from penstock.aws import AwsError
from penstock.efo_consumer import (
    DataLossError,
    EfoConsumerError,
    RangeDeadlineError,
    ReaderUnavailableError,
    ShardRange,
    StreamRecreatedError,
)
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._telemetry import parent_context, tracer

if TYPE_CHECKING:
    from penstock.efo_consumer import Deaggregation
    from penstock.rpc import ClientSecurity

_PROGRESS_SECONDS = 2.0
"""A task leaves a reader that gives no sign of life for this long; readers give one every half second."""
_DIRECT_PATIENCE_SECONDS = 5.0
"""For errors of Kinesis, where a task reads it in place of services: then those are asked again."""


@dataclass(kw_only=True, repr=False)
class KinesisPartition(InputPartition):
    """Ranges that one task reads, and how it reaches the reader. Holds a token: its repr does not show it."""

    value: None = None
    """Spark's own field."""
    address: str
    security: "ClientSecurity"
    session_id: str
    ranges: tuple[ShardRange, ...]
    with_encryption_type: bool
    traceparent: str | None
    patience_seconds: float = 0.0
    """How long to wait for a service that does not answer; 0 for a reader in the query's process, which the task waits
    for only while that process is frozen."""
    sockets: Mapping[str, Path] = field(default_factory=dict)
    """Unix sockets of the same readers by address, for tasks on their machines."""
    fail_on_data_loss: bool = True
    """Sent with each read, like the next one: a service that was restarted does not know the session."""
    retry_patience_seconds: float | None = None
    """How long the reader retries errors of Kinesis that may pass."""
    away: tuple[str, ...] = ()
    """Services that did not answer when the micro-batch was planned: they are asked last."""
    deaggregates: "Deaggregation | None" = None
    """How the services take aggregates apart, as does a task that reads in their place. None if no service says so:
    then no task reads in their place."""

    def __repr__(self) -> str:
        ranges = ", ".join(f"{one.stream_name}/{one.shard_id}" for one in self.ranges)
        return f"KinesisPartition({ranges})"


def read_partition(partition: KinesisPartition, options: KinesisOptions | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a partition's ranges, in order within each shard, as Arrow batches of the read schema.

    Services are asked in turn, the one that owns a shard first, and in the end Kinesis itself, if `options` say where
    it is: the ranges are the same facts to all. A reader in the query's own process is left for Kinesis only while it
    gives no sign of life, as when that process stands still.

    The span is current only while the next batch is fetched: between two of them this generator's caller runs.
    """
    # Spark's process that only plans a read imports this module, too, and is spared gRPC.
    from penstock.efo_consumer import read_ranges
    from penstock.spark_plugin._reading.session.reachability import (
        check_reachable,
        forget,
        near_endpoints,
        unreachable,
    )

    limit_collections()
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
            address, is_service = partition.address, bool(partition.patience_seconds)
            patience = partition.patience_seconds
            near = near_endpoints(partition.sockets)
            if not is_service:  # services may be away for a while
                if address not in near:
                    check_reachable(address)
                patience = partition.retry_patience_seconds or math.inf
            from_kinesis = None
            if options is not None and partition.deaggregates is not None:
                from_kinesis = partial(_from_kinesis, options, partition)
            batches = iter(
                read_ranges(
                    address,
                    partition.security,
                    partition.session_id,
                    partition.ranges,
                    with_encryption_type=partition.with_encryption_type,
                    patience_seconds=patience,
                    fail_on_data_loss=partition.fail_on_data_loss,
                    retry_patience_seconds=partition.retry_patience_seconds,
                    progress_seconds=_PROGRESS_SECONDS,
                    away=partition.away,
                    from_kinesis=from_kinesis,
                    comes_back=is_service,
                    near=near,
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
        shown = error
        if isinstance(error, ReaderUnavailableError):
            for path in partition.sockets.values():
                forget(f"unix:{path}")
            shown = unreachable(error, partition.address, is_service=bool(partition.patience_seconds))
        span.record_exception(shown)
        span.set_status(Status(StatusCode.ERROR, str(shown)))
        if shown is error:
            raise
        raise shown from error
    finally:
        span.set_attribute("penstock.records", rows)
        span.end()


@contextmanager
def _from_kinesis(
    options: KinesisOptions, partition: KinesisPartition, ranges: Sequence[ShardRange]
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Read ranges as a service would that has none of them in memory.

    Raises:
        ReaderUnavailableError: it cannot be done from here, or not now.
    """
    # Few tasks ever need them: the others are spared these imports.
    from penstock.efo_consumer import KinesisBackend, LocalShardReader
    from penstock.rpc import LoopThread
    from penstock.spark_plugin._connections import aws_options, shared_session
    from penstock.spark_plugin._reading.session.configs import reader_config

    async def make() -> LocalShardReader:
        config = replace(reader_config(options), deaggregate=partition.deaggregates or False)
        backend = KinesisBackend(shared_session(aws_options(options)), config.publisher)
        return LocalShardReader(backend, config)

    try:
        with ExitStack() as exits:
            thread = LoopThread("penstock task reader")
            exits.callback(thread.close)
            reader = thread.call(make())
            exits.callback(lambda: thread.call(reader.aclose()))
            batches = thread.iterate(
                reader.read_range(
                    partition.session_id,
                    ranges,
                    with_encryption_type=partition.with_encryption_type,
                    fail_on_data_loss=partition.fail_on_data_loss,
                    retry_patience_seconds=_DIRECT_PATIENCE_SECONDS,
                )
            )
            yield exits.enter_context(closing(batches))
    except (DataLossError, StreamRecreatedError, RangeDeadlineError, ReaderUnavailableError):
        raise
    except (AwsError, EfoConsumerError) as error:
        reason = f"UNAVAILABLE: a task cannot read in its place: {error}"
        raise ReaderUnavailableError(endpoint="Kinesis itself", reason=reason) from error
