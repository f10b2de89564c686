"""The in-process home of the shard reader."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Self, Unpack

from opentelemetry import trace

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.pool import BufferPool
from penstock.efo_consumer._buffer.segment import Piece
from penstock.efo_consumer._continuity.guard import LEFT, Loss, ShardGuard, check_streams, report
from penstock.efo_consumer._continuity.rule import SHORTEST_RETENTION_MILLIS
from penstock.efo_consumer._model.schema import DEFAULT_MAX_BATCH_BYTES, ReadColumns, Rebatcher
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.condition import RETENTION_SHARE, ShardAlarms, WatchedShard
from penstock.efo_consumer._publish.metrics import observe
from penstock.efo_consumer._reader.api import ShardReader
from penstock.efo_consumer._reader.config import ReaderConfig
from penstock.efo_consumer._reader.deaggregator import Deaggregator
from penstock.efo_consumer._reader.fencing import FencingTokens
from penstock.efo_consumer._reader.reach import Bounds
from penstock.efo_consumer._reader.replay import Proof, Replay, prove
from penstock.efo_consumer._reader.session import ReaderSession
from penstock.efo_consumer._reader.shard import ReaderTools
from penstock.efo_consumer.errors import (
    EfoConsumerConfigError,
    EfoConsumerError,
    PositionsError,
    SessionNotFoundError,
    StaleEpochError,
)
from penstock.rpc import Signal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardPosition, ShardRange, StreamPositions
    from penstock.efo_consumer._publish.config import Deaggregation
    from penstock.efo_consumer._reader.api import (
        Limits,
        OpenRequest,
        PositionsOptions,
        PositionsSnapshot,
        SessionInfo,
        ShardsLook,
        ShardStats,
    )
    from penstock.efo_consumer._reader.backend import ReaderBackend

_WATCH_SECONDS = 1.0
_ALARM_SECONDS = 2.0
# Looking at thousands of shards takes this share of the reader's time at most. The service may be waited for, too: that
# must not put the next look off for long.
_ALARM_SHARE = 0.05
_LATEST_ALARM_SECONDS = 10.0
_OPENING_PATIENCE = timedelta(seconds=3)
_NUMBERS_PER_MILLI = 1000
_CLOCKS_DIFFER_MILLIS = 24 * 3_600_000
_CLOSED_SECONDS = 600.0
_MOST_CLOSED = 10_000

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("penstock.efo_consumer")


class LocalShardReader(ShardReader):
    """A `ShardReader` in this process, for the running event loop; an async context manager.

    Args:
        backend: Kinesis. Closed with the reader.
        config: bounds and times.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        backend: ReaderBackend,
        config: ReaderConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._config = config or ReaderConfig()
        self._clock = clock
        how = self._config.deaggregate
        self._tools = ReaderTools(
            backend=backend,
            config=self._config,
            pool=BufferPool(
                shard_bytes=self._config.buffer_bytes_per_shard,
                total_bytes=self._config.buffer_bytes,
                promise_grace_seconds=self._config.promise_grace.total_seconds(),
            ),
            room=Signal(),
            clock=clock,
            deaggregator=Deaggregator(backend, keeps_all=how == "all") if how else None,
        )
        self._sessions: dict[str, ReaderSession] = {}
        # By session: the newest run that was closed, its owner, and when. What that had asked before may come later.
        self._closed: dict[str, tuple[int, str, float]] = {}
        self._opening = asyncio.Lock()
        self._last_epoch = 0
        self.is_draining = False
        self._watch: asyncio.Task[None] | None = None
        self._alarm: asyncio.Task[None] | None = None
        self._alarms: dict[str, ShardAlarms] = {}
        observe(self)
        self._fencing = FencingTokens(clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def deaggregates(self) -> Deaggregation:
        """See `ShardReader.deaggregates`."""
        return self._config.deaggregate

    @property
    def buffered_bytes(self) -> int:
        """Bytes of memory that the buffers of all sessions hold."""
        return self._tools.pool.held_bytes

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`."""
        if not any(request.positions.streams.values()) and not request.named_shards_only:
            raise PositionsError("a session needs a position in at least one shard")
        self._fencing.check(request.consumers, self._sessions)
        self._check_run(request)
        await self._check_numbers(request)
        fail = self._fails_on_data_loss(request.fail_on_data_loss)
        # It has the service's time, too, by which the positions are judged.
        streams = request.positions.streams
        created = await check_streams(self._backend, request.positions.created, streams.keys())
        await self._check_consumers(request)
        if request.number_only:
            self._check_run(request)
            return self._number(request)
        lost = await self._lost(request.positions, fail=fail)
        async with self._opening:
            # A caller with a newer lease may have come meanwhile.
            self._fencing.check(request.consumers, self._sessions)
            self._check_run(request)
            epoch = self._number(request)
            session = self._sessions.get(request.session_id)
            if session is None:
                session = ReaderSession(request.session_id, self._tools)
                self._sessions[request.session_id] = session
            if self._tools.deaggregator is not None:
                self._tools.deaggregator.look_again(streams, created)
            await session.adopt(request, epoch, created)
            self._fencing.opened(request.session_id, request.consumers)
            for key in lost:
                if (shard := session.followed.shards.get(key)) is not None:
                    shard.skip_loss()
            if session.seconds_to_live(self._clock()) is not None and (self._watch is None or self._watch.done()):
                self._watch = asyncio.create_task(self._end_abandoned(), name="end abandoned sessions")
            if self._alarm is None:
                self._alarm = asyncio.create_task(self._warn(), name="warn of shards in trouble")
            return epoch

    async def positions(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        **options: Unpack[PositionsOptions],
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`."""
        session = self._session(session_id)
        with session.called():
            wait_seconds = options.get("wait_seconds", 0.0)
            return await session.positions(epoch, start, Bounds.of(options), wait_seconds=wait_seconds)

    async def look(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        *,
        before_millis: int | None = None,
        **limits: Unpack[Limits],
    ) -> ShardsLook:
        """See `FleetMember.look`."""
        session = self._session(session_id)
        with session.called():
            return await session.look(epoch, start, Bounds(**limits), before_millis=before_millis)

    async def read_range(
        self,
        session_id: str,
        ranges: Sequence[ShardRange],
        *,
        epoch: int = 0,
        with_encryption_type: bool = False,
        max_batch_bytes: int = 0,
        fail_on_data_loss: bool | None = None,
        retry_patience_seconds: float | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`. Leaving the generator early counts as not fetched."""
        session = self._sessions.get(session_id)
        if session is not None:
            if epoch:
                session.check_epoch(epoch)
            session.touch()
        fail = self._fails_on_data_loss(fail_on_data_loss, session)
        backend = self._backend if session is None else session.followed.backend
        if retry_patience_seconds is not None:
            backend = backend.with_patience(timedelta(seconds=retry_patience_seconds))
        rebatcher = Rebatcher(max_batch_bytes or DEFAULT_MAX_BATCH_BYTES)
        span = _tracer.start_span("efo_consumer.read_range", attributes={"penstock.ranges": len(ranges)})
        replayed: list[ShardRange] = []
        same: set[str] = set()
        proofs: list[Proof] = []
        rows = 0
        try:
            for shard_range in ranges:
                stream, shard_id = shard_range.stream_name, shard_range.shard_id
                columns = ReadColumns(stream, shard_id, with_encryption_type=with_encryption_type)
                source = self._records(session, shard_range, backend, replayed, same, proofs, fail)
                followed = None if session is None else session.shard(shard_range)
                try:
                    async for records in source:
                        parts: Iterable[pa.RecordBatch] = (records,)
                        if self._tools.deaggregator is not None:
                            parts = await self._tools.deaggregator.take_apart(
                                records,
                                stream,
                                shard_id,
                                retry_patience=backend.retry_patience,
                                tally=None if followed is None else followed.deaggregated,
                            )
                        for part in parts:
                            rows += part.num_rows
                            with self._unpacked(0 if part is records else part.nbytes):
                                for batch in rebatcher.add(columns.of(part)):
                                    yield batch
                finally:
                    await source.aclose()
            await prove(proofs)
            for batch in rebatcher.flush():
                yield batch
            if session is not None:
                for shard_range in ranges:
                    session.delivered(shard_range)
        except Exception as error:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.set_attributes({"penstock.records": rows, "penstock.replays": len(replayed)})
            span.end()

    @contextmanager
    def _unpacked(self, nbytes: int) -> Iterator[None]:
        """Count what aggregates became: shards wait meanwhile if there is not enough room."""
        try:
            with self._tools.pool.passing(nbytes):
                yield
        finally:
            if nbytes:
                self._tools.room.notify()

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`."""
        session = self._session(session_id)
        session.check_epoch(epoch)
        session.followed.trim(positions)

    async def stats(self, session_id: str) -> list[ShardStats]:
        """See `ShardReader.stats`."""
        return self._session(session_id).stats()

    async def sessions(self, *, with_shards: bool = False) -> list[SessionInfo]:
        """See `FleetMember.sessions`."""
        now = self._clock()
        return [session.info(now, with_shards=with_shards) for _, session in sorted(self._sessions.items())]

    async def close_session(self, session_id: str, epoch: int) -> None:
        """See `ShardReader.close_session`."""
        session = self._sessions.get(session_id)
        closed, _, _ = self._closed.get(session_id, (0, "", 0.0))
        # None that a reader may give only later: that would be refused then.
        newest = max(self._last_epoch, (self._backend.service_millis() + 1) * _NUMBERS_PER_MILLI)
        if closed < epoch <= newest and (session is None or session.epoch == epoch):
            now = self._clock()
            kept = {name: one for name, one in self._closed.items() if now - one[2] < _CLOSED_SECONDS}
            while len(kept) >= _MOST_CLOSED:
                del kept[next(iter(kept))]
            self._closed = {**kept, session_id: (epoch, "" if session is None else session.owner, now)}
        await self._end(session_id, epoch)

    async def _end(self, session_id: str, epoch: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.epoch == epoch:
            del self._sessions[session_id]
            await session.aclose()

    def drain(self) -> None:
        """Answer long polls at once, now and later: callers should not wait for a reader that is about to close."""
        self.is_draining = True
        for session in self._sessions.values():
            session.drain()

    async def aclose(self) -> None:
        """End every session, then the backend's connections."""
        tasks = [task for task in (self._watch, self._alarm) if task is not None]
        self._watch = self._alarm = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.aclose() for session in sessions.values()))
        await self._backend.aclose()

    async def _lost(self, positions: StreamPositions, *, fail: bool) -> list[tuple[str, str]]:
        """Give the shards that have lost records since their positions; only old positions ask Kinesis anything.

        Raises:
            DataLossError: one has, and `fail` is set.
        """
        shards = [
            (stream, shard_id, after)
            for stream, ids in positions.streams.items()
            for shard_id, after in ids.items()
            if not after.is_shard_end
        ]
        found = await asyncio.gather(*(self._found_loss(*shard) for shard in shards))
        lost = []
        for (stream, shard_id, after), loss in zip(shards, found, strict=True):
            if loss is not None:
                report(loss, stream=stream, shard_id=shard_id, after=after, upto=LEFT, fail=fail)
                lost.append((stream, shard_id))
        return lost

    async def _found_loss(self, stream: str, shard_id: str, after: ShardPosition) -> Loss | None:
        try:
            # The caller that opens a session waits; an outage is borne where shards are followed.
            brief = self._backend.with_patience(_OPENING_PATIENCE)
            return await ShardGuard(brief, stream, shard_id).check(after)
        except (EfoConsumerError, AwsError) as error:
            # The reader of the shard meets it too, and looks again before anything is handed on.
            _log.warning("cannot check yet whether %s/%s has lost records since %s: %s", stream, shard_id, after, error)
            return None

    async def _end_abandoned(self) -> None:
        while left := self._seconds_to_live():
            for session_id in left:
                # Checked again: while another was ended, this one may have been called, or opened again.
                if self._seconds_to_live().get(session_id, 1.0) <= 0:
                    _log.warning("session %s is ended: it was not called for too long", session_id)
                    # Its run may come back, and open it again.
                    await self._end(session_id, self._sessions[session_id].epoch)
            await asyncio.sleep(min(_WATCH_SECONDS, max(0.05, min(left.values()))))

    async def _warn(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(min(_LATEST_ALARM_SECONDS, max(_ALARM_SECONDS, took / _ALARM_SHARE)))
            began = self._clock()
            try:
                await self.warn()
            except Exception:
                # Warnings are not part of reading.
                _log.exception("cannot check which shards are in trouble")
            took = self._clock() - began

    async def warn(self) -> None:
        """Log which shards make no progress, and whose records expire unread; once each, and again when that is over.

        Called every few seconds while a session is open.
        """
        self._alarms = {name: self._alarms.get(name, ShardAlarms()) for name in self._sessions}
        for name, session in list(self._sessions.items()):
            # Of no stream is that more than the share.
            harmless = RETENTION_SHARE * SHORTEST_RETENTION_MILLIS
            shards = [
                one if (one.millis_behind or 0) <= harmless else await self._with_retention(one)
                for one in session.watched()
            ]
            for message in self._alarms[name].look(shards):
                _log.warning("%s", message)

    async def _with_retention(self, shard: WatchedShard) -> WatchedShard:
        try:
            facts = await self._backend.stream_facts(shard.stream)
        except (AwsError, EfoConsumerError) as error:
            _log.info("cannot read the retention period of %s: %s", shard.stream, error)
            return replace(shard, retention_millis=None)
        return replace(shard, retention_millis=facts.retention_millis)

    def _seconds_to_live(self) -> dict[str, float]:
        """By session, for sessions that end without calls."""
        now = self._clock()
        found = {name: session.seconds_to_live(now) for name, session in self._sessions.items()}
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    def _session(self, session_id: str) -> ReaderSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFoundError(session_id=session_id)
        session.touch()
        return session

    def _check_run(self, request: OpenRequest) -> None:
        """Refuse a run that has a successor, or was closed: what it asked while it lived may come late."""
        closed, owner, _ = self._closed.get(request.session_id, (0, "", 0.0))
        if 0 < request.epoch < closed:
            raise StaleEpochError(session_id=request.session_id, epoch=request.epoch, current_epoch=closed, owner=owner)
        if 0 < request.epoch == closed:
            raise SessionNotFoundError(session_id=request.session_id)
        session = self._sessions.get(request.session_id)
        if request.epoch and session is not None and request.epoch < session.epoch:
            session.check_epoch(request.epoch)

    async def _check_consumers(self, request: OpenRequest) -> None:
        """Refuse a consumer of another stream of the same name: its records would be taken for this stream's.

        Raises:
            EfoConsumerConfigError: the request has one.
        """
        for consumer in request.consumers:
            stream = consumer.stream_name
            arn = StreamIdentity.of(stream).arn
            if arn is None and stream in request.positions.streams:
                # What `check_streams` learned a moment ago, or was not allowed to ask and has warned of.
                with suppress(AwsError, EfoConsumerError):
                    arn = (await self._backend.stream_facts(stream)).arn
            if arn is not None and consumer.consumer_arn.partition("/consumer/")[0] != arn:
                reason = (
                    f"{consumer.consumer_arn} is not a consumer of {arn}, which {stream} is here; a stream of another "
                    "account is named by its ARN (streamArn)"
                )
                raise EfoConsumerConfigError(option="consumers", reason=reason)

    async def _check_numbers(self, request: OpenRequest) -> None:
        """Refuse a number that no reader gave: no run could ever have a larger one.

        Raises:
            EfoConsumerConfigError: the request has one.
        """
        if self._made_up(request):
            # Or this process has not heard the service's time for a while: a machine may sleep for days.
            await check_streams(self._backend, {}, [*request.positions.streams][:1])
        for name, number in self._made_up(request).items():
            raise EfoConsumerConfigError(option=name, reason=f"{number} was not given to a run by a reader")

    def _made_up(self, request: OpenRequest) -> dict[str, int]:
        newest = max(self._last_epoch, (self._backend.service_millis() + _CLOCKS_DIFFER_MILLIS) * _NUMBERS_PER_MILLI)
        given = {"epoch": request.epoch, "after_epoch": request.after_epoch}
        return {name: number for name, number in given.items() if not 0 <= number <= newest}

    def _number(self, request: OpenRequest) -> int:
        """The number of the request's run. That of a new run is beyond all that are known here and to its checkpoint.

        After a restart with nothing in the checkpoint the time decides, which is the service's once it has answered.
        Readers of a fleet number at the same moment: the last digits keep two runs apart.
        """
        known = max(self._last_epoch, request.after_epoch, self._backend.service_millis() * _NUMBERS_PER_MILLI)
        epoch = request.epoch or known + 1 + secrets.randbelow(_NUMBERS_PER_MILLI - 1)
        self._last_epoch = max(self._last_epoch, epoch)
        return epoch

    def _fails_on_data_loss(self, asked: bool | None, session: ReaderSession | None = None) -> bool:
        if asked is None and session is not None:
            return session.followed.fail_on_data_loss
        return self._config.fail_on_data_loss if asked is None else asked

    async def _records(
        self,
        session: ReaderSession | None,
        shard_range: ShardRange,
        backend: ReaderBackend,
        replayed: list[ShardRange],
        same: set[str],
        proofs: list[Proof],
        fail: bool,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the range's records, WIRE_SCHEMA; what is read again is added to `replayed`."""
        shard = None if session is None else session.shard(shard_range)
        at, end = shard_range.after, shard_range.upto
        for piece in [Piece(at, end)] if shard is None else shard.buffer.pieces(at, end):
            held = piece.load()
            if held is not None:
                if shard is not None and not shard.inquiry.is_proved:
                    proofs.append(shard.prove)
                yield held
                continue
            upto = piece.upto
            if piece.after == at and upto != end:
                upto = replace(upto, first_record=end.first_record)
            part = replace(shard_range, after=piece.after, upto=upto)
            replayed.append(part)
            if shard is not None:
                shard.counts["replays"] += 1
            stall_seconds = (self._config if session is None else session.config).stall_seconds
            replay = Replay(backend, part, stall_seconds=stall_seconds, fail=fail, same=same)
            async with aclosing(replay.read(proofs)) as records:
                async for batch in records:
                    yield batch
