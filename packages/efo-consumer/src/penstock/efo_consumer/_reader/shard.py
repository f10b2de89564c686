"""One shard that a session follows: its publisher's events go to its buffer while there is room."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.buffer import ShardBuffer
from penstock.efo_consumer._buffer.pool import LOOK_AGAIN_SECONDS, BufferPool
from penstock.efo_consumer._buffer.segment import arrived_millis_at
from penstock.efo_consumer._continuity.guard import LEFT, ContinuitySource, Loss, check_created, report
from penstock.efo_consumer._continuity.rule import Verdict, judge
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._publish.condition import ConditionTracker, ShardCondition, ShardSign
from penstock.efo_consumer._publish.list_shards import STILL_SECONDS, ShardListings
from penstock.efo_consumer._publish.metrics import stood_still, watched
from penstock.efo_consumer._reader.api import ShardStats
from penstock.efo_consumer._reader.inquiry import ShardInquiry
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
    from collections.abc import AsyncGenerator, Callable

    from penstock.efo_consumer._model.shards import ShardEvent, StreamIdentity
    from penstock.efo_consumer._publish.publisher import RecordPublisher
    from penstock.efo_consumer._reader.backend import ReaderBackend
    from penstock.efo_consumer._reader.config import ReaderConfig
    from penstock.efo_consumer._reader.deaggregator import Deaggregator
    from penstock.efo_consumer._reader.shards import SessionShards
    from penstock.efo_consumer.errors import ShardReaderError
    from penstock.rpc import Signal

_log = logging.getLogger(__name__)

# How long an open shard whose subscriptions bring nothing is polled before it is subscribed to again.
_POLL_SECONDS = 300.0
_LONG_SECONDS = 60.0
# After a reshard ListShards may show the parents as open for some seconds.
_LATE_LIST_MILLIS: Final = 60_000
_COUNTED: Final = ("records", "bytes", "subscriptions", "replays", "losses", "starved")
_CLOSED = "the shard is closed, and its answers name neither records nor child shards"
_GUESS = "a guess: the last answers were empty, and the service does not say where the tip is"


@dataclass(frozen=True, kw_only=True)
class ReaderTools:
    """What the sessions of a reader share.

    Attributes:
        backend: Kinesis, as the reader is set.
        config: bounds and times.
        pool: bounds the buffers.
        room: rung when the pool may have room again.
        clock: monotonic seconds.
        deaggregator: takes aggregates apart; None leaves them whole.
    """

    backend: ReaderBackend
    config: ReaderConfig
    pool: BufferPool
    room: Signal
    clock: Callable[[], float]
    deaggregator: Deaggregator | None


class StandsStillError(Exception):
    """A subscription that leads nowhere, of a shard that is not known to be open."""


class StandingShard:
    """For how long a shard has stood still, and what ListShards said of it since.

    Args:
        stream: the stream.
        shard_id: the shard.
        listings: answers of ListShards.
        source: the service's time.
        clock: monotonic seconds.
        created_millis: when the stream of the positions was created, if known.
    """

    def __init__(
        self,
        stream: str,
        shard_id: str,
        listings: ShardListings,
        source: ContinuitySource,
        clock: Callable[[], float],
        created_millis: int | None = None,
    ) -> None:
        self._stream = stream
        self._shard_id = shard_id
        self._listings = listings
        self._source = source
        self._clock = clock
        self._created_millis = created_millis
        self._moved_at, self._moved_millis = clock(), source.service_millis()
        self._open_millis: int | None = None
        self.is_closed = False
        """Whether ListShards showed the shard closed."""

    async def moves(self, inquiry: ShardInquiry) -> None:
        """Note that an answer leads on.

        Raises:
            StreamRecreatedError: during a long standstill another stream got the name.
        """
        stood, slept = self.seconds
        if self._created_millis is not None and stood + max(0.0, slept) >= _LONG_SECONDS:
            ask = partial(self._source.stream_facts, self._stream, is_fresh=slept >= _LONG_SECONDS)
            check_created(self._stream, self._created_millis, await inquiry.ask(ask))
        self._moved_at, self._moved_millis = self._clock(), self._source.service_millis()

    @property
    def seconds(self) -> tuple[float, float]:
        """For how many seconds the shard has stood still, and how many more the service counts.

        This machine's clock does not count the time for which it slept.
        """
        stood = self._clock() - self._moved_at
        return stood, (self._source.service_millis() - self._moved_millis) / 1000 - stood

    def proved(self, event: ShardEvent, *, is_subscription: bool) -> ShardEvent:
        """Give an event that leads nowhere without what it does not prove: that the shard is open.

        A subscription may continue after the shard was closed, and polls may be empty before its end. So an event only
        proves what ListShards shows. Polls then reach the end.

        Raises:
            StandsStillError: it is the event of a subscription, and ListShards does not show the shard open.
        """
        stood, slept = self.seconds
        is_still = stood + max(0.0, slept) >= STILL_SECONDS
        # Each empty answer of a poll stands still. Without a listing, its shard would hold the others back until then.
        is_asked = is_still or (not is_subscription and self._open_millis is None and event.read_millis is not None)
        listing = self._listings.recent(self._stream) if is_asked else None
        if listing is not None:
            is_open = listing.is_open(self._shard_id)
            self.is_closed = self.is_closed or is_open is False
            if is_open:
                asked = self._source.service_millis() - int((self._clock() - listing.asked_at) * 1000)
                self._open_millis = max(asked, self._open_millis or 0)
            elif is_subscription:
                what = "is closed" if self.is_closed else "is not listed"
                raise StandsStillError(f"the shard {what}, and its subscription leads nowhere: polling it instead")
        # What comes after the shard was closed is in its children, which are read from this time on.
        caught_up, read, known = event.caught_up_millis, event.read_millis, self._open_millis
        if caught_up is not None:
            caught_up = None if known is None else min(caught_up, known - _LATE_LIST_MILLIS)
        if read is not None and event.millis_behind_latest == 0:
            read = None if known is None else min(read, known)
        return replace(event, caught_up_millis=caught_up, read_millis=read)


class FollowedShard:
    """A shard's buffer and the task that fills it.

    Args:
        home: the session. Its `news` are rung when records or the shard's end were buffered, or the shard failed.
        stream: the stream.
        shard_id: the shard.
        origin: where to begin.
    """

    def __init__(self, home: SessionShards, stream: StreamIdentity, shard_id: str, origin: ShardPosition) -> None:
        source, clock = home.backend, home.tools.clock
        created = home.created.get(stream.name)
        self.stream = stream
        self.shard_id = shard_id
        self.buffer = ShardBuffer(origin)
        self.failure: ShardReaderError | None = None
        self.counts = Counter[str]()
        """By names of `ShardStats`."""
        self.deaggregated = DeaggregationCounts()
        self._home = home
        self._begun_millis = source.service_millis()
        self._standing = StandingShard(stream.name, shard_id, home.listings, source, clock, created)
        self._tracker = ConditionTracker(clock(), source.service_millis(), origin.known_millis)
        self.inquiry = ShardInquiry(
            source,
            stream.name,
            shard_id,
            created_millis=created,
            patience=lambda: home.backend.retry_patience,
            tell=self._report,
            note=self._note,
            standing=partial(home.standing, stream.name),
        )
        self._way = ""
        self._task: asyncio.Task[None] | None = None
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

        A caller that begins at TRIM_HORIZON wants what there is, and that may expire at any moment. But until an answer
        comes, records that were put since the shard was begun may expire, too.
        """
        end = self.buffer.end
        if end.type is not PositionType.TRIM_HORIZON or end.known_millis is not None:
            return end
        begun = ShardPosition(end.type, caught_up_millis=self._begun_millis)
        is_overdue = judge(begun, self._home.backend.service_millis()) is not Verdict.CONTINUOUS
        return begun if is_overdue else end

    @property
    def has_ended(self) -> bool:
        """Whether the shard's end is buffered."""
        return self.buffer.end.is_shard_end

    @property
    def millis_behind_latest(self) -> int | None:
        """How far behind its tip the shard is known to be, at most; None if nothing is known."""
        now_millis = self._home.backend.service_millis()
        behind = self._tracker.millis_behind(self._home.tools.clock(), now_millis)
        waits_since = None if self._publisher is None else self._publisher.waits_since(self.stream, self.shard_id)
        if waits_since is None or self.has_ended:
            return behind
        return max(behind or 0, now_millis - int(waits_since * 1000))

    @property
    def condition(self) -> ShardCondition:
        """What the shard is doing."""
        return self._tracker.condition_at(self._home.tools.clock())

    @property
    def stalled_seconds(self) -> float:
        """For how long the shard made no progress without being known to be caught up."""
        return 0.0 if self.failure is not None else self._tracker.stalled_seconds(self._home.tools.clock())

    def _note(self, sign: ShardSign, cause: str = "") -> None:
        self._tracker.note(sign, cause, self._home.backend.service_millis())

    def stats(self) -> ShardStats:
        """Give the shard's numbers."""
        behind = self.millis_behind_latest
        return ShardStats(
            stream_name=self.stream.name,
            shard_id=self.shard_id,
            millis_behind_latest=-1 if behind is None else behind,
            buffered_records=self.buffer.rows,
            buffered_bytes=self.buffer.nbytes,
            **{name: self.counts[name] for name in _COUNTED},
            user_records_of_siblings=self.deaggregated.user_records_of_siblings,
            user_records_outside_shard=self.deaggregated.user_records_outside_shard,
            condition=self.condition,
            taken_over=self._publisher is not None and self._publisher.is_taken_over(self.stream, self.shard_id),
        )

    async def _follow(self, publisher: RecordPublisher) -> None:
        try:
            with watched(self, stream=self.stream.name, shard_id=self.shard_id):
                is_over = False
                while not is_over:
                    try:
                        await self._read(publisher)
                        is_over = True
                    except SubscriptionStuckError as error:
                        is_over = await self._poll(str(error), "its subscriptions bring nothing")
                    except StandsStillError as error:
                        is_over = await self._poll(str(error), "its subscription does not end")
        except Exception as error:
            # A bug must reach the caller of positions() too, not end in a task that is not awaited.
            self._fail(error)

    async def prove(self) -> None:
        """Prove what rests on a retention period of seconds ago; to be called before anything of it is handed on.

        Raises:
            ShardReaderError: records are lost, or cannot be proved to exist. It is the shard's failure, too.
        """
        try:
            await self.inquiry.prove()
        except (EfoConsumerError, AwsError) as error:
            await self.stop()
            raise self._fail(error) from error

    async def _poll(self, cause: str, why: str) -> bool:
        """Poll a shard whose subscriptions bring nothing. Returns whether that led to its end.

        An open shard is polled for some minutes, a closed one to its end.
        """
        place = f"{self.stream.name}/{self.shard_id}: "
        _log.warning("%s%s", place, cause.removeprefix(place))
        self._note(ShardSign.STUCK, cause)
        self._way = f"polled, as {why}"
        try:
            async with asyncio.timeout(None if self._standing.is_closed else _POLL_SECONDS):
                # A position that is refused meanwhile is not a reason to subscribe again.
                await self._read(self._home.poller())
                return True
        except TimeoutError:
            return False
        finally:
            self._way = ""

    async def _read(self, publisher: RecordPublisher) -> None:
        """Read the shard from the end of the buffer to the end of the shard."""
        read = self.inquiry.read(partial(self._events, publisher), self.buffer.end, lambda: self.promised)
        async with aclosing(read) as events:
            async for event in events:
                self._take(event)
                await self._wait_for_room()
        if (gone := self.inquiry.gone) is not None:
            self.buffer.close()
            self._note(ShardSign.END, "the shard is gone")
            self._home.ended(self, gone.children)
            self._home.news.notify()

    async def _events(self, publisher: RecordPublisher, begin: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        """Yield events after proving that nothing is missing before them."""
        await self._wait_for_room()
        self.counts["subscriptions"] += 1
        self._tracker.interval_seconds = publisher.interval_seconds
        published = publisher.publish(self.stream, self.shard_id, begin, note=self._note, room=self._reserved)
        async with aclosing(published) as events:
            async for event in events:
                number = self.buffer.end.sequence_number
                leads_on = bool(
                    event.records.num_rows or event.child_shards or event.continuation not in (None, number)
                )
                # One that does not, and is not caught up, only has the lag.
                if leads_on or event.caught_up_millis is not None:
                    # It may take minutes to prove that nothing is missing before it.
                    with self._home.tools.pool.passing(event.nbytes):
                        if leads_on:
                            await self._standing.moves(self.inquiry)
                        await self.inquiry.check(self.promised, self._read_millis(event))
                if event.is_over or leads_on:
                    yield event
                else:
                    is_subscription = not (publisher.interval_seconds or self._way)
                    yield self._standing.proved(event, is_subscription=is_subscription)

    def _read_millis(self, event: ShardEvent) -> int:
        """Return the time at which an event was read, by the service's clock or by what its records show."""
        now = self._home.backend.service_millis()
        if not event.records.num_rows:
            return now
        last = arrived_millis_at(event.records, event.records.num_rows - 1)
        return max(now, last + (event.millis_behind_latest or 0))

    def _take(self, event: ShardEvent) -> None:
        before = self.buffer.end
        is_closed = self._standing.is_closed and not event.is_over
        is_guess = event.millis_behind_latest == 0 and event.quiet_seconds is not None
        self._home.tools.pool.append(self.buffer, event)
        if event.child_shards:
            self._note(ShardSign.END)
        else:
            self._tracker.answered(
                event.millis_behind_latest,
                self._home.tools.clock(),
                self._home.backend.service_millis(),
                came_on=event.records.num_rows > 0 or self.buffer.end != before,
                note="; ".join(filter(None, (_CLOSED if is_closed else _GUESS if is_guess else "", self._way))),
                is_guess=is_guess,
                is_closed=is_closed,
            )
        self.counts.update(records=event.records.num_rows, bytes=event.nbytes, starved=event.is_after_starvation)
        if event.child_shards:
            self._home.ended(self, event.child_shards)
        if event.records.num_rows or event.child_shards:
            # Idle events of a thousand shards wake no caller: they are reported with the next news.
            self._home.news.notify()

    def skip_loss(self) -> None:
        """Count records that were found to be lost, and reported, when the session was opened."""
        self.counts["losses"] += 1
        self.inquiry.is_reported = self.buffer.end == self.buffer.origin

    def _report(self, loss: Loss, after: ShardPosition) -> None:
        stream, shard_id = self.stream.name, self.shard_id
        report(loss, stream=stream, shard_id=shard_id, after=after, upto=LEFT, fail=self._home.fail_on_data_loss)
        self.counts["losses"] += loss.is_lost

    def _fail(self, error: Exception) -> ShardReaderError:
        if isinstance(error, DataLossError | StreamRecreatedError | SubscriptionTakenOverError):
            self.failure = error
        else:
            self.failure = ShardFailedError.of(error, stream=self.stream.name, shard_id=self.shard_id)
        self._home.news.notify()
        return self.failure

    def _reserved(self, nbytes: int) -> AbstractContextManager[int]:
        return self._home.tools.pool.reserved(self.buffer, nbytes, self._home.tools.clock())

    async def _wait_for_room(self) -> None:
        now = self._home.tools.clock()
        sign: ShardSign | None = None
        while True:
            # A shard that is ahead has to wait for slower ones.
            horizon, latest = self._home.ahead_of, self.buffer.latest_micros
            is_ahead = horizon is not None and latest is not None and latest // 1000 > horizon
            if self._home.tools.pool.make_room(self.buffer, now, is_ahead=is_ahead):
                break
            before_sign, sign = sign, ShardSign.AHEAD if is_ahead else ShardSign.NO_ROOM
            if sign is not before_sign:
                self._note(sign, "" if is_ahead else "the buffers are full: the caller does not take what was read")
            await self._home.tools.room.wait(LOOK_AGAIN_SECONDS)
            before, now = now, self._home.tools.clock()
            stood_still(now - before, stream=self.stream.name, shard_id=self.shard_id)
        if sign is not None:
            self._note(ShardSign.ROOM)
