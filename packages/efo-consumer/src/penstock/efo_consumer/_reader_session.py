"""One session of a reader: which shards it follows, and how far they lead."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.aws import AwsError
from penstock.efo_consumer._bell import Bell
from penstock.efo_consumer._positions import ShardPosition, ShardRange, StreamPositions
from penstock.efo_consumer._publisher import StreamIdentity
from penstock.efo_consumer._reach import reach
from penstock.efo_consumer._reader_api import PositionsSnapshot
from penstock.efo_consumer._reader_shard import FollowedShard
from penstock.efo_consumer._shard_graph import ShardGraph
from penstock.efo_consumer.errors import EfoConsumerError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from penstock.efo_consumer._buffer_pool import BufferPool
    from penstock.efo_consumer._positions import ShardRange, StreamPositions
    from penstock.efo_consumer._publisher import ChildShard, RecordPublisher
    from penstock.efo_consumer._reach import Reach, ShardKey
    from penstock.efo_consumer._reader_api import OpenRequest, ShardStats
    from penstock.efo_consumer._reader_backend import ReaderBackend
    from penstock.efo_consumer._reader_config import ReaderConfig

_log = logging.getLogger(__name__)


class ReaderSession:
    """Follows the shards of one session. Belongs to one event loop; `LocalShardReader` owns it."""

    def __init__(
        self,
        session_id: str,
        *,
        backend: ReaderBackend,
        config: ReaderConfig,
        pool: BufferPool,
        room: Bell,
        clock: Callable[[], float],
    ) -> None:
        self.session_id = session_id
        self.epoch = 0
        self._backend = backend
        self._config = config
        self._pool = pool
        self._room = room
        self._clock = clock
        self._news = Bell()
        self._shards: dict[ShardKey, FollowedShard] = {}
        self._graphs: dict[str, ShardGraph] = {}
        # Shards that some positions showed at their end; they need no buffer, but their children may start.
        self._finished: dict[str, set[str]] = {}
        self._publisher: RecordPublisher | None = None
        self._publisher_key: object = None
        self._discoveries: dict[str, asyncio.Task[None]] = {}
        self._told_idle_at = clock()
        self._turn = 0
        self._draining = False

    async def adopt(self, request: OpenRequest, epoch: int) -> None:
        """Serve a new epoch: shards whose buffers hold all that it may ask for go on, the others begin anew."""
        self.epoch = epoch
        self._news.ring()
        wanted = {
            (stream, shard_id): position
            for stream, shards in request.positions.streams.items()
            for shard_id, position in shards.items()
        }
        await self._use_publisher(request)
        # First their tasks end, then everything changes at once: other tasks must not judge children by half of it.
        await asyncio.gather(*(self._shards[key].stop() for key in self._outdated(wanted)))
        outdated = [self._remove(key) for key in self._outdated(wanted)]
        self._finished = {}
        for key, shard in self._shards.items():
            shard.buffer.forget_promises(wanted.get(key, ShardPosition.trim_horizon()))
            if self._publisher is not None:
                shard.start(self._publisher)
        self._told_idle_at = self._clock()
        await self._follow(request.positions)
        for shard in outdated:
            await shard.stop()
            # One that was begun meanwhile may have taken an event between its removal and its end.
            self._pool.remove(shard.buffer)

    async def positions(
        self, epoch: int, start: StreamPositions, *, max_records: int, max_bytes: int, wait_seconds: float
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`."""
        deadline = self._clock() + wait_seconds
        while True:
            self.check_epoch(epoch)
            await self._follow(start)
            found = reach(
                start,
                {key: shard.buffer for key, shard in self._shards.items()},
                self._graphs,
                max_rows=max_records or None,
                max_bytes=max_bytes or None,
                turn=self._turn,
            )
            now = self._clock()
            idle_at = self._told_idle_at + self._config.idle_offset_interval.total_seconds()
            moved = found.positions != start
            if found.rows or found.jumped or (moved and now >= idle_at):
                return self._tell(found, now)
            self._raise_failure()
            if now >= deadline or self._draining:
                return PositionsSnapshot(start, 0, 0, self._millis_behind_latest())
            until = min(deadline, idle_at) if idle_at > now else deadline
            await self._news.wait(until - now)

    def read(self, shard_range: ShardRange) -> list[pa.RecordBatch] | None:
        """Give the range's records, WIRE_SCHEMA, when the buffer holds all of them."""
        shard = self._shards.get((shard_range.stream_name, shard_range.shard_id))
        return None if shard is None else shard.buffer.read(shard_range.after, shard_range.upto)

    def delivered(self, shard_range: ShardRange) -> None:
        """Note that a range was fetched."""
        shard = self._shards.get((shard_range.stream_name, shard_range.shard_id))
        if shard is not None:
            shard.buffer.deliver(shard_range.after, shard_range.upto)
            self._room.ring()

    def replayed(self, shard_range: ShardRange) -> None:
        """Count a range that was read from Kinesis again."""
        shard = self._shards.get((shard_range.stream_name, shard_range.shard_id))
        if shard is not None:
            shard.replays += 1

    async def commit(self, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`."""
        self.check_epoch(epoch)
        for stream, shards in positions.streams.items():
            for shard_id, position in shards.items():
                shard = self._shards.get((stream, shard_id))
                if shard is not None and position.rank[0]:
                    self._pool.trim(shard.buffer, position)
            for (name, shard_id), shard in self._shards.items():
                # A shard that left the positions is read to its end when one of its children is in them.
                left = name == stream and shard_id not in shards and shard.buffer.end.is_shard_end
                if left and any(child in shards for child in self._graphs[stream].children(shard_id)):
                    self._pool.trim(shard.buffer, ShardPosition.shard_end())
        self._room.ring()

    def stats(self) -> list[ShardStats]:
        """See `ShardReader.stats`."""
        return [shard.stats() for _, shard in sorted(self._shards.items())]

    def check_epoch(self, epoch: int) -> None:
        """Refuse a predecessor.

        Raises:
            StaleEpochError: the session was opened again.
        """
        if epoch != self.epoch:
            raise StaleEpochError(session_id=self.session_id, epoch=epoch, current_epoch=self.epoch)

    def drain(self) -> None:
        """Answer long polls at once from now on."""
        self._draining = True
        self._news.ring()

    async def aclose(self) -> None:
        """End all subscriptions."""
        self.epoch += 1
        self._news.ring()
        for task in self._discoveries.values():
            task.cancel()
        await asyncio.gather(*self._discoveries.values(), return_exceptions=True)
        await asyncio.gather(*(shard.stop() for shard in self._shards.values()))
        for key in list(self._shards):
            self._remove(key)
        if self._publisher is not None:
            await self._publisher.close()

    def _tell(self, found: Reach, now: float) -> PositionsSnapshot:
        self._told_idle_at = now
        self._turn += 1
        for (stream, shard_id), shard in self._shards.items():
            position = found.positions.get(stream, shard_id)
            if position is not None:
                shard.buffer.promise(position, now)
        self._room.ring()
        return PositionsSnapshot(found.positions, found.rows, found.nbytes, self._millis_behind_latest())

    def _millis_behind_latest(self) -> int:
        behind = [s.buffer.millis_behind_latest for s in self._shards.values() if not s.buffer.end.is_shard_end]
        return -1 if None in behind else max((millis for millis in behind if millis is not None), default=0)

    def _raise_failure(self) -> None:
        for shard in self._shards.values():
            if shard.failure is not None:
                raise shard.failure

    def _outdated(self, wanted: Mapping[ShardKey, ShardPosition]) -> list[ShardKey]:
        """Give the shards that cannot go on when these positions are asked for."""
        resumed = {key for key, position in wanted.items() if self._holds(key, position)}
        anew = {key[0] for key, position in wanted.items() if key not in resumed and not position.is_shard_end}
        settled = {stream for stream, _ in wanted} - anew
        # A child that was begun ahead goes on; but not when a parent begins anew, which needs the room first.
        ahead = {key for key in self._shards if key not in wanted and key[0] in settled}
        return [
            key
            for key in self._shards
            if key not in resumed and not (key in ahead and self._holds(key, ShardPosition.trim_horizon()))
        ]

    def _holds(self, key: ShardKey, position: ShardPosition) -> bool:
        shard = self._shards.get(key)
        return shard is not None and not position.is_shard_end and shard.buffer.holds(position)

    async def _follow(self, positions: StreamPositions) -> None:
        """Follow every shard that has a position, and the children of those that are finished."""
        for stream, shards in positions.streams.items():
            self._graphs.setdefault(stream, ShardGraph())
            finished = self._finished.setdefault(stream, set())
            for shard_id, position in shards.items():
                key = (stream, shard_id)
                if position.is_shard_end:
                    finished.add(shard_id)
                    continue
                shard = self._shards.get(key)
                if shard is not None and not position.rank[0] and position != shard.buffer.origin:
                    # The caller went back to before the first record: nothing in this buffer tells where that was.
                    await shard.stop()
                    if self._shards.get(key) is shard:
                        self._remove(key)
                if key not in self._shards:
                    self._begin(key, position)
            self._begin_children(stream)

    def _begin_children(self, stream: str) -> None:
        standing = dict.fromkeys(self._finished[stream], ShardPosition.shard_end())
        standing |= {shard_id: shard.buffer.end for (name, shard_id), shard in self._shards.items() if name == stream}
        graph = self._graphs[stream]
        for child in graph.entrants(standing):
            self._begin((stream, child), ShardPosition.trim_horizon())
        if self._discovery_needed(stream):
            self._discover(stream)

    def _begin(self, key: ShardKey, position: ShardPosition) -> None:
        stream, shard_id = key
        shard = FollowedShard(
            StreamIdentity(stream),
            shard_id,
            position,
            pool=self._pool,
            room=self._room,
            on_news=self._news.ring,
            on_end=self._ended,
            clock=self._clock,
        )
        self._shards[key] = shard
        if self._publisher is not None:
            shard.start(self._publisher)

    def _ended(self, shard: FollowedShard, children: tuple[ChildShard, ...]) -> None:
        graph = self._graphs[shard.stream.name]
        graph.add(shard.shard_id, ())
        for child in children:
            graph.add(child.shard_id, child.parent_shard_ids)
        self._begin_children(shard.stream.name)

    def _discovery_needed(self, stream: str) -> bool:
        graph = self._graphs[stream]
        return bool(graph.unknown_parents()) or any(not graph.children(shard) for shard in self._finished[stream])

    def _discover(self, stream: str) -> None:
        task = self._discoveries.get(stream)
        if task is None or task.done():
            name = f"discover {stream}"
            self._discoveries[stream] = asyncio.create_task(self._run_discovery(stream), name=name)

    async def _run_discovery(self, stream: str) -> None:
        graph = self._graphs[stream]
        while self._discovery_needed(stream):
            try:
                for shard in await self._backend.list_shards(stream):
                    graph.add(shard.shard_id, shard.parent_shard_ids)
            except (EfoConsumerError, AwsError) as error:
                _log.warning("cannot list the shards of %s, trying again: %s", stream, error)
            else:
                for expired in graph.unknown_parents():
                    graph.add(expired, ())
                self._begin_children(stream)
                self._news.ring()
            if self._discovery_needed(stream):
                await asyncio.sleep(self._config.discovery_interval.total_seconds())

    def _remove(self, key: ShardKey) -> FollowedShard:
        shard = self._shards.pop(key)
        self._pool.remove(shard.buffer)
        self._room.ring()
        return shard

    async def _use_publisher(self, request: OpenRequest) -> None:
        arns = {consumer.stream_name: consumer.consumer_arn for consumer in request.consumers}
        key = (request.record_publisher, arns)
        if self._publisher is not None and key == self._publisher_key:
            return
        publisher = self._backend.record_publisher(request.record_publisher, arns)
        predecessor, self._publisher, self._publisher_key = self._publisher, publisher, key
        await asyncio.gather(*(shard.stop() for shard in self._shards.values()))
        if predecessor is not None:
            await predecessor.close()
