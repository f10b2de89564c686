"""What a pipeline is made of."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.operator_attributes import OperatorAttributes, VertexKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One function of a pipeline."""

    name: str
    kind: VertexKind
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    bounded: bool = False
    attributes: OperatorAttributes | None = None
    keyed: bool = False
    chained: bool = False
    parallelism: int = 1
    trigger: Mapping[str, Any] | None = None
    fingerprint: str | None = None
    """Of what a source reads, where the user knows it."""
    code: str | None = None
    """Fingerprint of the function, where it is not the function's own."""
    order: Callable[[Any], Any] | None = None
    """Of a sorting operator: puts its result, read back, into its order again."""
    keys: tuple[str, ...] = ()
    """Columns that its result is looked up by, where that is known."""
    full_dam_when_bounded: bool = False
    """Whether it waits for the end of its inputs where they have one."""
    started: Callable[[], object] | None = None
    """Called when the query of a live sink was started."""
    site: str | None = None
    """`file:line` of the user's code, where it is not the function's own."""

    @property
    def call_site(self) -> str:
        """`file:line` of the function."""
        return place_of(self.function) if self.site is None else self.site


def place_of(function: Callable[..., Any]) -> str:
    """`file:line` of a function."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)  # an object that can be called has none
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def named(declared: Sequence[Declared]) -> str:
    """`sinks 'a' (file:line) and 'b' (file:line)`."""
    kind = declared[0].kind.value
    words = [f"{one.name!r} ({one.call_site})" for one in declared]
    return f"{kind} {words[0]}" if len(words) == 1 else f"{kind}s {', '.join(words[:-1])} and {words[-1]}"
