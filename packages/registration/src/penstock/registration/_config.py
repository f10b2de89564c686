"""Options of registration, as FLIP-128 names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from penstock.aws import BackoffPolicy
from penstock.registration.errors import RegistrationOptionError

E = TypeVar("E", bound=StrEnum)

_CONSUMER_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CONSUMER_ARN: Final = re.compile(
    r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)/consumer/(?P<consumer>[a-zA-Z0-9_.-]+):\d+"
)
_STREAM_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)")
_CALLS: Final = ("register", "deregister", "list")

FLIP_128_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flink.stream.efo.consumername": "consumer_name",
        "flink.stream.efo.registration": "strategy",
        **{
            f"flink.stream.{call}streamconsumer{'s' if call == 'list' else ''}.{key}": f"{call}_{name}"
            for call in _CALLS
            for key, name in (
                ("maxretries", "max_retries"),
                ("backoff.base", "backoff_base"),
                ("backoff.max", "backoff_max"),
                ("backoff.expconst", "backoff_expconst"),
            )
        },
    }
)
"""FLIP-128's property names, and the field of `RegistrationConfig` that each sets. Times are milliseconds there.

Beside them `flink.stream.efo.consumerarn.<stream>` gives `consumer_arns`."""

CONSUMER_ARN_PREFIX: Final = "flink.stream.efo.consumerarn."


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


@dataclass(frozen=True, kw_only=True)
class RegistrationConfig(RegistrarConfig):
    """How a job's stream consumers are registered, checked as a whole.

    Raises:
        RegistrationOptionError: naming the option that is missing, wrong or contradicts another.
    """

    strategy: RegistrationStrategy = RegistrationStrategy.LAZY
    """Default lazy, as in FLIP-128."""
    consumer_name: str | None = None
    """Name of the consumer on each stream. Has no default, on purpose; not needed with the strategy none."""
    stream_names: tuple[str, ...] = ()
    """The streams that the job reads."""
    consumer_arns: Mapping[str, str] = field(default_factory=dict)
    """ARN of the consumer per stream name: with the strategy none, for every stream."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "strategy", one_of(RegistrationStrategy, self.strategy, "strategy"))
        object.__setattr__(self, "consumer_arns", dict(self.consumer_arns))
        if self.strategy is RegistrationStrategy.NONE:
            self._check_arns()
            return
        if self.consumer_name is None:
            raise RegistrationOptionError(
                option="consumer_name",
                reason="efo needs a consumer name. None is made up, because a job that dies under a random name"
                " leaves a consumer that nobody finds again: it is billed by the hour and takes one of the"
                " stream's 20 places. Choose a name that is unique to this job and the same after a restart",
            )
        check_consumer_name(self.consumer_name)
        if self.consumer_arns:
            raise RegistrationOptionError(
                option="consumer_arns",
                reason=f"consumer ARNs are for the strategy none; the strategy {self.strategy} finds them itself",
            )

    def _check_arns(self) -> None:
        missing = [name for name in self.stream_names if name not in self.consumer_arns]
        if missing:
            raise RegistrationOptionError(
                option="consumer_arns",
                reason=f"none needs an ARN for each stream: missing for {', '.join(missing)}",
            )
        for stream, arn in self.consumer_arns.items():
            match = _CONSUMER_ARN.fullmatch(arn)
            if match is None:
                raise RegistrationOptionError(
                    option=f"consumer_arns[{stream}]", reason=f"{arn!r} is not the ARN of a stream consumer"
                )
            if match["stream"] != stream:
                raise RegistrationOptionError(
                    option=f"consumer_arns[{stream}]", reason=f"{arn!r} is a consumer of {match['stream']}"
                )
            if self.consumer_name is not None and match["consumer"] != self.consumer_name:
                raise RegistrationOptionError(
                    option="consumer_name",
                    reason=f"{self.consumer_name!r} contradicts consumer_arns[{stream}]: {match['consumer']!r}",
                )

    def consumer_name_for(self, stream_name: str) -> str:
        """The consumer's name on a stream: as configured, or as its ARN has it with the strategy none."""
        if self.strategy is not RegistrationStrategy.NONE and self.consumer_name is not None:
            return self.consumer_name
        if stream_name not in self.consumer_arns:
            raise RegistrationOptionError(
                option="consumer_arns", reason=f"none needs an ARN for each stream: missing for {stream_name}"
            )
        return consumer_name_of(self.consumer_arns[stream_name])

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], stream_names: Iterable[str] = ()) -> Self:
        """The config that FLIP-128's properties describe; other properties are left to others.

        Raises:
            RegistrationOptionError: naming the property whose value does not parse, or the contradiction.
        """
        kinds = {each.name: each.type for each in fields(cls)}
        values: dict[str, Any] = {}
        for key, name in FLIP_128_KEYS.items():
            if key in properties:
                values[name] = _parse(key, properties[key], str(kinds[name]))
        arns = {
            key.removeprefix(CONSUMER_ARN_PREFIX): arn
            for key, arn in properties.items()
            if key.startswith(CONSUMER_ARN_PREFIX)
        }
        try:
            return cls(stream_names=tuple(stream_names), consumer_arns=arns, **values)
        except RegistrationOptionError as error:
            keys = {name: key for key, name in FLIP_128_KEYS.items()}
            reason = re.sub(r"\b\w+_\w+\b", lambda word: keys.get(word[0], word[0]), error.reason)
            raise RegistrationOptionError(option=keys.get(error.option, error.option), reason=reason) from error


def _parse(key: str, text: str, kind: str) -> Any:
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "timedelta":
                return timedelta(milliseconds=int(text))
            case "RegistrationStrategy":
                return RegistrationStrategy(text.lower())
            case _:
                return text
    except (OverflowError, ValueError) as error:
        wanted = {
            "int": "a whole number",
            "float": "a number",
            "timedelta": "milliseconds, a whole number",
            "RegistrationStrategy": "lazy, eager or none",
        }
        raise RegistrationOptionError(option=key, reason=f"{text!r} is not {wanted[kind]}") from error
