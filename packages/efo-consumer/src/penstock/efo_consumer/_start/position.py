"""Where a new query begins: the names and times that users give."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTION = "initialPosition"
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
_EPOCH = datetime.fromtimestamp(0, UTC)
# No record of Kinesis is older: it was announced on 2013-11-14.
_FIRST_SECONDS = 1_384_387_200
# No stream keeps records for longer than a year: a time that lies further ahead is a mistake.
_AHEAD_SECONDS = 366 * 86_400

TIME_RULE = (
    "a time such as 2026-01-31T12:00:00Z, or a number of seconds or milliseconds since 1970 that lies between "
    "2013-11-14 and a year from now"
)
"""What `parse_time` takes."""


def parse_time(text: str, *, zone: tzinfo | None = None, now: Callable[[], float] = time.time) -> datetime:
    """Read a time: ISO 8601, or a number of seconds or milliseconds since 1970.

    A number is only taken where it is a time that a record can have. Kinesis began in 2013, and keeps records for up to
    a year; so no number can be both seconds and milliseconds. `20261129`, `202611291200` and `2026` are dates, or parts
    of dates, and are refused.

    Args:
        text: the time.
        zone: the time zone of a text without an offset. Without it such a text is refused.
        now: seconds since 1970.

    Raises:
        ValueError: the text is something else. The message says what is accepted, and is to follow "must be".
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = Decimal(text)
        last = Decimal(now()) + _AHEAD_SECONDS
        for one in (seconds, seconds / 1000):
            if _FIRST_SECONDS <= one <= last:
                return _EPOCH + timedelta(microseconds=int(one * 1_000_000))
        raise ValueError(f"{TIME_RULE}; a date has hyphens, such as 2026-01-31")
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(TIME_RULE) from None
    if found.tzinfo is None:
        if zone is None:
            raise ValueError(f"{TIME_RULE}; a time needs an offset, such as Z or +02:00")
        found = found.replace(tzinfo=zone)
    if found < _EPOCH:
        raise ValueError("a time since 1970: Kinesis knows none before")
    return found


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

        The time is ISO 8601 with its offset, or a number of seconds or milliseconds since 1970; see `parse_time`.

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
    try:
        found = parse_time(text)
    except ValueError as error:
        raise EfoConsumerConfigError(option=_OPTION, reason=f"{text!r} must be {error}") from error
    # The first millisecond that does not lie before the time: records arrive at whole ones.
    return -(-(found - _EPOCH) // timedelta(milliseconds=1))
