"""Reads a range from Kinesis again, when no buffer holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from penstock.aws import AwsError
from penstock.efo_consumer._buffer import rows_upto
from penstock.efo_consumer._sequence_time import arrival_seconds
from penstock.efo_consumer.errors import DataLossError, EfoConsumerError, RangeDeadlineError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import pyarrow as pa

    from penstock.efo_consumer._positions import ShardPosition, ShardRange
    from penstock.efo_consumer._publisher import ShardEvent
    from penstock.efo_consumer._reader_backend import ReaderBackend

_log = logging.getLogger(__name__)

_SHORTEST_RETENTION_SECONDS = 24 * 3600.0

_LOST = {
    "ResourceNotFoundException": "the stream or the shard is gone",
    "InvalidArgumentException": "Kinesis no longer knows the position that it begins at",
}


async def replay(
    backend: ReaderBackend,
    shard_range: ShardRange,
    *,
    stall_seconds: float,
    fail_on_data_loss: bool,
    wall_clock: Callable[[], float] = time.time,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Poll the range's records, WIRE_SCHEMA, filtered to exactly `after < sequence number <= upto`.

    The end is where a record beyond `upto` comes, the shard ends, or its tip is reached: `upto` was promised,
    so everything up to there is in the stream already, and a mere continuation has no record of its own.

    Raises:
        DataLossError: Kinesis refuses the position or the shard, or the range begins before the retention, and
            `fail_on_data_loss`.
        RangeDeadlineError: nothing new came for `stall_seconds`.
        ShardFailedError: the shard cannot be read.
    """
    await _check_retention(backend, shard_range, wall_clock(), fail_on_data_loss)
    events = backend.read_once(shard_range.stream_name, shard_range.shard_id, shard_range.after)
    loop = asyncio.get_running_loop()
    deadline, continuation = loop.time() + stall_seconds, None
    try:
        while True:
            event = await _next(events, shard_range, stall_seconds, deadline)
            if event is None:
                return
            if event.records.num_rows or event.continuation != continuation:
                deadline, continuation = loop.time() + stall_seconds, event.continuation
            records, is_last = _select(event, shard_range.after, shard_range.upto)
            if records.num_rows:
                yield records
            if is_last:
                return
    except (EfoConsumerError, AwsError) as error:
        if isinstance(error, RangeDeadlineError):
            raise
        code = getattr(error, "code", type(error).__name__)
        reason = _LOST.get(code)
        if reason is None:
            raise ShardFailedError(
                stream=shard_range.stream_name, shard_id=shard_range.shard_id, code=code, reason=str(error)
            ) from error
        _lose(shard_range, reason, fail_on_data_loss, error)
    finally:
        await events.aclose()


async def _check_retention(
    backend: ReaderBackend, shard_range: ShardRange, now: float, fail_on_data_loss: bool
) -> None:
    """Kinesis reads on from its oldest record when a position is older than that, without a word: say it ourselves."""
    began = shard_range.after.sequence_number and arrival_seconds(shard_range.after.sequence_number)
    if not began or now - began < _SHORTEST_RETENTION_SECONDS:
        return
    try:
        retention = await backend.retention_seconds(shard_range.stream_name)
    except (EfoConsumerError, AwsError) as error:
        _log.warning("cannot tell whether %s is older than the retention: %s", shard_range, error)
        return
    if now - began > retention:
        reason = f"it begins {(now - began) / 3600:.1f} h ago and records are kept for {retention / 3600:g} h"
        _lose(shard_range, reason, fail_on_data_loss, None)


def _lose(shard_range: ShardRange, reason: str, fail: bool, cause: Exception | None) -> None:
    lost = DataLossError(
        stream=shard_range.stream_name,
        shard_id=shard_range.shard_id,
        after=str(shard_range.after),
        upto=str(shard_range.upto),
        reason=reason,
    )
    if fail:
        raise lost from cause
    _log.warning("%s", lost)


async def _next(
    events: AsyncGenerator[ShardEvent, None], shard_range: ShardRange, stall_seconds: float, deadline: float
) -> ShardEvent | None:
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(events, None)
    except TimeoutError as error:
        raise RangeDeadlineError(
            stream=shard_range.stream_name, shard_id=shard_range.shard_id, seconds=stall_seconds
        ) from error


def _select(event: ShardEvent, after: ShardPosition, upto: ShardPosition) -> tuple[pa.RecordBatch, bool]:
    """Give the event's records of the range, and whether the range ends with it."""
    records = event.records
    is_last = event.continuation is None or (event.millis_behind_latest == 0 and not upto.is_shard_end)
    if after.sequence_number is not None and records.num_rows:
        records = records.slice(rows_upto(records, int(after.sequence_number)))
    if upto.sequence_number is not None:
        limit = int(upto.sequence_number)
        if records.num_rows:
            count = rows_upto(records, limit)
            is_last = is_last or count < records.num_rows
            records = records.slice(0, count)
        is_last = is_last or (event.continuation is not None and int(event.continuation) >= limit)
    return records, is_last
