"""What a registry knows of one stream consumer: the value that stores keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """A job's hold on a consumer. Times are seconds of the registry's clock."""

    job_id: str
    fencing_token: int
    acquired_at: float
    renewed_at: float
    time_to_live_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """One per (stream, consumer name). It outlives leases and registrations, because its token must only grow."""

    stream_name: str
    consumer_name: str
    created_at: float
    """When the registry first heard of the consumer."""
    version: int = 0
    """Counted up by the store with each write; 0 while it was never written."""
    fencing_token: int = 0
    """The newest token ever given."""
    phase: RegistrationPhase = RegistrationPhase.ABSENT
    consumer_arn: str = ""
    registration_is_ours: bool = False
    registering_token: int = 0
    """The lease under which a registration was begun and not yet seen through; 0 for none."""
    holding: Holding | None = None
    """The newest lease. Kept after it expired, until somebody else's or the de-registration replaces it."""
    idle_since: float | None = None
    """When the last lease was given back: the grace period counts from here."""

    @property
    def key(self) -> tuple[str, str]:
        """(stream name, consumer name)."""
        return self.stream_name, self.consumer_name
