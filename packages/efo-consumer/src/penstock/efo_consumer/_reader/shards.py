"""Which shards a session follows: the shards of its positions, and the children of finished shards."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.efo_consumer._continuity.guard import check_streams
from penstock.efo_consumer._continuity.lineage import ShardGraph, entering, successors
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._model.shards import Shard, StreamIdentity
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND
from penstock.efo_consumer._publish.list_shards import ShardListings
from penstock.efo_consumer._publish.publisher import RecordPublisher, RecordPublisherType
from penstock.efo_consumer._publish.retries import ReadRetries
from penstock.efo_consumer._reader.api import OpenRequest, ShardLineage
from penstock.efo_consumer._reader.replay import prove
from penstock.efo_consumer._reader.shard import FollowedShard, ReaderTools
from penstock.efo_consumer.errors import RecordPublisherError, RecordPublisherRetriesError, ShardFailedError
from penstock.rpc import Signal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.efo_consumer._reader.config import ReaderConfig
    from penstock.efo_consumer._reader.reach import ShardKey

_log = logging.getLogger(__name__)
# GetRecords may be a second behind what was written.
_EMPTY_SECONDS = 2.0
# After a reshard ListShards may show one child before the other.
_SIBLINGS_PATIENCE_SECONDS = 60.0


class SessionShards:
    """Begins, keeps and ends the shards of one session. For one event loop.

    Args:
        tools: what the sessions of the reader share.
    """

    def __init__(self, tools: ReaderTools) -> None:
        self.tools = tools
        self.news = Signal()
        """Rung when a shard has news."""
        self.ahead_of: int | None = None
        """What arrived later waits for slower shards; None where no caller asks that shards keep step."""
        self.shards: dict[ShardKey, FollowedShard] = {}
        self.graphs: dict[str, ShardGraph] = {}
        self.backend = tools.backend
        self.listings = ShardListings(lambda stream: self.backend.list_shards(stream), clock=tools.clock)
        self._config = tools.config
        # Shards that some positions showed at their end, and these; they need no buffer, but their children may start.
        self._finished: dict[str, dict[str, ShardPosition]] = {}
        self.created: dict[str, int] = {}
        """When each stream was created, in milliseconds since the epoch, where that is known."""
        self._publisher: RecordPublisher | None = None
        self._publisher_key: object = None
        self._poller: RecordPublisher | None = None
        self._discoveries: dict[str, asyncio.Task[None]] = {}
        # Shards at their end that are not listed, and after which it is to be found out what comes.
        self._unlisted: dict[str, set[str]] = {}
        # For shards that are gone: what a caller needs that decides on its own which shards follow.
        self._gone_lineage: dict[ShardKey, tuple[ShardLineage, ...]] = {}
        self._closed = False
        self._named_only = False
        self.fail_on_data_loss = tools.config.fail_on_data_loss
        # By stream: why the shards that follow those that ended are unknown.
        self._failures: dict[str, ShardFailedError] = {}

    async def adopt(self, request: OpenRequest, created: Mapping[str, int], config: ReaderConfig) -> None:
        """Serve new positions. Shards whose buffers hold all that may be asked for continue, the others start again.

        Args:
            request: the positions, and how to read.
            created: when each of their streams was created, where that is known.
            config: with the request's settings.
        """
        self._config = config
        wanted = {
            (stream, shard_id): position
            for stream, shards in request.positions.streams.items()
            for shard_id, position in shards.items()
        }
        self._named_only = request.named_shards_only
        self.created |= created
        asked = request.fail_on_data_loss
        self.fail_on_data_loss = self._config.fail_on_data_loss if asked is None else asked
        self.backend = self.tools.backend
        if request.settings is not None:
            self.backend = self.backend.with_settings(request.settings)
        patience = request.retry_patience_seconds
        if patience is not None:
            self.backend = self.backend.with_patience(timedelta(seconds=patience))
        # Patience starts again, with the duration of this request.
        failed, self._failures = [self._discoveries.pop(stream) for stream in self._failures], {}
        for task in failed:
            task.cancel()
        await asyncio.gather(*failed, return_exceptions=True)
        await self._use_publisher(request)
        # First their tasks end, then everything changes at once: other tasks must not judge children by half of it.
        await asyncio.gather(*(self.shards[key].stop() for key in self._outdated(wanted)))
        outdated = [self._remove(key) for key in self._outdated(wanted)]
        for stream, shard_id in self._gone_lineage:
            self._unlisted.setdefault(stream, set()).add(shard_id)
        self._finished, self._gone_lineage = {}, {}
        for key, shard in self.shards.items():
            shard.buffer.forget_promises(wanted.get(key, ShardPosition.trim_horizon()))
            if self._publisher is not None:
                shard.start(self._publisher)
        await self.follow(request.positions)
        for shard in outdated:
            await shard.stop()
            # One that was begun meanwhile may have taken an event between its removal and its end.
            self.tools.pool.remove(shard.buffer)

    async def prove(self) -> None:
        """Prove what the shards judged by a retention period of seconds ago, before anything of it is handed on.

        Raises:
            ShardReaderError: records are lost, or cannot be proved to exist.
        """
        await prove([shard.prove for shard in self.shards.values() if not shard.inquiry.is_proved])

    def trim(self, positions: StreamPositions) -> None:
        """Drop records at or before the positions from the buffers."""
        for stream, shards in positions.streams.items():
            for (name, shard_id), shard in self.shards.items():
                if name != stream:
                    continue
                position = shards.get(shard_id)
                if position is not None:
                    if position.rank[0]:
                        self.tools.pool.trim(shard.buffer, position)
                elif shard.buffer.end.is_shard_end and any(
                    child in shards for child in self.graphs[stream].children(shard_id)
                ):
                    # It left the positions: it is read to its end when one of its children is in them.
                    self.tools.pool.trim(shard.buffer, ShardPosition.shard_end())
        for key in [key for key, shard in self.shards.items() if self._is_over(key, shard, positions)]:
            self._remove(key)
        for stream, shards in positions.streams.items():
            finished = self._finished.get(stream, {})
            self._finished[stream] = {shard_id: finished[shard_id] for shard_id in finished if shard_id in shards}
            self._unlisted[stream] = self._unlisted.get(stream, set()) & shards.keys()
            for key in [key for key in self._gone_lineage if key[0] == stream and key[1] not in shards]:
                del self._gone_lineage[key]
            if not self._named_only and stream in self.graphs:
                followed = {shard_id for name, shard_id in self.shards if name == stream}
                self.graphs[stream].prune(followed | shards.keys())
        self.tools.room.notify()

    def _is_over(self, key: ShardKey, shard: FollowedShard, positions: StreamPositions) -> bool:
        """Whether a shard is over: it ended, and its children replaced it in the committed positions."""
        stream, shard_id = key
        if stream not in positions.streams or positions.get(*key) is not None or not shard.has_ended:
            return False
        if self._named_only:
            return True
        # A child that stands, or that was followed to its end before.
        return self.graphs[stream].is_passed(shard_id, positions.streams[stream])

    def lineage(self, positions: StreamPositions) -> tuple[ShardLineage, ...]:
        """Give the known children of shards at their end and the children's ancestors; all shards if one was gone."""
        found: dict[ShardKey, ShardLineage] = {}
        for stream, shards in positions.streams.items():
            ended = [shard_id for shard_id, position in shards.items() if position.is_shard_end]
            if stream in self.graphs:
                for shard_id, parents in self.graphs[stream].lineage(ended):
                    found[stream, shard_id] = ShardLineage(stream, shard_id, parents)
                for shard_id in ended:
                    found |= {(stream, one.shard_id): one for one in self._gone_lineage.get((stream, shard_id), ())}
        return tuple(found.values())

    def _outdated(self, wanted: Mapping[ShardKey, ShardPosition]) -> list[ShardKey]:
        """Give the shards that cannot continue when these positions are asked for."""
        resumed = {key for key, position in wanted.items() if self._holds(key, position)}
        again = {key[0] for key, position in wanted.items() if key not in resumed and not position.is_shard_end}
        settled = {stream for stream, _ in wanted} - again
        # A child that was begun ahead continues, unless a parent starts again, which needs the room first.
        ahead = {key for key in self.shards if key not in wanted and key[0] in settled}
        return [
            key
            for key in self.shards
            if key not in resumed and not (key in ahead and self._holds(key, ShardPosition.trim_horizon()))
        ]

    def _holds(self, key: ShardKey, position: ShardPosition) -> bool:
        shard = self.shards.get(key)
        return shard is not None and not position.is_shard_end and shard.buffer.holds(position)

    async def follow(self, positions: StreamPositions) -> None:
        """Follow every shard that has a position, and the children of those that are finished."""
        if self._named_only:
            # One that is not named any more went to another reader; what has ended is kept until it is committed.
            gone = [key for key, shard in self.shards.items() if positions.get(*key) is None and not shard.has_ended]
            await asyncio.gather(*(self.shards[key].stop() for key in gone))
            for key in gone:
                if key in self.shards:
                    self._remove(key)
        if unknown := [stream for stream in positions.created if stream not in self.created]:
            # Shards that come from another reader of a fleet.
            self.created |= await check_streams(self.backend, positions.created, unknown)
        for stream, shards in positions.streams.items():
            if stream not in self.graphs:
                self.graphs[stream] = ShardGraph()
            finished = self._finished.setdefault(stream, {})
            for shard_id, position in shards.items():
                key = (stream, shard_id)
                if position.is_shard_end:
                    finished[shard_id] = position
                    continue
                shard = self.shards.get(key)
                if shard is not None and not position.rank[0] and position != shard.buffer.origin:
                    # The caller went back to before the first record: this buffer does not know where that was.
                    await shard.stop()
                    if self.shards.get(key) is shard:
                        self._remove(key)
                if key not in self.shards and not self._closed:
                    self._begin(key, position)
            self._begin_children(stream)

    def _begin_children(self, stream: str, ended: Collection[str] | None = None) -> None:
        """Begin the children that may enter now: of these shards that ended, or of all that did."""
        graph = self.graphs[stream]
        if self._closed or not (graph.has_children or self._finished.get(stream)):
            return
        standing = self._standing(stream)
        for child in () if self._named_only else graph.entrants(standing, ended):
            parents = [standing[parent] for parent in graph.parents(child) if parent in standing]
            self._begin((stream, child), entering(parents))
        if self._discovery_needed(stream) if ended is None else graph.unknown(standing, ended):
            self._discover(stream)

    def _begin(self, key: ShardKey, position: ShardPosition) -> None:
        stream, shard_id = key
        self.shards[key] = shard = FollowedShard(self, StreamIdentity.of(stream), shard_id, position)
        if self._publisher is not None:
            shard.start(self._publisher)

    def _standing(self, stream: str) -> _Standing:
        return _Standing(stream, self.shards, self._finished.get(stream, {}))

    def standing(self, stream: str) -> Collection[str] | None:
        """Give the shards that have positions; None if the caller decides what follows a shard that is gone."""
        return None if self._named_only else dict(self._standing(stream))

    def poller(self) -> RecordPublisher:
        """Give the publisher that polls, for a shard whose subscriptions bring nothing."""
        if self._poller is None:
            self._poller = self.backend.record_publisher(RecordPublisherType.POLLING, {})
        return self._poller

    def ended(self, shard: FollowedShard, children: tuple[Shard, ...]) -> None:
        """Take the children of a shard whose end was buffered. Called once for each shard."""
        graph = self.graphs[shard.stream.name]
        graph.add(shard.shard_id, ())
        for child in children:
            graph.add(child.shard_id, child.parent_shard_ids)
        if self.tools.deaggregator is not None:
            self.tools.deaggregator.learn(shard.stream.name, children)
        # Only its family: at a reshard thousands of shards end at once, and each look at all would visit thousands.
        self._begin_children(shard.stream.name, {shard.shard_id}.union(*(one.parent_shard_ids for one in children)))

    def _discovery_needed(self, stream: str, ended: Collection[str] | None = None) -> bool:
        """Whether the successors of these ended shards, or of any ended shard, are still unknown."""
        childless = self._childless(stream)
        if childless if ended is None else not childless.isdisjoint(ended):
            return True
        return bool(self.graphs[stream].unknown(self._standing(stream), ended))

    def discovery_failure(self, given: StreamPositions | None = None) -> ShardFailedError | None:
        """Why the shards that follow those that ended are unknown; with `given` those that it has at their end."""
        for stream, failure in self._failures.items():
            shards = None if given is None else given.streams.get(stream, {})
            ended = None if shards is None else {one for one, position in shards.items() if position.is_shard_end}
            if self._discovery_needed(stream, ended):
                return failure
        return None

    @property
    def is_lineage_known(self) -> bool:
        """Whether it is known which shards follow those that ended: what others hold may be far behind."""
        looking = (stream for stream, task in self._discoveries.items() if not task.done())
        return not any(self._discovery_needed(stream) for stream in looking)

    @property
    def interval_seconds(self) -> float:
        """Time between two answers of a shard that is well; 0 if the service sends them."""
        return 0.0 if self._publisher is None else self._publisher.interval_seconds

    def stuck(self) -> dict[ShardKey, str]:
        """Give the shards at their end whose successors are still unknown, with the reason."""
        return {
            (stream, shard_id): str(self._failures.get(stream, "looking for the shards that follow it"))
            for stream in self.graphs
            for shard_id in self._childless(stream)
        }

    def _childless(self, stream: str) -> set[str]:
        """The shards at their end whose successors are still unknown."""
        graph = self.graphs[stream]
        ended = self._finished.get(stream, {})
        found = {one for one in ended if not graph.children(one) and (stream, one) not in self._gone_lineage}
        return found | (self._unlisted.get(stream, set()) & ended.keys())

    def _waiting(self, stream: str) -> str:
        """A shard whose parents or children have to be listed."""
        return min(self._childless(stream) | self.graphs[stream].unknown(self._standing(stream)), default="")

    def _discover(self, stream: str) -> None:
        task = self._discoveries.get(stream)
        if task is None or task.done():
            name = f"discover {stream}"
            self._discoveries[stream] = asyncio.create_task(self._run_discovery(stream), name=name)

    async def _run_discovery(self, stream: str) -> None:
        graph = self.graphs[stream]
        identity = StreamIdentity.of(stream)
        retries = ReadRetries(
            stream=identity.name,
            shard_id=self._waiting(stream),
            patience_seconds=self.backend.retry_patience.total_seconds(),
            service_seconds=lambda: self.backend.service_millis() / 1000,
        )
        gone: set[str] = set()
        empty_since: dict[str, float] = {}
        halved_since: dict[str, float] = {}
        self._failures.pop(stream, None)
        while self._discovery_needed(stream):
            try:
                listed = await self.backend.list_shards(stream)
                retries.succeeded()
                # Before any child of theirs is known: others may be gone, and have left children.
                unlisted = self._unlisted.get(stream, set()) | self._childless(stream)
                self._unlisted[stream] = unlisted - {shard.shard_id for shard in listed}
                for shard in self._with_siblings(stream, listed, halved_since):
                    graph.add(shard.shard_id, shard.parent_shard_ids)
                await self._learn_gone(stream, listed, gone, empty_since, is_whole=not halved_since)
                self._find_successors(stream, listed, gone)
            except Exception as error:
                # Children wait for it; what is read meanwhile is not held up. Of siblings that says nothing.
                halved_since.clear()
                try:
                    retries.failed(error, now=self.tools.clock(), operation="ListShards")
                except RecordPublisherRetriesError as last:
                    shard_id = self._waiting(stream)
                    failure = ShardFailedError(
                        stream=identity.name,
                        shard_id=shard_id,
                        code=last.code,
                        reason=f"cannot find the shards that follow {shard_id}: {last}",
                    )
                    failure.__cause__ = last
                    # Still retried: callers that ask after it succeeded do not see the failure.
                    self._failures[stream] = failure
                    self.news.notify()
                else:
                    _log.warning("cannot list the shards of %s, trying again: %s", stream, error)
            else:
                self._failures.pop(stream, None)
                self._begin_children(stream)
                self.news.notify()
            if self._discovery_needed(stream):
                seconds = self._config.discovery_interval.total_seconds()
                await asyncio.sleep(min(seconds, _EMPTY_SECONDS) if empty_since or halved_since else seconds)

    def _with_siblings(self, stream: str, listed: Sequence[Shard], halved_since: dict[str, float]) -> list[Shard]:
        """Leave out children as long as the list does not show all children of their parent, but for a minute at most.

        With a child the parent leaves the positions, and then the other child would not be looked for.

        Args:
            stream: name or ARN.
            listed: all shards that are listed.
            halved_since: when each parent was first seen to lack children, by this process' clock.
        """
        children: dict[str, list[Shard]] = defaultdict(list)
        for shard in listed:
            for parent in shard.parent_shard_ids:
                children[parent].append(shard)
        graph, now = self.graphs[stream], self.tools.clock()
        # Children that are in the graph came with their parent's end, or were believed before.
        parents = (one for one in listed if one.shard_id in children and not graph.children(one.shard_id))
        halved = {one.shard_id for one in parents if not one.is_covered_by(children[one.shard_id])}
        for shard_id in halved_since.keys() - halved:
            del halved_since[shard_id]
        for shard_id in sorted(halved):
            if now - halved_since.setdefault(shard_id, now) >= _SIBLINGS_PATIENCE_SECONDS:
                halved.remove(shard_id)
                del halved_since[shard_id]
                _log.warning(
                    "%s/%s: for %g s ListShards has shown %s as its children, which do not take all of its hash keys; "
                    "continuing with these; records of another child would be missed",
                    stream,
                    shard_id,
                    _SIBLINGS_PATIENCE_SECONDS,
                    ", ".join(one.shard_id for one in children[shard_id]),
                )
        return [shard for shard in listed if halved.isdisjoint(shard.parent_shard_ids)]

    async def _learn_gone(
        self, stream: str, listed: Sequence[Shard], gone: set[str], empty_since: dict[str, float], *, is_whole: bool
    ) -> None:
        """Learn shards that lead to others, and that are not listed: gone, if Kinesis does not know them, or empty.

        A shard that ListShards shows late can be read, and has to be read before its children.

        Args:
            stream: name or ARN.
            listed: all shards that are listed.
            gone: shards without any record left; found ones are added.
            empty_since: when each of them was first seen to hold no record, by this process' clock.
            is_whole: whether the list lacks no child.

        Raises:
            EfoConsumerError: Kinesis could not be asked.
            AwsError: Kinesis could not be asked.
        """
        graph = self.graphs[stream]
        parents = {shard.shard_id: shard.parent_shard_ids for shard in listed}
        unlisted = frozenset(self._unlisted[stream])
        # One that is listed may wait for its siblings.
        asked = (graph.unknown(self._standing(stream)) | unlisted) - parents.keys()
        if self._named_only:
            # Whatever the caller reads elsewhere.
            asked |= {
                parent
                for shard_id in unlisted
                for one in successors(shard_id, listed, ())
                for parent in parents[one.shard_id]
                if parent not in parents
            }
        for shard_id in sorted(asked - gone):
            try:
                oldest = await self.backend.oldest_record(stream, shard_id)
            except RecordPublisherError as error:
                if error.code != NOT_FOUND:
                    raise
                gone.add(shard_id)
                continue
            if oldest is not None:
                empty_since.pop(shard_id, None)
                _log.warning("%s/%s, whose children wait for it, is not listed yet, asking again", stream, shard_id)
            elif self.tools.clock() - empty_since.setdefault(shard_id, self.tools.clock()) >= _EMPTY_SECONDS:
                children = await self._younger_children(stream, shard_id, listed) if shard_id in unlisted else ()
                for child in children:
                    graph.add(child.shard_id, child.parent_shard_ids)
                if children:
                    self._unlisted[stream].discard(shard_id)
                else:
                    # It is closed: nothing will come, and what it held has expired.
                    gone.add(shard_id)
        for shard_id in asked & gone:
            graph.add(shard_id, ())
        if self._named_only and asked <= gone and is_whole:
            every = [ShardLineage(stream, shard.shard_id, shard.parent_shard_ids) for shard in listed]
            every += [ShardLineage(stream, shard_id, (), is_gone=True) for shard_id in asked]
            self._gone_lineage |= {(stream, shard_id): tuple(every) for shard_id in unlisted}
            self._unlisted[stream] -= unlisted

    async def _younger_children(self, stream: str, shard_id: str, listed: Sequence[Shard]) -> tuple[Shard, ...]:
        """Give the children that an empty shard's end names, if the list is of before they were made."""
        youngest = max((shard.shard_id for shard in listed), default="")
        async with aclosing(self.backend.read_once(stream, shard_id, ShardPosition.trim_horizon())) as events:
            async for event in events:
                # Kinesis numbers shards in the order of their creation. The list shows whether older ones are left.
                if event.child_shards and all(child.shard_id > youngest for child in event.child_shards):
                    return event.child_shards
        return ()

    def _find_successors(self, stream: str, listed: Sequence[Shard], gone: set[str]) -> None:
        """Learn what follows shards that were read to their end, and expired with their children."""
        for shard_id in () if self._named_only else self._unlisted[stream] & gone:
            self._unlisted[stream].remove(shard_id)
            for child in successors(shard_id, listed, self._standing(stream)):
                self.graphs[stream].add(child.shard_id, child.parent_shard_ids)

    def _remove(self, key: ShardKey) -> FollowedShard:
        shard = self.shards.pop(key)
        self.tools.pool.remove(shard.buffer)
        self.tools.room.notify()
        return shard

    async def _use_publisher(self, request: OpenRequest) -> None:
        arns = {consumer.stream_name: consumer.consumer_arn for consumer in request.consumers}
        key = (request.record_publisher, arns, self.backend.retry_patience, request.settings)
        if self._publisher is not None and key == self._publisher_key:
            return
        publisher = self.backend.record_publisher(request.record_publisher, arns)
        predecessor, self._publisher, self._publisher_key = self._publisher, publisher, key
        try:
            await asyncio.gather(*(shard.stop() for shard in self.shards.values()))
        finally:
            # Also when the caller was cancelled: nothing else refers to it any more.
            if predecessor is not None:
                await predecessor.close()

    async def aclose(self) -> None:
        """End all subscriptions and drop all buffers."""
        self._closed = True
        for task in self._discoveries.values():
            task.cancel()
        await asyncio.gather(*self._discoveries.values(), return_exceptions=True)
        await asyncio.gather(*(shard.stop() for shard in self.shards.values()))
        await self.listings.aclose()
        for key in list(self.shards):
            self._remove(key)
        for publisher in (self._publisher, self._poller):
            if publisher is not None:
                await publisher.close()


class _Standing(Mapping[str, ShardPosition]):
    """How far each shard of a stream was read, followed or not, as it is at each look."""

    def __init__(
        self, stream: str, shards: Mapping[ShardKey, FollowedShard], finished: Mapping[str, ShardPosition]
    ) -> None:
        self._stream = stream
        self._shards = shards
        self._finished = finished

    def __getitem__(self, shard_id: str) -> ShardPosition:
        shard = self._shards.get((self._stream, shard_id))
        return self._finished[shard_id] if shard is None else shard.buffer.end

    def __contains__(self, shard_id: object) -> bool:
        return shard_id in self._finished or (self._stream, shard_id) in self._shards

    def __iter__(self) -> Iterator[str]:
        followed = (shard_id for name, shard_id in self._shards if name == self._stream)
        return iter(dict.fromkeys((*self._finished, *followed)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
