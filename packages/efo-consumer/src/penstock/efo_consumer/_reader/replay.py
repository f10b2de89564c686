"""Reads a range from Kinesis again, when no buffer holds it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.segment import rows_upto
from penstock.efo_consumer._continuity.loss import passed_over, refused, report
from penstock.efo_consumer._model.positions import ShardPosition
from penstock.efo_consumer.errors import EfoConsumerError, RangeDeadlineError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import pyarrow as pa

    from penstock.efo_consumer._continuity.loss import Loss
    from penstock.efo_consumer._model.events import ShardEvent
    from penstock.efo_consumer._model.positions import ShardRange
    from penstock.efo_consumer._reader.backend import ReaderBackend


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
        DataLossError: Kinesis refuses the position or the shard, or passes over records of the range, and
            `fail_on_data_loss`. Otherwise what is left of the range is given.
        RangeDeadlineError: nothing new came for `stall_seconds`.
        ShardFailedError: the shard cannot be read.
    """
    stream, shard_id, after = shard_range.stream_name, shard_range.shard_id, shard_range.after
    loss = await passed_over(backend, stream, shard_id, after, wall_clock())
    if loss is not None:
        _report(loss, shard_range, fail_on_data_loss)
    given = False
    while True:
        records = _read(backend, shard_range, after, stall_seconds)
        try:
            async for batch in records:
                given = True
                yield batch
            return
        except (EfoConsumerError, AwsError) as error:
            if isinstance(error, RangeDeadlineError):
                raise
            code = getattr(error, "code", type(error).__name__)
            loss = None if given else await refused(backend, stream, shard_id, after, code, (), wall_clock)
            if loss is None:
                raise ShardFailedError(stream=stream, shard_id=shard_id, code=code, reason=str(error)) from error
        finally:
            await records.aclose()
        if not loss.is_none:
            _report(loss, shard_range, fail_on_data_loss)
        if loss.children is not None:
            return
        # What is left of the range begins at the oldest record.
        after = ShardPosition.trim_horizon()


def _report(loss: Loss, shard_range: ShardRange, fail: bool) -> None:
    report(
        loss,
        stream=shard_range.stream_name,
        shard_id=shard_range.shard_id,
        after=shard_range.after,
        upto=shard_range.upto,
        fail=fail,
    )


async def _read(
    backend: ReaderBackend, shard_range: ShardRange, begin: ShardPosition, stall_seconds: float
) -> AsyncGenerator[pa.RecordBatch, None]:
    events = backend.read_once(shard_range.stream_name, shard_range.shard_id, begin)
    loop = asyncio.get_running_loop()
    deadline, continuation, behind = loop.time() + stall_seconds, None, math.inf
    try:
        while True:
            event = await _next(events, shard_range, stall_seconds, deadline)
            if event is None:
                return
            leads_further = event.continuation != continuation or event.millis_behind_latest < behind
            if event.records.num_rows or leads_further:
                deadline, continuation = loop.time() + stall_seconds, event.continuation
                behind = event.millis_behind_latest
            records, is_last = _select(event, shard_range.after, shard_range.upto)
            if records.num_rows:
                yield records
                # While the caller has them, reading does not stand still.
                deadline = loop.time() + stall_seconds
            if is_last:
                return
    finally:
        await events.aclose()


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
    is_last = bool(event.child_shards) or (event.millis_behind_latest == 0 and not upto.is_shard_end)
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
