"""One or more shard readers behind endpoints: each follows a part of a session's shards, and others take over."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from penstock.efo_consumer._continuity.lineage import ShardGraph, entering, successors
from penstock.efo_consumer._model.positions import ShardPosition, ShardRange, StreamPositions
from penstock.efo_consumer._model.shards import Shard
from penstock.efo_consumer._reader.api import PositionsOptions, PositionsSnapshot, ShardLineage, ShardReader, is_news
from penstock.efo_consumer._reader.reach import Bounds, ShardKey
from penstock.efo_consumer._remote.client import RemoteShardReader
from penstock.efo_consumer._remote.keeping_step import FleetHorizon, divide
from penstock.efo_consumer._remote.members import KnownStats, Members, place, union
from penstock.efo_consumer._remote.messages import CALL_SECONDS
from penstock.efo_consumer._remote.resume import (
    PATIENCE_SECONDS,
    Patience,
    retrievals,
    while_alive,
)
from penstock.efo_consumer.errors import (
    EfoConsumerError,
    FencedConsumerError,
    PositionsError,
    ReaderUnavailableError,
    SessionNotFoundError,
    StaleEpochError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from typing import TypeAlias

    import pyarrow as pa

    from penstock.efo_consumer._publish.config import Deaggregation
    from penstock.efo_consumer._reader.api import (
        FleetMember,
        OpenRequest,
        RangeOptions,
        ShardsLook,
        ShardStats,
    )
    from penstock.rpc import ClientSecurity

    Membership: TypeAlias = Callable[[], Sequence[str]]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
DEFAULT_LEASE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
# Between two looks while records wait for slower shards.
_HELD_SECONDS = 0.25
_NOWHERE = StreamPositions({})
_WAITS = "waits for its reader"
_NAMED_SHARDS = 8
"""In a log line."""


class FleetShardReader(ShardReader):
    """A `ShardReader` over one or more endpoints, for one session and the event loop that first uses it.

    Each shard is owned by the endpoint that rendezvous hashing gives it. An owner holds a lease: it ends its part of
    the session when it is not called for that long, and when it does not answer for that long, its shards move to the
    others, which continue at the caller's positions. The shards of the others never wait for it. Ranges are facts that
    any reader can give, so nothing is lost or doubled. All readers know the number of the caller's run, which tells a
    successor from a predecessor.

    A single endpoint is a fleet of one: its shards wait until it answers. A reader that was restarted does not know the
    session, which is opened there again.

    Args:
        endpoints: `host:port` of each; or a function that gives the current ones, which is called with each `open` and
            `positions`. A reader that it no longer names has left, and its shards move at once. The function raises an
            error when there will be no more readers.
        security: TLS and token, the same for all.
        patience_seconds: how long to wait while no reader answers.
        lease_seconds: see above.
        clock: monotonic seconds.
        connect: makes the reader of an endpoint.
    """

    is_draining = False

    def __init__(
        self,
        endpoints: Sequence[str] | Membership,
        security: ClientSecurity | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str, ClientSecurity | None], FleetMember] = RemoteShardReader,
    ) -> None:
        named = None if callable(endpoints) else tuple(endpoints)
        self._membership: Membership = endpoints if callable(endpoints) else lambda: named or ()
        self._connect: Callable[[str], FleetMember] = lambda endpoint: connect(endpoint, security)
        self._readers: dict[str, FleetMember] = {}
        self.endpoint = ",".join(named or ())
        """The current readers, or the last ones while there are none, joined by commas."""
        self._members = Members(lease_seconds)
        # A reader whose shards cannot move keeps the session for as long as it is configured to.
        self._session_seconds = 0.0 if named is not None and len(named) == 1 else lease_seconds
        self._known = KnownStats(clock)
        self._patience_seconds = patience_seconds
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._request: OpenRequest | None = None
        self._start = _NOWHERE
        self._graphs: dict[str, ShardGraph] = {}
        # Shards that are gone, and whose successors are known.
        self._continued: set[ShardKey] = set()
        self._horizon = FleetHorizon(0.0)
        self._hearts: dict[str, asyncio.Task[None]] = {}
        self._is_open = False
        self._left: list[tuple[float, FleetMember]] = []
        self._alone_since: float | None = None
        self._deaggregates: Deaggregation | None = None
        self._taken_over: StaleEpochError | FencedConsumerError | None = None

    @property
    def deaggregates(self) -> Deaggregation | None:
        """See `ShardReader.deaggregates`; while no reader is there, as they were last: tasks read from Kinesis then."""
        readers = (self._readers.get(member.endpoint) for member in self._members.served())
        said = {reader.deaggregates for reader in readers if reader is not None}
        if said:
            self._deaggregates = said.pop() if len(said) == 1 else None
        return self._deaggregates

    @property
    def away(self) -> list[str]:
        """The endpoints that serve no part of the session, or do not answer."""
        return [member.endpoint for member in self._members.lost()]

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`. Endpoints that do not answer are tried again later.

        Raises:
            ReaderUnavailableError: none can be reached.
        """
        if not any(request.positions.streams.values()):
            raise PositionsError("a session needs a position in at least one shard")
        self._is_open = False
        await self._stop_hearts()
        await self._wait_for_members()
        request = replace(request, named_shards_only=True, session_seconds=self._session_seconds)
        before, self._request = self._request, request
        if before is not None and before.session_id == request.session_id:
            # Until this run has a number, calls of the run before have theirs.
            self._request = replace(request, epoch=before.epoch)
        self._start, self._taken_over = request.positions, None
        self._graphs = {stream: ShardGraph() for stream in request.positions.streams}
        self._continued = set()
        self._horizon = FleetHorizon(request.retry_patience_seconds or 0.0)
        for endpoint in self._readers:
            self._members.forget(endpoint)
        # Only a number: a reader that answers too late would take the session from this run.
        # With the names of the streams, about which each asks Kinesis, and so for the time.
        streams = StreamPositions({stream: {} for stream in request.positions.streams})
        asked = replace(request, number_only=True, positions=streams)
        opened = await asyncio.gather(*(self._ask_to_open(endpoint, asked) for endpoint in self._readers))
        if not self._members.served():
            raise next(error for error in opened if isinstance(error, ReaderUnavailableError))
        # Each reader has given a number: the largest is the run's, and is sent to all.
        epoch = max(number for number in opened if isinstance(number, int))
        self._request = replace(request, epoch=epoch)
        # Positions are judged when a session is opened.
        parts = place(request.positions, self._members.owners(self._clock()))
        await asyncio.gather(*(self._open_at(endpoint, part) for endpoint, part in parts.items()))
        for endpoint in self._readers:
            self._keep(endpoint)
        self._is_open = True
        return epoch

    async def positions(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        **options: Unpack[PositionsOptions],
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`. Shards whose owner does not answer stay where they are until they move.

        Raises:
            ReaderUnavailableError: no reader answered for as long as the patience allows.
        """
        self._start = start
        bounds = Bounds.of(options)
        deadline = self._clock() + options.get("wait_seconds", 0.0)
        news: list[PositionsSnapshot] = []
        patience = Patience(self._patience_seconds)
        while True:
            self._check(session_id, epoch)
            await self._take_members()
            # Where a reader answers that it does not know the session.
            forgotten = [member.endpoint for member in self._members.lost() if member.failed_at is None]
            await asyncio.gather(*map(self._open_at, forgotten))
            if not self._members.served():
                failure = next((one.failure for one in self._members.lost() if one.failure is not None), None)
                if failure is None:
                    failure = ReaderUnavailableError(endpoint=self.endpoint, reason="UNAVAILABLE: none serves yet")
                # Meanwhile the session's hearts open it again.
                await asyncio.sleep(patience.pause(failure, self._clock()))
                continue
            snapshot = await self._ask_all(start, bounds)
            if snapshot.positions == start and news:
                # Readers report moves without records only once in a while, and have reported them to the polls.
                snapshot = replace(self._merge(start, news), skew=snapshot.skew)
            left = deadline - self._clock()
            if is_news(start, snapshot.positions) or (left <= 0 and self._members.served()):
                return snapshot
            if snapshot.skew is not None and snapshot.skew.holds_back:
                # Answers of idle shards move the horizon, and no reader reports them.
                news = await self._wait_for_news(start, min(left, _HELD_SECONDS), self._horizon.millis)
            else:
                news = await self._wait_for_news(start, left, None)

    async def read_range(
        self, session_id: str, ranges: Sequence[ShardRange], *, epoch: int = 0, **options: Unpack[RangeOptions]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`: by the owner, or by another reader when that one is gone."""
        if epoch:
            self._check(session_id, epoch)

        await self._wait_for_members()
        for retrieval in retrievals(ranges, [*self._readers], lambda: self.away, self._patience_seconds):
            is_done = False
            while not is_done:
                retrieval.begin()
                try:
                    read = self._reader(retrieval.endpoint).read_range(session_id, retrieval.ranges, **options)
                    async with aclosing(read) as batches:
                        async for batch in batches:
                            rest = retrieval.take(batch)
                            if rest.num_rows:
                                yield rest
                    is_done = True
                except ReaderUnavailableError as error:
                    await asyncio.sleep(retrieval.failed(error, self._clock()))

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`. A reader that does not answer holds nothing that matters."""
        self._check(session_id, epoch)
        parts = place(positions, self._members.owners(self._clock()))

        async def commit_at(endpoint: str) -> None:
            part = parts.get(endpoint, _NOWHERE)
            await self._answer(endpoint, lambda reader: reader.commit(session_id, epoch, part))

        await asyncio.gather(*(commit_at(member.endpoint) for member in self._members.served()))
        for stream, shards in positions.streams.items():
            self._graph(stream).prune(shards)
            self._continued -= {key for key in self._continued if key[0] == stream and key[1] not in shards}

    async def stats(self, session_id: str) -> list[ShardStats]:
        """See `ShardReader.stats`. Shards whose reader does not answer are as it reported last, with the cause."""
        parts = await self.stats_by_reader(session_id)
        found = {(one.stream_name, one.shard_id): one for part in parts.values() for one in part}
        return [one for _, one in sorted(found.items())]

    async def stats_by_reader(self, session_id: str) -> dict[str, list[ShardStats]]:
        """The same by the endpoint of the reader that each shard is with, or waits for; also of those without shards.

        While no reader is there, all shards wait for one that was there last.
        """
        self._find_request(session_id)
        served = [member.endpoint for member in self._members.served()]
        stats = await asyncio.gather(*(self._answer(one, lambda reader: reader.stats(session_id)) for one in served))
        found = {endpoint: part or [] for endpoint, part in zip(served, stats, strict=True)}
        known = {(one.stream_name, one.shard_id): one for part in found.values() for one in part}
        self._known.update(known.values())
        for endpoint, waiting in self._waiting().items():
            left = [one for one in waiting if (one.stream_name, one.shard_id) not in known]
            found[endpoint] = found.get(endpoint, []) + left
        return found

    async def close_session(self, session_id: str, epoch: int) -> None:
        """See `ShardReader.close_session`."""
        if self._request is None or epoch != self._request.epoch:
            return
        self._is_open = False
        await self._stop_hearts()

        async def close_at(endpoint: str) -> None:
            await self._answer(endpoint, lambda reader: reader.close_session(session_id, epoch))
            self._members.forget(endpoint)

        # All, as one that did not answer may still do what it was asked.
        await asyncio.gather(*(close_at(member.endpoint) for member in self._members.all()))

    async def aclose(self) -> None:
        """Close the connections; the readers end the session when its lease does."""
        await self._stop_hearts()
        left, self._left = [reader for _, reader in self._left], []
        await asyncio.gather(*(reader.aclose() for reader in [*self._readers.values(), *left]))

    def _waiting(self) -> dict[str, list[ShardStats]]:
        """The shards that wait for a reader, by the endpoint of the reader that has them or had them last."""
        now = self._clock()
        parts = place(self._start, self._members.owners(now))
        failed = [member for member in self._members.lost() if member.failed_at is not None]
        if not parts:
            # None is left to which they could move.
            endpoint, since, cause = self.endpoint.partition(",")[0], self._alone_since, "none is there"
            if failed:
                endpoint, since = failed[0].endpoint, max(member.failed_at or now for member in failed)
                cause = str(failed[0].failure)
            return {} if since is None else {endpoint: self._known.waiting(self._start, since, f"{_WAITS}: {cause}")}
        found = {}
        for member in failed:
            left = self._members.lease_left(member, now)
            if left is not None and member.failed_at is not None:
                moves = f", and moves to another in {left:.0f} s" if self._members.served() else ""
                cause = f"{_WAITS}{moves}: {member.failure}"
                found[member.endpoint] = self._known.waiting(parts[member.endpoint], member.failed_at, cause)
        return found

    async def _ask_all(self, start: StreamPositions, bounds: Bounds) -> PositionsSnapshot:
        """Ask each owner about its shards, without waiting, and put the answers together."""
        parts = place(start, self._members.owners(self._clock()))
        served = [member.endpoint for member in self._members.served()]
        own = dict.fromkeys(served, bounds)
        if bounds.skew_millis is not None or bounds.max_records or bounds.max_bytes:
            own = await self._keep_step(start, parts, served, bounds)

        async def ask(endpoint: str) -> PositionsSnapshot | None:
            return await self._ask(endpoint, parts.get(endpoint, _NOWHERE), own[endpoint], 0.0)

        answers = await asyncio.gather(*(ask(endpoint) for endpoint in own))
        given = {endpoint: answer for endpoint, answer in zip(own, answers, strict=True) if answer is not None}
        snapshot = self._merge(start, [*given.values()])
        if bounds.skew_millis is None:
            return snapshot
        shown = {endpoint: answer.skew for endpoint, answer in given.items() if answer.skew is not None}
        latest = max((one.latest_millis for one in shown.values() if one.latest_millis is not None), default=None)
        # A limit may have lowered the horizon: what is behind that waits for no shard.
        horizon = self._horizon.millis
        holds_back = any(one.holds_back and own[name].horizon_millis == horizon for name, one in shown.items())
        return replace(snapshot, skew=self._horizon.skew(bounds.skew_millis, latest, holds_back=holds_back))

    async def _keep_step(
        self, start: StreamPositions, parts: Mapping[str, StreamPositions], served: Sequence[str], bounds: Bounds
    ) -> dict[str, Bounds]:
        """Give the bounds of each reader that can be asked: so that their shards stay together, within the limits."""
        skew = bounds.skew_millis
        before = None if skew is None else self._horizon.asks_before(skew)
        request = self._request
        assert request is not None

        async def look(endpoint: str) -> ShardsLook | None:
            return await self._answer(
                endpoint,
                lambda reader: reader.look(
                    request.session_id,
                    request.epoch,
                    parts.get(endpoint, _NOWHERE),
                    before_millis=before,
                    **bounds.limits,
                ),
            )

        looks = await asyncio.gather(*map(look, served))
        seen = {endpoint: look for endpoint, look in zip(served, looks, strict=True) if look is not None}
        horizon = bounds.horizon_millis
        if skew is not None:
            unseen = [part for endpoint, part in parts.items() if endpoint not in seen]
            found = self._horizon.find(start, self._graphs, seen, unseen, skew_millis=skew, now=self._clock())
            horizon = min((one for one in (horizon, found) if one is not None), default=None)
        return divide(replace(bounds, skew_millis=None, horizon_millis=horizon), seen)

    def _merge(self, start: StreamPositions, answers: Sequence[PositionsSnapshot]) -> PositionsSnapshot:
        reached = union(start, (answer.positions for answer in answers))
        for answer in answers:
            self._learn(answer, reached)
        streams: dict[str, dict[str, ShardPosition]] = {}
        lineage: list[ShardLineage] = []
        for stream, shards in reached.streams.items():
            graph, known = self._graph(stream), dict(shards)
            while entrants := graph.entrants(known):
                for child in entrants:
                    known[child] = entering(known[parent] for parent in graph.parents(child) if parent in known)
            streams[stream] = known
            ended = [shard_id for shard_id, position in known.items() if position.is_shard_end]
            lineage += (ShardLineage(stream, shard_id, parents) for shard_id, parents in graph.lineage(ended))
        positions = StreamPositions(streams, reached.created)
        if positions != start:
            for stream, before in start.streams.items():
                for shard_id in self._graph(stream).leavers(before):
                    del streams[stream][shard_id]
        behind = [answer.millis_behind_latest for answer in answers]
        unknown = -1 in behind or len(answers) < len(self._members.owners(self._clock()))
        return PositionsSnapshot(
            positions,
            sum(answer.records for answer in answers),
            sum(answer.bytes for answer in answers),
            -1 if unknown else max(behind, default=0),
            tuple(lineage),
        )

    def _learn(self, answer: PositionsSnapshot, reached: StreamPositions) -> None:
        """Learn which shards follow those that ended; `reached` is where all readers stand."""
        for stream, shards in answer.positions.streams.items():
            graph = self._graph(stream)
            shown = [one for one in answer.lineage if one.stream_name == stream]
            listed = [Shard(one.shard_id, one.parent_shard_ids) for one in shown if not one.is_gone]
            for one in shown:
                graph.add(one.shard_id, one.parent_shard_ids)
            for one in shown:
                position, key = shards.get(one.shard_id), (stream, one.shard_id)
                if one.is_gone and position is not None and position.is_shard_end and key not in self._continued:
                    # Its reader shows all shards that are listed, but cannot know which of them others read.
                    self._continued.add(key)
                    for successor in successors(one.shard_id, listed, reached.streams[stream].keys()):
                        graph.add(successor.shard_id, successor.parent_shard_ids)

    def _graph(self, stream: str) -> ShardGraph:
        return self._graphs.setdefault(stream, ShardGraph())

    async def _wait_for_news(
        self, start: StreamPositions, seconds: float, horizon_millis: int | None
    ) -> list[PositionsSnapshot]:
        """Wait until a reader has something new up to the horizon, or has to be opened again.

        Returns the answers of readers whose shards moved without records.
        """
        now = self._clock()
        parts = place(start, self._members.owners(now))
        if self._members.lost() or any(p.is_shard_end for shards in start.streams.values() for p in shards.values()):
            seconds = min(seconds, _RETRY_SECONDS, self._members.deadline(now) or _RETRY_SECONDS)
        # One record is enough to know that there is something: the next step asks all readers.
        one = Bounds(max_records=1, max_bytes=1, horizon_millis=horizon_millis)
        polls = [
            asyncio.create_task(
                self._ask(member.endpoint, parts.get(member.endpoint, _NOWHERE), one, seconds),
                name=f"poll {member.endpoint}",
            )
            for member in self._members.served()
        ]
        if not polls:
            return []
        try:
            await asyncio.wait(polls, timeout=seconds + _RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for poll in polls:
                poll.cancel()
            results = await asyncio.gather(*polls, return_exceptions=True)
        for result in results:
            if isinstance(result, EfoConsumerError):
                raise result
        return [result for result in results if isinstance(result, PositionsSnapshot) and not result.records]

    async def _ask(
        self, endpoint: str, start: StreamPositions, bounds: Bounds, wait_seconds: float
    ) -> PositionsSnapshot | None:
        request = self._request
        assert request is not None
        return await self._answer(
            endpoint,
            lambda reader: reader.positions(
                request.session_id,
                request.epoch,
                start,
                wait_seconds=wait_seconds,
                horizon_millis=bounds.horizon_millis,
                **bounds.limits,
            ),
        )

    async def _open_at(self, endpoint: str, part: StreamPositions = _NOWHERE) -> None:
        assert self._request is not None
        # It checks the identity of all streams, also of streams of which it follows no shard yet.
        streams = {stream: part.streams.get(stream, {}) for stream in self._start.streams}
        positions = StreamPositions(streams, self._start.created)
        await self._ask_to_open(endpoint, replace(self._request, positions=positions))

    async def _ask_to_open(self, endpoint: str, request: OpenRequest) -> int | ReaderUnavailableError:
        try:
            epoch = await self._call(endpoint, self._reader(endpoint).open(request))
        except ReaderUnavailableError as error:
            return error
        self._serve(endpoint)
        return epoch

    def _serve(self, endpoint: str) -> None:
        failed_at = self._members[endpoint].failed_at
        self._members.serve(endpoint)
        if failed_at is not None:
            _log.warning("shard reader at %s answers again, after %.0f s", endpoint, self._clock() - failed_at)

    async def _answer(self, endpoint: str, ask: Callable[[FleetMember], Awaitable[_T]]) -> _T | None:
        """Give a reader's answer; None if it is not there, or does not know the session."""
        with suppress(ReaderUnavailableError, SessionNotFoundError):
            return await self._call(endpoint, ask(self._reader(endpoint)))
        return None

    async def _call(self, endpoint: str, answer: Awaitable[_T]) -> _T:
        """Give a reader's answer, and note whether it is there and knows the session."""
        assert self._request is not None
        try:
            return await while_alive(endpoint, answer, partial(self._reader(endpoint).stats, self._request.session_id))
        except ReaderUnavailableError as error:
            if self._members.fail(error, self._clock()):
                part = place(self._start, self._members.owners(self._clock())).get(endpoint, _NOWHERE)
                waiting = [f"{stream}/{shard}" for stream, shards in part.streams.items() for shard in shards]
                names = ", ".join(waiting[:_NAMED_SHARDS]) + (", ..." if len(waiting) > _NAMED_SHARDS else "")
                _log.warning(
                    "%s; %d shards wait for it%s%s",
                    error,
                    len(waiting),
                    f" ({names})" if names else "",
                    f", and move to others in {self._lease_seconds:g} s" if self._members.served() else "",
                )
            raise
        except SessionNotFoundError:
            if self._members[endpoint].is_open:
                _log.warning("shard reader at %s does not know the session any more; opening it again", endpoint)
            self._members.forget(endpoint)
            raise

    async def _wait_for_members(self) -> None:
        """Wait for a first reader, where they come and go.

        Raises:
            ReaderUnavailableError: there was none for as long as the patience allows.
        """
        patience = Patience(self._patience_seconds)
        await self._take_members()
        while not self._readers:
            error = ReaderUnavailableError(endpoint=self.endpoint, reason="UNAVAILABLE: no reader is there")
            await asyncio.sleep(patience.pause(error, self._clock()))
            await self._take_members()

    async def _take_members(self) -> None:
        """Add the readers that have joined, and remove the readers that are gone."""
        # For readers that may be gone in a moment.
        self._deaggregates = self.deaggregates
        there = list(self._membership())
        now = self._clock()
        gone = [endpoint for endpoint in self._readers if endpoint not in there]
        new = [endpoint for endpoint in there if endpoint not in self._readers]
        for endpoint in gone:
            self._members.leave(endpoint)
            if endpoint in self._hearts:
                self._hearts.pop(endpoint).cancel()
            self._left.append((now, self._readers[endpoint]))
        kept = {endpoint: reader for endpoint, reader in self._readers.items() if endpoint in there}
        # A new dict: other threads look at it, too.
        self._readers = kept | {endpoint: self._connect(endpoint) for endpoint in new}
        self.endpoint = ",".join(self._readers) or self.endpoint
        self._alone_since = None if self._readers else self._alone_since or now
        for endpoint in new:
            self._members.join(endpoint)
        if self._is_open and (new or gone):
            _log.warning("shard readers changed: %d are there, %s", len(self._readers), _changes(joined=new, gone=gone))
            # They learn of the session, and take shards with the next positions.
            await asyncio.gather(*(self._open_at(endpoint) for endpoint in new))
            for endpoint in new:
                self._keep(endpoint)
        # Its calls have ended by then: closing earlier would cancel callers that wait for one.
        while self._left and now - self._left[0][0] > CALL_SECONDS:
            await self._left.pop(0)[1].aclose()

    def _reader(self, endpoint: str) -> FleetMember:
        reader = self._readers.get(endpoint)
        if reader is None:
            raise ReaderUnavailableError(endpoint=endpoint, reason="UNAVAILABLE: it has left the fleet")
        return reader

    def _keep(self, endpoint: str) -> None:
        assert self._request is not None
        name = f"keep session {self._request.session_id} at {endpoint}"
        self._hearts[endpoint] = asyncio.create_task(self._look_after(endpoint), name=name)

    async def _look_after(self, endpoint: str) -> None:
        """Keep a reader's lease while the caller is busy with what it has, and come back to one that was away."""
        assert self._request is not None
        member = self._members[endpoint]
        while True:
            is_lost = not member.is_open or member.failed_at is not None
            await asyncio.sleep(min(_RETRY_SECONDS, self._lease_seconds / 3) if is_lost else self._lease_seconds / 3)
            try:
                if member.is_open and (member.failed_at is None or self._members.lease_left(member, self._clock())):
                    # Its shards have not moved: what it holds of them is still of use.
                    await self._call(endpoint, self._reader(endpoint).stats(self._request.session_id))
                    self._serve(endpoint)
                else:
                    await self._open_at(endpoint)
            except (ReaderUnavailableError, SessionNotFoundError):
                continue
            except (StaleEpochError, FencedConsumerError) as error:
                self._taken_over = error
                return
            except EfoConsumerError as error:
                member.failure = error
                _log.warning("cannot open the session at %s: %s", endpoint, error)

    async def _stop_hearts(self) -> None:
        hearts, self._hearts = self._hearts, {}
        for heart in hearts.values():
            heart.cancel()
        await asyncio.gather(*hearts.values(), return_exceptions=True)

    def _find_request(self, session_id: str) -> OpenRequest:
        if self._request is None or self._request.session_id != session_id:
            raise SessionNotFoundError(session_id=session_id)
        return self._request

    def _check(self, session_id: str, epoch: int) -> None:
        current = self._find_request(session_id).epoch
        if epoch != current:
            raise StaleEpochError(session_id=session_id, epoch=epoch, current_epoch=current)
        if self._taken_over is not None:
            raise self._taken_over


def _changes(*, joined: Sequence[str], gone: Sequence[str]) -> str:
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in (("new", joined), ("gone", gone)) if names)
