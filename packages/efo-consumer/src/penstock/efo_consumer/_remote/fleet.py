"""Several shard readers as one: each shard of a session is followed by one of them, and moves when that one is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from penstock.efo_consumer._continuity.lineage import ShardGraph, entering, successors
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer._model.shards import Shard
from penstock.efo_consumer._reader.api import PositionsSnapshot
from penstock.efo_consumer._reader.follow import follow_steps, is_news
from penstock.efo_consumer._remote.client import RemoteShardReader
from penstock.efo_consumer._remote.members import Members, place, shares, union
from penstock.efo_consumer._remote.resume import read_retrievals, retrievals
from penstock.efo_consumer.errors import EfoConsumerError, ReaderUnavailableError, SessionNotFoundError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardPosition, ShardRange
    from penstock.efo_consumer._reader.api import OpenRequest, RangeOptions, ShardReader, ShardStats
    from penstock.rpc import ClientSecurity

_log = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
"""All shards wait for a reader that neither answers nor refuses."""


class FleetShardReader:
    """A `ShardReader` over several endpoints, for one session and the event loop that first uses it.

    Each shard is owned by the endpoint that rendezvous hashing gives it. An owner holds a lease: it ends its part of
    the session when nobody calls it for that long, and when it cannot be reached for that long its shards move to the
    others, from the caller's positions on. Ranges are facts that any reader can give, so nothing is lost or doubled.
    A successor of the caller opens the session on every endpoint, which fences its predecessor there.

    Args:
        endpoints: `host:port` of each.
        security: TLS and token, the same for all.
        lease_seconds: see above.
        clock: monotonic seconds.
        connect: makes the reader of an endpoint.
    """

    is_draining = False

    def __init__(
        self,
        endpoints: Sequence[str],
        security: ClientSecurity | None = None,
        *,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str, ClientSecurity | None], ShardReader] = RemoteShardReader,
    ) -> None:
        self.endpoint = ",".join(endpoints)
        self._readers: dict[str, ShardReader] = {endpoint: connect(endpoint, security) for endpoint in endpoints}
        self._members = Members(endpoints, lease_seconds)
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._request: OpenRequest | None = None
        self._epoch = 0
        self._graphs: dict[str, ShardGraph] = {}
        self._turn = 0
        self._tried_at = clock()
        self._heart: asyncio.Task[None] | None = None

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`. Endpoints that cannot be reached are tried again later.

        Raises:
            ReaderUnavailableError: none can be reached.
        """
        self._request = replace(request, named_shards_only=True, session_seconds=self._lease_seconds)
        self._graphs = {stream: ShardGraph() for stream in request.positions.streams}
        for member in self._members.all():
            self._members.forget(member.endpoint)
        empty = StreamPositions({})
        opened = await asyncio.gather(*(self._open_at(endpoint, empty) for endpoint in self._readers))
        failures = [error for error in opened if error is not None]
        if len(failures) == len(opened):
            raise failures[0]
        self._epoch = max(self._epoch + 1, *(member.epoch for member in self._members.served()))
        await self._place(request.positions)
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat(), name=f"keep session {request.session_id}")
        return self._epoch

    async def positions(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`. Shards whose owner cannot be reached stay where they are until they move."""
        deadline = self._clock() + wait_seconds
        news: list[PositionsSnapshot] = []
        while True:
            self._check(session_id, epoch)
            await self._recover()
            snapshot = await self._ask_all(start, max_records, max_bytes)
            if snapshot.positions == start and news:
                # Readers tell moves without records only once in a while, and have told them to the polls.
                snapshot = self._merge(start, news)
            left = deadline - self._clock()
            if is_news(start, snapshot.positions) or left <= 0:
                return snapshot
            news = await self._wait_for_news(start, left)

    async def read_range(
        self, session_id: str, ranges: Sequence[ShardRange], *, epoch: int = 0, **options: Unpack[RangeOptions]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`: by the owner, or by another reader when that one is gone."""
        if epoch:
            self._check(session_id, epoch)

        def read(endpoint: str, part: Sequence[ShardRange]) -> AsyncGenerator[pa.RecordBatch, None]:
            return self._readers[endpoint].read_range(session_id, part, **options)

        owners = self._members.owners(self._clock()) or list(self._readers)
        asked = retrievals(ranges, owners, list(self._readers))
        async with aclosing(read_retrievals(asked, read, self._clock, asyncio.sleep)) as batches:
            async for batch in batches:
                yield batch

    follow = follow_steps

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`. A reader that cannot be reached holds nothing that matters."""
        self._check(session_id, epoch)
        parts = place(positions, self._members.owners(self._clock()))
        for member in self._members.served():
            with suppress(ReaderUnavailableError, SessionNotFoundError):
                part = parts.get(member.endpoint, StreamPositions({}))
                await self._readers[member.endpoint].commit(session_id, member.epoch, part)
        for stream, shards in positions.streams.items():
            self._graph(stream).prune(shards)

    async def stats(self, session_id: str) -> list[ShardStats]:
        """See `ShardReader.stats`, of the readers that can be reached."""
        found: list[ShardStats] = []
        for member in self._members.served():
            with suppress(ReaderUnavailableError, SessionNotFoundError):
                found += await self._readers[member.endpoint].stats(session_id)
        return sorted(found, key=lambda shard: (shard.stream_name, shard.shard_id))

    async def close_session(self, session_id: str, epoch: int) -> None:
        """See `ShardReader.close_session`."""
        if self._request is None or epoch != self._epoch:
            return
        await self._stop_heart()
        for member in self._members.served():
            with suppress(ReaderUnavailableError):
                await self._readers[member.endpoint].close_session(session_id, member.epoch)
            self._members.forget(member.endpoint)

    async def aclose(self) -> None:
        """Close the connections; the readers end the session when its lease does."""
        await self._stop_heart()
        await asyncio.gather(*(reader.aclose() for reader in self._readers.values()))

    async def _place(self, positions: StreamPositions) -> None:
        """Open the session once more where shards were placed: positions are judged when a session is opened."""
        parts = place(positions, self._members.owners(self._clock()))
        await asyncio.gather(*(self._open_at(endpoint, part) for endpoint, part in parts.items() if part.streams))

    async def _ask_all(self, start: StreamPositions, max_records: int = 0, max_bytes: int = 0) -> PositionsSnapshot:
        """Ask each owner about its shards, without waiting, and put the answers together."""
        parts = place(start, self._members.owners(self._clock()))
        asked = [member.endpoint for member in self._members.served()]
        records = shares(max_records, asked, self._turn)
        nbytes = max(1, max_bytes // max(1, len(records))) if max_bytes else 0
        self._turn += 1
        answers = await asyncio.gather(
            *(self._ask(endpoint, parts[endpoint], limit, nbytes, 0.0) for endpoint, limit in records.items())
        )
        return self._merge(start, [answer for answer in answers if answer is not None])

    def _merge(self, start: StreamPositions, answers: Sequence[PositionsSnapshot]) -> PositionsSnapshot:
        reached = union(start, (answer.positions for answer in answers))
        for answer in answers:
            self._learn(start, answer, reached)
        streams: dict[str, dict[str, ShardPosition]] = {}
        for stream, shards in reached.streams.items():
            graph, known = self._graph(stream), dict(shards)
            while entrants := graph.entrants(known):
                for child in entrants:
                    known[child] = entering(known[parent] for parent in graph.parents(child) if parent in known)
            streams[stream] = known
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
        )

    def _learn(self, start: StreamPositions, answer: PositionsSnapshot, reached: StreamPositions) -> None:
        """Learn which shards follow those that ended since `start`; `reached` is where all readers stand."""
        for stream, shards in answer.positions.streams.items():
            graph = self._graph(stream)
            shown = [Shard(one.shard_id, one.parent_shard_ids) for one in answer.lineage if one.stream_name == stream]
            ids = {shard.shard_id for shard in shown}
            parents = {parent for shard in shown for parent in shard.parent_shard_ids}
            for shard in shown:
                graph.add(shard.shard_id, shard.parent_shard_ids)
            for shard_id, position in shards.items():
                before = start.get(stream, shard_id)
                has_ended = position.is_shard_end and not (before is not None and before.is_shard_end)
                if not has_ended or (shard_id in ids and shard_id in parents):
                    continue
                # It is gone: its reader shows all shards that are listed, but cannot know which of them others read.
                for expired in parents - ids:
                    graph.add(expired, ())
                for successor in successors(shard_id, shown, reached.streams[stream].keys()):
                    graph.add(successor.shard_id, successor.parent_shard_ids)

    def _graph(self, stream: str) -> ShardGraph:
        return self._graphs.setdefault(stream, ShardGraph())

    async def _wait_for_news(self, start: StreamPositions, seconds: float) -> list[PositionsSnapshot]:
        """Wait until a reader has something new, or is to be looked after; give what moved without records."""
        now = self._clock()
        parts = place(start, self._members.owners(now))
        if self._members.lost() or any(p.is_shard_end for shards in start.streams.values() for p in shards.values()):
            seconds = min(seconds, _RETRY_SECONDS, self._members.deadline(now) or _RETRY_SECONDS)
        polls = [
            asyncio.create_task(
                # One record is enough to know that there is something: the next step asks everybody.
                self._ask(member.endpoint, parts[member.endpoint], 1, 1, seconds),
                name=f"poll {member.endpoint}",
            )
            for member in self._members.served()
        ]
        if not polls:
            await asyncio.sleep(min(seconds, _RETRY_SECONDS))
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
        self, endpoint: str, start: StreamPositions, max_records: int, max_bytes: int, wait_seconds: float
    ) -> PositionsSnapshot | None:
        assert self._request is not None
        try:
            async with asyncio.timeout(wait_seconds + _ANSWER_SECONDS):
                return await self._readers[endpoint].positions(
                    self._request.session_id,
                    self._members[endpoint].epoch,
                    start,
                    max_records=max_records,
                    max_bytes=max_bytes,
                    wait_seconds=wait_seconds,
                )
        except TimeoutError:
            reason = f"DEADLINE_EXCEEDED: no answer within {_ANSWER_SECONDS:g} s"
            self._failed(endpoint, ReaderUnavailableError(endpoint=endpoint, reason=reason))
        except ReaderUnavailableError as error:
            self._failed(endpoint, error)
        except SessionNotFoundError:
            _log.warning("shard reader at %s does not know the session any more; opening it again", endpoint)
            self._members.forget(endpoint)
        return None

    async def _recover(self) -> None:
        """Open the session again where a reader came back."""
        lost = self._members.lost()
        unserved = [member for member in lost if member.failed_at is None]
        if unserved or (lost and self._clock() - self._tried_at >= _RETRY_SECONDS):
            self._tried_at = self._clock()
            # A reader that hangs must not hold up the others each time.
            limit = _RETRY_SECONDS if self._members.owners(self._clock()) else None
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await asyncio.gather(*(self._open_at(member.endpoint, StreamPositions({})) for member in lost))
        if not self._members.owners(self._clock()):
            raise ReaderUnavailableError(endpoint=self.endpoint, reason="none of the readers can be reached")

    async def _open_at(self, endpoint: str, positions: StreamPositions) -> ReaderUnavailableError | None:
        assert self._request is not None
        try:
            epoch = await self._readers[endpoint].open(replace(self._request, positions=positions))
        except ReaderUnavailableError as error:
            self._failed(endpoint, error)
            return error
        self._members.serve(endpoint, epoch)
        return None

    def _failed(self, endpoint: str, error: ReaderUnavailableError) -> None:
        if self._members[endpoint].failed_at is None:
            _log.warning("%s; its shards move to others in %g s", error, self._lease_seconds)
        self._members.fail(endpoint, self._clock())

    async def _beat(self) -> None:
        """Keep the leases while the caller is busy with what it has."""
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            # Side by side and not for long: a reader that hangs must not cost the others their leases.
            await asyncio.gather(*(self._keep(member.endpoint) for member in self._members.served()))

    async def _keep(self, endpoint: str) -> None:
        assert self._request is not None
        try:
            async with asyncio.timeout(self._lease_seconds / 3):
                await self._readers[endpoint].stats(self._request.session_id)
        except TimeoutError:
            _log.warning("shard reader at %s does not answer", endpoint)
        except ReaderUnavailableError as error:
            self._failed(endpoint, error)
        except SessionNotFoundError:
            self._members.forget(endpoint)

    async def _stop_heart(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

    def _check(self, session_id: str, epoch: int) -> None:
        if self._request is None or self._request.session_id != session_id:
            raise SessionNotFoundError(session_id=session_id)
        if epoch != self._epoch:
            raise StaleEpochError(session_id=session_id, epoch=epoch, current_epoch=self._epoch)
