"""Records as callers see them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.registration._record import ConsumerRecord, RegistrationPhase
from penstock.registration._values import AcquireRequest, Consumer, Lease
from penstock.registration._watch import Standing, Watch
from penstock.registration.errors import RegistrationError

_LOOK_SECONDS: Final = 2.0


class _Lists(Protocol):
    async def list_consumers(self, stream_name: str | None = None) -> Sequence[Consumer]: ...


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
        told = holding.renewed_at + holding.time_to_live_seconds - now
        remaining = min(holding.time_to_live_seconds, max(0.0, told))
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


async def holder_of(registry: _Lists, request: AcquireRequest) -> str | None:
    """The job that keeps the request waiting, for the words of an error; None when there is none, or nobody knows."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            consumers = await registry.list_consumers(request.stream_arn or request.stream_name)
    except (TimeoutError, RegistrationError):
        return None
    leases = (one.lease for one in consumers if one.consumer_name == request.consumer_name)
    return next((one.job_id for one in leases if one is not None and one.job_id != request.job_id), None)
