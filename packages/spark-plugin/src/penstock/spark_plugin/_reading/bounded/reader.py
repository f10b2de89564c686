"""Bounded reads: what a stream holds from a position up to a position or a time."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from opentelemetry.trace import use_span
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.aws import AwsSession, JsonClient
from penstock.efo_consumer import ShardFilter, StreamIdentity, StreamKeys, stream_client
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.bounded.bounds import BoundedShard, Bounds, divide_by_time, spread
from penstock.spark_plugin._reading.bounded.shards import read_shards
from penstock.spark_plugin._reading.columns import in_layout
from penstock.spark_plugin._reading.initial_positions import list_with
from penstock.spark_plugin._reading.service_time import ask_time, now_millis
from penstock.spark_plugin._reading.stream.offsets import partition_bounds
from penstock.spark_plugin._reading.stream_names import describe_stream, with_streams
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, parent_context, task_property, tracer
from penstock.spark_plugin._user_errors import rows_with_remedies, with_remedies
from penstock.spark_plugin.errors import OptionError

_SHORTEST_RETENTION_HOURS = 24
_RECENT_MILLIS = 60_000
"""Kinesis need not know which shards were open at a time that is younger, or in its future."""


class BoundedPartition(InputPartition):
    """Shards that one task reads."""

    def __init__(self, shards: tuple[BoundedShard, ...]) -> None:
        super().__init__(None)
        self.shards = shards


class KinesisBatchReader(DataSourceReader):
    """Reads, by polling, what the streams hold between `initialPosition` and `endingPosition`.

    Every task reads its shards from Kinesis itself: bounded reads have no long-lived reader.
    """

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options

    @with_remedies
    def partitions(self) -> Sequence[InputPartition]:
        """All shards that the streams still know, closed ones too, in few partitions."""
        session = AwsSession(aws_options(self._options))
        options = with_streams(self._options, lambda: session)
        first = options.stream_name[0]
        asyncio.run(ask_time(session, StreamIdentity(first, options.arn_of(first)), options.retry_patience))
        now_micros = now_millis(session) * 1000
        bounds = Bounds.resolve(session, options, now_micros)
        least, most = partition_bounds(options.min_partitions, options.max_partitions)
        shards = asyncio.run(_plan(session, options, bounds, least, now_micros))
        return [BoundedPartition(part) for part in spread(shards, min(len(shards), most))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition's shards, in order within each."""
        return rows_with_remedies(self._rows(partition), self._options)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BoundedPartition):
            if partition.value is None:  # Spark's own, when there were no shards
                return
            raise TypeError(f"not a partition of this source: {partition!r}")
        limit_collections()
        options = self._options
        parent = parent_context(task_property(TRACEPARENT_PROPERTY), options.traceparent)
        span = tracer().start_span(
            "spark_plugin.read_partition",
            context=parent,
            attributes={"penstock.shards": [one.shard_id for one in partition.shards]},
        )
        rows = 0
        loop = asyncio.new_event_loop()
        batches = read_shards(options, partition.shards)
        try:
            while True:
                with use_span(span, end_on_exit=False):
                    batch = loop.run_until_complete(anext(batches, None))
                if batch is None:
                    return
                rows += batch.num_rows
                yield from in_layout(iter((batch,)), options.columns)
        finally:
            loop.run_until_complete(batches.aclose())
            loop.close()
            span.set_attribute("penstock.records", rows)
            span.end()


async def _plan(
    session: AwsSession,
    options: KinesisOptions,
    bounds: Bounds,
    least: int,
    now_micros: int,
) -> list[BoundedShard]:
    """The shards that are read, divided where there are fewer than the least number of partitions."""
    shards: list[BoundedShard] = []
    async with stream_client(session) as client:
        unseen = set(options.shard_ids)
        for stream in options.stream_name:
            identity = StreamIdentity(stream, options.arn_of(stream))
            since = None if options.shard_ids else _filter(bounds, stream, now_micros // 1000)
            listed = await list_with(client, identity, bounds.named_in(stream), options.retry_patience, since)
            keys = StreamKeys()
            keys.learn(listed)
            if since is not None and options.deaggregate is True and keys.lacks_parents:
                # The filter leaves out parents that ended before the read begins. Without them user records of
                # aggregates would come here that a stream, which lists all shards, leaves to other shards.
                keys.learn(await list_with(client, identity, (), options.retry_patience))
            found = bounds.of_stream(stream, listed, keys, fail_on_data_loss=options.fail_on_data_loss)
            purpose = f"cannot check whether {stream} is deleted and created again while it is read"
            summary = await describe_stream(client, options.arn_of(stream) or stream, purpose, options.retry_patience)
            if summary is not None:
                found = (replace(one, created_millis=summary.created_millis) for one in found)
            if options.shard_ids:
                asked = (one for one in found if one.shard_id in options.shard_ids and not one.after.is_shard_end)
                found = (replace(one, with_children=False) for one in asked)
            unseen.difference_update(one.shard_id for one in listed)
            shards += found
        if unseen:
            raise OptionError.invalid(
                "shardIds",
                ",".join(options.shard_ids),
                f"shards that the streams list, and {min(unseen)} is not listed",
            )
        if 0 < len(shards) < least:
            retention = {stream: await _retention_micros(client, options, stream) for stream in options.stream_name}
            shards = divide_by_time(shards, least, now_micros, retention)
    return shards


def _filter(bounds: Bounds, stream: str, now_millis: int) -> ShardFilter | None:
    """Shards that were closed before the read begins hold nothing of it."""
    since = bounds.after[stream].timestamp_millis
    if since is None or bounds.names_shards or since > now_millis - _RECENT_MILLIS:
        return None
    return ShardFilter("FROM_TIMESTAMP", timestamp_millis=since)


async def _retention_micros(client: JsonClient, options: KinesisOptions, stream: str) -> int:
    purpose = f"cannot tell how long {stream} keeps records; dividing the last {_SHORTEST_RETENTION_HOURS} hours"
    summary = await describe_stream(client, options.arn_of(stream) or stream, purpose, options.retry_patience)
    return (_SHORTEST_RETENTION_HOURS * 3600 if summary is None else summary.retention_seconds) * 10**6
