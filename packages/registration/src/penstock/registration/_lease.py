"""The life of a lease and of the registration under it, decided without I/O.

Every function takes a record and `now`, and returns the record that should replace it; the caller writes it with the
version that it read, and decides again when somebody else was faster.

| lease | by | becomes |
| --- | --- | --- |
| none | acquire | live, token + 1 |
| live | acquire by the same job | live, token + 1 |
| live | acquire by another job | refused, waits, or (take over) live for the other job, token + 1 |
| live | heartbeat with its token | live, from now on |
| live | no heartbeat for its time to live | expired |
| expired | heartbeat with its token | live: nobody was given the consumer in the meantime |
| expired | acquire by anybody | live, token + 1; the registration is kept |
| live, expired | release with its token | none, idle |
| expired, none | grace period over | none, de-registered if the registration was ours |

The clock may jump. Back: a lease that was renewed in the future lives one time to live from the first look at it.
Forward: a lease ends early, the fencing token protects what it protected, and its heartbeat is too late only if
somebody has been given the consumer or it is being deregistered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.registration._config import ConflictPolicy
from penstock.registration._record import ConsumerRecord, Holding, RegistrationPhase

_TOLERATED_SKEW_SECONDS: Final = 5.0
"""By how much clocks of two registries on one store may differ before one of them counts as set back."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is given, by writing `record`."""

    record: ConsumerRecord


@dataclass(frozen=True, slots=True)
class Refused:
    """Another job holds the consumer."""

    holder: Holding
    held_seconds: float
    remaining_seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again after at most this many seconds."""

    seconds: float


def settled(record: ConsumerRecord, now: float) -> ConsumerRecord:
    """The record with no time of it in the future: what a clock that was set back leaves behind counts from now.

    To be written when it differs: otherwise every look would be the first.
    """
    future = now + _TOLERATED_SKEW_SECONDS
    holding, idle_since = record.holding, record.idle_since
    if holding is not None and holding.renewed_at > future:
        holding = replace(holding, renewed_at=now, acquired_at=min(holding.acquired_at, now))
    if idle_since is not None and idle_since > future:
        idle_since = now
    if holding is record.holding and idle_since is record.idle_since:
        return record
    return replace(record, holding=holding, idle_since=idle_since)


def remaining_seconds(record: ConsumerRecord, now: float) -> float:
    """Seconds that the lease lives without a heartbeat; 0 when there is none or it expired."""
    holding = settled(record, now).holding
    if holding is None:
        return 0.0
    # Never more than its time to live, whatever the difference of clocks.
    return min(holding.time_to_live_seconds, max(0.0, holding.renewed_at + holding.time_to_live_seconds - now))


def is_live(record: ConsumerRecord, now: float) -> bool:
    """Whether a job holds the consumer now."""
    return remaining_seconds(record, now) > 0


def acquire(
    record: ConsumerRecord,
    *,
    job_id: str,
    time_to_live_seconds: float,
    policy: ConflictPolicy,
    now: float,
) -> Granted | Refused | Wait:
    """Decide on a request for the consumer. Whoever is granted gets a token that nobody had before."""
    record = settled(record, now)
    holder = record.holding
    remaining = remaining_seconds(record, now)
    if holder is not None and holder.job_id != job_id and remaining > 0:
        if policy is ConflictPolicy.WAIT:
            return Wait(remaining)
        if policy is not ConflictPolicy.TAKE_OVER:
            return Refused(holder, max(0.0, now - holder.acquired_at), remaining)
    token = record.fencing_token + 1
    same_job_lives = holder is not None and holder.job_id == job_id and remaining > 0
    holding = Holding(
        job_id=job_id,
        fencing_token=token,
        acquired_at=holder.acquired_at if holder is not None and same_job_lives else now,
        renewed_at=now,
        time_to_live_seconds=time_to_live_seconds,
    )
    return Granted(replace(record, fencing_token=token, holding=holding, idle_since=None))


def holds(record: ConsumerRecord, job_id: str, fencing_token: int) -> bool:
    """Whether the lease with this token is the newest one; it may have expired."""
    holding = record.holding
    return holding is not None and holding.job_id == job_id and holding.fencing_token == fencing_token


def renew(
    record: ConsumerRecord,
    *,
    job_id: str,
    fencing_token: int,
    now: float,
    time_to_live_seconds: float | None = None,
) -> ConsumerRecord | None:
    """Prolong the lease from now on; None when it is lost."""
    record = settled(record, now)
    holding = record.holding
    if holding is None or not holds(record, job_id, fencing_token):
        return None
    time_to_live = time_to_live_seconds or holding.time_to_live_seconds
    return replace(record, holding=replace(holding, renewed_at=now, time_to_live_seconds=time_to_live))


def release(record: ConsumerRecord, *, job_id: str, fencing_token: int, now: float) -> ConsumerRecord | None:
    """Give the lease back; None when it is not the newest one, which releases nothing."""
    if not holds(record, job_id, fencing_token):
        return None
    return replace(record, holding=None, idle_since=now)


def begin_registration(record: ConsumerRecord, *, fencing_token: int) -> ConsumerRecord:
    """Write down that Kinesis is about to be asked to register: whoever comes after a crash knows whose it is."""
    return replace(
        record,
        phase=RegistrationPhase.REGISTERING,
        consumer_arn="",
        registration_is_ours=False,
        registering_token=fencing_token,
    )


def abandon_registration(record: ConsumerRecord, *, fencing_token: int) -> ConsumerRecord | None:
    """Take back what `begin_registration` wrote down: Kinesis refused. None when somebody else began since."""
    if record.phase is not RegistrationPhase.REGISTERING or record.registering_token != fencing_token:
        return None
    return finish_deregistration(record)


def finish_registration(record: ConsumerRecord, *, consumer_arn: str, made: bool, fencing_token: int) -> ConsumerRecord:
    """Write down the consumer's ARN and whose registration it is.

    Ours is what this lease made, what was ours already under the same ARN, and what another lease of this store had
    begun to register when this one found it there. Anything else was there before us.
    """
    begun_by_another = record.registering_token not in (0, fencing_token)
    known_as_ours = record.registration_is_ours and record.consumer_arn == consumer_arn
    return replace(
        record,
        phase=RegistrationPhase.REGISTERED,
        consumer_arn=consumer_arn,
        registration_is_ours=made or known_as_ours or begun_by_another,
        registering_token=0,
    )


def adopt(record: ConsumerRecord, *, consumer_arn: str, now: float) -> ConsumerRecord:
    """Write down an existing registration as ours, on an operator's word. The grace period counts from now."""
    live = is_live(record, now)
    return replace(
        settled(record, now),
        phase=RegistrationPhase.REGISTERED,
        consumer_arn=consumer_arn,
        registration_is_ours=True,
        registering_token=0,
        holding=record.holding if live else None,
        idle_since=None if live else now,
    )


