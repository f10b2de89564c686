"""Records as callers see them."""

from __future__ import annotations

from penstock.registration import _lease as lease_rules
from penstock.registration._record import ConsumerRecord, RegistrationPhase
from penstock.registration._values import Consumer, Lease


def is_listed(record: ConsumerRecord, now: float) -> bool:
    """Whether the consumer exists, as far as is known, or a job holds it."""
    return record.phase is not RegistrationPhase.ABSENT or lease_rules.is_live(record, now)


def consumer_of(record: ConsumerRecord, now: float) -> Consumer:
    """The consumer, with its holder's lease as it stands now."""
    holding = record.holding
    lease = None
    if holding is not None and lease_rules.is_live(record, now):
        lease = Lease(
            stream_name=record.stream_name,
            consumer_name=record.consumer_name,
            job_id=holding.job_id,
            consumer_arn=record.consumer_arn,
            fencing_token=holding.fencing_token,
            time_to_live_seconds=lease_rules.remaining_seconds(record, now),
            registration_is_ours=record.registration_is_ours,
        )
    return Consumer(
        stream_name=record.stream_name,
        consumer_name=record.consumer_name,
        consumer_arn=record.consumer_arn,
        registration_is_ours=record.registration_is_ours,
        lease=lease,
        age_seconds=max(0.0, now - record.created_at),
        held_seconds=0.0 if lease is None or holding is None else max(0.0, now - holding.acquired_at),
    )
