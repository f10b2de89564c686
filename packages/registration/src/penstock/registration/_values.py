"""Requests to a registry and its answers."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from penstock.aws import AwsLocation
from penstock.registration._times import RegistrarConfig
from penstock.registration.errors import RegistrationOptionError

_CONSUMER_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CONSUMER_ARN: Final = re.compile(
    r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)/consumer/(?P<consumer>[a-zA-Z0-9_.-]+):\d+"
)
_STREAM_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)")


def consumer_name_of(consumer_arn: str) -> str:
    """The name inside a consumer's ARN.

    Raises:
        RegistrationOptionError: the text is not the ARN of a stream consumer.
    """
    match = _CONSUMER_ARN.fullmatch(consumer_arn)
    if match is None:
        raise RegistrationOptionError(
            option="consumer_arn", reason=f"{consumer_arn!r} is not the ARN of a stream consumer"
        )
    return match["consumer"]


def is_arn(stream: str) -> bool:
    """Whether a stream is given by its ARN, not by its name."""
    return stream.startswith("arn:")


def stream_name_of(stream: str) -> str:
    """The name of a stream that is given by its name or its ARN."""
    return stream.rpartition("stream/")[2] if is_arn(stream) else stream


def stream_arn_of(consumer_arn: str) -> str:
    """The ARN of the stream inside a consumer's ARN; empty if it contains no stream."""
    stream, _, rest = consumer_arn.partition("/consumer/")
    return stream if rest else ""


def check_stream_arn(arn: str, option: str = "stream_arn") -> None:
    """Raise RegistrationOptionError unless it is the ARN of a stream."""
    if _STREAM_ARN.fullmatch(arn) is None:
        raise RegistrationOptionError(option=option, reason=f"{arn!r} is not the ARN of a stream")


def check_consumer_name(name: str, option: str = "consumer_name") -> None:
    """Raise RegistrationOptionError unless Kinesis would accept the name."""
    if _CONSUMER_NAME.fullmatch(name) is None:
        raise RegistrationOptionError(
            option=option, reason=f"{name!r} is not 1 to 128 characters of letters, digits, _ . and -"
        )


E = TypeVar("E", bound=StrEnum)


class RegistrationStrategy(StrEnum):
    """When a consumer is registered and deregistered (FLIP-128, `efo.registration`)."""

    LAZY = "lazy"
    """Registered when the query starts; deregistered when the last lease ends."""
    EAGER = "eager"
    """Registered when the DataFrame is made; deregistered when the last lease ends."""
    NONE = "none"
    """Never registered: the caller gives the consumer's ARN, and deregisters it."""


class ConflictPolicy(StrEnum):
    """What to do when another job holds the consumer."""

    REFUSE = "refuse"
    """Fail at once, naming the holder."""
    WAIT = "wait"
    """Wait until its lease ends, or the timeout."""
    TAKE_OVER = "take_over"
    """End its lease: its fencing token is refused from now on."""


def one_of(kind: type[E], value: str, option: str) -> E:
    """The member of the enumeration, which may also be given by its value.

    Raises:
        RegistrationOptionError: no member has this value; the error lists those that exist.
    """
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(member.value for member in kind)
        raise RegistrationOptionError(option=option, reason=f"{value!r} is not one of {names}") from error


