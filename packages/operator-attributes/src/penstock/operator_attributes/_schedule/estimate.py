"""What staging saves, from measured or given seconds, rows and bytes: pure functions over a plan.

The naive way deploys all stages at once and, in Spark, computes the bounded side of a live join again in every
micro-batch. Staging deploys a stage when its inputs are committed, and computes each once.

- `blocking_seconds(s)`: from the start of the job until the last blocking input of `s` is committed. As measured; or
  the longest path, the maximum over the inputs `i` of `blocking_seconds(i) + seconds(i)`; or, under a slot budget, as
  the scheduler would deploy the stages.
- `slot_seconds = sum over stages s of slots(s) x blocking_seconds(s)`: what downstream slots would idle away.
- `state_bytes = sum over live stages s of blocking_seconds(s) x arriving_bytes_per_second(s)` (what they would keep of
  their unbounded inputs while they wait) `+ sum over the blocking inputs i of s of size_bytes(i)` (what a streaming
  join would hold as its state for ever).
- `recomputed_seconds(s)`: the seconds of all bounded stages above the live stage `s`, each once, less the seconds for
  reading what they committed. It is saved in each micro-batch of `s`.
- `break_even_batches(s)`: the first number of micro-batches after which computing once was cheaper.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.operator_attributes._compile.plan import Stage, StagePlan
from penstock.operator_attributes._schedule.scheduler import StageScheduler
from penstock.operator_attributes._schedule.states import StageFinished, StageProgress, StageStarted
from penstock.operator_attributes.errors import InvalidOptionError, SchedulingError


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMeasure:
    """What is known of a stage: measured in an earlier run, or given. What is not known counts as 0."""

    seconds: float = 0.0
    """From its deployment to its commit; without meaning for a live stage."""
    rows: int = 0
    """Rows that it commits."""
    size_bytes: int = 0
    """Bytes that it commits."""
    blocking_seconds: float | None = None
    """Measured: from the start of the job until its blocking inputs were committed. None: to be computed."""
    arriving_bytes_per_second: float = 0.0
    """The rate at which records arrive from the unbounded inputs of a live stage."""
    read_seconds: float = 0.0
    """The time that a live stage needs in each micro-batch to read its committed inputs."""

    def __post_init__(self) -> None:
        for option in self.__slots__:
            value = getattr(self, option)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidOptionError(option, value, "a number that is not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSavings:
    """What staging saves at one stage, with what that is made of."""

    stage_id: str
    name: str
    live: bool
    slots: int
    blocking_seconds: float
    """How long it is held back; in the naive way it would hold its slots meanwhile."""
    slot_seconds: float
    """`slots x blocking_seconds`."""
    arriving_bytes: float
    """Live stages: what would pile up of the unbounded inputs meanwhile."""
    joined_bytes: int
    """Live stages: what its blocking inputs commit; a streaming join would hold it as state."""
    recomputed_seconds: float
    """Live stages: saved in each micro-batch."""
    break_even_batches: int | None
    """Live stages: after so many micro-batches staging was cheaper; None if never, 0 if there is nothing to save."""

    @property
    def state_bytes(self) -> float:
        """`arriving_bytes + joined_bytes`."""
        return self.arriving_bytes + self.joined_bytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """What staging saves in a job: the sums, and each stage."""

    stages: tuple[StageSavings, ...]
    """In the order of the plan."""

    @property
    def slot_seconds(self) -> float:
        """Slot-seconds that are not idled away."""
        return math.fsum(stage.slot_seconds for stage in self.stages)

    @property
    def state_bytes(self) -> float:
        """Bytes that are not held as state, at the peak."""
        return math.fsum(stage.state_bytes for stage in self.stages)

    @property
    def recomputed_seconds_per_batch(self) -> float:
        """Seconds that are not computed again, if each live stage runs one micro-batch."""
        return math.fsum(stage.recomputed_seconds for stage in self.stages)

    def stage(self, stage_id: str) -> StageSavings:
        """The savings at a stage. Raises: SchedulingError (UNKNOWN_STAGE)."""
        for stage in self.stages:
            if stage.stage_id == stage_id:
                return stage
        raise SchedulingError.of("UNKNOWN_STAGE", stage_id=stage_id)

    def explain(self) -> str:
        """The sums and their inputs as text."""
        lines = [
            f"staging saves {self.slot_seconds:,.1f} slot-seconds, {self.state_bytes:,.0f} bytes of state "
            f"and {self.recomputed_seconds_per_batch:,.1f} s of each micro-batch"
        ]
        for one in self.stages:
            if one.slot_seconds:
                slots = f"{one.slots} slot" + ("" if one.slots == 1 else "s")
                lines.append(
                    f"  {one.stage_id}  {one.name}: {slots} x {one.blocking_seconds:,.1f} s blocked "
                    f"= {one.slot_seconds:,.1f} slot-seconds"
                )
            if one.state_bytes:
                lines.append(
                    f"  {one.stage_id}  {one.name}: {one.arriving_bytes:,.0f} bytes arriving meanwhile "
                    f"+ {one.joined_bytes:,} bytes joined = {one.state_bytes:,.0f} bytes of state"
                )
            if one.recomputed_seconds:
                even = "never" if one.break_even_batches is None else f"after {one.break_even_batches} micro-batches"
                lines.append(
                    f"  {one.stage_id}  {one.name}: {one.recomputed_seconds:,.1f} s less in each micro-batch, "
                    f"paid back {even}"
                )
        return "\n".join(lines) + "\n"


def estimate(plan: StagePlan, measures: Mapping[str, StageMeasure], *, slots: int | None = None) -> Estimate:
    """What staging saves, by the formulas of this module.

    Args:
        plan: the job.
        measures: by stage id; `measures_of` takes them from the progress of a run. A stage without one counts as 0.
        slots: the slot budget, under which stages wait for each other's slots too; None for no bound.

    Raises:
        SchedulingError (UNKNOWN_STAGE): a measure is of no stage of the plan.
        InvalidOptionError, SchedulingError (INSUFFICIENT_SLOTS): as of `StageScheduler`.
    """
    for stage_id in measures:
        plan.stage(stage_id)
    known = {stage.id: measures.get(stage.id, StageMeasure()) for stage in plan.stages}
    committed: dict[str, float] = {} if slots is None else _committed_at(plan, known, slots)
    above: dict[str, frozenset[str]] = {}
    needs_above = _above_live(plan)
    savings = []
    for stage in plan.stages:
        inputs = stage.blocking_inputs
        given = known[stage.id].blocking_seconds
        blocked = max((committed[one] for one in inputs), default=0.0)
        if given is not None and inputs:
            blocked = given
        if slots is None:
            committed[stage.id] = blocked + known[stage.id].seconds
        if stage.id in needs_above:
            above[stage.id] = frozenset(inputs).union(*(above[one] for one in inputs))
        savings.append(_savings(stage, known, blocked, above.get(stage.id, frozenset())))
    return Estimate(tuple(savings))


def measures_of(progress: Mapping[str, StageProgress]) -> dict[str, StageMeasure]:
    """Seconds, rows and bytes of the stages of a run, by stage id, for the next estimate."""
    return {
        stage_id: StageMeasure(seconds=one.seconds, rows=one.rows or 0, size_bytes=one.size_bytes or 0)
        for stage_id, one in progress.items()
    }


def _committed_at(plan: StagePlan, known: Mapping[str, StageMeasure], slots: int) -> dict[str, float]:
    """When each batch stage would be committed, by stage id: the scheduler itself plays the run."""
    scheduler = StageScheduler(plan, slots=slots)
    committed: dict[str, float] = {}
    running: list[tuple[float, str]] = []
    now = 0.0
    while True:
        for stage in scheduler.ready():
            scheduler.apply(StageStarted(stage_id=stage.id, at=now))
            if stage.bounded:
                heapq.heappush(running, (now + known[stage.id].seconds, stage.id))
        if not running:
            return committed
        now, stage_id = heapq.heappop(running)
        scheduler.apply(StageFinished(stage_id=stage_id, at=now))
        committed[stage_id] = now


def _above_live(plan: StagePlan) -> set[str]:
    """Stages for which it matters what is above them: sets of all stages above all others would be too many."""
    needed = {stage.id for stage in plan.stages if not stage.bounded}
    for stage in reversed(plan.stages):
        if stage.id in needed:
            needed.update(stage.blocking_inputs)
    return needed


def _savings(
    stage: Stage, known: Mapping[str, StageMeasure], blocking_seconds: float, above: frozenset[str]
) -> StageSavings:
    own = known[stage.id]
    live = not stage.bounded
    once = math.fsum(known[one].seconds for one in above) if live else 0.0
    recomputed = max(0.0, once - own.read_seconds)
    return StageSavings(
        stage_id=stage.id,
        name=stage.name,
        live=live,
        slots=stage.slots,
        blocking_seconds=blocking_seconds,
        slot_seconds=stage.slots * blocking_seconds,
        arriving_bytes=blocking_seconds * own.arriving_bytes_per_second if live else 0.0,
        joined_bytes=sum(known[one].size_bytes for one in stage.blocking_inputs) if live else 0,
        recomputed_seconds=recomputed,
        break_even_batches=_break_even(once, recomputed),
    )


def _break_even(once: float, recomputed: float) -> int | None:
    """After n batches: n x once in the naive way, once + n x read_seconds in stages."""
    if once == 0:
        return 0
    return math.ceil(once / recomputed) if recomputed > 0 else None
