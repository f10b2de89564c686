"""What a registry knows of one stream consumer: the value that stores keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.registration._values import is_arn, stream_name_of


class RegistrationPhase(StrEnum):
    """Where the consumer stands with Kinesis, as far as the registry has written down."""

    ABSENT = "absent"
    """Not known to be registered."""
    REGISTERING = "registering"
    """The registry is about to register it, and may have died in between."""
    REGISTERED = "registered"
    """It exists, under `consumer_arn`."""
    DEREGISTERING = "deregistering"
    """The registry is about to deregister it, and may have died in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job's hold on a consumer.

    Times are seconds since the epoch by the clock of the registry that wrote them, for people to read: no registry
    decides by them.
    """

    job_id: str
    fencing_token: int
    acquired_at: float
    renewed_at: float
    time_to_live_seconds: float
    claim: str = ""
    """Of the request that was given the lease: distinguishes the runs of a job, see `AcquireRequest.claim`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """One per (stream ARN, consumer name). It outlives leases and registrations: its token must only grow."""

    stream_arn: str
    """The stream's name instead of its ARN: a record of the first release, see `is_by_name`."""
    consumer_name: str
    created_at: float
    """When the registry first heard of the consumer, for people to read."""
    version: int = 0
    """Counted up by the store with each write and each renewal; 0 while it was never written."""
    fencing_token: int = 0
    """The newest token ever given."""
    ended_token: int = 0
    """The newest token whose lease an operator ended; 0 for none."""
    phase: RegistrationPhase = RegistrationPhase.ABSENT
    consumer_arn: str = ""
    registration_is_ours: bool = False
    registering_token: int = 0
    """The lease under which a registration was begun and not yet seen through; 0 for none."""
    holding: Holding | None = None
    """The newest lease. Kept after it is over, until somebody else's or the de-registration replaces it."""
    idle_since: float | None = None
    """When the last lease was given back or ended, for people to read."""

    @property
    def key(self) -> tuple[str, str]:
        """(stream ARN, consumer name)."""
        return self.stream_arn, self.consumer_name

    @property
    def stream_name(self) -> str:
        """The stream's name in its account and region."""
        return stream_name_of(self.stream_arn)

    @property
    def is_by_name(self) -> bool:
        """Whether this is a record of the first release, which knew streams by their names.

        It is moved to the stream's ARN as soon as that is known. What is left of it is its token, below which none is
        given for a stream of that name, in whatever account.
        """
        return not is_arn(self.stream_arn)
