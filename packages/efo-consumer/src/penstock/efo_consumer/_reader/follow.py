"""Follows a session live, over any reader: positions, then exactly the range up to them."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import ranges_between
from penstock.efo_consumer._reader.api import FollowedBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import StreamPositions
    from penstock.efo_consumer._reader.api import ShardReader

_WAIT_SECONDS = 60.0
_STEP_BYTES = 4 * 1024 * 1024


async def follow_steps(
    reader: ShardReader,
    session_id: str,
    epoch: int,
    start: StreamPositions,
    *,
    max_records: int,
    max_bytes: int,
    with_encryption_type: bool,
    is_over: Callable[[], bool],
) -> AsyncGenerator[FollowedBatch, None]:
    """See `ShardReader.follow`; ends between two steps when `is_over` says so."""
    position = start
    while not is_over():
        snapshot = await reader.positions(
            session_id,
            epoch,
            position,
            max_records=max_records,
            max_bytes=max_bytes or _STEP_BYTES,
            wait_seconds=_WAIT_SECONDS,
        )
        if snapshot.positions == position:
            continue
        ranges = ranges_between(position, snapshot.positions)
        batches = reader.read_range(session_id, ranges, epoch=epoch, with_encryption_type=with_encryption_type)
        last: pa.RecordBatch | None = None
        async with aclosing(batches):
            async for batch in batches:
                if last is not None:
                    yield FollowedBatch(last, None)
                last = batch
        position = snapshot.positions
        yield FollowedBatch(last, snapshot)
