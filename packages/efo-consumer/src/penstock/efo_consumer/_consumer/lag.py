"""How far positions are behind their shards, by asking the shards."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.efo_consumer._buffer.segment import arrived_millis_at
from penstock.efo_consumer._continuity.guard import check_streams
from penstock.efo_consumer._continuity.lineage import successors, with_ancestors
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._publish.condition import ConditionTracker, ShardCondition, ShardSign, ShardState
from penstock.efo_consumer.errors import RecordPublisherRetriesError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.efo_consumer._model.shards import Shard
    from penstock.efo_consumer._reader.backend import ReaderBackend

_AT_ONCE = 16
# People wait for the answer.
_PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True)
class ShardLag:
    """How far a position is behind.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        position: where the reader stands.
        seconds: the age of the first record after the position, also in children of a shard that was read to its
            end; 0 without one. If the shard cannot be read, the time since its position was known to be caught up;
            None if that is unknown.
        condition: what was met on the way: whether the position is caught up, behind, at the shard's end, or the shard
            cannot be read, and why.
    """

    stream_name: str
    shard_id: str
    position: ShardPosition
    seconds: float | None
    condition: ShardCondition = field(default_factory=ShardCondition)


async def measure_lag(backend: ReaderBackend, positions: StreamPositions, now: float | None = None) -> list[ShardLag]:
    """Poll each shard once or a few times from its position on; one entry per shard, ordered by stream and id.

    Takes of each shard's 5 reads a second, which all polling readers share. A shard that is throttled or fails for
    some seconds is reported with that condition. What follows a shard that was read to its end is listed.

    Args:
        backend: Kinesis.
        positions: where the reader stands.
        now: seconds since the epoch; the service's time unless given.

    Raises:
        StreamRecreatedError: a stream is another one of the same name.
        AwsError: the shards of a stream cannot be listed.
        RecordPublisherFatalError: a position or a shard is gone.
        RecordPublisherRetriesError: no shard can be read, and none is just throttled or stuck at its end.
    """
    slots = asyncio.Semaphore(_AT_ONCE)
    brief = backend.with_patience(_PATIENCE)
    failures: list[RecordPublisherRetriesError] = []
    await check_streams(brief, positions.created, [one for one in positions.streams if one in positions.created])
    after_end = {
        stream: _after_end(shards, await brief.list_shards(stream))
        for stream, shards in positions.streams.items()
        if any(position.is_shard_end for position in shards.values())
    }

    async def measure(stream: str, shard_id: str, position: ShardPosition) -> ShardLag:
        async with slots:
            one = _Measurement(brief, position, now)
            try:
                seconds: float | None = await (
                    one.seconds_after_end(stream, after_end[stream][shard_id])
                    if position.is_shard_end
                    else one.seconds(stream, shard_id, position)
                )
            except RecordPublisherRetriesError as error:
                if one.condition.state not in (ShardState.THROTTLED, ShardState.STUCK):
                    failures.append(error)
                seconds = one.known_seconds
            return ShardLag(stream, shard_id, position, seconds, one.condition)

    found = await asyncio.gather(
        *(
            measure(stream, shard_id, position)
            for stream, shards in sorted(positions.streams.items())
            for shard_id, position in sorted(shards.items())
        )
    )
    if failures and len(failures) == len(found):
        raise failures[0]
    return found


def _after_end(shards: Mapping[str, ShardPosition], listed: Sequence[Shard]) -> dict[str, list[str]]:
    """The shards that follow each shard at its end, and that have no position yet."""
    read = with_ancestors(shards, listed)
    ids = {one.shard_id for one in listed}
    found = {}
    for shard_id in (one for one, position in shards.items() if position.is_shard_end):
        children = [one for one in listed if shard_id in one.parent_shard_ids]
        followers = children if shard_id in ids else successors(shard_id, listed, shards)
        found[shard_id] = [one.shard_id for one in followers if one.shard_id not in read]
    return found


class _Measurement:
    """The lag of one position, and what was met on the way."""

    def __init__(self, backend: ReaderBackend, position: ShardPosition, now: float | None) -> None:
        self._backend = backend
        self._position = position
        self._now = now
        self._tracker = ConditionTracker(0.0, backend.service_millis(), position.known_millis)

    @property
    def condition(self) -> ShardCondition:
        return self._tracker.condition

    @property
    def known_seconds(self) -> float | None:
        known = self._position.known_millis
        return None if known is None else max(0.0, self._seconds_now() - known / 1000)

    async def seconds(self, stream: str, shard_id: str, position: ShardPosition) -> float:
        async with aclosing(self._backend.read_once(stream, shard_id, position, note=self._note)) as events:
            async for event in events:
                if event.records.num_rows:
                    self._note(ShardSign.BEHIND)
                    return max(0.0, self._seconds_now() - arrived_millis_at(event.records, 0) / 1000)
                if event.child_shards:
                    # The consumer has not seen the end yet: its positions lack the children that wait behind it.
                    behind = await self._seconds_of(stream, [one.shard_id for one in event.child_shards])
                    self._note(ShardSign.BEHIND if behind else ShardSign.AT_TIP)
                    return behind
        self._note(ShardSign.AT_TIP)
        return 0.0

    async def seconds_after_end(self, stream: str, shard_ids: Collection[str]) -> float:
        behind = await self._seconds_of(stream, shard_ids)
        self._note(ShardSign.BEHIND if behind else ShardSign.END)
        return behind

    async def _seconds_of(self, stream: str, shard_ids: Collection[str]) -> float:
        begin = ShardPosition.trim_horizon()
        return max([await self.seconds(stream, shard_id, begin) for shard_id in shard_ids], default=0.0)

    def _note(self, sign: ShardSign, cause: str = "") -> None:
        self._tracker.note(sign, cause, self._backend.service_millis())

    def _seconds_now(self) -> float:
        return self._backend.service_millis() / 1000 if self._now is None else self._now
