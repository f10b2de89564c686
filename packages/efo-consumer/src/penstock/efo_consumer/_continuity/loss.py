"""Which records a position can no longer lead to: what Kinesis answers, and what is left to guess.

Kinesis refuses a position or a shard that it no longer knows; that is certain. It may also read on from its oldest
record when a position is older than the retention, without a word. Then the second inside the sequence number tells
that this may have happened, and the shard's oldest record tells whether it did: when that is not beyond the position,
nothing is missing. A polled shard that was idle looks the same: its positions carry the last time at which nothing lay
beyond them, and only what arrived since then can be lost. Without such a time nobody can tell a shard that nothing was
written to from a loss, so it counts as one; but when a session is opened on a shard that holds nothing at all, it is
logged only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry import metrics

from penstock.aws import AwsError
from penstock.efo_consumer._continuity.sequence_time import arrival_seconds
from penstock.efo_consumer._model.metric_attributes import of_shard
from penstock.efo_consumer._model.positions import ShardPosition
from penstock.efo_consumer._model.shards import Shard
from penstock.efo_consumer.errors import DataLossError, EfoConsumerError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.efo_consumer._model.positions import StreamPositions
    from penstock.efo_consumer._model.shards import Shard
    from penstock.efo_consumer._reader.backend import ReaderBackend

_log = logging.getLogger(__name__)
_losses = metrics.get_meter("penstock.efo_consumer").create_counter(
    "dataLosses",
    unit="{range}",
    description="Positions whose records the stream no longer holds, and that were skipped",
)

LEFT = "the oldest record that is left"
SHORTEST_RETENTION_SECONDS = 24 * 3600.0
CLOCK_MARGIN_SECONDS = 600.0
"""Those who note a time, those who compare it, and Kinesis need not agree better."""
POSITION_REFUSED = "InvalidArgumentException"
SHARD_REFUSED = "ResourceNotFoundException"


@dataclass(frozen=True)
class Loss:
    """Records that are gone.

    Attributes:
        reason: what was found.
        children: the shards that go on where this one is gone as a whole; None while it is there.
        is_none: nothing is lost: what there is beyond the position is all that the shard holds.
    """

    reason: str
    children: tuple[Shard, ...] | None = None
    is_none: bool = False


def report(loss: Loss, *, stream: str, shard_id: str, after: object, upto: object, fail: bool) -> None:
    """Raise the loss, or count it and go on.

    Raises:
        DataLossError: `fail` is set.
    """
    lost = DataLossError(stream=stream, shard_id=shard_id, after=str(after), upto=str(upto), reason=loss.reason)
    if fail:
        raise lost
    _losses.add(1, of_shard(stream, shard_id))
    _log.warning("%s", lost)


async def passed_over(
    backend: ReaderBackend, stream: str, shard_id: str, after: ShardPosition, now: float, *, promised: bool = True
) -> Loss | None:
    """Tell whether Kinesis would read on from its oldest record instead of from this position, without a word.

    Args:
        promised: whether records are known to have followed. If not, a shard that holds none is taken for idle.
    """
    if after.sequence_number is None:
        return None
    arrived = arrival_seconds(after.sequence_number)
    if arrived is None:
        return None
    # Whatever lies beyond the position arrived after the shard was known to hold nothing more.
    began = max(float(arrived), _caught_up_seconds(after))
    if now - began < SHORTEST_RETENTION_SECONDS:
        return None
    try:
        retention = await backend.retention_seconds(stream)
        if now - began <= retention:
            return None
        oldest = await _oldest(backend, stream, shard_id)
    except (EfoConsumerError, AwsError) as error:
        # What is wrong is told by whoever reads the shard; that it was not checked must not stop them.
        _log.warning("cannot tell whether %s/%s %s is older than the retention: %s", stream, shard_id, after, error)
        return None
    if oldest is None and not promised:
        _log.warning("%s/%s holds nothing, and nothing tells what it held since %s", stream, shard_id, after)
        return None
    if oldest is not None and oldest <= int(after.sequence_number):
        return None
    return Loss(f"it begins {(now - began) / 3600:.1f} h ago and records are kept for {retention / 3600:g} h")


def _caught_up_seconds(after: ShardPosition) -> float:
    return 0.0 if after.caught_up_millis is None else after.caught_up_millis / 1000 - CLOCK_MARGIN_SECONDS


def _is_idle(after: ShardPosition, now: float) -> bool:
    """Whether a position is too old for Kinesis, but nothing lay beyond it less than the shortest retention ago."""
    began = arrival_seconds(after.sequence_number or "0")
    is_old = began is not None and now - began >= SHORTEST_RETENTION_SECONDS
    return is_old and now - _caught_up_seconds(after) < SHORTEST_RETENTION_SECONDS


async def check_positions(
    backend: ReaderBackend, positions: StreamPositions, now: float, *, fail: bool
) -> list[tuple[str, str]]:
    """Give the stream and id of each shard that has lost records since its position.

    Raises:
        DataLossError: one has, and `fail` is set.
    """
    shards = [(stream, shard_id, after) for stream, ids in positions.streams.items() for shard_id, after in ids.items()]
    # Only positions that are older than the shortest retention ask Kinesis anything.
    found = await asyncio.gather(*(passed_over(backend, *shard, now, promised=False) for shard in shards))
    lost = []
    for (stream, shard_id, after), loss in zip(shards, found, strict=True):
        if loss is not None:
            report(loss, stream=stream, shard_id=shard_id, after=after, upto=LEFT, fail=fail)
            lost.append((stream, shard_id))
    return lost


async def _oldest(backend: ReaderBackend, stream: str, shard_id: str) -> int | None:
    events = backend.read_once(stream, shard_id, ShardPosition.trim_horizon())
    try:
        async for event in events:
            if event.records.num_rows:
                return int(event.records.column("sequenceNumber")[0].as_py())
            if event.millis_behind_latest == 0:
                break
        return None
    finally:
        await events.aclose()


async def refused(
    backend: ReaderBackend,
    stream: str,
    shard_id: str,
    after: ShardPosition,
    code: str,
    standing: Collection[str],
    wall_clock: Callable[[], float] = time.time,
    *,
    is_whole: bool = True,
) -> Loss | None:
    """Tell whether a refusal means lost records; None when it means something else.

    Args:
        standing: the shards that have positions, which the successors of a shard that is gone are not among.
        is_whole: whether these are all that have.
    """
    if code == POSITION_REFUSED and after.sequence_number is not None:
        if _is_idle(after, wall_clock()):
            _log.info("%s/%s was idle: it is read from its oldest record, beyond %s", stream, shard_id, after)
            return Loss("the shard was idle", is_none=True)
        return Loss("Kinesis no longer knows the position that it begins at")
    if code != SHARD_REFUSED:
        return None
    try:
        listed = await backend.list_shards(stream)
    except (EfoConsumerError, AwsError) as error:
        _log.warning("cannot tell whether %s/%s is gone: %s", stream, shard_id, error)
        return None
    if any(shard.shard_id == shard_id for shard in listed):
        # The shard is there: it is the consumer that is not.
        return None
    return Loss("the shard is gone", successors(shard_id, listed, standing, is_whole=is_whole))


def successors(
    gone: str, listed: Iterable[Shard], standing: Collection[str], *, is_whole: bool = True
) -> tuple[Shard, ...]:
    """Give the shards to go on with: the children of one that is gone, and what is left of those that are gone too.

    The latter are the oldest shards, neither of which nor of whose descendants anybody reads; and when everything is
    read already, as after a merge with another shard that is gone, the oldest shards: what it led to is among them.

    Args:
        gone: the shard.
        listed: all that Kinesis still lists.
        standing: the shards that are read.
        is_whole: whether these are all that anybody reads. If not, what nobody reads is unknown beside the children.
    """
    shards = {shard.shard_id: shard for shard in listed}
    read, pending = set(standing), list(standing)
    while pending:
        shard = shards.get(pending.pop())
        parents = set(shard.parent_shard_ids) - read if shard is not None else set()
        read |= parents
        pending += parents
    roots = [shard for shard in shards.values() if not any(parent in shards for parent in shard.parent_shard_ids)]
    unread = [shard for shard in roots if shard.shard_id not in read]
    found = [shard for shard in shards.values() if gone in shard.parent_shard_ids]
    if found and is_whole:
        # Kinesis numbers shards as they are made: what came of a child that is gone is younger than its parent.
        found += [shard for shard in unread if shard.parent_shard_ids and shard.shard_id > gone and shard not in found]
    found = found or unread or roots
    return tuple(
        Shard(
            shard.shard_id,
            shard.parent_shard_ids if gone in shard.parent_shard_ids else (gone,),
            shard.starting_hash_key,
            shard.ending_hash_key,
        )
        for shard in found
    )
