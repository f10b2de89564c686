"""Decides which leases are over, from what this registry saw, by its own clock alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.registration._lease.record import ConsumerRecord, RegistrationPhase
from penstock.registration._values import Consumer, Lease

Key = tuple[str, str]

_GAPS_PER_LIFE: Final = 3
"""A holder sends as many heartbeats: a shorter absence of the registry or of its store costs it one at most."""
_STEPS_PER_GAP: Final = 2
_LONGEST_STEP_SECONDS: Final = 5.0


class Standing(Enum):
    """What this registry knows of a lease."""

    LIVE = auto()
    """It saw the lease being given or renewed, and the lease is not over yet."""
    UNPROVED = auto()
    """It saw the lease unchanged, but not for long enough: the holder may be alive or dead."""
    OVER = auto()
    """It saw the lease unchanged for the time to live and the grace period."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A lease as this registry sees it."""

    standing: Standing
    remaining_seconds: float
    """Until the lease is over if it is not renewed; 0 when it is over."""


_NOBODY: Final = Sight(Standing.OVER, 0.0)


@dataclass(slots=True)
class _Seen:
    """The newest version of a record, and between which moments it was seen unchanged."""

    version: int | None
    """None after a renewal of which only the outcome is known, not the version."""
    since: float
    """When the first look that found this version was over."""
    until: float
    """When the last look that found this version began."""
    moved: bool
    """Whether this registry saw the record change into this version."""


class Watch:
    """What one registry saw of the leases in its store. Decides without I/O; times are seconds of its own clock.

    A lease is over when its record was seen unchanged for the time to live plus the grace period. Time counts only
    while heartbeats could arrive: after a pause of the registry, or if the store did not answer in time, the count
    starts again, as after a restart. The store must therefore answer at least every `step_seconds`.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._seen: dict[Key, _Seen] = {}
        # Per time to live: since when the store answered without a gap that was too long for it.
        self._awake_since: dict[float, float] = {}
        self._heard_at = float("-inf")

    @property
    def step_seconds(self) -> float:
        """The longest wait between two calls to the store that does not count as a gap."""
        shortest = min(self._awake_since, default=_LONGEST_STEP_SECONDS * _GAPS_PER_LIFE * _STEPS_PER_GAP)
        return min(_LONGEST_STEP_SECONDS, shortest / _GAPS_PER_LIFE / _STEPS_PER_GAP)

    def heard(self, asked_at: float, now: float) -> float:
        """The store answered. Returns the gap, in seconds, after which leases are watched from the start; else 0."""
        gap = now - min(asked_at, self._heard_at) if self._awake_since else 0.0
        self._heard_at = now
        was_too_long = 0.0
        for time_to_live in self._awake_since:
            if gap > time_to_live / _GAPS_PER_LIFE:
                self._awake_since[time_to_live] = now
                was_too_long = gap
        return was_too_long

    def saw(self, record: ConsumerRecord, asked_at: float, now: float) -> None:
        """A look at the store that began at `asked_at` found the record as it is."""
        if record.holding is not None:
            self._awake_since.setdefault(record.holding.time_to_live_seconds, now)
        seen = self._seen.get(record.key)
        if seen is None:
            self._seen[record.key] = _Seen(record.version, now, asked_at, moved=False)
        elif seen.version is None:
            seen.version, seen.since, seen.until = record.version, now, asked_at
        elif record.version > seen.version:
            self._seen[record.key] = _Seen(record.version, now, asked_at, moved=True)
        elif record.version == seen.version:
            seen.until = max(seen.until, asked_at)
        elif asked_at > seen.since:
            # The store was restored or recreated: earlier observations do not count.
            self._seen[record.key] = _Seen(record.version, now, asked_at, moved=False)
        # Any other older version is a late answer to an earlier call.

    def wrote(self, record: ConsumerRecord, asked_at: float, now: float) -> None:
        """This registry wrote the record, by a call that began at `asked_at`. It has the version that it was given."""
        self.saw(record, asked_at, now)
        self._seen[record.key].moved = True

    def renewed(self, key: Key, now: float) -> None:
        """This registry renewed the lease."""
        self._seen[key] = _Seen(None, now, now, moved=True)

    def sight(self, record: ConsumerRecord) -> Sight:
        """The lease of a record that was just looked at. One that was given back is over."""
        if record.holding is None:
            return _NOBODY
        time_to_live = record.holding.time_to_live_seconds
        life = time_to_live + self._grace_seconds
        seen = self._seen.get(record.key)
        if seen is None or seen.version != record.version:
            return Sight(Standing.UNPROVED, life)
        awake_since = self._awake_since.get(time_to_live, seen.until)
        watched = max(0.0, seen.until - max(seen.since, awake_since))
        if watched >= life:
            return _NOBODY
        # A sign of life from before a gap does not count: otherwise requests could be refused forever.
        is_proved = seen.moved and seen.since >= awake_since
        return Sight(Standing.LIVE if is_proved else Standing.UNPROVED, life - watched)

    def is_over(self, record: ConsumerRecord) -> bool:
        """Whether no job holds the consumer any more."""
        return self.sight(record).standing is Standing.OVER

    def is_due(self, record: ConsumerRecord) -> bool:
        """Whether the lease is over, and the grace period too: after a lease that was given back it begins there."""
        if record.holding is not None:
            return self.is_over(record)
        seen = self._seen.get(record.key)
        if seen is None or seen.version != record.version:
            return self._grace_seconds == 0
        return max(0.0, seen.until - seen.since) >= self._grace_seconds


def is_listed(record: ConsumerRecord, watch: Watch) -> bool:
    """Whether the consumer exists, as the registry knows, or a job holds it."""
    return record.phase is not RegistrationPhase.ABSENT or not watch.is_over(record)


def consumer_of(record: ConsumerRecord, watch: Watch, now: float) -> Consumer:
    """The consumer, with its holder's lease. `now` is the time of day, to show what this registry did not watch."""
    holding = record.holding
    lease = None
    sight = watch.sight(record)
    remaining = sight.remaining_seconds
    if holding is not None and sight.standing is Standing.UNPROVED:
        remaining_by_date = holding.renewed_at + holding.time_to_live_seconds - now
        remaining = min(holding.time_to_live_seconds, max(0.0, remaining_by_date))
    if holding is not None and remaining > 0:
        lease = Lease(
            stream_name=record.stream_name,
            stream_arn=record.stream_arn,
            consumer_name=record.consumer_name,
            job_id=holding.job_id,
            consumer_arn=record.consumer_arn,
            fencing_token=holding.fencing_token,
            time_to_live_seconds=remaining,
            registration_is_ours=record.registration_is_ours,
        )
    return Consumer(
        stream_name=record.stream_name,
        stream_arn=record.stream_arn,
        consumer_name=record.consumer_name,
        consumer_arn=record.consumer_arn,
        registration_is_ours=record.registration_is_ours,
        lease=lease,
        age_seconds=max(0.0, now - record.created_at),
        held_seconds=0.0 if lease is None or holding is None else max(0.0, now - holding.acquired_at),
    )
