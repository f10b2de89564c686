"""Trigger.AvailableNow: where each shard ended when the query began, as facts about its records."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from penstock.aws import AwsSession
from penstock.efo_consumer import (
    KinesisBackend,
    Shard,
    ShardEvent,
    ShardPosition,
    StreamIdentity,
    StreamPositions,
    list_shards,
    next_shards,
    stream_client,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.arrivals import position_after, rows_before
from penstock.spark_plugin._reading.session.configs import publisher_config
from penstock.spark_plugin._reading.start.initial_positions import latest_millis
from penstock.spark_plugin._reading.start.service_time import now_millis, wait_until_shown
from penstock.spark_plugin._reading.start.stream_names import StreamKeys
from penstock.spark_plugin._reading.stream.offsets import capped

_WINDOWS_MILLIS = (3_000, 30_000, 600_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000)
"""How far back the last record of a shard is looked for, before the shard is read from where the query stands. Not in
DynamoDB Streams, where reading from a time costs more than that."""
_AT_ONCE = 16
_FACTS_MILLIS = 3_600_000
_NOT_FOUND = "ResourceNotFoundException"
_BEYOND = 1 << 256
"""More than any sequence number."""


ListShards = Callable[[str], Awaitable[Sequence[Shard]]]
"""Of a stream, all shards that it lists."""
ReadOnce = Callable[[str, str, ShardPosition], AsyncGenerator[ShardEvent, None]]
"""Of a stream and a shard, what it holds after a position, up to its tip or end."""


@dataclass
class Target:
    """Where a query ends: nothing beyond `bounds` is read, and all of `needed` is."""

    bounds: Mapping[str, Mapping[str, ShardPosition]]
    """By stream and shard. A shard that is not there came later, or after such a one."""
    needed: dict[tuple[str, str], int] = field(default_factory=dict)
    """By stream and shard, the last record's sequence number; shards without any are not there."""
    complete_millis: int = 0
    """All that arrived before this time, by the service's clock in milliseconds since 1970, is within the target."""

    def cap(self, positions: StreamPositions) -> StreamPositions:
        """The positions, nowhere beyond the target."""
        return capped(positions, StreamPositions(self.bounds))

    def renamed(self, keys: StreamKeys) -> "Target":
        """The same of streams by their names instead of the reader's."""
        return replace(
            self,
            bounds=keys.named(StreamPositions(self.bounds)).streams,
            needed={(keys.name(stream), shard): last for (stream, shard), last in self.needed.items()},
        )

    def with_facts(self, reached: StreamPositions) -> StreamPositions:
        """Positions at which the target is reached, with what that proves of shards that were idle for an hour or more.

        Otherwise a stream that is idle for longer than its retention could not be read by runs alone.
        """

        def proved(stream: str, shard: str, position: ShardPosition) -> ShardPosition:
            known = position.known_millis
            # A query that begins with what there is has promised nothing before its first record.
            is_old = known is not None and known + _FACTS_MILLIS <= self.complete_millis
            if not is_old or position.is_shard_end or shard not in self.bounds.get(stream, {}):
                return position
            return replace(position, caught_up_millis=self.complete_millis)

        streams = {
            stream: {shard: proved(stream, shard, position) for shard, position in shards.items()}
            for stream, shards in reached.streams.items()
        }
        return replace(reached, streams=streams)

    def is_reached(self, positions: StreamPositions) -> bool:
        """Whether these positions, and those that were asked about before, hold all that is needed.

        A shard leaves the positions after its end was shown, so what was reached once is remembered.
        """
        for (stream, shard), last in list(self.needed.items()):
            position = positions.get(stream, shard)
            if position is not None and position.rank >= (1, last):
                del self.needed[stream, shard]
        return not self.needed


