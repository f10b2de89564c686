"""Options of registration, as FLIP-128 names them, and the names and ARNs of streams and consumers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from penstock.aws import BackoffPolicy
from penstock.registration.errors import RegistrationOptionError

E = TypeVar("E", bound=StrEnum)

_CONSUMER_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CONSUMER_ARN: Final = re.compile(
    r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)/consumer/(?P<consumer>[a-zA-Z0-9_.-]+):\d+"
)
_STREAM_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)")
_CALLS: Final = ("register", "deregister", "list")


class RegistrationStrategy(StrEnum):
    """When a consumer is registered and deregistered (FLIP-128, `efo.registration`)."""

    LAZY = "lazy"
    """When the query starts; deregistered when the last lease is gone."""
    EAGER = "eager"
    """When the DataFrame is made; deregistered when the last lease is gone."""
    NONE = "none"
    """Never: the caller names the consumer's ARN, and ends it himself."""


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
        RegistrationOptionError: there is no such member; the error lists those that there are.
    """
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(member.value for member in kind)
        raise RegistrationOptionError(option=option, reason=f"{value!r} is none of {names}") from error


def consumer_name_of(consumer_arn: str) -> str:
    """The name inside a consumer's ARN.

    Raises:
        RegistrationOptionError: it is no ARN of a stream consumer.
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
    """The ARN of the stream inside a consumer's ARN; empty when there is none."""
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


@dataclass(frozen=True, kw_only=True)
class RegistrarConfig:
    """Retries of the calls that register, deregister and look up consumers: FLIP-128's keys with its defaults."""

    register_max_retries: int = 10
    """Attempts after a retryable error. `flink.stream.registerstreamconsumer.maxretries`."""
    register_backoff_base: timedelta = timedelta(milliseconds=200)
    """`flink.stream.registerstreamconsumer.backoff.base`. A lazy start is staggered by up to this, too."""
    register_backoff_max: timedelta = timedelta(seconds=1)
    """`flink.stream.registerstreamconsumer.backoff.max`."""
    register_backoff_expconst: float = 1.5
    """`flink.stream.registerstreamconsumer.backoff.expconst`."""
    deregister_max_retries: int = 10
    """Attempts after a retryable error. `flink.stream.deregisterstreamconsumer.maxretries`."""
    deregister_backoff_base: timedelta = timedelta(milliseconds=200)
    """`flink.stream.deregisterstreamconsumer.backoff.base`."""
    deregister_backoff_max: timedelta = timedelta(seconds=1)
    """`flink.stream.deregisterstreamconsumer.backoff.max`."""
    deregister_backoff_expconst: float = 1.5
    """`flink.stream.deregisterstreamconsumer.backoff.expconst`."""
    list_max_retries: int = 10
    """Attempts after a retryable error, for all look-ups. `flink.stream.liststreamconsumers.maxretries`."""
    list_backoff_base: timedelta = timedelta(milliseconds=200)
    """`flink.stream.liststreamconsumers.backoff.base`. Also the first pause while a consumer is waited for."""
    list_backoff_max: timedelta = timedelta(seconds=1)
    """`flink.stream.liststreamconsumers.backoff.max`. Also the longest pause while a consumer is waited for."""
    list_backoff_expconst: float = 1.5
    """`flink.stream.liststreamconsumers.backoff.expconst`."""
    register_timeout: timedelta = timedelta(seconds=60)
    """Until the consumer must be ACTIVE. Not in FLIP-128; the default is that of Flink's later releases."""
    deregister_timeout: timedelta = timedelta(seconds=60)
    """Until the consumer must be gone. Not in FLIP-128; the default is that of Flink's later releases."""

    def __post_init__(self) -> None:
        for call in _CALLS:
            retries, expconst = f"{call}_max_retries", f"{call}_backoff_expconst"
            base, longest = f"{call}_backoff_base", f"{call}_backoff_max"
            if getattr(self, retries) < 0:
                raise RegistrationOptionError(option=retries, reason="must not be negative")
            if getattr(self, base) <= timedelta(0):
                raise RegistrationOptionError(option=base, reason="must be positive")
            if getattr(self, longest) < getattr(self, base):
                raise RegistrationOptionError(option=longest, reason=f"must not be less than {base}")
            if not getattr(self, expconst) >= 1:
                raise RegistrationOptionError(option=expconst, reason="must be at least 1")
        for option in ("register_timeout", "deregister_timeout"):
            if getattr(self, option) <= timedelta(0):
                raise RegistrationOptionError(option=option, reason="must be positive")

    def policy(self, call: str) -> BackoffPolicy:
        """The back-off of `register`, `deregister` or `list`."""
        return BackoffPolicy(
            base=getattr(self, f"{call}_backoff_base"),
            maximum=getattr(self, f"{call}_backoff_max"),
            exponent=getattr(self, f"{call}_backoff_expconst"),
            max_attempts=getattr(self, f"{call}_max_retries") + 1,
        )
