"""Window assigners, as far as the planner must know them."""

from dataclasses import dataclass
from typing import Protocol, Self

from penstock.operator_attributes._attributes import OperatorAttributes, OperatorAttributesBuilder


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
        """A window that never fires by itself: useful only with a trigger of the user's own."""
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
