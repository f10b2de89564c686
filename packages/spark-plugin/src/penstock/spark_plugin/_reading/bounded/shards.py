"""The tasks of a bounded read: each polls its shards from Kinesis itself, up to where they end."""

from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pyarrow as pa

from penstock.aws import AwsSession
from penstock.efo_consumer import (
    CheckedRead,
    HashKeyRange,
    KinesisBackend,
    Shard,
    ShardKeys,
    ShardPosition,
    StreamIdentity,
    check_streams,
    to_read_batch,
    unpack_aggregates,
)
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.arrivals import position_after, rows_before
from penstock.spark_plugin._reading.bounded.bounds import BoundedShard
from penstock.spark_plugin._reading.bounded.push_down import PushDown
from penstock.spark_plugin._reading.session.configs import publisher_config
from penstock.spark_plugin._reading.start.service_time import (
    ARRIVAL_MICROS,
    ask_time,
    is_seen,
    wait_until,
    wait_until_seen,
)


async def read_shards(
    options: KinesisOptions, shards: Sequence[BoundedShard], push_down: PushDown
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of the shards, and of children that were not listed yet when the read was planned."""
    session = AwsSession(aws_options(options))
    config = publisher_config(options)
    backend = KinesisBackend(session, config)
    # Finds the one record that a time divides a shard by.
    finder = KinesisBackend(session, replace(config, get_records_max_records=1, get_records_adaptive=False))
    pending = deque(shards)
    first = shards[0].stream_name
    await ask_time(session, StreamIdentity(first, options.arn_of(first)), options.retry_patience)
    try:
        while pending:
            shard = pending.popleft()
            stream = options.arn_of(shard.stream_name) or shard.stream_name
            one = _ShardRead(options, shard, session, backend, finder)
            async with aclosing(one.records()) as batches:
                async for records in batches:
                    # As the long-lived reader does: a back-fill has the rows that the stream would have had.
                    parts: Iterable[pa.RecordBatch] = (records,)
                    if options.deaggregate:
                        keys = None if options.deaggregate == "all" else shard.hash_keys
                        parts = unpack_aggregates(records, keys, stream=stream, shard_id=shard.shard_id)
                    for rows in parts:
                        with_type = options.include_encryption_type
                        yield to_read_batch(rows, stream, shard.shard_id, with_encryption_type=with_type)
            await one.prove()
            pending.extend(push_down.narrow(_entrants(shard, one.children, push_down)))
        # Once for all of them: few calls are allowed.
        created = {options.arn_of(one.stream_name) or one.stream_name: one.created_millis for one in shards}
        known = {stream: millis for stream, millis in created.items() if millis is not None}
        await check_streams(backend, known, known)
    finally:
        await finder.aclose()
        await backend.aclose()


def _entrants(parent: BoundedShard, children: Sequence[Shard], push_down: PushDown) -> Iterator[BoundedShard]:
    for child in children if parent.with_children else ():
        # A merged shard comes with both of its parents, which two tasks may read; one that is filtered out is not read.
        read = [one for one in child.parent_shard_ids if push_down.of_shard(parent.stream_name, one)]
        if child.shard_id not in parent.listed_children and parent.shard_id == min(read, default=parent.shard_id):
            yield replace(
                parent,
                shard_id=child.shard_id,
                after=ShardPosition.trim_horizon(),
                hash_keys=ShardKeys(
                    HashKeyRange.of(child.starting_hash_key, child.ending_hash_key),
                    None if parent.hash_keys is None else parent.hash_keys.own,
                ),
                # What comes of a shard that is not listed is not listed either.
                listed_children=(),
            )


class _ShardRead:
    """One shard up to its bound.

    A time bounds it where a read that begins at that time begins: before the first record that arrived then or later.
    Arrival times may go back by a second, so of a record that shows less than a second before it Kinesis itself is
    asked. Without a record behind the bound, the shard is complete when its tip was seen late enough.
    """

    def __init__(
        self,
        options: KinesisOptions,
        shard: BoundedShard,
        session: AwsSession,
        backend: KinesisBackend,
        finder: KinesisBackend,
    ) -> None:
        self._shard = shard
        self._clock = session.service_clock()
        self._finder = finder
        self._stream = options.arn_of(shard.stream_name) or shard.stream_name
        self._read = CheckedRead(
            backend,
            self._stream,
            shard.shard_id,
            fail_on_data_loss=options.fail_on_data_loss,
            created_millis=shard.created_millis,
        )
        self._is_asked = False
        self._before_micros = shard.before_micros
        """The bound in time; None once the first record beyond it is known."""
        self._beyond: int | None = None if shard.upto is None else int(shard.upto) + 1
        """The first sequence number beyond either bound, as far as it is known."""
        self.children: Sequence[Shard] = ()
        """Of a shard that was read to its end."""

    async def records(self) -> AsyncGenerator[pa.RecordBatch, None]:
        shard, begin, is_complete = self._shard, self._shard.after, False
        has_ended = begin.is_shard_end
        if has_ended:
            # Behind its last record it names its children.
            begin = ShardPosition.at_timestamp(shard.planned_millis)
        if begin.timestamp_millis is not None:
            await wait_until(self._clock, begin.timestamp_millis)
        while not is_complete:
            is_complete = is_seen(self._clock, shard.complete_millis)
            async with aclosing(self._read.events(begin)) as events:
                async for event in events:
                    kept = event.records if has_ended else await self._within(event.records)
                    if kept.num_rows and not has_ended:
                        yield kept
                    if kept.num_rows < event.records.num_rows:
                        return
                    if event.child_shards:
                        self.children = event.child_shards
                        return
                    if event.records.num_rows:
                        begin = position_after(event.records, -1)
                    if self._beyond is not None and int(event.continuation or 0) + 1 >= self._beyond:
                        return
            if not is_complete:
                await wait_until_seen(self._clock, shard.complete_millis)

    async def prove(self) -> None:
        """Prove that the records had no hole, once all of them came.

        Raises:
            DataLossError: records have expired, or nothing proves that none has, and `failOnDataLoss`.
        """
        await self._read.prove()

    async def _within(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records up to the nearer bound."""
        before = self._before_micros
        if before is not None and not self._is_asked:
            near = rows_before(records, before - ARRIVAL_MICROS)
            if near < rows_before(records, before):
                self._is_asked = True
                first = await self._first_record(-(-before // 1000))
                if first is not None:
                    self._before_micros = None
                    self._beyond = first if self._beyond is None else min(first, self._beyond)
        count = records.num_rows if self._before_micros is None else rows_before(records, self._before_micros)
        if self._beyond is not None:
            # Decimal digits of different lengths: compared as numbers.
            numbers, beyond = records.column("sequenceNumber"), self._beyond
            count = bisect_left(range(count), beyond, key=lambda row: int(numbers[row].as_py()))
        return records.slice(0, count)

    async def _first_record(self, millis: int) -> int | None:
        """The sequence number of the first record that arrived at a time or later; None if there is none yet."""
        while not is_seen(self._clock, millis):
            await wait_until_seen(self._clock, millis)
        found = self._finder.read_once(self._stream, self._shard.shard_id, ShardPosition.at_timestamp(millis))
        async with aclosing(found) as events:
            async for event in events:
                if event.records.num_rows:
                    return int(event.records.column("sequenceNumber")[0].as_py())
        return None
