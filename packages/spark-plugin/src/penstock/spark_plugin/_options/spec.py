"""What is declared of an option."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class OptionType(StrEnum):
    """How the text of an option is understood."""

    STRING = "string"
    STRINGS = "strings, comma-separated"
    TEXT = "text, with \\n, \\r and \\t"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "true | false"
    SECONDS = "duration: 5s, 2m, 250ms, or seconds"
    SECONDS_OR_OFF = "duration: 5s, 2m, 250ms, or seconds; or off"
    MILLISECONDS = "milliseconds, or a duration"
    BYTES = "bytes, or 64k, 8m, 1g"
    CHOICE = "choice"
    POSITION = "position"
    TIME = "time: ISO 8601, or seconds or milliseconds since 1970"


(
    STRING,
    STRINGS,
    TEXT,
    INTEGER,
    NUMBER,
    BOOLEAN,
    SECONDS,
    SECONDS_OR_OFF,
    MILLISECONDS,
    BYTES,
    CHOICE,
    POSITION,
    TIME,
) = OptionType


class Place(StrEnum):
    """Where something happens that an option has a say in."""

    DRIVER = "driver"
    """The Python process of the driver that plans a read, or a write."""
    TASK = "task"
    """The Python workers of the executors."""
    REGISTRY = "registry"
    """What leases stream consumers: in the driver's process, or behind `registryEndpoint`."""
    READER = "reader"
    """What follows shards: in the driver's process, or behind `readerEndpoint`."""
    GATEWAY = "gateway"
    """What is behind `sinkEndpoint`; without it write tasks do the same themselves."""


DRIVER, TASK, REGISTRY, READER, GATEWAY = Place
EVERYWHERE = tuple(Place)


class Use(StrEnum):
    """What a data source is used for."""

    ANY_READ = "a read"
    """Spark does not say yet whether it is bounded."""
    READ = "a bounded read"
    READ_STREAM = "a stream that is read"
    WRITE = "a write"


READ, STREAM, WRITE = Use.READ, Use.READ_STREAM, Use.WRITE
_USES_OF_GROUPS = {"reading": (READ, STREAM), "retries": (READ, STREAM), "writing": (WRITE,)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an option is an error together with another one: it would do nothing there."""

    with_option: str
    """Canonical name of the other option: that of an endpoint, or one that has the value `when`."""
    cure: str
    """Why, and what to do instead."""
    unless: str = ""
    """Text of the value, in lower case, that says what is so there anyway."""
    when: str = ""
    """The other option's value with which this one is an error. Empty: any."""


OWN_CREDENTIALS = Refusal("sinkEndpoint", "the sink gateway reaches AWS with settings and credentials of its own")
NO_OWN_READER = Refusal("readerEndpoint", "there is no reader of the query's own that would listen anywhere")
GATEWAY_DECIDES = Refusal("sinkEndpoint", "the gateway decides that for all of its clients")
GATEWAY_RATES = Refusal(
    "sinkEndpoint",
    "give the sink gateway --rate-strategy, --max-records-per-second or their like, for all of its clients",
)
OF_EFO = Refusal(
    "recordPublisher",
    "polling (the default) has no stream consumers: give $recordPublisher=efo for enhanced fan-out",
    when="polling",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """One option: what its field of `KinesisOptions` declares. Its documentation is the docstring of the field."""

    name: str = ""
    """Canonical name, camelCase: that of the field, which is in snake_case."""
    field: str = ""
    group: str = ""
    type: OptionType = STRING
    default: str | None = None
    """As a user would write it; None when there is none."""
    otherwise: str = ""
    """What happens without the option, where that is not a value of it."""
    value: Any = None
    """What the field holds when the option is left out."""
    acts: tuple[Place, ...]
    """Where it has an effect. To a service behind an endpoint its value travels with the request."""
    refused_with: tuple[Refusal, ...] = ()
    """Options with which it would have none."""
    requires: tuple[str, str] | None = None
    """An option that has to be given with it, and why: words that follow its name."""
    at_most: str = ""
    """An option whose value it may not exceed, where both have one."""
    only: tuple[Use, ...] = ()
    """Uses in which it has one, where neither its group nor its places say so."""
    elsewhere: str | None = None
    """The value that says what is so in reads of the other kind anyway."""
    flink: str | None = None
    """Name in Flink's Kinesis connector (FLIP-128 and AWSConfigConstants)."""
    databricks: str | None = None
    aws: str | None = None
    """Name in the AWS connector for Spark."""
    choices: tuple[str, ...] = ()
    """The values of a choice; further values of a boolean."""
    choice_aliases: tuple[tuple[str, str], ...] = ()
    """Values of the other connectors, in lower case, and what they mean here."""
    choice_cures: tuple[tuple[str, str], ...] = ()
    """Values of the other connectors, in lower case, that do not exist here, and what to do instead."""
    minimum: float | None = None
    maximum: float | None = None
    pattern: tuple[str, str] | None = None
    """A regular expression for the whole text (for each, of several), and what it asks for in words."""
    secret: bool = False
    prefix: bool = False
    """Whether `name.<stream>` is the option, one per stream."""

    @property
    def uses(self) -> tuple[Use, ...]:
        """The uses in which it has an effect."""
        if self.only:
            return self.only
        if not {DRIVER, TASK, GATEWAY} & set(self.acts):
            return (STREAM,)  # bounded reads have neither a reader nor stream consumers
        return _USES_OF_GROUPS.get(self.group, (READ, STREAM, WRITE))

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names in other connectors."""
        return tuple(alias for alias in (self.flink, self.databricks, self.aws) if alias)


def field_name(option: str) -> str:
    """The field of `KinesisOptions` that holds an option."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", option).lower()


def option_name(field: str) -> str:
    """The option that a field of `KinesisOptions` holds."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))
