"""What callers and registries say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from penstock.aws import AwsLocation
from penstock.registration._config import (
    ConflictPolicy,
    RegistrarConfig,
    RegistrationStrategy,
    check_consumer_name,
    consumer_name_of,
    one_of,
)
from penstock.registration.errors import InvalidRequestError, RegistrationOptionError


@dataclass(frozen=True, kw_only=True)
class AcquireRequest:
    """Asks for a lease on a stream consumer.

    Raises:
        InvalidRequestError: a name is missing or malformed, or an ARN is given without the strategy none.
    """

    stream_name: str
    """Or its ARN, across accounts: it is another stream then than the one of that name."""
    job_id: str
    """Identity of the holder: the same after a restart of the same job, different for any other."""
    consumer_name: str = ""
    """Needed unless the strategy is none, where it is read off the ARN when left empty."""
    stream_arn: str | None = None
    """Looked up by name when None."""
    strategy: RegistrationStrategy = RegistrationStrategy.LAZY
    consumer_arn: str | None = None
    """With the strategy none, and only with it."""
    conflict_policy: ConflictPolicy = ConflictPolicy.REFUSE
    time_to_live: timedelta | None = None
    """How long the lease should live without a heartbeat. The registry has a default and a cap."""
    timeout: timedelta | None = None
    """How long to wait, for another job's lease and for Kinesis together. Default: as long as it takes."""
    config: RegistrarConfig | None = None
    """How calls that register and look up the consumer are tried again for this request, and for how long. The
    registry's own counts where None, and for deregistering, which is its own business."""
    caller: AwsLocation | None = None
    """Where the caller's stream is: a registry behind an endpoint refuses a stream of another place than its own."""

    def __post_init__(self) -> None:
        for name in ("stream_name", "job_id"):
            if not getattr(self, name):
                raise InvalidRequestError(field=name, reason="is empty")
        for name in ("time_to_live", "timeout"):
            value = getattr(self, name)
            if value is not None and value <= timedelta(0):
                raise InvalidRequestError(field=name, reason="must be positive")
        try:
            object.__setattr__(self, "strategy", one_of(RegistrationStrategy, self.strategy, "strategy"))
            policy = one_of(ConflictPolicy, self.conflict_policy, "conflict_policy")
            object.__setattr__(self, "conflict_policy", policy)
            self._check_consumer()
        except RegistrationOptionError as error:
            raise InvalidRequestError(field=error.option, reason=error.reason) from error

    def _check_consumer(self) -> None:
        if self.strategy is not RegistrationStrategy.NONE:
            if self.consumer_arn:
                raise InvalidRequestError(field="consumer_arn", reason="is for the strategy none only")
            if not self.consumer_name:
                raise InvalidRequestError(field="consumer_name", reason="is needed unless the strategy is none")
            check_consumer_name(self.consumer_name)
            return
        if not self.consumer_arn:
            raise InvalidRequestError(field="consumer_arn", reason="is needed with the strategy none")
        name = consumer_name_of(self.consumer_arn)
        if self.consumer_name and self.consumer_name != name:
            raise InvalidRequestError(
                field="consumer_name", reason=f"{self.consumer_name!r} contradicts the ARN, which says {name!r}"
            )
        object.__setattr__(self, "consumer_name", name)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A job's hold on a stream consumer."""

    stream_name: str
    consumer_name: str
    job_id: str
    consumer_arn: str
    """Holds the consumer's creation time, so that a new registration has another ARN."""
    fencing_token: int
    """Only grows, per stream and consumer name, over all holders."""
    time_to_live_seconds: float
    """Until the lease ends when no heartbeat comes."""
    registration_is_ours: bool
    """Whether the registry made the registration, and will therefore end it."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The outcome of a heartbeat."""

    held: bool
    """False when the lease is another's, or ended: stop reading."""
    time_to_live_seconds: float
    """Seconds that the lease lives from now; 0 when it is not held."""


class ConsumerState(StrEnum):
    """Where a consumer stands with Kinesis."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    ABSENT = "ABSENT"
    """Kinesis does not have it: deleted from outside, or not registered yet."""


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer that the registry knows."""

    stream_name: str
    consumer_name: str
    consumer_arn: str
    registration_is_ours: bool
    lease: Lease | None
    """The holder's lease, with the seconds that it has left; None when nobody holds it."""
    age_seconds: float
    """Since the consumer came to the registry."""
    state: ConsumerState | None = None
    """None when Kinesis was not asked, or did not answer."""
    held_seconds: float = 0.0
    """Since the holder acquired its lease, by whatever token; 0 when nobody holds it."""
    cost_per_hour_usd: float | None = None
    """What the registration costs; None when unknown."""


class OrphanFate(StrEnum):
    """What garbage collection does with a consumer that no lease holds."""

    KEPT = "kept"
    """The registration is not ours."""
    DUE = "due"
    """It would be deregistered, were this not a dry run."""
    ENDED = "ended"
    """It was deregistered."""
    FAILED = "failed"
    """Kinesis did not deregister it; the next sweep tries again."""


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """A consumer that exists and that no lease holds."""

    consumer: Consumer
    fate: OrphanFate
    reason: str
    """Why, for people."""