async def find_target(
    start: StreamPositions,
    before_millis: int,
    list_shards: ListShards,
    read_once: ReadOnce,
    *,
    windows_millis: Sequence[int] = _WINDOWS_MILLIS,
) -> Target:
    """The last record of each shard that arrived before a time; closed shards are read to their end.

    To be called when polls show all records that arrived before the time. Costs a shard one or two polls where it was
    written to lately, and a few more where it was not.

    Args:
        start: Where the query stands.
        before_millis: The time at which it began, by the service's clock, in milliseconds since 1970.
        list_shards: Lists a stream's shards.
        read_once: Polls a shard.
        windows_millis: How far back the last record of a shard is looked for, before the shard is read from where the
            query stands.
    """
    # Arrival times are approximate by a second.
    target = Target({}, complete_millis=before_millis - 1000)
    bounds: dict[str, Mapping[str, ShardPosition]] = {}
    slots = asyncio.Semaphore(_AT_ONCE)

    async def find(stream: str, positions: Mapping[str, ShardPosition]) -> None:
        tips = _Tips(stream, before_millis, read_once, slots, windows_millis)
        bounds[stream] = await tips.find(positions, await list_shards(stream))
        target.needed.update({(stream, shard): last for shard, last in tips.last.items()})

    await asyncio.gather(*(find(stream, positions) for stream, positions in start.streams.items()))
    target.bounds = bounds
    return target


class _Tips:
    """The tips of one stream's shards."""

    def __init__(
        self,
        stream: str,
        before_millis: int,
        read_once: ReadOnce,
        slots: asyncio.Semaphore,
        windows_millis: Sequence[int],
    ) -> None:
        self._stream = stream
        self._before_millis = before_millis
        self._read_once = read_once
        self._slots = slots
        self._windows_millis = windows_millis
        self._shards: dict[str, Shard] = {}
        self.last: dict[str, int] = {}

    async def find(
        self, positions: Mapping[str, ShardPosition], listed: Sequence[Shard]
    ) -> Mapping[str, ShardPosition]:
        """The bound of each shard, generation by generation: what follows an open shard is not read."""
        shards = self._shards = {one.shard_id: one for one in listed}
        unlisted = [shard for shard in positions if shard not in shards]
        there = await asyncio.gather(*(self._is_there(shard) for shard in unlisted))
        for shard, is_there in zip(unlisted, there, strict=True):
            if is_there:
                shards.setdefault(shard, Shard(shard))
        # A shard that has expired is for the reader to judge; its children are read after it.
        bounds = {shard: ShardPosition.shard_end() for shard in positions if shard not in shards}
        # Only its end will do, which the reader shows, or a loss in its stead.
        self.last = {shard: _BEYOND for shard in bounds if not positions[shard].is_shard_end}
        pending = {shard: position for shard, position in positions.items() if shard in shards}
        pending = pending or self._next(bounds)
        while pending:
            found = await asyncio.gather(*(self._bound(shards[shard], position) for shard, position in pending.items()))
            bounds.update(zip(pending, found, strict=True))
            pending = self._next(bounds)
        return bounds

    async def _is_there(self, shard_id: str) -> bool:
        """Whether a shard that is not listed can be read: lists may be late. Learns its children if it has ended."""
        async with self._slots:
            try:
                await self._scan(shard_id, ShardPosition.at_timestamp(self._before_millis))
            except RecordPublisherFatalError as error:
                if error.code != _NOT_FOUND:
                    raise
                return False
        return True

    def _next(self, bounds: Mapping[str, ShardPosition]) -> dict[str, ShardPosition]:
        return dict.fromkeys(next_shards(bounds, self._shards.values()), ShardPosition.trim_horizon())

    async def _bound(self, shard: Shard, position: ShardPosition) -> ShardPosition:
        if position.is_shard_end or (position.timestamp_millis or 0) >= self._before_millis:
            return position
        async with self._slots:
            last, at_end = await self._look(shard, position)
        if last is not None and last.rank > position.rank:
            self.last[shard.shard_id] = last.rank[1]
            return ShardPosition.shard_end() if at_end else last
        return ShardPosition.shard_end() if at_end else position

    async def _look(self, shard: Shard, position: ShardPosition) -> tuple[ShardPosition | None, bool]:
        """The last record before the time, and whether the shard ends with it."""
        stands = position.known_millis or 0
        for window in self._windows_millis:
            begin = self._before_millis - window
            if begin <= stands:
                break
            last, at_end = await self._scan(shard.shard_id, ShardPosition.at_timestamp(begin))
            if last is not None:
                return last, at_end
            if window == self._windows_millis[0] and (found := await self._peek(shard.shard_id, position)) is not None:
                return found
        try:
            return await self._scan(shard.shard_id, position)
        except RecordPublisherFatalError as error:
            if not _is_refused(error, position):
                raise
            # The stream no longer holds it. Whether that is a loss, the reader says.
            return await self._scan(shard.shard_id, ShardPosition.trim_horizon())

    async def _peek(self, shard_id: str, position: ShardPosition) -> tuple[ShardPosition | None, bool] | None:
        """What `_scan` would find, if one poll tells, as of an idle shard; otherwise None."""
        try:
            return await self._scan(shard_id, position, is_peek=True)
        except _MoreToReadError:
            return None
        except RecordPublisherFatalError as error:
            if not _is_refused(error, position):
                raise
            return None

    async def _scan(
        self, shard_id: str, begin: ShardPosition, *, is_peek: bool = False
    ) -> tuple[ShardPosition | None, bool]:
        last: ShardPosition | None = None
        async with aclosing(self._read_once(self._stream, shard_id, begin)) as events:
            async for event in events:
                count = rows_before(event.records, self._before_millis * 1000)
                if count:
                    last = position_after(event.records, count - 1)
                if count < event.records.num_rows:
                    return last, False
                if event.child_shards:
                    # No list may show them yet.
                    for child in event.child_shards:
                        self._shards.setdefault(child.shard_id, child)
                    return last, True
                if is_peek and event.millis_behind_latest != 0:
                    raise _MoreToReadError
        return last, False


