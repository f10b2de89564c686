"""What a registry knows of one stream consumer, and what keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from penstock.registration._values import is_arn, stream_name_of


class RegistrationPhase(StrEnum):
    """The consumer's state in Kinesis, as the registry has recorded it."""

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
    """The claim of the request that got the lease: distinguishes the runs of a job, see `AcquireRequest.claim`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """One per (stream ARN, consumer name). It outlives leases and registrations: its token must only grow."""

    stream_arn: str
    """The stream's name in a record of schema 1, see `is_by_name`."""
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
        """Whether the record has schema 1, which identified streams by name.

        When the ARN is known, the record moves there. Its token stays, as the minimum for streams of that name.
        """
        return not is_arn(self.stream_arn)


def to_columns(record: ConsumerRecord) -> dict[str, Any]:
    """The record as flat columns, with the version that it will have when it is written; None: no value."""
    columns = asdict(record)
    holding = columns.pop("holding") or {}
    return columns | {
        # Schema 1 stored the stream's name here.
        "stream_name": columns.pop("stream_arn"),
        "version": record.version + 1,
        "phase": record.phase.value,
        "holding_token": holding.get("fencing_token"),
        **{
            name: holding.get(name) for name in ("job_id", "acquired_at", "renewed_at", "time_to_live_seconds", "claim")
        },
    }


def from_columns(columns: Mapping[str, Any]) -> ConsumerRecord:
    """The record as it was written. Schema 1 has no `ended_token` and no `claim`."""
    holding = None
    if columns.get("holding_token") is not None:
        holding = Holding(
            job_id=columns["job_id"],
            fencing_token=int(columns["holding_token"]),
            acquired_at=float(columns["acquired_at"]),
            renewed_at=float(columns["renewed_at"]),
            time_to_live_seconds=float(columns["time_to_live_seconds"]),
            claim=columns.get("claim") or "",
        )
    idle_since = columns.get("idle_since")
    return ConsumerRecord(
        stream_arn=columns["stream_name"],
        consumer_name=columns["consumer_name"],
        created_at=float(columns["created_at"]),
        version=int(columns["version"]),
        fencing_token=int(columns["fencing_token"]),
        phase=RegistrationPhase(columns["phase"]),
        consumer_arn=columns["consumer_arn"],
        registration_is_ours=bool(columns["registration_is_ours"]),
        registering_token=int(columns["registering_token"]),
        holding=holding,
        idle_since=None if idle_since is None else float(idle_since),
        ended_token=int(columns.get("ended_token") or 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """One heartbeat, to be written."""

    stream_arn: str
    consumer_name: str
    job_id: str
    fencing_token: int
    at: float
    """When it was asked for, in seconds since the epoch, for people to read."""


class LeaseStore(Protocol):
    """A durable map from (stream ARN, consumer name) to its record, written by comparing versions.

    Several registries may use one store at once. A write succeeds only if the record was not written since it was
    read, so that no update is lost. Records are never removed.
    """

    async def get(self, stream_arn: str, consumer_name: str) -> ConsumerRecord | None:
        """The record as last written; None when there never was one.

        Raises:
            LeaseStoreError: the store cannot be used.
        """
        ...

    async def write(self, record: ConsumerRecord) -> bool:
        """Write the record as version + 1 if the stored version is still its `version` (0: not stored).

        Returns whether it was written. A written record is durable.

        Raises:
            LeaseStoreError: the store cannot be used; nothing was written.
        """
        ...

    async def renew(self, renewal: Renewal) -> float | None:
        """Prolong the lease if it is still the newest of its consumer, as `rules.renew` would, in one step.

        Returns the lease's time to live in seconds, durably written; None if another job has the lease, or it ended.
        The version increases: a writer that read the record earlier has to read it again.

        Raises:
            LeaseStoreError: the store cannot be used; unknown what was written.
        """
        ...

    async def list(self) -> list[ConsumerRecord]:
        """All records, ordered by stream ARN and consumer name.

        Raises:
            LeaseStoreError: the store cannot be used.
        """
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