@dataclass(frozen=True, kw_only=True)
class AcquireRequest:
    """Asks for a lease on a stream consumer.

    Raises:
        RegistrationOptionError: a name or ARN is missing, malformed or contradicts another, or a consumer's ARN is
            given without the strategy none.
    """

    stream_name: str
    """The stream's name in the registry's account and region, or its ARN. Both mean the same lease."""
    job_id: str
    """Identity of the holder: the same after a restart of the same job, different for any other."""
    consumer_name: str = ""
    """Required, except with the strategy `none`, whose consumer ARN contains the name."""
    stream_arn: str | None = None
    """The stream that the lease belongs to. Looked up by name when None."""
    strategy: RegistrationStrategy = RegistrationStrategy.LAZY
    consumer_arn: str | None = None
    """With the strategy none, and only with it."""
    conflict_policy: ConflictPolicy = ConflictPolicy.REFUSE
    time_to_live: timedelta | None = None
    """How long the lease should live without a heartbeat. The registry has a default and a cap."""
    timeout: timedelta | None = None
    """How long to wait, for another job's lease and for Kinesis together. Default: without limit."""
    config: RegistrarConfig | None = None
    """How long registering may take for this request (`register_timeout`). Default: the registry's own setting."""
    caller: AwsLocation | None = None
    """Where the caller's stream is: a registry behind an endpoint refuses streams of other places."""
    claim: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)
    """New for each request, kept by `replace`: distinguishes a run that asks again from a later run.

    `NAME/RUN` is a claim by a name that outlives the runs, such as one in a query's checkpoint: a later run of that
    name takes the lease over as the same job does, although its job id is another."""
    after_fencing_token: int | None = None
    """The job takes back the lease that it had under this token, and that expired. This fails when a later run of the
    job has the consumer, or when an operator ended the lease."""

    def __post_init__(self) -> None:
        for name in ("stream_name", "job_id"):
            if not getattr(self, name):
                raise RegistrationOptionError(option=name, reason="is empty")
        for name in ("time_to_live", "timeout"):
            value = getattr(self, name)
            if value is not None and value <= timedelta(0):
                raise RegistrationOptionError(option=name, reason="must be positive")
        object.__setattr__(self, "strategy", one_of(RegistrationStrategy, self.strategy, "strategy"))
        policy = one_of(ConflictPolicy, self.conflict_policy, "conflict_policy")
        object.__setattr__(self, "conflict_policy", policy)
        self._check_consumer()
        self._check_stream()

    def _check_stream(self) -> None:
        arns = {
            "stream_name": self.stream_name if is_arn(self.stream_name) else "",
            "stream_arn": self.stream_arn or "",
            "consumer_arn": stream_arn_of(self.consumer_arn or ""),
        }
        known = next((arn for arn in arns.values() if arn), None)
        for name, arn in arns.items():
            if not arn:
                continue
            check_stream_arn(arn, name)
            if arn != known or stream_name_of(arn) != stream_name_of(self.stream_name):
                said = known if arn != known else self.stream_name
                raise RegistrationOptionError(option=name, reason=f"{arn!r} contradicts {said!r}: it is another stream")
        object.__setattr__(self, "stream_arn", known)

    def _check_consumer(self) -> None:
        if self.strategy is not RegistrationStrategy.NONE:
            if self.consumer_arn:
                raise RegistrationOptionError(option="consumer_arn", reason="is for the strategy none only")
            if not self.consumer_name:
                raise RegistrationOptionError(
                    option="consumer_name", reason="is required, except with the strategy `none`"
                )
            check_consumer_name(self.consumer_name)
            return
        if not self.consumer_arn:
            raise RegistrationOptionError(option="consumer_arn", reason="is needed with the strategy none")
        name = consumer_name_of(self.consumer_arn)
        if self.consumer_name and self.consumer_name != name:
            raise RegistrationOptionError(
                option="consumer_name", reason=f"{self.consumer_name!r} contradicts the ARN, which says {name!r}"
            )
        object.__setattr__(self, "consumer_name", name)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A job's hold on a stream consumer."""

    stream_name: str
    """As the request named it."""
    consumer_name: str
    job_id: str
    consumer_arn: str
    """Contains the consumer's creation time, so that a new registration has another ARN."""
    fencing_token: int
    """Only grows, per stream ARN and consumer name, over all holders."""
    time_to_live_seconds: float
    """Until the lease ends when no heartbeat comes."""
    registration_is_ours: bool
    """Whether the registry made the registration, and will therefore end it."""
    stream_arn: str = ""
    """The lease belongs to this stream. Empty: to the one of that name in the registry's account and region."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The outcome of a heartbeat."""

    held: bool
    """False when the lease is another's, or ended: take it back, or stop reading."""
    time_to_live_seconds: float
    """Seconds that the lease lives from now; 0 when it is not held."""


class ConsumerState(StrEnum):
    """The state of a consumer in Kinesis."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    ABSENT = "ABSENT"
    """It does not exist: deleted by another program, or not registered yet."""


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer that the registry knows."""

    stream_name: str
    consumer_name: str
    consumer_arn: str
    registration_is_ours: bool
    lease: Lease | None
    """The holder's lease, with the seconds until it is over; None when no job holds the consumer. A registry that did
    not watch the lease for long enough shows the times in the store, by the clock of the registry that wrote them."""
    age_seconds: float
    """Since the registry first recorded the consumer."""
    state: ConsumerState | None = None
    """None when Kinesis was not asked, or did not answer."""
    stream_arn: str = ""
    """Distinguishes streams of one name in several accounts and regions; empty when it is not known."""
    held_seconds: float = 0.0
    """Since the holder acquired its lease, by any token; 0 when no job holds the consumer."""
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
