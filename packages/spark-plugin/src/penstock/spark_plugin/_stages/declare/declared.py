"""What a pipeline is made of."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.operator_attributes import OperatorAttributes, ResultPartitionType, VertexKind

Keyed = bool | str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""`True`, a column, columns, or either by the name of the input."""
Exchange = str | Mapping[str, str]
"""`"pipelined"` or `"blocking"`, or either by the name of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One function of a pipeline."""

    name: str
    kind: VertexKind
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    bounded: bool = False
    attributes: OperatorAttributes | None = None
    keyed: Keyed = False
    """By which columns its inputs are partitioned on their way: all of them, or those that are named; or that they are,
    by what the function itself does."""
    chained: bool | None = None
    """Whether it goes with its only input; None leaves it to the planner."""
    exchange: Exchange | None = None
    """How the rows of its inputs are handed over, where that is declared."""
    parallelism: int | None = None
    """Tasks that it runs in at most, and slots that it takes; None for as many as Spark makes, and one slot."""
    trigger: Mapping[str, Any] | None = None
    refresh: str | timedelta | None = None
    """How often the result of an operator is computed again for the live stages that read it."""
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

    def keys_of(self, source: str) -> tuple[str, ...]:
        """The columns that an input is partitioned by; none where they are not named."""
        keys = self.keyed.get(source, ()) if isinstance(self.keyed, Mapping) else self.keyed
        if isinstance(keys, bool):
            return ()
        return (keys,) if isinstance(keys, str) else tuple(keys)

    def exchange_of(self, source: str) -> str:
        """How the rows of an input are handed over, by the words of `ResultPartitionType`."""
        given = self.exchange.get(source) if isinstance(self.exchange, Mapping) else self.exchange
        return ResultPartitionType.UNDECIDED if given is None else given

    @property
    def wants_sorted(self) -> bool:
        """Whether its inputs are sorted by the keys that it names: it is full-dam, and has no sorter of its own."""
        one = self.attributes
        return one is not None and one.output_only_after_end_of_stream and not one.internal_sorter_supported

    @property
    def dams(self) -> bool:
        """Whether it says that it waits for the end of its inputs, at least where they have one."""
        one = self.attributes
        return self.full_dam_when_bounded or (one is not None and one.output_only_after_end_of_stream)

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
