"""Where a new query begins: the names that users give."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from penstock.efo_consumer.errors import EfoConsumerConfigError

_OPTION = "initialPosition"


class StartingPositionType(StrEnum):
    """Kinds of a start; resolved once to positions in shards."""

    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True)
class StartingPosition:
    """Where a new query begins.

    Attributes:
        type: LATEST, TRIM_HORIZON or AT_TIMESTAMP.
        timestamp_millis: milliseconds since the epoch, with AT_TIMESTAMP.

    Raises:
        EfoConsumerConfigError: a time is missing, or given without AT_TIMESTAMP.
    """

    type: StartingPositionType
    timestamp_millis: int | None = None

    def __post_init__(self) -> None:
        if (self.timestamp_millis is not None) != (self.type is StartingPositionType.AT_TIMESTAMP):
            raise EfoConsumerConfigError(option=_OPTION, reason=f"{self.type} and a time do not go together")

    @classmethod
    def parse(cls, text: str, timestamp: str | None = None) -> Self:
        """Read `LATEST`, `TRIM_HORIZON` or `AT_TIMESTAMP`, in any letter case, and the time of the last.

        The time is ISO 8601 with its offset, or milliseconds since the epoch.

        Raises:
            EfoConsumerConfigError: not one of these.
        """
        try:
            kind = StartingPositionType(text.strip().upper())
        except ValueError as error:
            names = ", ".join(StartingPositionType)
            raise EfoConsumerConfigError(option=_OPTION, reason=f"{text!r} is none of {names}") from error
        return cls(kind, None if timestamp is None else _millis(timestamp))


def _millis(text: str) -> int:
    if text.strip().isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        reason = f"{text!r} is neither ISO 8601 nor milliseconds since the epoch"
        raise EfoConsumerConfigError(option=_OPTION, reason=reason) from error
    if moment.tzinfo is None:
        raise EfoConsumerConfigError(option=_OPTION, reason=f"{text!r} has no offset, such as Z or +02:00")
    return round(moment.timestamp() * 1000)
