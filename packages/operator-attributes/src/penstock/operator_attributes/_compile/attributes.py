"""What an operator declares to the planner (FLIP-331), directly or with a window assigner."""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self

from penstock.operator_attributes.errors import InvalidOptionError

_log = logging.getLogger(__name__)
_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAttributes:
    """What an operator declares to the planner (FLIP-331, `OperatorAttributes`)."""

    output_only_after_end_of_stream: bool = False
    """True if and only if the operator emits records only after all of its inputs have ended (it is full-dam).

    The operator, and the operators chained with it, then run in batch mode, and their results cross blocking edges.
    """
    internal_sorter_supported: bool = False
    """True if the operator sorts its keyed input itself, so that batch mode need not sort it."""


class OperatorAttributesBuilder:
    """Builds `OperatorAttributes`; both are false by default (FLIP-331, `OperatorAttributesBuilder`)."""

    def __init__(self) -> None:
        self._output_only_after_end_of_stream: bool | None = None
        self._internal_sorter_supported: bool | None = None

    def set_output_only_after_end_of_stream(self, value: bool) -> Self:
        """Set whether the operator emits records only after all of its inputs have ended."""
        self._output_only_after_end_of_stream = value
        return self

    def set_internal_sorter_supported(self, value: bool) -> Self:
        """Set whether the operator sorts its keyed input itself."""
        self._internal_sorter_supported = value
        return self

    def build(self) -> OperatorAttributes:
        """The attributes. One that was not set explicitly is false, and logged at DEBUG."""
        return OperatorAttributes(
            output_only_after_end_of_stream=_explicit(
                "output_only_after_end_of_stream", self._output_only_after_end_of_stream
            ),
            internal_sorter_supported=_explicit("internal_sorter_supported", self._internal_sorter_supported),
        )


def _explicit(name: str, value: bool | None) -> bool:
    if value is None:
        _log.debug("operator attribute %s is not set explicitly: false is used", name)
        return False
    return value


class WindowAssigner(Protocol):
    """Puts the records of an input into windows."""

    @property
    def fires_only_at_end_of_stream(self) -> bool:
        """True if and only if no window gives a result before the input has ended."""
        ...


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """All records of a key in one window (FLIP-331, `GlobalWindows`). Made by its two class methods."""

    end_of_stream_trigger: bool
    """Whether the window fires, once per key, when the input has ended. Without it the window never fires."""

    @classmethod
    def create(cls) -> Self:
        """A window that never fires on its own: useful only with the user's own trigger."""
        return cls(end_of_stream_trigger=False)

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> Self:
        """A window that fires once per key, at the end of the input and never before."""
        return cls(end_of_stream_trigger=True)

    @property
    def fires_only_at_end_of_stream(self) -> bool:
        """True with the end-of-stream trigger."""
        return self.end_of_stream_trigger


def window_attributes(window: WindowAssigner, *, internal_sorter_supported: bool = False) -> OperatorAttributes:
    """Attributes of a window operator: full-dam if its windows fire only at the end of the input (FLIP-331)."""
    return (
        OperatorAttributesBuilder()
        .set_output_only_after_end_of_stream(window.fires_only_at_end_of_stream)
        .set_internal_sorter_supported(internal_sorter_supported)
        .build()
    )


class _TimeWindows:
    """Windows that fire when their time is over, or the gap of a session."""

    __slots__ = ()

    @property
    def fires_only_at_end_of_stream(self) -> bool:
        """False: each window fires when its time is over."""
        return False


@dataclass(frozen=True, slots=True)
class TumblingWindows(_TimeWindows):
    """Windows of one size, each beginning where the one before ends (Flink's `TumblingEventTimeWindows`)."""

    size: timedelta
    offset: timedelta = _ZERO
    """By how much the windows begin after multiples of `size` since 1970."""

    def __post_init__(self) -> None:
        _positive("size", self.size)
        _offset(self.offset, self.size, "size")


@dataclass(frozen=True, slots=True)
class SlidingWindows(_TimeWindows):
    """Windows of one size that begin at regular intervals (Flink's `SlidingEventTimeWindows`).

    If `slide` is less than `size`, a record is in several windows. If it is more, some records are in no window.
    """

    size: timedelta
    slide: timedelta
    """Time between the starts of two windows."""
    offset: timedelta = _ZERO
    """By how much the windows begin after multiples of `slide` since 1970."""

    def __post_init__(self) -> None:
        _positive("size", self.size)
        _positive("slide", self.slide)
        _offset(self.offset, self.slide, "slide")


@dataclass(frozen=True, slots=True)
class SessionWindows(_TimeWindows):
    """Windows of records of a key that follow each other within a gap (Flink's `EventTimeSessionWindows`)."""

    gap: timedelta
    """A pause of this length ends a session."""

    def __post_init__(self) -> None:
        _positive("gap", self.gap)


def _positive(option: str, value: timedelta) -> None:
    if value <= _ZERO:
        raise InvalidOptionError(option, str(value), "more than 0")


def _offset(offset: timedelta, period: timedelta, name: str) -> None:
    # Flink's rule: a larger offset is one that was meant for another size.
    if abs(offset) >= period:
        raise InvalidOptionError("offset", str(offset), f"less than the {name}, either way")
