"""Follows a session live, over any reader: positions, then exactly the range up to them."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from penstock.efo_consumer._model.positions import ranges_between
from penstock.efo_consumer._reader.api import FollowedBatch, ShardReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import StreamPositions

_WAIT_SECONDS = 60.0
_STEP_BYTES = 4 * 1024 * 1024


class SteppedReader(ShardReader, Protocol):
    """A reader whose `follow` is `follow_steps`."""

    @property
    def is_draining(self) -> bool:
        """Whether live consumers are to end between two steps, because the reader is about to close."""
        ...


async def follow_steps(
    self: SteppedReader,
    session_id: str,
    epoch: int,
    start: StreamPositions,
    *,
    max_records: int = 0,
    max_bytes: int = 0,
    with_encryption_type: bool = False,
) -> AsyncGenerator[FollowedBatch, None]:
    """See `ShardReader.follow`; the method of each reader that does not leave it to a service."""
    position = start
    while not self.is_draining:
        snapshot = await self.positions(
            session_id,
            epoch,
            position,
            max_records=max_records,
            max_bytes=max_bytes or _STEP_BYTES,
            wait_seconds=_WAIT_SECONDS,
        )
        before, position = position, snapshot.positions
        if not is_news(before, position):
            continue
        last: pa.RecordBatch | None = None
        if position != before:
            ranges = ranges_between(before, position)
            batches = self.read_range(session_id, ranges, epoch=epoch, with_encryption_type=with_encryption_type)
            async with aclosing(batches):
                async for batch in batches:
                    if last is not None:
                        yield FollowedBatch(last, None)
                    last = batch
        yield FollowedBatch(last, snapshot)


def is_news(before: StreamPositions, after: StreamPositions) -> bool:
    """Whether positions moved, or more is known of them."""
    return after != before or after.to_json() != before.to_json()
