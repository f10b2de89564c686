"""Where a new query begins: the names that users give."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Self

from penstock.efo_consumer.errors import EfoConsumerConfigError

_OPTION = "initialPosition"
_NUMBER = re.compile(r"(?P<whole>[0-9]{1,15})(?P<fraction>\.[0-9]*)?")
_FIRST_MILLIS = 100_000_000_000


class InitialPositionType(StrEnum):
    """Kinds of a start; resolved once to positions in shards."""

    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True)
class InitialPosition:
    """Where a new query begins.

    Attributes:
        type: LATEST, TRIM_HORIZON or AT_TIMESTAMP.
        timestamp_millis: milliseconds since the epoch, with AT_TIMESTAMP.

    Raises:
        EfoConsumerConfigError: a time is missing, or given without AT_TIMESTAMP.
    """

    type: InitialPositionType
    timestamp_millis: int | None = None

    def __post_init__(self) -> None:
        if (self.timestamp_millis is not None) != (self.type is InitialPositionType.AT_TIMESTAMP):
            raise EfoConsumerConfigError(option=_OPTION, reason=f"{self.type} and a time do not go together")

    @classmethod
    def parse(cls, text: str, timestamp: str | None = None) -> Self:
        """Read `LATEST`, `TRIM_HORIZON` or `AT_TIMESTAMP`, in any letter case, and the time of the last.

        The time is ISO 8601 with its offset, or a number since the epoch: milliseconds, or seconds when it has a
        point or is below 100,000,000,000. In seconds that is the year 5138, in milliseconds March 1973, before Kinesis.

        Raises:
            EfoConsumerConfigError: not one of these.
        """
        try:
            kind = InitialPositionType(text.strip().upper())
        except ValueError as error:
            names = ", ".join(InitialPositionType)
            raise EfoConsumerConfigError(option=_OPTION, reason=f"{text!r} is not one of {names}") from error
        return cls(kind, None if timestamp is None else _millis(timestamp))


def _millis(text: str) -> int:
    number = _NUMBER.fullmatch(text.strip())
    if number is not None:
        is_seconds = number["fraction"] is not None or int(number["whole"]) < _FIRST_MILLIS
        return int(Decimal(number[0]) * 1000) if is_seconds else int(number["whole"])
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        reason = f"{text!r} is neither ISO 8601 nor milliseconds or seconds since the epoch"
        raise EfoConsumerConfigError(option=_OPTION, reason=reason) from error
    if moment.tzinfo is None:
        raise EfoConsumerConfigError(option=_OPTION, reason=f"{text!r} has no offset, such as Z or +02:00")
    return round(moment.timestamp() * 1000)
