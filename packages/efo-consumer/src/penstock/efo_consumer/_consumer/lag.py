"""How far positions are behind their shards, by asking the shards."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import ShardPosition

if TYPE_CHECKING:
    from penstock.efo_consumer._model.positions import StreamPositions
    from penstock.efo_consumer._reader.backend import ReaderBackend

_AT_ONCE = 16


@dataclass(frozen=True)
class ShardLag:
    """How far a position is behind.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        position: where the reader stands.
        seconds: the age of the first record behind the position, also in children of a shard that was read to its
            end; 0 when there is none.
    """

    stream_name: str
    shard_id: str
    position: ShardPosition
    seconds: float


async def measure_lag(backend: ReaderBackend, positions: StreamPositions, now: float) -> list[ShardLag]:
    """Poll each shard once or a few times from its position on; one entry per shard, ordered by stream and id.

    Takes of each shard's 5 reads a second, which all polling readers share.

    Args:
        backend: Kinesis.
        positions: where the reader stands.
        now: seconds since the epoch.

    Raises:
        RecordPublisherFatalError: a position or a shard is gone.
        RecordPublisherRetriesError: a shard cannot be read.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def measure(stream: str, shard_id: str, position: ShardPosition) -> ShardLag:
        async with slots:
            return ShardLag(stream, shard_id, position, await _seconds(backend, stream, shard_id, position, now))

    return await asyncio.gather(
        *(
            measure(stream, shard_id, position)
            for stream, shards in sorted(positions.streams.items())
            for shard_id, position in sorted(shards.items())
        )
    )


async def _seconds(backend: ReaderBackend, stream: str, shard_id: str, position: ShardPosition, now: float) -> float:
    if position.is_shard_end:
        return 0.0
    async with aclosing(backend.read_once(stream, shard_id, position)) as events:
        async for event in events:
            if event.records.num_rows:
                arrived = event.records.column("approximateArrivalTimestamp")[0].as_py()
                return max(0.0, now - float(arrived.timestamp()))
            if event.child_shards:
                # The consumer has not seen the end yet: its positions lack the children that wait behind it.
                begin = ShardPosition.trim_horizon()
                children = [await _seconds(backend, stream, one.shard_id, begin, now) for one in event.child_shards]
                return max(children)
            if event.millis_behind_latest == 0:
                break
    return 0.0
