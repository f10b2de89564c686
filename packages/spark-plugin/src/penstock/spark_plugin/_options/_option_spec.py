"""How an option is declared."""

from dataclasses import dataclass
from enum import StrEnum


class OptionType(StrEnum):
    """How the text of an option is understood."""

    STRING = "string"
    STRINGS = "strings, comma-separated"
    TEXT = "text, with \\n, \\r and \\t"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "true | false"
    SECONDS = "duration: 5s, 2m, 250ms, or seconds"
    MILLISECONDS = "milliseconds, or a duration"
    BYTES = "bytes, or 64k, 8m, 1g"
    CHOICE = "choice"
    POSITION = "position"
    TIME = "time: ISO 8601 or seconds since 1970"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """One option."""

    name: str
    """Canonical name, camelCase. The field of `KinesisOptions` is the same name in snake_case."""
    group: str
    type: OptionType = OptionType.STRING
    default: str | None = None
    """As a user would write it; None when there is none."""
    doc: str
    flink: str | None = None
    """Name in Flink's Kinesis connector (FLIP-128 and AWSConfigConstants)."""
    databricks: str | None = None
    aws: str | None = None
    """Name in the AWS connector for Spark."""
    also: tuple[str, ...] = ()
    """Further names of our own."""
    choices: tuple[str, ...] = ()
    choice_aliases: tuple[tuple[str, str], ...] = ()
    """Values of the other connectors, in lower case, and what they mean here."""
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False
    prefix: bool = False
    """Whether `name.<stream>` is the option, one per stream."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names in other connectors, and further ones of our own."""
        return (*self.also, *(alias for alias in (self.flink, self.databricks, self.aws) if alias))
