"""One shard that a session follows: its publisher's events go to its buffer, as far as there is room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.aws import AwsError
from penstock.efo_consumer._buffer import ShardBuffer
from penstock.efo_consumer._positions import ShardPosition
from penstock.efo_consumer._publisher import WIRE_SCHEMA, ShardEvent
from penstock.efo_consumer._reader_api import ShardStats
from penstock.efo_consumer._reader_loss import LEFT, report
from penstock.efo_consumer._reader_metrics import stood_still
from penstock.efo_consumer.errors import DataLossError, EfoConsumerError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.efo_consumer._bell import Bell
    from penstock.efo_consumer._buffer_pool import BufferPool
    from penstock.efo_consumer._publisher import ChildShard, RecordPublisher, StreamIdentity
    from penstock.efo_consumer._reader_loss import Loss

_ROOM_CHECK_SECONDS = 1.0
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
        judge: tells whether a refusal with a code means that records are lost.
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
        on_end: Callable[[FollowedShard, tuple[ChildShard, ...]], None],
        judge: Callable[[FollowedShard, str], Awaitable[Loss | None]],
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
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._records = 0
        self._bytes = 0
        self._subscriptions = 0

    def start(self, publisher: RecordPublisher) -> None:
        """Follow the shard from the buffer's end on, unless a task does or the end was reached."""
        if self.buffer.end.is_shard_end or (self._task is not None and not self._task.done()):
            return
        self.failure = None
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

    def stats(self) -> ShardStats:
        """Give the shard's numbers."""
        behind = self.buffer.millis_behind_latest
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

    async def _read(self, publisher: RecordPublisher, begin: ShardPosition) -> ShardPosition | None:
        """Read the shard; give where to begin anew when records were lost and the others are wanted."""
        try:
            await self._wait_for_room()
            self._subscriptions += 1
            events = publisher.publish(self.stream, self.shard_id, begin)
            try:
                async for event in events:
                    self._take(event)
                    await self._wait_for_room()
            finally:
                await events.aclose()
        except (EfoConsumerError, AwsError) as error:
            code = getattr(error, "code", type(error).__name__)
            loss = await self._judge(self, code)
            if loss is None:
                self._fail(code, str(error), error)
                return None
            return self._skip(loss)
        return None

    def _take(self, event: ShardEvent) -> None:
        self._pool.append(self.buffer, event)
        self._records += event.records.num_rows
        self._bytes += event.nbytes
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
            fail=self._fail_on_data_loss,
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

    async def _wait_for_room(self) -> None:
        # Promised segments may go after a while, which rings no bell: look again now and then.
        while not self._pool.make_room(self.buffer, self._clock()):
            began = self._clock()
            await self._room.wait(_ROOM_CHECK_SECONDS)
            stood_still(self._clock() - began, stream=self.stream.name, shard_id=self.shard_id)
