"""Windows of time: they fire as time passes, and so never hold a stage back."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from penstock.operator_attributes.errors import InvalidOptionError

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Windows of one size, each beginning where the one before ends (Flink's `TumblingEventTimeWindows`)."""

    size: timedelta
    offset: timedelta = _ZERO
    """By how much the windows begin after multiples of `size` since 1970."""

    def __post_init__(self) -> None:
        _positive("size", self.size)
        _offset(self.offset, self.size, "size")

    @classmethod
    def of(cls, size: timedelta, offset: timedelta = _ZERO) -> Self:
        """Windows of this size. Raises: InvalidOptionError."""
        return cls(size, offset)

    @property
    def fires_only_at_end_of_stream(self) -> bool:
        """False: each window fires when its time is over."""
        return False


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of one size that begin at regular intervals (Flink's `SlidingEventTimeWindows`).

    A record is in several of them when `slide` is less than `size`, and in one or none when it is more.
    """

    size: timedelta
    slide: timedelta
    """From the beginning of a window to that of the next."""
    offset: timedelta = _ZERO
    """By how much the windows begin after multiples of `slide` since 1970."""

    def __post_init__(self) -> None:
        _positive("size", self.size)
        _positive("slide", self.slide)
        _offset(self.offset, self.slide, "slide")

    @classmethod
    def of(cls, size: timedelta, slide: timedelta, offset: timedelta = _ZERO) -> Self:
        """Windows of this size and slide. Raises: InvalidOptionError."""
        return cls(size, slide, offset)

    @property
    def fires_only_at_end_of_stream(self) -> bool:
        """False: each window fires when its time is over."""
        return False


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of records of a key that follow each other within a gap (Flink's `EventTimeSessionWindows`)."""

    gap: timedelta
    """A pause of this length ends a session."""

    def __post_init__(self) -> None:
        _positive("gap", self.gap)

    @classmethod
    def with_gap(cls, gap: timedelta) -> Self:
        """Sessions that end after this gap. Raises: InvalidOptionError."""
        return cls(gap)

    @property
    def fires_only_at_end_of_stream(self) -> bool:
        """False: a session fires when its gap is over."""
        return False


def _positive(option: str, value: timedelta) -> None:
    if value <= _ZERO:
        raise InvalidOptionError(option, str(value), "more than 0")


def _offset(offset: timedelta, period: timedelta, name: str) -> None:
    # Flink's rule: a larger offset is one that was meant for another size.
    if abs(offset) >= period:
        raise InvalidOptionError("offset", str(offset), f"less than the {name}, either way")
