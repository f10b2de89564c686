"""The life of a lease and of the registration under it, decided without I/O.

Every function takes a record, and returns the record that should replace it. The caller writes it with the version
that it read, and decides again when another registry wrote first. The record does not show whether a lease is over: the
registry's watch decides that from what it saw (`watch`). Times in records are for people to read.

| lease | by | becomes |
| --- | --- | --- |
| none | acquire | live, token + 1 |
| live | acquire by the same job, or by the claim's name | live, token + 1 |
| live | acquire by another job | refused, waits, or (take over) live for the other job, token + 1 |
| live | heartbeat with its token | live, from now on |
| live | seen unchanged for its time to live and the grace period | over |
| over | heartbeat with its token | live: nobody was given the consumer in the meantime |
| over | acquire by anybody | live, token + 1; the registration is kept |
| over | sweep | none, de-registered if the registration was ours |
| none | acquire of the job that held it, taking back its lease | live, token + 1; registered again where needed |
| live, over | release with its token | none, idle |
| none | grace period over | none, de-registered if the registration was ours |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.registration._lease.record import ConsumerRecord, Holding, RegistrationPhase
from penstock.registration._lease.watch import Sight, Standing
from penstock.registration._values import ConflictPolicy


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


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease cannot be taken back."""

    reason: str


def acquire(
    record: ConsumerRecord,
    *,
    job_id: str,
    time_to_live_seconds: float,
    policy: ConflictPolicy,
    sight: Sight,
    now: float,
    claim: str = "",
    after_token: int | None = None,
) -> Granted | Refused | Wait | Lost:
    """Decide on a request for the consumer. Each granted lease gets a new, larger token.

    A request is not refused because of a holder of which this registry saw no sign of life: that lease is watched until
    it is renewed or is over. With `after_token` the job takes back the lease that it had under that token, by the same
    claim. An earlier attempt of this job, whose answer was lost, does not count as another holder.
    """
    holder = record.holding
    name, _, _ = claim.rpartition("/")
    is_ours = holder is not None and (
        holder.job_id == job_id or (name != "" and holder.claim.rpartition("/")[0] == name)
    )
    if after_token is not None:
        if record.ended_token >= after_token:
            return Lost("an operator ended it")
        if holder is not None and is_ours and holder.fencing_token > after_token and holder.claim != claim:
            who = f"a later run of the same {'job' if holder.job_id == job_id else f'query, job {holder.job_id!r},'}"
            return Lost(f"{who} holds the consumer, by token {holder.fencing_token}")
    if holder is not None and not is_ours and sight.standing is not Standing.OVER:
        if policy is ConflictPolicy.WAIT or (policy is ConflictPolicy.REFUSE and sight.standing is Standing.UNPROVED):
            return Wait(sight.remaining_seconds)
        if policy is ConflictPolicy.REFUSE:
            return Refused(holder, max(0.0, now - holder.acquired_at), sight.remaining_seconds)
    token = record.fencing_token + 1
    holding = Holding(
        job_id=job_id,
        fencing_token=token,
        acquired_at=holder.acquired_at if holder is not None and is_ours else now,
        renewed_at=now,
        time_to_live_seconds=time_to_live_seconds,
        claim=claim,
    )
    return Granted(replace(record, fencing_token=token, holding=holding, idle_since=None))


def holds(record: ConsumerRecord, job_id: str, fencing_token: int) -> bool:
    """Whether the lease with this token is the newest one; it may be over."""
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
    holding = record.holding
    if holding is None or not holds(record, job_id, fencing_token):
        return None
    time_to_live = time_to_live_seconds or holding.time_to_live_seconds
    return replace(record, holding=replace(holding, renewed_at=now, time_to_live_seconds=time_to_live))


