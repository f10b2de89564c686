"""Records as callers see them."""

from __future__ import annotations

from penstock.registration._lease.record import ConsumerRecord, RegistrationPhase
from penstock.registration._lease.watch import Standing, Watch
from penstock.registration._values import Consumer, Lease


def is_listed(record: ConsumerRecord, watch: Watch) -> bool:
    """Whether the consumer exists, as far as is known, or a job holds it.

    Not so a record whose stream's ARN is not known: the stream is gone, or of an account that this registry is not of.
    """
    return not record.is_by_name and (record.phase is not RegistrationPhase.ABSENT or not watch.is_over(record))


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
