"""Bounded reads: what a stream holds from a position up to a position or a time."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.trace import use_span
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.aws import AwsSession, JsonClient
from penstock.efo_consumer import Shard, StreamIdentity, deaggregate, list_shards, read_once, to_read_batch
from penstock.spark_plugin._bounds import BoundedShard, Bounds
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._garbage import freeze_garbage
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._planning import default_max_partitions
from penstock.spark_plugin._seam import wait_for_seam
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, parent_context, task_property, tracer


class BoundedPartition(InputPartition):
    """Shards that one task reads."""

    def __init__(self, shards: tuple[BoundedShard, ...]) -> None:
        super().__init__(None)
        self.shards = shards


class KinesisBatchReader(DataSourceReader):
    """Reads, by polling, what the streams hold between `initialPosition` and `endingPosition`.

    Every task reads its shards from Kinesis itself: there is no reader whose life it could share.
    """

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """All shards that the streams still know, closed ones too, in few partitions."""
        shards = self._shards()
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

    def _shards(self) -> list[BoundedShard]:
        options = self._options
        session = AwsSession(aws_options(options))
        # A record that was put before this planning has arrived before this millisecond is over.
        now_micros = (time.time_ns() // 10**6 + 1) * 1000
        bounds = Bounds.resolve(session, options, now_micros)
        listed = asyncio.run(_list(session, options))
        if options.ending_position is not None and options.ending_position.seam is not None:
            wait_for_seam(options.ending_position.seam)
        return [one for stream, shards in listed.items() for one in bounds.of_stream(stream, shards)]


async def _list(session: AwsSession, options: KinesisOptions) -> dict[str, list[Shard]]:
    async with JsonClient(session) as client:
        return {
            stream: await list_shards(client, StreamIdentity(stream, options.stream_arn))
            for stream in options.stream_name
        }


async def _read(options: KinesisOptions, shards: Sequence[BoundedShard]) -> AsyncGenerator[pa.RecordBatch, None]:
    async with JsonClient(AwsSession(aws_options(options))) as client:
        for shard in shards:
            stream = StreamIdentity(shard.stream_name, options.stream_arn)
            events = read_once(client, stream, shard.shard_id, shard.after)
            async for event in events:
                records, more = within(event.records, shard)
                if records.num_rows:
                    # As the long-lived reader does: a back-fill has the rows that the stream would have had.
                    yield to_read_batch(
                        deaggregate(records, shard.hash_keys),
                        shard.stream_name,
                        shard.shard_id,
                        with_encryption_type=options.include_encryption_type,
                    )
                if not more:
                    break
            await events.aclose()


def within(records: pa.RecordBatch, shard: BoundedShard) -> tuple[pa.RecordBatch, bool]:
    """The records up to the shard's bound, and whether more may follow."""
    kept, more = records, True
    if shard.before_micros is not None:
        column = records.column("approximateArrivalTimestamp")
        late = pc.index(pc.greater_equal(column, pa.scalar(shard.before_micros, column.type)), True).as_py()
        if late >= 0:
            kept, more = records.slice(0, late), False
    if shard.upto is not None and kept.num_rows:
        # Decimal digits of different lengths: compared as numbers.
        upto, numbers = int(shard.upto), kept.column("sequenceNumber")
        last = bisect_right(range(kept.num_rows), upto, key=lambda index: int(numbers[index].as_py()))
        more = more and last == kept.num_rows and int(numbers[-1].as_py()) < upto
        kept = kept.slice(0, last)
    return kept, more
