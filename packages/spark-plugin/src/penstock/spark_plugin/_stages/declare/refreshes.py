"""Results that are computed again while live stages read them: what was declared, and which stages it means."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from penstock.operator_attributes import Stage, StagePlan, VertexKind
from penstock.spark_plugin._stages.declare.declared import Declared, named
from penstock.spark_plugin.errors import PipelineDefinitionError

_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|seconds?|minutes?|hours?|days?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FIRST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """A result that is computed again from time to time."""

    operator: str
    every_seconds: float
    stages: tuple[Stage, ...]
    """Bounded stages that are looked at anew: the operator's, what they read, and what reads any of them; in order."""
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
