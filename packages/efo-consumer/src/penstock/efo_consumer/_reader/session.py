"""One session of a reader: its epoch, and how far its shards lead."""

from __future__ import annotations

import math
from asyncio import sleep
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.efo_consumer._continuity.rule import SHORTEST_RETENTION_MILLIS
from penstock.efo_consumer._model.positions import ShardRange, StreamPositions
from penstock.efo_consumer._publish.condition import ShardState, WatchedShard
from penstock.efo_consumer._reader.api import (
    PositionsSnapshot,
    SessionInfo,
    ShardSkew,
    ShardsLook,
    ShardStats,
    SlowShard,
)
from penstock.efo_consumer._reader.horizon import Horizon, delivered_millis
from penstock.efo_consumer._reader.reach import Bounds, Reach, Walk, cap, profile_within, reach
from penstock.efo_consumer._reader.shards import SessionShards
from penstock.efo_consumer.errors import SessionNotFoundError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.efo_consumer._reader.api import OpenRequest
    from penstock.efo_consumer._reader.shard import FollowedShard, ReaderTools

# An hour is far below any retention period, and costs an empty micro-batch of an idle query an hour.
_FACTS_MILLIS = 3_600_000
# The longest pause between two looks of a long poll.
_PAUSE_SECONDS = 1.0
# Between two looks while records wait for slower shards.
_HELD_SECONDS = 0.25


