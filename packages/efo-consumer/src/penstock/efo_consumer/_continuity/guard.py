"""Applies the rule of continuity: asks Kinesis what the rule needs, and says what a loss means."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from opentelemetry import metrics

from penstock.aws import AwsError
from penstock.efo_consumer._continuity.lineage import successors
from penstock.efo_consumer._continuity.rule import (
    CLOCK_MARGIN_MILLIS,
    SHORTEST_RETENTION_MILLIS,
    OldestRecord,
    StreamFacts,
    Verdict,
    is_kept,
    judge,
    judge_oldest,
    restart,
)
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._model.shards import Shard, of_shard
from penstock.efo_consumer.errors import DataLossError, EfoConsumerError, RecordPublisherError, StreamRecreatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


_log = logging.getLogger(__name__)
_losses = metrics.get_meter("penstock.efo_consumer").create_counter(
    "dataLosses",
    unit="{range}",
    description="Positions whose records the stream no longer holds, and that were skipped",
)

LEFT = "the oldest record that is left"
_POSITION_REFUSED = "InvalidArgumentException"
_SHARD_REFUSED = "ResourceNotFoundException"
_GONE = "the shard is gone"
_RETRY_SECONDS = 2.0
# The retention period of a stream cannot be lowered, take effect and be raised again within a minute: the stream is
# being updated meanwhile, and refuses.
_WATCH_MILLIS = 60_000


class ContinuitySource(Protocol):
    """What the rule asks of Kinesis."""

    def service_millis(self) -> int:
        """Give the service's time, in milliseconds since the epoch: the latest that it can be."""
        ...

    async def stream_facts(self, stream_name: str, *, is_fresh: bool = False) -> StreamFacts:
        """Give the stream's retention period and creation time; not older than some seconds, or asked now."""
        ...

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        """Give the oldest record that the shard still holds; None if it holds none."""
        ...

    async def list_shards(self, stream_name: str) -> Sequence[Shard]:
        """Give all shards that the stream still lists, open and closed."""
        ...


@dataclass(frozen=True)
class Loss:
    """Records that are gone, or that cannot be proved to exist.

    Attributes:
        reason: what was found.
        listed: all shards of the stream, if the shard itself is gone; None while it is there.
        children: the shards to continue with, if the shard itself is gone.
        is_lost: whether records are lost; false if no caller was promised what the shard held.
    """

    reason: str
    listed: tuple[Shard, ...] | None = None
    children: tuple[Shard, ...] = ()
    is_lost: bool = True


@dataclass(frozen=True)
class Resume:
    """Nothing is lost: read on from another position, and drop what was delivered.

    Attributes:
        position: where.
        delay_seconds: before that.
    """

    position: ShardPosition
    delay_seconds: float = 0.0


def report(loss: Loss, *, stream: str, shard_id: str, after: object, upto: object, fail: bool) -> None:
    """Raise the loss, or count and log it.

    Raises:
        DataLossError: `fail` is set.
    """
    if not loss.is_lost:
        return
    lost = DataLossError(stream=stream, shard_id=shard_id, after=str(after), upto=str(upto), reason=loss.reason)
    if fail:
        raise lost
    _losses.add(1, of_shard(stream, shard_id))
    _log.warning("%s", lost)


