"""The tasks of a bounded read: each polls its shards from Kinesis itself, up to where they end."""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from penstock.aws import AwsSession
from penstock.efo_consumer import (
    CheckedRead,
    HashKeyRange,
    KinesisBackend,
    Shard,
    ShardKeys,
    ShardListing,
    ShardPosition,
    StreamIdentity,
    check_streams,
    list_shards,
    stream_client,
    to_read_batch,
    unpack_aggregates,
)
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.bounded.bounds import BoundedShard
from penstock.spark_plugin._reading.columns import position_after, rows_before
from penstock.spark_plugin._reading.service_time import (
    ARRIVAL_MICROS,
    ask_time,
    guess_of_tips,
    is_seen,
    wait_until,
    wait_until_seen,
)
from penstock.spark_plugin._reading.session.configs import publisher_config

_log = logging.getLogger(__name__)


async def read_shards(options: KinesisOptions, shards: Sequence[BoundedShard]) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of the shards, and of children that were not listed yet when the read was planned.

    Shards that are quiet, where the service does not say whether that is their tip, wait together. At the end a list
    shows whether shards that were read up to their tips were open: the others are read on.
    """
    session = AwsSession(aws_options(options))
    config = publisher_config(options)
    backend = KinesisBackend(session, config)
    # Finds the one record that a time divides a shard by.
    finder = KinesisBackend(session, replace(config, get_records_max_records=1))

    reads: list[_ShardRead] = []

    def begun(shard: BoundedShard) -> _ShardRead:
        reads.append(_ShardRead(options, shard, session, backend, finder))
        return reads[-1]

    pending = deque(map(begun, shards))
    quiet: deque[_ShardRead] = deque()
    at_tip: list[_ShardRead] = []
    guesses: dict[str, list[str]] = {}

    async def finish(one: _ShardRead) -> None:
        await one.prove()
        if one.is_quiet:
            guesses.setdefault(one.shard.stream_name, []).append(one.shard.shard_id)

    first = shards[0].stream_name
    await ask_time(session, StreamIdentity(first, options.arn_of(first)), options.retry_patience)
    try:
        while pending or quiet or at_tip:
            if not (pending or quiet):
                # Not before all were read: then one list is enough.
                listings = await _listings(session, {one.stream for one in at_tip}, config.retry_patience)
                for one in at_tip:
                    is_open = listings[one.stream].is_open(one.shard.shard_id)
                    if is_open:
                        await finish(one)
                    else:
                        one.resume(is_open=is_open)
                        pending.append(one)
                at_tip = []
                continue
            one = pending.popleft() if pending else quiet.popleft()
            shard = one.shard
            async for records in one.batches:
                if records is None:
                    quiet.append(one)
                    break
                # As the long-lived reader does: a back-fill has the rows that the stream would have had.
                parts: Iterable[pa.RecordBatch] = (records,)
                if options.deaggregate:
                    keys = None if options.deaggregate == "all" else shard.hash_keys
                    parts = unpack_aggregates(records, keys, stream=one.stream, shard_id=shard.shard_id)
                for rows in parts:
                    with_type = options.include_encryption_type
                    yield to_read_batch(rows, one.stream, shard.shard_id, with_encryption_type=with_type)
            else:
                if one.is_at_tip:
                    at_tip.append(one)
                else:
                    await finish(one)
                pending.extend(map(begun, _entrants(shard, one.children)))
        # Once for all of them: few calls are allowed.
        created = {options.arn_of(one.stream_name) or one.stream_name: one.created_millis for one in shards}
        known = {stream: millis for stream, millis in created.items() if millis is not None}
        await check_streams(backend, known, known)
        for stream, ids in guesses.items():
            _log.warning("%s", guess_of_tips("the read", stream, ids))
    finally:
        for one in reads:
            await one.batches.aclose()
        await finder.aclose()
        await backend.aclose()


async def _listings(
    session: AwsSession, streams: Collection[str], retry_patience: timedelta
) -> dict[str, ShardListing]:
    async with stream_client(session) as client:
        return {
            stream: ShardListing.of(await list_shards(client, StreamIdentity.of(stream), retry_patience=retry_patience))
            for stream in streams
        }


def _entrants(parent: BoundedShard, children: Sequence[Shard]) -> Iterator[BoundedShard]:
    for child in children if parent.with_children else ():
        # A merged shard comes with both of its parents, which two tasks may read.
        first = min(child.parent_shard_ids, default=parent.shard_id)
        if child.shard_id not in parent.listed_children and parent.shard_id == first:
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
                is_open=True,
            )


class _ShardRead:
    """One shard up to its bound.

    A time bounds it where a read that begins at that time begins: before the first record that arrived then or later.
    Arrival times may go back by a second, so of a record that shows less than a second before it Kinesis itself is
    asked. Without a record behind the bound, the shard is complete at its end, or when its tip was seen late enough and
    it is open.

    Attributes:
        shard: what is read.
        stream: name or ARN.
        batches: the records, from where reading stands.
        is_at_tip: whether reading has ended at the tip of a shard that was open when the read was planned.
        is_quiet: whether the last answers were empty, where the service does not say whether that is the tip.
        children: of a shard that was read to its end.
    """

    def __init__(
        self,
        options: KinesisOptions,
        shard: BoundedShard,
        session: AwsSession,
        backend: KinesisBackend,
        finder: KinesisBackend,
    ) -> None:
        self.shard = shard
        self._clock = session.service_clock()
        self._finder = finder
        self.stream = options.arn_of(shard.stream_name) or shard.stream_name
        self._read = CheckedRead(
            backend,
            self.stream,
            shard.shard_id,
            fail_on_data_loss=options.fail_on_data_loss,
            created_millis=shard.created_millis,
        )
        self._is_open: bool | None = shard.is_open
        # A shard that had ended names its children behind its last record.
        is_ended = shard.after.is_shard_end
        self._begin = ShardPosition.at_timestamp(shard.planned_millis) if is_ended else shard.after
        self._is_asked = False
        self._before_micros = shard.before_micros
        """The bound in time; None once the first record beyond it is known."""
        self._beyond: int | None = None if shard.upto is None else int(shard.upto) + 1
        """The first sequence number beyond either bound, if it is known."""
        self.children: Sequence[Shard] = ()
        self.is_at_tip = self.is_quiet = False
        self.batches = self._records()

    def resume(self, *, is_open: bool | None) -> None:
        """Read on a shard that is closed, or of which that is not known."""
        self._is_open, self.is_at_tip = is_open, False
        self.batches = self._records()

    async def _records(self) -> AsyncGenerator[pa.RecordBatch | None, None]:
        """The records up to the bound; None where the shard is quiet, so that others can be read meanwhile."""
        shard, is_complete = self.shard, False
        has_ended = shard.after.is_shard_end
        if self._begin.timestamp_millis is not None:
            await wait_until(self._clock, self._begin.timestamp_millis)
        while not is_complete:
            # An answer shows what had arrived when it was asked for.
            is_complete = is_next_complete = is_seen(self._clock, shard.complete_millis)
            async with aclosing(self._read.events(self._begin, is_open=self._is_open)) as events:
                async for event in events:
                    is_complete, is_next_complete = is_next_complete, is_seen(self._clock, shard.complete_millis)
                    self.is_quiet = event.quiet_seconds is not None and event.millis_behind_latest == 0
                    kept = event.records if has_ended else await self._within(event.records)
                    if kept.num_rows and not has_ended:
                        yield kept
                    if kept.num_rows < event.records.num_rows:
                        return
                    if event.child_shards:
                        self.children = event.child_shards
                        return
                    if event.records.num_rows:
                        self._begin = position_after(event.records, -1)
                    if self._beyond is not None and int(event.continuation or 0) + 1 >= self._beyond:
                        return
                    if event.is_over:
                        return
                    if self.is_quiet:
                        yield None
            if self._read.is_gone:
                return
            if not is_complete:
                await wait_until_seen(self._clock, shard.complete_millis)
        self.is_at_tip = self._is_open is True

    async def prove(self) -> None:
        """Prove that the records had no hole, once all of them came.

        Raises:
            DataLossError: records have expired, or their completeness cannot be proved, and `failOnDataLoss`.
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
        """The sequence number of the first record that arrived at a time or later; None if it does not exist yet."""
        while not is_seen(self._clock, millis):
            await wait_until_seen(self._clock, millis)
        found = self._finder.read_once(self.stream, self.shard.shard_id, ShardPosition.at_timestamp(millis))
        async with aclosing(found) as events:
            async for event in events:
                if event.records.num_rows:
                    return int(event.records.column("sequenceNumber")[0].as_py())
        return None
