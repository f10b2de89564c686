"""From what the caller writes to what the destination takes."""

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

I_contra = TypeVar("I_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
E = TypeVar("E")


class WriteContext(Protocol):
    """What a converter may know about the writer."""

    @property
    def destination(self) -> str:
        """Name of the destination."""

    @property
    def records_written(self) -> int:
        """Records written so far: the number of the record that is being converted."""


class ElementConverter(Protocol[I_contra, R_co]):
    """Makes a request entry of an element. One per sink; it keeps no state between elements."""

    def apply(self, element: I_contra, context: WriteContext) -> R_co:
        """The entry for the element."""


class IdentityConverter:
    """For callers that write request entries."""

    def apply(self, element: E, context: WriteContext) -> E:
        """The element itself."""
        return element


class FunctionConverter:
    """A plain function as a converter."""

    def __init__(self, function: Callable[[object], object]) -> None:
        self._function = function

    def apply(self, element: object, context: WriteContext) -> object:
        """What the function makes of the element."""
        return self._function(element)


def as_converter(
    converter: ElementConverter[I_contra, R_co] | Callable[[I_contra], R_co] | None,
) -> ElementConverter[I_contra, R_co]:
    """A converter of a converter, of a function, or of nothing: then elements are entries."""
    if converter is None:
        return cast("ElementConverter[I_contra, R_co]", IdentityConverter())
    if hasattr(converter, "apply"):
        return cast("ElementConverter[I_contra, R_co]", converter)
    return cast("ElementConverter[I_contra, R_co]", FunctionConverter(cast("Callable[[object], object]", converter)))