def note_given(record: ConsumerRecord, *, consumer_arn: str) -> ConsumerRecord:
    """Write down a consumer that a job gave by its ARN (the strategy none).

    Its user registered it, and will end it himself, unless it is known as ours under that very ARN.
    """
    known = record.phase is RegistrationPhase.REGISTERED and record.consumer_arn == consumer_arn
    return replace(
        record,
        phase=RegistrationPhase.REGISTERED,
        consumer_arn=consumer_arn,
        registration_is_ours=known and record.registration_is_ours,
        registering_token=0,
    )


def is_ours(record: ConsumerRecord, consumer_arn: str) -> bool:
    """Whether the registration with this ARN is ours to end: made, adopted, or begun and not seen through."""
    if record.phase in (RegistrationPhase.REGISTERING, RegistrationPhase.DEREGISTERING):
        return record.consumer_arn in ("", consumer_arn)
    known = record.phase is RegistrationPhase.REGISTERED and record.consumer_arn == consumer_arn
    return known and record.registration_is_ours


def deregistration_due_at(record: ConsumerRecord, now: float, grace_seconds: float) -> float | None:
    """When the consumer's registration is to be ended, if nobody comes; None while that cannot be said."""
    record = settled(record, now)
    if record.phase is RegistrationPhase.ABSENT:
        return None
    if record.holding is not None:
        return record.holding.renewed_at + record.holding.time_to_live_seconds + grace_seconds
    if record.idle_since is None:
        return now
    return record.idle_since + grace_seconds


def is_orphan(record: ConsumerRecord, now: float, grace_seconds: float) -> bool:
    """Whether the grace period after the last lease is over."""
    due = deregistration_due_at(record, now, grace_seconds)
    return due is not None and due <= now and not is_live(record, now)


def begin_deregistration(record: ConsumerRecord, *, now: float, grace_seconds: float) -> ConsumerRecord | None:
    """End what is left of the lease, and the registration if it is ours; None when it is not time yet.

    A registration that is not ours is forgotten on the spot: the result is ABSENT, and Kinesis is not asked.
    """
    if not is_orphan(record, now, grace_seconds):
        return None
    record = replace(record, holding=None, idle_since=record.idle_since or now)
    begun = record.phase in (RegistrationPhase.REGISTERING, RegistrationPhase.DEREGISTERING)
    if begun or record.registration_is_ours:
        return replace(record, phase=RegistrationPhase.DEREGISTERING)
    return finish_deregistration(record)


def finish_deregistration(record: ConsumerRecord) -> ConsumerRecord:
    """Write down that the consumer is gone. The token stays."""
    return replace(
        record,
        phase=RegistrationPhase.ABSENT,
        consumer_arn="",
        registration_is_ours=False,
        registering_token=0,
    )
