"""One shard that a session follows: its publisher's events go to its buffer, as far as there is room."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.buffer import ShardBuffer
from penstock.efo_consumer._buffer.pool import LOOK_AGAIN_SECONDS
from penstock.efo_consumer._continuity.loss import LEFT, report
from penstock.efo_consumer._model.events import WIRE_SCHEMA, ShardEvent
from penstock.efo_consumer._model.positions import ShardPosition
from penstock.efo_consumer._publish.metrics import publisher_metrics
from penstock.efo_consumer._reader.api import ShardStats
from penstock.efo_consumer._reader.metrics import stood_still
from penstock.efo_consumer.errors import DataLossError, EfoConsumerError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.efo_consumer._buffer.pool import BufferPool
    from penstock.efo_consumer._continuity.loss import Loss
    from penstock.efo_consumer._model.shards import Shard, StreamIdentity
    from penstock.efo_consumer._publish.publisher import RecordPublisher
    from penstock.efo_consumer._reader.signal import Bell

# A caller that stands still for so long may let records expire that nobody has fetched yet.
_LONG_SECONDS = 3600.0
_NO_RECORDS = pa.RecordBatch.from_pylist([], schema=WIRE_SCHEMA)


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
        judge: tells whether a refusal of a position with a code means that records are lost.
        outlived: tells whether records beyond the buffer's end have expired.
        fail_on_data_loss: whether a loss ends the shard; otherwise it is counted, and the shard goes on.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: StreamIdentity,
        shard_id: str,
        origin: ShardPosition,
        *,
        pool: BufferPool,
        room: Bell,
        on_news: Callable[[], None],
        on_end: Callable[[FollowedShard, tuple[Shard, ...]], None],
        judge: Callable[[FollowedShard, ShardPosition, str], Awaitable[Loss | None]],
        outlived: Callable[[FollowedShard], Awaitable[Loss | None]],
        fail_on_data_loss: bool,
        clock: Callable[[], float],
    ) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.buffer = ShardBuffer(origin)
        self.failure: ShardFailedError | DataLossError | None = None
        self.replays = 0
        self.losses = 0
        self._pool = pool
        self._room = room
        self._on_news = on_news
        self._on_end = on_end
        self._judge = judge
        self._outlived = outlived
        self.fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._records = 0
        self._bytes = 0
        self._subscriptions = 0
        self._starved = 0
        self._metrics = publisher_metrics()
        self._full_since: float | None = None
        self._waits_since: Callable[[StreamIdentity, str], float | None] | None = None

    def start(self, publisher: RecordPublisher) -> None:
        """Follow the shard from the buffer's end on, unless a task does or the end was reached."""
        if self.buffer.end.is_shard_end or (self._task is not None and not self._task.done()):
            return
        self.failure = None
        self._waits_since = getattr(publisher, "waits_since", None)
        name = f"follow {self.stream.name}/{self.shard_id}"
        self._task = asyncio.create_task(self._follow(publisher), name=name)

    async def stop(self) -> None:
        """End the task; the buffer stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def has_ended(self) -> bool:
        """Whether the shard's end is buffered."""
        return self.buffer.end.is_shard_end

    @property
    def millis_behind_latest(self) -> int | None:
        """As Kinesis said at the newest event; while there is no room for the next one, as it would say of that now."""
        behind = self.buffer.millis_behind_latest
        if behind is None or self._full_since is None:
            return behind
        if behind:
            # A record was there already, which grows older.
            behind += int((self._clock() - self._full_since) * 1000)
        arrived = None if self._waits_since is None else self._waits_since(self.stream, self.shard_id)
        return behind if arrived is None else max(behind, int((time.time() - arrived) * 1000))

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
        )

    async def _follow(self, publisher: RecordPublisher) -> None:
        begin: ShardPosition | None = self.buffer.end
        try:
            while begin is not None:
                begin = await self._read(publisher, begin)
        except DataLossError as error:
            self.failure = error
            self._on_news()
        except Exception as error:
            # A bug must reach the caller of positions() too, not end in a task that nobody looks at.
            self._fail(type(error).__name__, repr(error), error)
        finally:
            self._metrics.shard_left(stream=self.stream.name, shard_id=self.shard_id)

    async def _read(self, publisher: RecordPublisher, begin: ShardPosition) -> ShardPosition | None:
        """Read the shard; give where to begin anew when records were lost and the others are wanted."""
        asked, loss = begin, None
        try:
            await self._wait_for_room()
            self._subscriptions += 1
            events = publisher.publish(self.stream, self.shard_id, begin)
            try:
                async for event in events:
                    self._take(event)
                    asked = self.buffer.end
                    if (
                        await self._wait_for_room() >= _LONG_SECONDS
                        and (loss := await self._outlived(self)) is not None
                    ):
                        break
            finally:
                await events.aclose()
        except (EfoConsumerError, AwsError) as error:
            code = getattr(error, "code", type(error).__name__)
            loss = await self._judge(self, asked, code)
            if loss is None:
                self._fail(code, str(error), error)
        return None if loss is None else self._skip(loss)

    def _take(self, event: ShardEvent) -> None:
        self._pool.append(self.buffer, event)
        self._records += event.records.num_rows
        self._bytes += event.nbytes
        self._starved += event.is_after_starvation
        if event.child_shards:
            self._on_end(self, event.child_shards)
        if event.records.num_rows or event.child_shards:
            # Idle events of a thousand shards wake nobody: they are told when something else is.
            self._on_news()

    def _skip(self, loss: Loss) -> ShardPosition | None:
        if loss.is_none:
            return ShardPosition.trim_horizon()
        report(
            loss,
            stream=self.stream.name,
            shard_id=self.shard_id,
            after=self.buffer.end,
            upto=LEFT,
            fail=self.fail_on_data_loss,
        )
        self.losses += 1
        if loss.children is None:
            return ShardPosition.trim_horizon()
        self._take(ShardEvent(_NO_RECORDS, None, 0, loss.children, 0))
        return None

    def _fail(self, code: str, reason: str, cause: Exception) -> None:
        failure = ShardFailedError(stream=self.stream.name, shard_id=self.shard_id, code=code, reason=reason)
        failure.__cause__ = cause
        self.failure = failure
        self._on_news()

    async def _wait_for_room(self) -> float:
        """Give the seconds for which there was none."""
        self._full_since = began = now = self._clock()
        try:
            while not self._pool.make_room(self.buffer, now, self._room.rings):
                await self._room.wait(LOOK_AGAIN_SECONDS)
                before, now = now, self._clock()
                stood_still(now - before, stream=self.stream.name, shard_id=self.shard_id)
                if (behind := self.millis_behind_latest) is not None:
                    self._metrics.still_behind(behind, stream=self.stream.name, shard_id=self.shard_id)
        finally:
            self._full_since = None
        return now - began