def release(
    record: ConsumerRecord, *, job_id: str, fencing_token: int, now: float, disowned_arn: str = ""
) -> ConsumerRecord | None:
    """Release the lease; None when it is not the newest one.

    A consumer of the disowned ARN is used by other readers: it stops being ours, unless another job holds it.
    """
    is_holder = holds(record, job_id, fencing_token)
    if is_holder or record.holding is None:
        is_known = record.phase is RegistrationPhase.REGISTERED and record.registration_is_ours
        disowned = is_known and record.consumer_arn == disowned_arn
        left = replace(record, registration_is_ours=False) if disowned else record
        if is_holder:
            return replace(left, holding=None, idle_since=now)
        if disowned:
            return left
    return None


def end(record: ConsumerRecord, *, now: float) -> ConsumerRecord | None:
    """End the lease for an operator: its holder cannot take it back. None when no job holds the consumer."""
    if record.holding is None:
        return None
    return replace(record, holding=None, idle_since=now, ended_token=record.holding.fencing_token)


def begin_registration(record: ConsumerRecord, *, fencing_token: int) -> ConsumerRecord:
    """Record the intention to register: after a crash the next registry knows that the consumer is ours."""
    return replace(
        record,
        phase=RegistrationPhase.REGISTERING,
        consumer_arn="",
        registration_is_ours=False,
        registering_token=fencing_token,
    )


def abandon_registration(record: ConsumerRecord, *, fencing_token: int) -> ConsumerRecord | None:
    """Undo `begin_registration`: Kinesis refused. None when another lease has begun a registration since."""
    if record.phase is not RegistrationPhase.REGISTERING or record.registering_token != fencing_token:
        return None
    return finish_deregistration(record)


def finish_registration(record: ConsumerRecord, *, consumer_arn: str, made: bool, fencing_token: int) -> ConsumerRecord:
    """Record the consumer's ARN and whether the registration is ours.

    It is ours if this lease made it, if it was ours already under the same ARN, or if another lease of this store had
    begun to register it. Any other consumer was registered outside of this store.
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


def adopt(record: ConsumerRecord, *, consumer_arn: str, is_over: bool, now: float) -> ConsumerRecord:
    """Write down an existing registration as ours, on an operator's word. The grace period counts from now."""
    return replace(
        record,
        phase=RegistrationPhase.REGISTERED,
        consumer_arn=consumer_arn,
        registration_is_ours=True,
        registering_token=0,
        holding=None if is_over else record.holding,
        idle_since=now if is_over else None,
    )


def note_given(record: ConsumerRecord, *, consumer_arn: str) -> ConsumerRecord:
    """Record a consumer that a job gave by its ARN (the strategy none).

    Its user registered it, and deregisters it, unless the record says that this ARN is ours.
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
    """Whether the registration with this ARN is ours to end: made, adopted, or begun without a recorded outcome."""
    if record.phase in (RegistrationPhase.REGISTERING, RegistrationPhase.DEREGISTERING):
        return record.consumer_arn in ("", consumer_arn)
    known = record.phase is RegistrationPhase.REGISTERED and record.consumer_arn == consumer_arn
    return known and record.registration_is_ours


def begin_deregistration(record: ConsumerRecord, *, now: float) -> ConsumerRecord | None:
    """End what is left of a lease that is over, and the registration if it is ours; None without a registration.

    A registration that is not ours is forgotten at once: the result is ABSENT, and Kinesis is not called.
    """
    if record.phase is RegistrationPhase.ABSENT:
        return None
    record = replace(record, holding=None, idle_since=record.idle_since or now)
    begun = record.phase in (RegistrationPhase.REGISTERING, RegistrationPhase.DEREGISTERING)
    if begun or record.registration_is_ours:
        return replace(record, phase=RegistrationPhase.DEREGISTERING)
    return finish_deregistration(record)


def finish_deregistration(record: ConsumerRecord) -> ConsumerRecord:
    """Record that the consumer is gone. The token stays."""
    return replace(
        record,
        phase=RegistrationPhase.ABSENT,
        consumer_arn="",
        registration_is_ours=False,
        registering_token=0,
    )
