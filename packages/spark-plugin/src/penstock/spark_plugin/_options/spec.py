"""What is declared of an option."""

import dataclasses
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class OptionType(StrEnum):
    """How the text of an option is understood."""

    STRING = "string"
    STRINGS = "strings, comma-separated"
    TEXT = "text, with \\n, \\r and \\t"
    INTEGER = "integer"
    BOOLEAN = "true | false"
    SECONDS = "duration: 5s, 2m, 250ms, or seconds"
    SECONDS_OR_OFF = "duration: 5s, 2m, 250ms, or seconds; or off"
    MILLISECONDS = "milliseconds, or a duration"
    BYTES = "bytes, or 64k, 8m, 1g"
    CHOICE = "choice"
    POSITION = "position"
    TIME = "time: ISO 8601, or seconds or milliseconds since 1970"


class Place(StrEnum):
    """A process in which an option has an effect."""

    DRIVER = "driver"
    """The Python process of the driver, which plans a read or a write."""
    TASK = "task"
    """The Python workers of the executors."""
    REGISTRY = "registry"
    """The registry that leases stream consumers: in the driver's process, or at `registryEndpoint`."""
    READER = "reader"
    """The reader that follows shards: in the driver's process, or at `readerEndpoint`."""
    GATEWAY = "gateway"
    """The gateway at `sinkEndpoint`; without it write tasks do the same themselves."""


class Use(StrEnum):
    """What a data source is used for."""

    ANY_READ = "a read"
    """Spark has not said yet whether the read is bounded."""
    READ = "a bounded read"
    READ_STREAM = "a stream that is read"
    WRITE = "a write"


READS = (Use.READ, Use.READ_STREAM)
USES = {"read": Use.READ, "stream": Use.READ_STREAM, "write": Use.WRITE}
_USES_OF_GROUPS = {
    **dict.fromkeys(("positions", "fetching", "retries", "batches", "rows"), READS),
    **dict.fromkeys(("records", "sending"), (Use.WRITE,)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """One option: what its field of `KinesisOptions` declares. Its documentation is the docstring of the field."""

    type: OptionType
    acts: tuple[Place, ...]
    """Where it has an effect. For a service at an endpoint, its value is sent with the request."""
    only: tuple[Use, ...] = ()
    """The uses in which it has an effect, if neither its group nor its places say so."""
    name: str = ""
    """Canonical name, camelCase; the field has the same name in snake_case."""
    field: str = ""
    group: str = ""
    default: str | None = None
    """As a user would write it; None without a default."""
    otherwise: str = ""
    """What happens without the option, if that is not a value of it."""
    value: Any = None
    """What the field holds when the option is left out."""
    needs: str = ""
    """An option without which it has no effect, as `name`, or `name=value` when the value matters."""
    not_with: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Options beside which it has no effect, as `name` or `name=value`, and why."""
    harmless: str = ""
    """A value that is accepted even where the option has no effect, because it changes nothing there."""
    at_most: str = ""
    """An option whose value it may not exceed, where both have one."""
    choices: tuple[str, ...] = ()
    """The values of a choice; further values of a boolean."""
    minimum: float | None = None
    maximum: float | None = None
    pattern: tuple[str, str] | None = None
    """A regular expression for the whole text (for each, of several), and a description of it."""
    secret: bool = False
    prefix: bool = False
    """Whether the option is `name.<stream>`, one per stream."""

    @property
    def uses(self) -> tuple[Use, ...]:
        """The uses in which it has an effect."""
        if self.only:
            return self.only
        if not {Place.DRIVER, Place.TASK, Place.GATEWAY} & set(self.acts):
            return (Use.READ_STREAM,)  # bounded reads have neither a reader nor stream consumers
        return _USES_OF_GROUPS.get(self.group, (*READS, Use.WRITE))


def field_name(option: str) -> str:
    """The field of `KinesisOptions` that holds an option."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", option).lower()


def option_name(field: str) -> str:
    """The option that a field of `KinesisOptions` holds."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))
