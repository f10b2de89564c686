"""One shard that a session follows: its publisher's events go to its buffer, as far as there is room."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.buffer import ShardBuffer
from penstock.efo_consumer._buffer.pool import LOOK_AGAIN_SECONDS
from penstock.efo_consumer._buffer.segment import arrived_millis_at
from penstock.efo_consumer._continuity.guard import LEFT, Resume, check_created, report
from penstock.efo_consumer._continuity.rule import Verdict, judge
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._publish.condition import ConditionTracker, ShardSign
from penstock.efo_consumer._publish.metrics import stood_still, watched
from penstock.efo_consumer._reader.api import ShardStats
from penstock.efo_consumer._reader.horizon import ShardTime
from penstock.efo_consumer._reader.inquiry import ShardInquiry
from penstock.efo_consumer._reader.standing import StandingShard, StandsStillError
from penstock.efo_consumer._wire.kpl import DeaggregationCounts
from penstock.efo_consumer.errors import (
    DataLossError,
    EfoConsumerError,
    ShardFailedError,
    StreamRecreatedError,
    SubscriptionStuckError,
    SubscriptionTakenOverError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from penstock.efo_consumer._buffer.pool import BufferPool
    from penstock.efo_consumer._continuity.guard import ContinuitySource, Loss
    from penstock.efo_consumer._model.events import ShardEvent
    from penstock.efo_consumer._model.shards import Shard, StreamIdentity
    from penstock.efo_consumer._publish.condition import ShardCondition
    from penstock.efo_consumer._publish.list_shards import ShardListings
    from penstock.efo_consumer._publish.publisher import RecordPublisher
    from penstock.efo_consumer.errors import ShardReaderError
    from penstock.rpc import Signal

_log = logging.getLogger(__name__)

# How long an open shard whose subscriptions bring nothing is polled before it is subscribed to again.
_POLL_SECONDS = 300.0
# A shard that stood still for so long may be read by another iterator, of whichever stream has the name by now.
_LONG_SECONDS = 60.0
_CLOSED = "the shard is closed, and its answers name neither records nor child shards"
_GUESS = "a guess: the last answers were empty, and the service does not say where the tip is"


class FollowedShard:
    """A shard's buffer and the task that fills it.

    Args:
        stream: the stream.
        shard_id: the shard.
        origin: where to begin.
        pool: bounds the buffer.
        room: rung when the pool may have room again.
        on_news: called when records or the shard's end were buffered, or the shard failed.
        on_end: called once with the children when the shard's end was buffered.
        source: what the rule of continuity asks of Kinesis.
        standing: see `ShardInquiry`.
        poller: gives the publisher that polls, for a shard whose subscriptions bring nothing.
        horizon: gives the latest arrival time that a micro-batch may hold now, in milliseconds since the epoch; None
            for any.
        listings: shows whether a shard that stands still is open.
        fail_on_data_loss: whether a loss ends the shard; otherwise it is counted, and the shard goes on.
        retry_patience: how long errors that may pass are retried; zero for ever.
        clock: monotonic seconds.
        created_millis: when the stream was created, in milliseconds since the epoch, if known.
    """

    def __init__(
        self,
        stream: StreamIdentity,
        shard_id: str,
        origin: ShardPosition,
        *,
        pool: BufferPool,
        room: Signal,
        on_news: Callable[[], None],
        on_end: Callable[[FollowedShard, tuple[Shard, ...]], None],
        source: ContinuitySource,
        standing: Callable[[], Collection[str] | None],
        poller: Callable[[], RecordPublisher],
        horizon: Callable[[], int | None],
        listings: ShardListings,
        fail_on_data_loss: bool,
        retry_patience: timedelta,
        clock: Callable[[], float],
        created_millis: int | None = None,
    ) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.buffer = ShardBuffer(origin)
        self.failure: ShardReaderError | None = None
        self.replays = 0
        self.losses = 0
        self.deaggregated = DeaggregationCounts()
        self._pool = pool
        self._room = room
        self._on_news = on_news
        self._on_end = on_end
        self._source = source
        self._poller = poller
        self._horizon = horizon
        self.time = ShardTime(origin.known_millis)
        """Up to when the shard was read."""
        self._standing = StandingShard(stream.name, shard_id, listings, source, clock)
        self._tracker = ConditionTracker(clock(), source.service_millis(), origin.known_millis)
        self._way = ""
        self.retry_patience = retry_patience
        self._is_gap_reported = False
        self._created_millis = created_millis
        self._begun_millis = source.service_millis()
        self._inquiry = ShardInquiry(
            source,
            stream.name,
            shard_id,
            created_millis=created_millis,
            patience=lambda: self.retry_patience,
            note=self._note,
            standing=standing,
        )
        self.fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._records = 0
        self._bytes = 0
        self._subscriptions = 0
        self._starved = 0
        self._publisher: RecordPublisher | None = None

    def start(self, publisher: RecordPublisher) -> None:
        """Follow the shard from the buffer's end on, unless a task does or the end was reached."""
        if self.buffer.end.is_shard_end or (self._task is not None and not self._task.done()):
            return
        self.failure = None
        self._publisher = publisher
        name = f"follow {self.stream.name}/{self.shard_id}"
        self._task = asyncio.create_task(self._follow(publisher), name=name)

    async def stop(self) -> None:
        """End the task; the buffer stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def promised(self) -> ShardPosition:
        """The buffer's end, with the time since which nothing beyond it may be missing.

        Whoever begins at TRIM_HORIZON wants what there is, and what was there expires at any moment. But as long as no
        answer came, what was put since the shard was begun may expire, too.
        """
        end = self.buffer.end
        if end.type is not PositionType.TRIM_HORIZON or end.known_millis is not None:
            return end
        begun = ShardPosition(end.type, caught_up_millis=self._begun_millis)
        is_overdue = judge(begun, self._source.service_millis()) is not Verdict.CONTINUOUS
        return begun if is_overdue else end

    @property
    def has_ended(self) -> bool:
        """Whether the shard's end is buffered."""
        return self.buffer.end.is_shard_end

    @property
    def millis_behind_latest(self) -> int | None:
        """How far behind its tip the shard is known to be, at most; None if nothing is known."""
        now_millis = self._source.service_millis()
        behind = self._tracker.millis_behind(self._clock(), now_millis)
        waits_since = None if self._publisher is None else self._publisher.waits_since(self.stream, self.shard_id)
        if waits_since is None or self.has_ended:
            return behind
        return max(behind or 0, now_millis - int(waits_since * 1000))

    @property
    def condition(self) -> ShardCondition:
        """What the shard is doing."""
        return self._tracker.condition_at(self._clock())

    @property
    def stalled_seconds(self) -> float:
        """For how long the shard has not come on although it was not known to be caught up."""
        return 0.0 if self.failure is not None else self._tracker.stalled_seconds(self._clock())

    def _note(self, sign: ShardSign, cause: str = "") -> None:
        self._tracker.note(sign, cause, self._source.service_millis())

    def stats(self) -> ShardStats:
        """Give the shard's numbers."""
        behind = self.millis_behind_latest
        return ShardStats(
            stream_name=self.stream.name,
            shard_id=self.shard_id,
            millis_behind_latest=-1 if behind is None else behind,
            records=self._records,
            bytes=self._bytes,
            subscriptions=self._subscriptions,
            buffered_records=self.buffer.rows,
            buffered_bytes=self.buffer.nbytes,
            replays=self.replays,
            losses=self.losses,
            starved=self._starved,
            user_records_of_siblings=self.deaggregated.user_records_of_siblings,
            user_records_outside_shard=self.deaggregated.user_records_outside_shard,
            condition=self.condition,
            taken_over=self._publisher is not None and self._publisher.is_taken_over(self.stream, self.shard_id),
        )

    async def _follow(self, publisher: RecordPublisher) -> None:
        begin: ShardPosition | None = self.buffer.end
        try:
            with watched(self, stream=self.stream.name, shard_id=self.shard_id):
                while begin is not None:
                    try:
                        begin = await self._read(publisher, begin)
                    except SubscriptionStuckError as error:
                        begin = await self._poll(str(error), "its subscriptions bring nothing")
                    except StandsStillError as error:
                        begin = await self._poll(str(error), "its subscription does not end")
        except Exception as error:
            # A bug must reach the caller of positions() too, not end in a task that nobody looks at.
            self._fail(error)

    @property
    def is_proved(self) -> bool:
        """Whether `prove` has nothing to do."""
        return self._inquiry.guard.is_proved

    async def prove(self) -> None:
        """Prove what rests on a retention period of seconds ago; to be called before anything of it is handed on.

        Raises:
            ShardReaderError: records are lost, or nothing proves that none is. It is the shard's failure, too.
        """
        try:
            await self._inquiry.prove(self._report)
        except (EfoConsumerError, AwsError) as error:
            await self.stop()
            raise self._fail(error) from error

    async def _poll(self, cause: str, why: str) -> ShardPosition | None:
        """Poll a shard whose subscriptions bring nothing: to its end, or for some minutes if it may be open."""
        place = f"{self.stream.name}/{self.shard_id}: "
        _log.warning("%s%s", place, cause.removeprefix(place))
        self._note(ShardSign.STUCK, cause)
        self._way = f"polled, as {why}"
        try:
            async with asyncio.timeout(None if self._standing.is_closed else _POLL_SECONDS):
                begin: ShardPosition | None = self.buffer.end
                while begin is not None:
                    # A position that was refused is not a reason to subscribe again.
                    begin = await self._read(self._poller(), begin)
                return None
        except TimeoutError:
            return self.buffer.end
        finally:
            self._way = ""

    async def _read(self, publisher: RecordPublisher, begin: ShardPosition) -> ShardPosition | None:
        """Read the shard to its end; give where to begin anew if a position was refused."""
        try:
            await self._wait_for_room()
            self._subscriptions += 1
            self._tracker.interval_seconds = publisher.interval_seconds
            events = publisher.publish(self.stream, self.shard_id, begin, note=self._note, room=self._reserved)
            async with aclosing(events):
                async for event in events:
                    # It may take minutes to prove that nothing is missing before it.
                    with self._pool.passing(event.nbytes):
                        await self._check(event)
                    if not (event.is_over or self._leads_on(event)):
                        is_subscription = not (publisher.interval_seconds or self._way)
                        event = self._standing.proved(event, is_subscription=is_subscription)
                    self._take(event)
                    self._inquiry.answered()
                    await self._wait_for_room()
            return None
        except (DataLossError, SubscriptionStuckError):
            raise
        except (EfoConsumerError, AwsError) as error:
            found = await self._inquiry.refused(error, begin, self.promised)
            if isinstance(found, Resume):
                return found.position
            if not self._is_gap_reported:
                self._report(found, self.buffer.end)
            if found.listed is None:
                # The next event is beyond the gap, which was reported.
                self._is_gap_reported = True
                return ShardPosition.trim_horizon()
            self.buffer.close()
            self._note(ShardSign.END, "the shard is gone")
            self._on_end(self, found.children)
            self._on_news()
            return None

    async def _check(self, event: ShardEvent) -> None:
        """Prove that nothing expired between the buffer's end and this event; report a loss otherwise."""
        leads_on = self._leads_on(event)
        if not leads_on and event.caught_up_millis is None:
            # It only has the lag. One that is caught up says that nothing lies between, which may have expired.
            return
        if leads_on:
            await self._check_stream()
        now = self._source.service_millis()
        if event.records.num_rows:
            # What the records say of the time counts too, should the clock be behind.
            last = arrived_millis_at(event.records, event.records.num_rows - 1)
            now = max(now, last + (event.millis_behind_latest or 0))
        after = self.promised
        if not self._is_gap_reported:
            loss = await self._inquiry.check(after, now)
            if loss is not None:
                self._report(loss, after)
        self._is_gap_reported = False

    def _leads_on(self, event: ShardEvent) -> bool:
        number = self.buffer.end.sequence_number
        return bool(event.records.num_rows or event.child_shards or event.continuation not in (None, number))

    async def _check_stream(self) -> None:
        """Compare the stream's creation time after standing still: an iterator may have been replaced meanwhile.

        Raises:
            StreamRecreatedError: it is another stream of the same name.
        """
        stood, slept = self._standing.seconds
        if self._created_millis is not None and stood + max(0.0, slept) >= _LONG_SECONDS:
            ask = partial(self._source.stream_facts, self.stream.name, is_fresh=slept >= _LONG_SECONDS)
            facts = await self._inquiry.ask(ask)
            check_created(self.stream.name, self._created_millis, facts)
        self._standing.moves()

    def _take(self, event: ShardEvent) -> None:
        before = self.buffer.end
        is_closed = self._standing.is_closed and not event.is_over
        is_guess = event.millis_behind_latest == 0 and event.quiet_seconds is not None
        self._pool.append(self.buffer, event)
        self.time.take(event)
        if event.child_shards:
            self._note(ShardSign.END)
        else:
            self._tracker.answered(
                event.millis_behind_latest,
                self._clock(),
                self._source.service_millis(),
                came_on=event.records.num_rows > 0 or self.buffer.end != before,
                note="; ".join(filter(None, (_CLOSED if is_closed else _GUESS if is_guess else "", self._way))),
                is_guess=is_guess,
                is_closed=is_closed,
            )
        self._records += event.records.num_rows
        self._bytes += event.nbytes
        self._starved += event.is_after_starvation
        if event.child_shards:
            self._on_end(self, event.child_shards)
        if event.records.num_rows or event.child_shards:
            # Idle events of a thousand shards wake nobody: they are reported when something else is.
            self._on_news()

    def skip_loss(self) -> None:
        """Count records that were found to be lost, and reported, when the session was opened."""
        self.losses += 1
        self._is_gap_reported = self.buffer.end == self.buffer.origin

    def _report(self, loss: Loss, after: ShardPosition) -> None:
        stream, shard_id = self.stream.name, self.shard_id
        report(loss, stream=stream, shard_id=shard_id, after=after, upto=LEFT, fail=self.fail_on_data_loss)
        self.losses += loss.is_lost

    def _fail(self, error: Exception) -> ShardReaderError:
        if isinstance(error, DataLossError | StreamRecreatedError | SubscriptionTakenOverError):
            self.failure = error
        else:
            is_known = isinstance(error, EfoConsumerError | AwsError)
            self.failure = ShardFailedError(
                stream=self.stream.name,
                shard_id=self.shard_id,
                code=getattr(error, "code", type(error).__name__) if is_known else type(error).__name__,
                reason=str(error) if is_known else repr(error),
            )
            self.failure.__cause__ = error
        self._on_news()
        return self.failure

    def _reserved(self, nbytes: int) -> AbstractContextManager[int]:
        return self._pool.reserved(self.buffer, nbytes, self._clock())

    @property
    def _is_ahead(self) -> bool:
        """Whether the shard has to wait for slower ones."""
        horizon_millis, latest_micros = self._horizon(), self.buffer.latest_micros
        return horizon_millis is not None and latest_micros is not None and latest_micros // 1000 > horizon_millis

    async def _wait_for_room(self) -> None:
        now = self._clock()
        sign: ShardSign | None = None
        while not self._pool.make_room(self.buffer, now, is_ahead=(is_ahead := self._is_ahead)):
            before_sign, sign = sign, ShardSign.AHEAD if is_ahead else ShardSign.NO_ROOM
            if sign is not before_sign:
                self._note(sign, "" if is_ahead else "the buffers are full: nobody takes what was read")
            await self._room.wait(LOOK_AGAIN_SECONDS)
            before, now = now, self._clock()
            stood_still(now - before, stream=self.stream.name, shard_id=self.shard_id)
        if sign is not None:
            self._note(ShardSign.ROOM)
