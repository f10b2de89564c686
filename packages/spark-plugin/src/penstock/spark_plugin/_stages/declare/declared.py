"""What a pipeline is made of, and which results it computes again at intervals."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.operator_attributes import OperatorAttributes, ResultPartitionType, Stage, StagePlan, VertexKind
from penstock.spark_plugin.errors import PipelineDefinitionError

Keyed = bool | str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""`True`, a column, columns, or either by the name of the input."""
Exchange = str | Mapping[str, str]
"""`"pipelined"` or `"blocking"`, or either by the name of the input."""
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|seconds?|minutes?|hours?|days?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FIRST_PAUSE_SECONDS = 60.0


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
    """The fingerprint of what a source reads, where the user gives it."""
    code: str | None = None
    """Fingerprint of the function, where it is not the function's own."""
    pure: bool = False
    """Whether the function gives the same rows for the same inputs, whatever it reads outside of the pipeline."""
    order: Callable[[Any], Any] | None = None
    """For a sorting operator: sorts its result again after it was read back."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """A result that is computed again from time to time."""

    operator: str
    every_seconds: float
    stages: tuple[Stage, ...]
    """Bounded stages that are checked again, in order: the operator's, the stages that they read, and their readers."""
    readers: tuple[Stage, ...]
    """Live stages that read any of them."""

    def pause_seconds(self, failures: int) -> float:
        """Until it is tried again after it failed so often in a row."""
        return min(self.every_seconds, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 30))


def find_refreshes(declared: Mapping[str, Declared], plan: StagePlan) -> tuple[Refresh, ...]:
    """What is to be computed again.

    Raises:
        PipelineDefinitionError: the interval is invalid, no live stage would read the result, or a batch sink has been
            written with it.
    """
    return tuple(_refresh(one, declared, plan) for one in declared.values() if one.refresh is not None)


def _refresh(one: Declared, declared: Mapping[str, Declared], plan: StagePlan) -> Refresh:
    every = _interval_seconds(one)
    own = {stage.id for stage in plan.stages if stage.bounded and one.name in stage.vertices}
    found = set(own)
    pending = [plan.stage(stage_id) for stage_id in own]
    while pending:
        before = set(pending.pop().blocking_inputs) - found
        found |= before
        pending += map(plan.stage, before)
    # In the order of the plan a stage comes after those that it reads.
    for stage in plan.stages:
        if found & set(stage.blocking_inputs):
            found.add(stage.id)
    stages = [stage for stage in plan.stages if stage.id in found]
    readers = tuple(stage for stage in stages if not stage.bounded)
    if not own or not readers:
        raise PipelineDefinitionError(
            f"{named([one])} has refresh={one.refresh!r}, but no live stage reads a committed result of it: declare it "
            "full-dam with attributes=OperatorAttributes(output_only_after_end_of_stream=True), or leave refresh out"
        )
    written = [declared[name] for name in _vertices(stages) if declared[name].kind is VertexKind.SINK]
    batch = [sink for sink in written if not any(sink.name in stage.vertices for stage in readers)]
    if batch:
        raise PipelineDefinitionError(
            f"{named([one])} has refresh={one.refresh!r}, but what is computed again with it is also written by the "
            f"batch {named(batch)}, once in a run: write that by a pipeline of its own, or leave refresh out"
        )
    bounded = tuple(stage for stage in stages if stage.bounded)
    return Refresh(operator=one.name, every_seconds=every, stages=bounded, readers=readers)


def seconds_text(seconds: float) -> str:
    """`6 h`, `90 s`."""
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g} {'min' if unit == 'm' else unit}"
    return f"{seconds:g} s"


def _vertices(stages: Iterable[Stage]) -> list[str]:
    return list(dict.fromkeys(name for stage in stages for name in stage.vertices))


def _interval_seconds(one: Declared) -> float:
    given, seconds = one.refresh, math.nan
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, str) and (found := _INTERVAL.fullmatch(given.strip().lower())):
        seconds = float(found[1]) * _SECONDS[found[2][0]]
    if not seconds > 0:
        raise PipelineDefinitionError(
            f"{named([one])} has refresh={given!r}: give a positive timedelta, or a text such as '6h' or '30 minutes'"
        )
    return seconds
