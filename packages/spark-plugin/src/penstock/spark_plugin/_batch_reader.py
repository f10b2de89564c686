"""Bounded reads: what a stream holds from a position up to a time."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.trace import use_span
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.aws import AwsSession, JsonClient
from penstock.efo_consumer import ShardPosition, StreamIdentity, list_shards, read_once
from penstock.efo_consumer._schema import to_read_batch
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._garbage import freeze_garbage
from penstock.spark_plugin._option_values import InitialPosition, InitialPositionType
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._planning import default_max_partitions
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, parent_context, task_property, tracer


@dataclass(frozen=True, slots=True)
class BoundedShard:
    """A shard, and what a bounded read takes of it."""

    stream_name: str
    shard_id: str
    after: ShardPosition
    before_micros: int
    """Records that arrived at this time (microseconds since 1970) or later are left out."""


class BoundedPartition(InputPartition):
    """Shards that one task reads."""

    def __init__(self, shards: tuple[BoundedShard, ...]) -> None:
        super().__init__(None)
        self.shards = shards


class KinesisBatchReader(DataSourceReader):
    """Reads, by polling, what the streams hold between `initialPosition` and `endingTimestamp`.

    Every task reads its shards from Kinesis itself: there is no reader whose life it could share.
    """

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """All shards that the streams still know, closed ones too, in few partitions."""
        shards = asyncio.run(self._shards())
        count = min(len(shards), self._options.max_partitions or default_max_partitions())
        return [BoundedPartition(tuple(shards[first::count])) for first in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition's shards, in order within each."""
        if not isinstance(partition, BoundedPartition):
            if partition.value is None:  # Spark's own, when there were no shards
                return
            raise TypeError(f"not a partition of this source: {partition!r}")
        freeze_garbage()
        options = self._options
        parent = parent_context(task_property(TRACEPARENT_PROPERTY), options.traceparent)
        span = tracer().start_span(
            "spark_plugin.read_partition",
            context=parent,
            attributes={"penstock.shards": [one.shard_id for one in partition.shards]},
        )
        rows = 0
        loop = asyncio.new_event_loop()
        batches = _read(options, partition.shards)
        try:
            while True:
                with use_span(span, end_on_exit=False):
                    batch = loop.run_until_complete(anext(batches, None))
                if batch is None:
                    return
                rows += batch.num_rows
                yield batch
        finally:
            loop.run_until_complete(batches.aclose())
            loop.close()
            span.set_attribute("penstock.records", rows)
            span.end()

    async def _shards(self) -> list[BoundedShard]:
        options = self._options
        ending = options.ending_timestamp
        # A record that was put before this planning has arrived before this millisecond is over.
        before_micros = int(ending.timestamp() * 1e6) if ending is not None else (time.time_ns() // 10**6 + 1) * 1000
        after = _position(options.initial_position, before_micros)
        async with JsonClient(AwsSession(aws_options(options))) as client:
            return [
                BoundedShard(stream, shard.shard_id, after, before_micros)
                for stream in options.stream_name
                for shard in await list_shards(client, StreamIdentity(stream, options.stream_arn))
            ]


async def _read(options: KinesisOptions, shards: Sequence[BoundedShard]) -> AsyncGenerator[pa.RecordBatch, None]:
    async with JsonClient(AwsSession(aws_options(options))) as client:
        for shard in shards:
            stream = StreamIdentity(shard.stream_name, options.stream_arn)
            events = read_once(client, stream, shard.shard_id, shard.after)
            async for event in events:
                records = _before(event.records, shard.before_micros)
                if records.num_rows:
                    yield to_read_batch(
                        records,
                        shard.stream_name,
                        shard.shard_id,
                        with_encryption_type=options.include_encryption_type,
                    )
                if records.num_rows < event.records.num_rows:
                    break
            await events.aclose()


def _before(records: pa.RecordBatch, before_micros: int) -> pa.RecordBatch:
    """The records up to the first that arrived at the time or later."""
    column = records.column("approximateArrivalTimestamp")
    late = pc.index(pc.greater_equal(column, pa.scalar(before_micros, column.type)), True).as_py()
    return records if late < 0 else records.slice(0, late)


def _position(position: InitialPosition | None, now_micros: int) -> ShardPosition:
    if position is None or position.type is InitialPositionType.TRIM_HORIZON:
        return ShardPosition.trim_horizon()
    if position.timestamp is None:  # LATEST: nothing, unless the end lies in the future
        return ShardPosition.at_timestamp(now_micros // 1000)
    return ShardPosition.at_timestamp(int(position.timestamp.timestamp() * 1000))