class ReaderSession:
    """Follows the shards of one session. Belongs to one event loop; `LocalShardReader` owns it."""

    def __init__(self, session_id: str, tools: ReaderTools) -> None:
        self.session_id = session_id
        self.epoch = 0
        self.owner = ""
        self.config = tools.config
        """With the settings that the caller asked for."""
        self.followed = SessionShards(tools)
        self._tools = tools
        self._clock = tools.clock
        self._news = self.followed.news
        self._horizon = Horizon(tools.backend.retry_patience.total_seconds())
        self._told_idle_at = self._called_at = self._clock()
        self._told_facts_at = -math.inf
        self._draining = False
        self._calls = 0
        self._time_to_live = 0.0
        self._named_only = False

    async def adopt(self, request: OpenRequest, epoch: int, created: Mapping[str, int]) -> None:
        """Serve a run. Calls with the number of an older run are refused from now on."""
        self.epoch, self.owner = epoch, request.owner
        self.config = self._tools.config if request.settings is None else request.settings.reader(self._tools.config)
        self._named_only = request.named_shards_only
        self._time_to_live = request.session_seconds or self.config.session_timeout.total_seconds()
        self.touch()
        self._news.notify()
        self._told_idle_at = self._clock()
        await self.followed.adopt(request, created, self.config)
        self._horizon = Horizon(self.followed.backend.retry_patience.total_seconds())

    @contextmanager
    def called(self) -> Iterator[None]:
        """Count a call: meanwhile the session is not idle."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self.touch()

    async def _follow(self, epoch: int, start: StreamPositions) -> None:
        self.check_epoch(epoch)
        await self.followed.follow(start)
        self.check_epoch(epoch)
        self._raise_failure(start)

    async def look(
        self, epoch: int, start: StreamPositions, bounds: Bounds, *, before_millis: int | None
    ) -> ShardsLook:
        """See `FleetMember.look`."""
        await self._follow(epoch, start)
        buffers = {key: shard.buffer for key, shard in self.followed.shards.items()}
        walk = Walk(start, buffers, {} if self._named_only else self.followed.graphs)
        walk.settle()
        waiting, standing = walk.waiting(), walk.standing()
        known = [millis for millis in standing.times.values() if millis is not None]
        least = min(known, default=None)
        slow = [
            SlowShard(*key, millis, key in standing.waiting)
            for key, millis in standing.times.items()
            if millis is None or millis == least or (before_millis is not None and millis < before_millis)
        ]
        left_out = cap(waiting, bounds.max_records_per_shard) if bounds.max_records_per_shard else None
        counted, is_cut = profile_within(waiting, bounds)
        return ShardsLook(
            newest_millis=max(known, default=None),
            slow=tuple(slow),
            left_out_millis=left_out,
            interval_seconds=self.followed.interval_seconds,
            profile=counted,
            is_cut=is_cut,
        )

    def touch(self) -> None:
        """Note a call."""
        self._called_at = self._clock()

    def seconds_to_live(self, now: float) -> float | None:
        """Return in how many seconds the session ends without calls; None if it never does."""
        if not self._time_to_live:
            return None
        return self._time_to_live if self._calls else self._called_at + self._time_to_live - now

    async def positions(
        self, epoch: int, start: StreamPositions, bounds: Bounds, *, wait_seconds: float
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`."""
        deadline = self._clock() + wait_seconds
        while True:
            began = self._clock()
            await self._follow(epoch, start)
            found = self._reach(start, bounds)
            self.check_epoch(epoch)
            now = self._clock()
            interval = self.config.idle_offset_interval.total_seconds()
            idle_at = self._told_idle_at + interval
            moved = found.positions != start
            if found.rows or found.jumped or (moved and (now >= idle_at or self._shows_an_end(start, found))):
                return await self._answer(epoch, start, found, now, bounds)
            # A run of minutes once a day logs them as well, though its idle positions may wait.
            if now >= self._told_facts_at + interval and self._are_facts_old(start):
                self._told_facts_at = now
                return await self._answer(epoch, start, found, now, bounds)
            self._raise_failure()
            if now >= deadline or self._draining:
                return self._snapshot(Reach(start, 0, 0, holds_back=found.holds_back), bounds)
            until = min(deadline, idle_at) if idle_at > now else deadline
            if found.holds_back:
                # Answers of an idle shard move the horizon, and wake no caller.
                until = min(until, now + _HELD_SECONDS)
            await self._news.wait(until - now)
            # News of thousands of shards come one by one, and each look visits all: looks take half of the time.
            await sleep(max(0.0, min(_PAUSE_SECONDS, now - began, deadline - self._clock())))

    def _reach(self, start: StreamPositions, bounds: Bounds) -> Reach:
        found = reach(
            start,
            {key: shard.buffer for key, shard in self.followed.shards.items()},
            # A caller that names all shards lets children enter and parents leave by its own graph.
            {} if self._named_only else self.followed.graphs,
            bounds,
            horizon=None
            if bounds.skew_millis is None
            else partial(
                self._horizon.find,
                skew_millis=bounds.skew_millis,
                delivered_millis=delivered_millis(start),
                now=self._clock(),
                interval_seconds=self.followed.interval_seconds,
            ),
        )
        self._horizon.holds_back = found.holds_back
        self.followed.ahead_of = bounds.horizon_millis if bounds.skew_millis is None else self._horizon.millis
        return found

    def shard(self, shard_range: ShardRange) -> FollowedShard | None:
        """Give the shard of a range, if it is followed."""
        return self.followed.shards.get((shard_range.stream_name, shard_range.shard_id))

    def delivered(self, shard_range: ShardRange) -> None:
        """Note that a range was fetched."""
        shard = self.shard(shard_range)
        if shard is not None:
            self._tools.pool.deliver(shard.buffer, shard_range.after, shard_range.upto)
            self._tools.room.notify()

    def stats(self) -> list[ShardStats]:
        """See `ShardReader.stats`."""
        found = {key: shard.stats() for key, shard in self.followed.shards.items()}
        for key, cause in self.followed.stuck().items():
            known = found.get(key) or ShardStats(*key, -1, 0, 0, 0, 0, 0, 0)
            condition = replace(known.condition, state=ShardState.STUCK, cause=cause)
            found[key] = replace(known, millis_behind_latest=-1, condition=condition)
        return [found[key] for key in sorted(found)]

    def watched(self) -> list[WatchedShard]:
        """What is to be known of the shards for warnings."""
        return [
            WatchedShard(
                stream,
                shard_id,
                shard.condition,
                shard.stalled_seconds,
                shard.millis_behind_latest,
                SHORTEST_RETENTION_MILLIS,
            )
            for (stream, shard_id), shard in sorted(self.followed.shards.items())
            if shard.failure is None
        ]

    def info(self, now: float, *, with_shards: bool) -> SessionInfo:
        """See `FleetMember.sessions`."""
        return SessionInfo(
            session_id=self.session_id,
            epoch=self.epoch,
            idle_seconds=0.0 if self._calls else max(0.0, now - self._called_at),
            time_to_live_seconds=self.seconds_to_live(now),
            shard_count=len(self.followed.shards),
            shards=tuple(self.stats()) if with_shards else (),
            owner=self.owner,
        )

    def check_epoch(self, epoch: int) -> None:
        """Refuse a predecessor.

        Raises:
            StaleEpochError: a newer run has the session.
            SessionNotFoundError: the caller's run is newer, and has not opened it here.
        """
        if epoch > self.epoch:
            raise SessionNotFoundError(session_id=self.session_id)
        if epoch < self.epoch:
            raise StaleEpochError(session_id=self.session_id, epoch=epoch, current_epoch=self.epoch, owner=self.owner)

    def drain(self) -> None:
        """Answer long polls at once from now on."""
        self._draining = True
        self._news.notify()

    async def aclose(self) -> None:
        """End all subscriptions."""
        # Callers that still wait have no session any more.
        self.epoch = -1
        self._news.notify()
        await self.followed.aclose()

    async def _answer(
        self, epoch: int, start: StreamPositions, found: Reach, now: float, bounds: Bounds
    ) -> PositionsSnapshot:
        self._told_idle_at = now
        reached = {stream: dict(ids) for stream, ids in found.positions.streams.items()}
        for (stream, shard_id), shard in self.followed.shards.items():
            position = found.positions.get(stream, shard_id)
            if position is not None:
                shard.buffer.promise(position, now)
                reached[stream][shard_id] = shard.buffer.with_facts(position, start.get(stream, shard_id))
        self._tools.room.notify()
        created = {stream: millis for stream, millis in self.followed.created.items() if stream in reached}
        snapshot = self._snapshot(replace(found, positions=StreamPositions(reached, created)), bounds)
        await self.followed.prove()
        self.check_epoch(epoch)
        return snapshot

    def _are_facts_old(self, start: StreamPositions) -> bool:
        """Whether a shard stands still, and what was logged of it would not prove that for much longer."""
        for (stream, shard_id), shard in self.followed.shards.items():
            position = start.get(stream, shard_id)
            if position is not None and position == shard.buffer.end and not position.is_shard_end:
                known = shard.buffer.end.known_millis
                if known is not None and known - (position.known_millis or 0) >= _FACTS_MILLIS:
                    return True
        return False

    def _shows_an_end(self, start: StreamPositions, found: Reach) -> bool:
        """Whether a shard ended for a caller that places its children, which are not read before."""
        return self._named_only and any(
            position.is_shard_end and start.get(stream, shard_id) != position
            for stream, shards in found.positions.streams.items()
            for shard_id, position in shards.items()
        )

    def _snapshot(self, found: Reach, bounds: Bounds) -> PositionsSnapshot:
        lineage = self.followed.lineage(found.positions)
        skew = None
        if bounds.skew_millis is not None:
            skew = self._horizon.skew(bounds.skew_millis, found.latest_millis)
        elif bounds.horizon_millis is not None:
            skew = ShardSkew(latest_millis=found.latest_millis, holds_back=found.holds_back)
        behind = [one.millis_behind_latest for one in self.followed.shards.values() if not one.has_ended]
        is_unknown = None in behind or not self.followed.is_lineage_known
        most = -1 if is_unknown else max((millis for millis in behind if millis is not None), default=0)
        return PositionsSnapshot(found.positions, found.rows, found.nbytes, most, lineage, skew)

    def _raise_failure(self, given: StreamPositions | None = None) -> None:
        """Raise why a shard, or what comes of it, is not followed; with `given` where that has all that it brought.

        What the other shards bring may never end: it must not hide that this one stands still.
        """
        for key, shard in self.followed.shards.items():
            if shard.failure is None:
                continue
            position = None if given is None else given.get(*key)
            if given is None or (position is not None and position.rank >= shard.buffer.end.rank):
                raise shard.failure
        failure = self.followed.discovery_failure(given)
        if failure is not None:
            raise failure
