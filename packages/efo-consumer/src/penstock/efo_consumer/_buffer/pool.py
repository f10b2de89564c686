"""The bounds of all buffers of a reader, and what has to go when they are reached: pure, `now` is an
argument."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from penstock.efo_consumer._model.shards import MAX_EVENT_BYTES, ShardEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.efo_consumer._buffer.buffer import ShardBuffer
    from penstock.efo_consumer._model.positions import ShardPosition

LOOK_AGAIN_SECONDS = 1.0
"""Promised segments may go after a while, without a sign."""
LEAST_ANSWER_BYTES = 64 * 1024
"""A shard that holds nothing may always ask for this many: fewer would hardly make progress."""


class BufferPool:
    """Counts the bytes that buffers hold, and makes room by evicting what can be read again.

    Only promised segments are evicted: delivered ones at once, others when they were not fetched for
    `promise_grace_seconds`. So a caller that commits late, or never, cannot stop the reader, and unpromised records
    stay. The bounds are checked before an event is fetched: each shard may exceed them by one event. If the size of
    events can be chosen, room is kept for them while they are fetched, up to half of `total_bytes`. A shard without
    any room left exceeds that by `LEAST_ANSWER_BYTES`, or by one record.

    Args:
        shard_bytes: bound of each buffer.
        total_bytes: bound of all.
        promise_grace_seconds: how long a promised segment waits for its reader.
    """

    def __init__(self, *, shard_bytes: int, total_bytes: int, promise_grace_seconds: float) -> None:
        self._shard_bytes = shard_bytes
        self._total_bytes = total_bytes
        self._grace = promise_grace_seconds
        self._held = 0
        self._passing = 0
        self._reserved = 0
        self._shards: WeakSet[ShardBuffer] = WeakSet()
        # Ordered by the last append: the first is the quietest, and its promised segments the oldest.
        self._buffers: dict[ShardBuffer, None] = {}
        # Those that may have something to evict: delivered, or beside what went before.
        self._likely: dict[ShardBuffer, None] = {}
        # All that are still to be looked at, and when this began.
        self._sweep: Iterator[ShardBuffer] = iter(())
        self._swept_at = -math.inf

    @property
    def held_bytes(self) -> int:
        """Bytes that all buffers hold, with what is on its way to a buffer or, unpacked, to a task."""
        return self._held + self._passing

    @contextmanager
    def passing(self, nbytes: int) -> Iterator[None]:
        """Count bytes that are in no buffer while they are in use."""
        self._passing += nbytes
        try:
            yield
        finally:
            self._passing -= nbytes

    @contextmanager
    def reserved(self, buffer: ShardBuffer, nbytes: int, now: float) -> Iterator[int]:
        """Keep room for an event while it is fetched; gives the bytes that it may have.

        Each shard gets an equal share of the free room, or up to `nbytes` if its share is less: a shard that is behind
        needs more while others need little.

        Args:
            buffer: of a shard.
            nbytes: bytes that the shard can use. Segments are evicted to make room for them.
            now: seconds.
        """
        half, promised_before = self._total_bytes // 2, now - self._grace
        while self._held + self._passing + self._reserved > self._total_bytes - min(2 * nbytes, half):
            if not (self._evict(buffer, promised_before) or self._evict_others(promised_before, now)):
                break
        free = min(half, self._total_bytes - self.held_bytes) - self._reserved
        share = min(half // max(1, len(self._shards)), MAX_EVENT_BYTES)
        given = max(LEAST_ANSWER_BYTES, min(free, share), min(free // 2, nbytes))
        self._reserved += given
        try:
            yield given
        finally:
            self._reserved -= given

    def append(self, buffer: ShardBuffer, event: ShardEvent) -> None:
        """Append an event to a buffer, which belongs to the pool from then on."""
        before = buffer.held_bytes
        buffer.append(event)
        if buffer.held_bytes != before:
            self._held += buffer.held_bytes - before
            self._buffers.pop(buffer, None)
            self._buffers[buffer] = None

    def trim(self, buffer: ShardBuffer, position: ShardPosition) -> None:
        """Trim a buffer."""
        before = buffer.held_bytes
        buffer.trim(position)
        if buffer in self._buffers:
            self._held += buffer.held_bytes - before

    def deliver(self, buffer: ShardBuffer, after: ShardPosition, upto: ShardPosition) -> None:
        """Note that a buffer's records of (after, upto] were fetched."""
        buffer.deliver(after, upto)
        if buffer in self._buffers:
            self._likely[buffer] = None

    def remove(self, buffer: ShardBuffer) -> None:
        """Drop a buffer and all of its records."""
        self._likely.pop(buffer, None)
        self._shards.discard(buffer)
        if buffer in self._buffers:
            del self._buffers[buffer]
            self._held -= buffer.held_bytes
            buffer.clear()

    def make_room(self, buffer: ShardBuffer, now: float, *, is_ahead: bool = False) -> bool:
        """Evict what must and may go; return whether the buffer may take another event.

        What was delivered goes at once. Shards that are ahead of others leave half of the memory to these. All buffers
        are looked at once in a second at most: thousands of shards that wait do not each look at thousands.

        Args:
            buffer: of a shard.
            now: seconds.
            is_ahead: whether what the buffer holds cannot be delivered before slower shards have been read further.
        """
        self._shards.add(buffer)
        if is_ahead and self._held + self._passing + self._reserved >= self._total_bytes // 2:
            return not buffer.held_bytes
        promised_before = now - self._grace
        while buffer.held_bytes >= self._shard_bytes:
            if not self._evict(buffer, promised_before):
                return False
        while self._held + self._passing + self._reserved >= self._total_bytes:
            if not (self._evict(buffer, promised_before) or self._evict_others(promised_before, now)):
                # A shard that holds nothing may take one event: others cannot keep it from being read at all.
                return not buffer.held_bytes
        return True

    def _evict_others(self, promised_before: float, now: float) -> bool:
        """Evict from other buffers; return whether anything went."""
        while self._likely:
            other = next(iter(self._likely))
            if self._evict(other, promised_before):
                return True
            del self._likely[other]
        if now - self._swept_at >= LOOK_AGAIN_SECONDS:
            self._swept_at, self._sweep = now, iter(list(self._buffers))
        for other in self._sweep:
            if self._evict(other, promised_before):
                self._likely[other] = None
                return True
        return False

    def _evict(self, buffer: ShardBuffer, promised_before: float) -> bool:
        if buffer not in self._buffers:
            # Its shard was removed and is about to end: its bytes no longer count.
            return False
        freed = buffer.evict(promised_before)
        self._held -= freed
        return freed > 0