class ShardGuard:
    """Applies the rule to what is read of one shard, answer by answer.

    A position that is older than the shortest retention period rests on the period of the stream, which proves
    something only if it was never shorter meanwhile. It may be raised after records have expired: so the oldest record
    is looked up first, and again whenever the period was not seen for a minute. It may be lowered under a reader: so
    what was judged by a period that was seen earlier waits for `prove`, which has to be called before it is handed on.

    Args:
        source: Kinesis.
        stream: the stream.
        shard_id: the shard.
        created_millis: when the stream of the positions was created, if known.
    """

    def __init__(
        self, source: ContinuitySource, stream: str, shard_id: str, *, created_millis: int | None = None
    ) -> None:
        self._source = source
        self._stream = stream
        self._shard_id = shard_id
        self._created_millis = created_millis
        # The last time, by the service's clock, at which nothing beyond the position had expired.
        self._sound_millis = -math.inf
        # The first position that waits for proof, and a time at which it is as old as the oldest of them was.
        self._unproved: tuple[ShardPosition, int] | None = None
        self._proving = asyncio.Lock()

    @property
    def is_proved(self) -> bool:
        """Whether `prove` has nothing to do."""
        return self._unproved is None and not self._proving.locked()

    def passes(self, after: ShardPosition, now_millis: int) -> bool:
        """Whether time alone proves that nothing was lost: what `check` begins with, for those in a hurry."""
        if judge(after, now_millis) is not Verdict.CONTINUOUS:
            return False
        self._sound_millis = now_millis
        return True

    async def check(self, after: ShardPosition, now_millis: int | None = None) -> Loss | None:
        """Whether records after a position were lost before they could be read; None if no loss was found.

        Args:
            after: up to where everything was delivered.
            now_millis: the service's time when the records beyond were read; now if not given.

        Raises:
            StreamRecreatedError: the oldest record is one of another stream of the same name.
            EfoConsumerError: Kinesis could not be asked.
            AwsError: Kinesis could not be asked.
        """
        now = self._source.service_millis() if now_millis is None else now_millis
        if self.passes(after, now):
            return None
        retention = await self._retention()
        if now - self._sound_millis < _WATCH_MILLIS and judge(after, now, retention) is Verdict.CONTINUOUS:
            self._trust(after, now)
            return None
        return await self._look(after, now)

    async def prove(self, tell: Callable[[Loss, ShardPosition], None]) -> None:
        """Judge once more, by the retention period of this moment, what was judged by an earlier one.

        Args:
            tell: takes a loss, and the position beyond which it is. What it raises is raised, and the next call finds
                the loss again.

        Raises:
            StreamRecreatedError: the oldest record is one of another stream of the same name.
            EfoConsumerError: Kinesis could not be asked.
            AwsError: Kinesis could not be asked.
        """
        async with self._proving:
            if self._unproved is None:
                return
            (after, now), self._unproved = self._unproved, None
            try:
                retention = await self._retention(is_fresh=True)
                is_recent = self._source.service_millis() - now < _WATCH_MILLIS
                if not is_recent or judge(after, now, retention) is not Verdict.CONTINUOUS:
                    try:
                        loss = await self._look(after, now)
                    except RecordPublisherError as error:
                        if error.code != _SHARD_REFUSED:
                            raise
                        loss = Loss(_GONE)
                    if loss is not None:
                        tell(loss, after)
            except BaseException:
                later, self._unproved = self._unproved, (after, now)
                if later is not None:
                    self._trust(*later)
                raise

    async def judge_refusal(
        self, after: ShardPosition, code: str, *, standing: Collection[str] | None, is_last_try: bool
    ) -> Loss | Resume | None:
        """Return what it means that Kinesis refused a position or the shard; None if it is not about lost records.

        Args:
            after: the position, with its facts.
            code: of the error.
            standing: the shards that have positions, which cannot be successors of a shard that is gone. None if the
                caller decides about successors.
            is_last_try: whether the position was resumed as often as it may be.

        Raises:
            StreamRecreatedError: the stream is another one of the same name.
            EfoConsumerError: Kinesis could not be asked.
            AwsError: Kinesis could not be asked.
        """
        if code not in (_POSITION_REFUSED, _SHARD_REFUSED):
            return None
        facts = await self._source.stream_facts(self._stream, is_fresh=True)
        check_created(self._stream, self._created_millis, facts)
        now = self._source.service_millis()
        if code == _SHARD_REFUSED:
            listed = tuple(await self._source.list_shards(self._stream))
            if any(shard.shard_id == self._shard_id for shard in listed):
                # The shard exists; the consumer does not.
                return None
            is_fresh = (
                after.known_millis is not None and judge(after, now, facts.retention_millis) is Verdict.CONTINUOUS
            )
            if is_fresh and not (is_last_try and after.sequence_number is not None):
                # It was read less than a retention period ago, so it cannot have expired: a shard is listed late. But
                # one that was seen before, and stays away, has expired before the period was made longer.
                return Resume(after, _RETRY_SECONDS)
            is_lost = after.type is not PositionType.TRIM_HORIZON or after.known_millis is not None
            children = () if standing is None else successors(self._shard_id, listed, standing)
            return Loss(_GONE, listed, children, is_lost)
        if after.type is PositionType.TRIM_HORIZON or after.is_shard_end:
            return None
        if after.timestamp_millis is not None:
            if after.timestamp_millis <= now - CLOCK_MARGIN_MILLIS:
                return None
            # Some servers refuse a time ahead of the service's clock. Wait until it has come.
            return Resume(after, max(0.0, (after.timestamp_millis - now) / 1000) + _RETRY_SECONDS)
        # What this guard trusts does not count: the refusal says otherwise.
        untrusting = ShardGuard(self._source, self._stream, self._shard_id, created_millis=self._created_millis)
        try:
            loss = await untrusting.check(after, now)
        except RecordPublisherError as error:
            if error.code != _SHARD_REFUSED:
                raise
            # It has expired since the position was refused.
            return await self.judge_refusal(after, error.code, standing=standing, is_last_try=is_last_try)
        return Resume(restart(after)) if loss is None else loss

    def _trust(self, after: ShardPosition, now: int) -> None:
        self._sound_millis = now
        first, until = self._unproved or (after, now)
        self._unproved = first, max(until, (first.known_millis or 0) + now - (after.known_millis or 0))

    async def _retention(self, *, is_fresh: bool = False) -> int:
        """Return the stream's retention period, after comparing the stream with the positions' stream."""
        try:
            facts = await self._source.stream_facts(self._stream, is_fresh=is_fresh)
        except AwsError as error:
            # Then the shortest retention is assumed: that only means more looks.
            _log.warning("cannot check when %s was created, and how long it keeps records: %s", self._stream, error)
            return SHORTEST_RETENTION_MILLIS
        check_created(self._stream, self._created_millis, facts)
        return facts.retention_millis

    async def _look(self, after: ShardPosition, now: int) -> Loss | None:
        oldest = await self._source.oldest_record(self._stream, self._shard_id)
        if oldest is None:
            # GetRecords may be a second behind what was read elsewhere, and call that the tip.
            await asyncio.sleep(_RETRY_SECONDS)
            oldest = await self._source.oldest_record(self._stream, self._shard_id)
        # A stream that was created again meanwhile may have old records with the same numbers. And a user who is warned
        # of a loss makes the retention period longer: a loss is judged by the current period.
        retention = await self._retention(is_fresh=True)
        if judge_oldest(after, oldest) is Verdict.CONTINUOUS:
            self._sound_millis = now
            return None
        kept = f"the stream keeps records for {retention / 3_600_000:g} h"
        left = "the shard holds no record" if oldest is None else f"the oldest record left is {oldest.sequence_number}"
        known = after.known_millis
        if known is None:
            since = "no time is known at which everything up to there had been read (offsets of version 1 have none)"
            return Loss(f"{since}, {kept}, and {left}")
        since = f"{(now - known) / 3_600_000:.1f} h have passed since it was known to be complete"
        if judge(after, now, retention) is not Verdict.CONTINUOUS:
            return Loss(f"{since}, {kept}, and {left}")
        if is_kept(after, self._source.service_millis(), retention):
            return Loss(f"{since}, {kept} but did so for a shorter time meanwhile, and {left}")
        _log.warning(
            "%s/%s: %s, %s, and %s: nothing is lost if the retention period was never shorter meanwhile",
            self._stream,
            self._shard_id,
            since,
            kept,
            left,
        )
        self._trust(after, now)
        return None


async def check_streams(
    source: ContinuitySource, created: Mapping[str, int], streams: Collection[str]
) -> dict[str, int]:
    """Compare the creation times of streams with their positions' creation times; return the known ones.

    Raises:
        StreamRecreatedError: a stream is another one of the same name.
    """
    known = dict(created)
    for stream in streams:
        try:
            facts = await source.stream_facts(stream, is_fresh=True)
        except (AwsError, EfoConsumerError) as error:
            _log.warning("cannot check when %s was created: %s", stream, error)
            continue
        check_created(stream, created.get(stream), facts)
        if facts.created_millis is not None:
            known[stream] = facts.created_millis
    return known


def check_created(stream: str, created_millis: int | None, facts: StreamFacts) -> None:
    """Compare a stream's creation time with the creation time in its positions.

    Raises:
        StreamRecreatedError: it is another stream.
    """
    current = facts.created_millis
    if created_millis is not None and current is not None and current != created_millis:
        raise StreamRecreatedError(stream=stream, created_millis=created_millis, current_millis=current)