class _MoreToReadError(Exception):
    """A poll did not reach the tip of its shard."""


def _is_refused(error: RecordPublisherFatalError, position: ShardPosition) -> bool:
    return error.code == "InvalidArgumentException" and position.sequence_number is not None


class AvailableNow:
    """The end of a run that reads what was there when it began."""

    def __init__(self, options: KinesisOptions, began: float) -> None:
        """Make it at the beginning of the run, `began` by `time.monotonic()`; by the service's clock it is this moment.

        The service's time is known to a second or so, and is for telling what came before the run; its own clock is for
        waiting until that is shown.
        """
        self._options = options
        self._session = AwsSession(aws_options(options))
        self._began = began
        latest_millis(self._session, options)  # whose answers have the service's time, and whether there are streams
        self._before_millis = now_millis(self._session)
        clock = self._session.service_clock()
        self._began_millis = math.floor((clock.earliest() - (clock.monotonic() - began)) * 1000)
        self._target: Target | None = None

    def target(self, start: StreamPositions) -> Target:
        """Where the run ends that stands at `start`; found at the first call."""
        if self._target is None:
            self._target = asyncio.run(self._find(start))
        return self._target

    async def _find(self, start: StreamPositions) -> Target:
        options = self._options
        keys = StreamKeys(options)
        await wait_until_shown(self._session.service_clock(), self._began)
        config = publisher_config(options)
        backend = KinesisBackend(self._session, config)

        async def list_all(stream: str) -> Sequence[Shard]:
            async with stream_client(self._session) as client:
                return await list_shards(client, StreamIdentity.of(stream), retry_patience=config.retry_patience)

        try:
            found = await find_target(
                keys.keyed(start),
                self._before_millis,
                list_all,
                backend.read_once,
                windows_millis=_WINDOWS_MILLIS if options.stream_service == "kinesis" else (),
            )
        finally:
            await backend.aclose()
        # What came since the run began may not be shown yet; and arrival times are approximate by a second.
        found.complete_millis = min(found.complete_millis, self._began_millis - 1000)
        return found.renamed(keys)
