"""The life of one SubscribeToShard call, decided without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.emulator._state.quotas import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.emulator._config import Behaviour, Conduct, EmulatorConfig
    from penstock.emulator._state.records import FrameCache, RecordSlice
    from penstock.emulator._state.shard import Shard
    from penstock.emulator.errors import KinesisError

_MAX_EVENT_RECORDS = 1000
_MAX_EVENT_BYTES = 1024 * 1024
# An event may overdraw the pace, and the next one waits longer for it; but some of it must be there, or a backlog would
# leave in crumbs.
_PACE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RecordsEvent:
    """A SubscribeToShardEvent.

    `continuation` is None at the end of the shard, and only there; `child_shards` are given there, and only there.
    """

    records: RecordSlice
    continuation: str | None
    millis_behind_latest: int
    child_shards: list[dict[str, Any]]
    frames: FrameCache | None = None
    """Where others of the same shard have left what they built of these records, or will look for it."""


class Subscription:
    """What a subscription does next: ask `poll`, and when it has nothing, wait for `on_change` or for `deadline`."""

    def __init__(
        self,
        *,
        shard: Shard,
        consumer_arn: str,
        position: int,
        config: EmulatorConfig,
        conduct: Conduct,
        now: float,
    ) -> None:
        self._conduct = conduct
        self.shard = shard
        self.consumer_arn = consumer_arn
        self.position = position
        self.started = now
        self.on_change: Callable[[], None] | None = None
        self.ended = False
        self._failure: KinesisError | None = None
        self._continuation: str | None = None
        self.expires = now + config.subscription_lifetime.total_seconds()
        self._idle_interval = config.idle_event_interval.total_seconds()
        self._idle_at = now + self._idle_interval
        self._pace = TokenBucket(config.subscription_bytes_per_second, now=now) if config.enforce_limits else None
        shard.listeners.add(self._changed)

    def fail(self, error: KinesisError) -> None:
        """End the subscription with an exception inside the stream: taken over, deregistered, deleted."""
        if not self.ended and self._failure is None:
            self._failure = error
            self._changed()

    def is_over(self, now: float) -> bool:
        """Whether nothing but the end is left to be sent."""
        return self.ended or self._failure is not None or now >= self.expires

    def close(self) -> None:
        """Let go of the shard; harmless when called again."""
        self.ended = True
        self.shard.listeners.discard(self._changed)

    def poll(self, now: float) -> RecordsEvent | KinesisError | None:
        """The event that is due now, or None. Look at `ended` afterwards: it says whether anything can follow."""
        if self.ended:
            return None
        if self._failure is not None:
            self.close()
            return self._failure
        if now >= self.expires:
            self.close()
            return None
        behaviour = self._conduct.behaviour
        if behaviour.refuse_expired_ahead and self.position < self.shard.trimmed_to:
            # The reader learns of it when it subscribes again with the last continuation.
            self.close()
            return None
        if self.shard.has_records(self.position):
            if self._pace is not None and not self._pace.has(_PACE_BYTES, now):
                return None
            return self._records_event(now)
        is_over = self.shard.exhausted(self.position)
        if is_over and not self._outlives_its_shard(behaviour):
            self.close()
            if behaviour.shard_end_without_event:
                return None
            return RecordsEvent(self.shard.log.slice(0, 0), None, 0, self.shard.child_shards())
        if now >= self._idle_at:
            self._idle_at = now + self._idle_interval
            if is_over:
                # Nothing moves any more.
                self._continuation = self._continuation or self.shard.ending_sequence_number
            else:
                self._continuation = self.shard.advance(now)
                self.position = self.shard.tip
            return RecordsEvent(self.shard.log.slice(0, 0), self._continuation, 0, [])
        return None

    def _outlives_its_shard(self, behaviour: Behaviour) -> bool:
        if behaviour.subscriptions_outlive_shards and behaviour.shard_end_without_event:
            return self._conduct.draw("outlives", self.shard.id) < 0.5
        return behaviour.subscriptions_outlive_shards

    def deadline(self, now: float) -> float:
        """When `poll` has something even if nothing changes."""
        if self._pace is not None and self.shard.has_records(self.position):
            return min(self.expires, self._pace.ready_at(_PACE_BYTES, now))
        return min(self.expires, self._idle_at)

    def _records_event(self, now: float) -> RecordsEvent:
        records = self.shard.read(self.position, max_records=_MAX_EVENT_RECORDS, max_bytes=_MAX_EVENT_BYTES)
        self.position = records.last_counter + 1
        self._idle_at = now + self._idle_interval
        if self._pace is not None:
            self._pace.take(records.size_bytes)
        self._continuation = self.shard.sequence_number_of(records, -1)
        return RecordsEvent(
            records,
            self._continuation,
            self.shard.millis_behind(self.position, now),
            [],
            # Alone, a subscription would only fill the memory.
            self.shard.frames if len(self.shard.listeners) > 1 else None,
        )

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
