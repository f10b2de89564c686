"""Trigger.AvailableNow: where each shard ended when the query began, as facts about its records."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from penstock.aws import AwsSession
from penstock.efo_consumer import (
    KinesisBackend,
    Shard,
    ShardEvent,
    ShardListing,
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
from penstock.spark_plugin._reading.columns import position_after, rows_before
from penstock.spark_plugin._reading.initial_positions import latest_millis
from penstock.spark_plugin._reading.service_time import guess_of_tips, now_millis, wait_until_shown
from penstock.spark_plugin._reading.session.configs import publisher_config
from penstock.spark_plugin._reading.stream.offsets import capped
from penstock.spark_plugin._reading.stream_names import StreamKeys

_log = logging.getLogger(__name__)
_WINDOWS_MILLIS = (3_000, 30_000, 600_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000)
"""How far back the last record of a shard is looked for, before the shard is read from where the query stands. Not in
DynamoDB Streams, where reading from a time costs more than that."""
_AT_ONCE = 16
_FACTS_MILLIS = 3_600_000
_NOT_FOUND = "ResourceNotFoundException"
_BEYOND = 1 << 256
"""More than any sequence number."""


ListShards = Callable[[str], Awaitable[Sequence[Shard]]]
"""All shards that a stream lists."""


ReadOnce = Callable[..., AsyncGenerator[ShardEvent, None]]
"""Reads what a shard holds after a position, up to its end or, if it is open, its tip: `KinesisBackend.read_once`."""


@dataclass
class Target:
    """Where a query ends: nothing beyond `bounds` is read, and all of `needed` is."""

    bounds: Mapping[str, Mapping[str, ShardPosition]]
    """By stream and shard. A shard that is missing came later, or descends from one that did."""
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
    written to lately, and a few more where it was not; and a stream two lists of its shards. A shard that the second
    list shows closed, and whose tip was taken for its last record, is looked at again.

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
        tips = _Tips(stream, before_millis, list_shards, read_once, slots, windows_millis)
        bounds[stream] = await tips.find(positions)
        target.needed.update({(stream, shard): last for shard, last in tips.last.items()})
        if tips.quiet:
            _log.warning("%s", guess_of_tips("the run", stream, tips.quiet))

    await asyncio.gather(*(find(stream, positions) for stream, positions in start.streams.items()))
    target.bounds = bounds
    return target


class _Tips:
    """The tips of one stream's shards."""

    def __init__(
        self,
        stream: str,
        before_millis: int,
        list_shards: ListShards,
        read_once: ReadOnce,
        slots: asyncio.Semaphore,
        windows_millis: Sequence[int],
    ) -> None:
        self._stream = stream
        self._before_millis = before_millis
        self._list_shards = list_shards
        self._read_once = read_once
        self._slots = slots
        self._windows_millis = windows_millis
        self._shards: dict[str, Shard] = {}
        self._closed: frozenset[str] = frozenset()
        # Shards whose tip ended a read, as they are open: by the list that was made before.
        self._at_tip: set[str] = set()
        self.last: dict[str, int] = {}
        self.quiet: set[str] = set()
        """Shards whose last answers were empty, where the service does not say whether that is their tip."""

    async def find(self, positions: Mapping[str, ShardPosition]) -> Mapping[str, ShardPosition]:
        """The bound of each shard, generation by generation: what follows an open shard is not read."""
        listed = await self._list_shards(self._stream)
        self._closed = ShardListing.of(listed).closed
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
            while pending:
                found = await asyncio.gather(*(self._bound(shards[one], begin) for one, begin in pending.items()))
                bounds.update(zip(pending, found, strict=True))
                pending = self._next(bounds)
            # An answer of a closed shard may look like one at the tip of an open shard.
            closed = ShardListing.of(await self._list_shards(self._stream)).closed if self._at_tip else frozenset()
            pending = {one: positions.get(one, ShardPosition.trim_horizon()) for one in sorted(self._at_tip & closed)}
            self._closed |= closed
            self._at_tip.clear()
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
        is_open = shard_id not in self._closed
        async with (
            self._slot_while_read() as rest,
            aclosing(self._read_once(self._stream, shard_id, begin, is_open=is_open)) as events,
        ):
            async for event in events:
                is_quiet = event.quiet_seconds is not None and event.millis_behind_latest == 0
                (self.quiet.add if is_quiet else self.quiet.discard)(shard_id)
                await rest(is_quiet)
                count = rows_before(event.records, self._before_millis * 1000)
                if count:
                    last = position_after(event.records, count - 1)
                if count < event.records.num_rows:
                    return last, False
                if event.is_over:
                    return last, False
                if event.child_shards:
                    # No list may show them yet.
                    for child in event.child_shards:
                        self._shards.setdefault(child.shard_id, child)
                    return last, True
                if is_peek and (event.millis_behind_latest != 0 or not is_open):
                    raise _MoreToReadError
        if is_open:
            self._at_tip.add(shard_id)
        return last, False

    @asynccontextmanager
    async def _slot_while_read(self) -> AsyncIterator[Callable[[bool], Awaitable[None]]]:
        """Give up the caller's slot while a shard is quiet: it only waits then, and others may be read."""
        is_held = True

        async def rest(is_quiet: bool) -> None:
            nonlocal is_held
            if is_quiet and is_held:
                self._slots.release()
            elif not is_quiet and not is_held:
                await self._slots.acquire()
            is_held = not is_quiet

        try:
            yield rest
        finally:
            await rest(False)


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
        """Where a run that has reached `start` ends; found at the first call."""
        if self._target is None:
            self._target = asyncio.run(self._find(start))
        return self._target

    def expired(self, needed: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
        """Which shards, of these by stream and id, no longer hold the record with this sequence number.

        The oldest record that is left proves it. A shard that is gone is for the reader to judge.

        Raises:
            penstock.efo_consumer.errors.EfoConsumerError: a shard cannot be read.
            penstock.aws.AwsError: Kinesis cannot be asked.
        """
        return asyncio.run(self._expired(needed))

    async def _expired(self, needed: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
        backend = KinesisBackend(self._session, publisher_config(self._options))
        slots = asyncio.Semaphore(_AT_ONCE)

        async def is_expired(stream: str, shard: str, last: int) -> bool:
            async with slots:
                try:
                    oldest = await backend.oldest_record(self._options.arn_of(stream) or stream, shard)
                except RecordPublisherFatalError as error:
                    if error.code != _NOT_FOUND:
                        raise
                    return False
            return last != _BEYOND and (oldest is None or oldest.sequence_number > last)

        try:
            found = await asyncio.gather(*(is_expired(*key, last) for key, last in needed.items()))
        finally:
            await backend.aclose()
        return {key for key, is_gone in zip(needed, found, strict=True) if is_gone}

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
