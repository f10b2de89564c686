"""Which stages may be deployed now: a state machine over events, without I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.operator_attributes._compile.plan import Stage, StagePlan
from penstock.operator_attributes._schedule.states import (
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageProgress,
    StageRestarted,
    StageReused,
    StageStarted,
    StageState,
)
from penstock.operator_attributes.errors import InvalidOptionError, SchedulingError

DEFAULT_MAX_ATTEMPTS = 3

# The states in which an event may find its stage.
_ALLOWED: dict[type[StageEvent], frozenset[StageState]] = {
    StageStarted: frozenset({StageState.READY, StageState.INTERRUPTED}),
    StageFinished: frozenset({StageState.RUNNING}),
    StageFailed: frozenset({StageState.RUNNING}),
    # While it runs: another driver that computed the same result was first.
    StageReused: frozenset({StageState.WAITING, StageState.READY, StageState.INTERRUPTED, StageState.RUNNING}),
    StageLost: frozenset({StageState.FINISHED, StageState.REUSED}),
    StageInterrupted: frozenset({StageState.RUNNING}),
    StageRestarted: frozenset({StageState.RUNNING}),
}


@dataclass(slots=True)
class _Run:
    stage: Stage
    missing: set[str]
    state: StageState = StageState.WAITING
    attempts: int = 0
    failures: int = 0
    error: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    rows: int | None = None
    size_bytes: int | None = None
    readers: list[str] = field(default_factory=list)


class StageScheduler:
    """Schedules the stages of one job.

    A stage is READY when all of its blocking inputs are finished or reused, and `ready` names those that the slot
    budget has room for. Only the failed stage is retried; when its attempts are used up, stages that depend on it are
    SKIPPED and all others continue. A committed stage whose data is gone (StageLost) is run again, and stages that
    depend on it and do not run yet wait for it. An attempt that ended with its driver (StageInterrupted) is not a
    failure.
    A live stage that its driver begins again (StageRestarted) runs on, with its slots, in another attempt.

    A live stage keeps its slots while the job runs. So it waits while it would leave too few slots for a batch stage
    that is still to run; otherwise that stage would wait forever. A batch stage that is wider than the budget takes all
    of it.
    """

    def __init__(
        self,
        plan: StagePlan,
        *,
        slots: int | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> None:
        """Begin to schedule.

        Args:
            plan: the stages.
            slots: slots for stages that run at the same time; None for no bound.
            max_attempts: failures of a stage, since it last committed, after which it counts as failed; at least 1.

        Raises:
            InvalidOptionError: an argument is outside of its range.
            SchedulingError (INSUFFICIENT_SLOTS): the live stages together need more slots than there are.
        """
        if slots is not None and not _is_count(slots):
            raise InvalidOptionError("slots", slots, "at least 1, or None for no bound")
        if not _is_count(max_attempts):
            raise InvalidOptionError("max_attempts", max_attempts, "at least 1")
        live = sum(stage.slots for stage in plan.stages if not stage.bounded)
        if slots is not None and live > slots:
            raise SchedulingError.of("INSUFFICIENT_SLOTS", needed=live, slots=slots)
        self.plan = plan
        self.slots = slots
        self.max_attempts = max_attempts
        self._runs = {stage.id: _Run(stage, set(stage.blocking_inputs)) for stage in plan.stages}
        for stage in plan.stages:
            for before in stage.blocking_inputs:
                self._runs[before].readers.append(stage.id)
        for run in self._runs.values():
            if not run.missing:
                run.state = StageState.READY

    def state(self, stage_id: str) -> StageState:
        """State of a stage. Raises: SchedulingError (UNKNOWN_STAGE)."""
        return self._run(stage_id).state

    @property
    def states(self) -> dict[str, StageState]:
        """State by stage id, in the order of the plan."""
        return {stage_id: run.state for stage_id, run in self._runs.items()}

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to any stage."""
        return all(run.state.ended for run in self._runs.values())

    @property
    def succeeded(self) -> bool:
        """Whether every stage is finished or reused."""
        return all(run.state.committed for run in self._runs.values())

    @property
    def slots_in_use(self) -> int:
        """Slots of the stages that run."""
        return sum(self._width(run.stage) for run in self._runs.values() if run.state is StageState.RUNNING)

    def progress(self, now: float) -> dict[str, StageProgress]:
        """How far each stage has come, by stage id, in the order of the plan."""
        return {stage_id: _progress(run, now) for stage_id, run in self._runs.items()}

    def ready(self) -> tuple[Stage, ...]:
        """The stages that may all be deployed now, batch stages first."""
        free = self._free()
        chosen: list[Stage] = []
        candidates = [run for run in self._runs.values() if run.state.deployable]
        for run in sorted(candidates, key=lambda run: not run.stage.bounded):
            width = self._width(run.stage)
            if free is None or width <= free - self._reserved(run.stage, chosen):
                chosen.append(run.stage)
                free = None if free is None else free - width
        return tuple(chosen)

    def apply(self, event: StageEvent) -> None:
        """Apply an event.

        Raises:
            SchedulingError (UNKNOWN_STAGE): the plan has no such stage.
            SchedulingError (ILLEGAL_EVENT): the event does not follow from the stage's state.
            SchedulingError (SLOT_BUDGET_EXCEEDED): the stage was started without room for it; it stays READY.
        """
        self.check(event)
        run = self._run(event.stage_id)
        match event:
            case StageStarted():
                run.attempts += 1
                run.started_at, run.ended_at = event.at, None
                run.state = StageState.RUNNING
            case StageFailed():
                self._fail(run, event)
            case StageFinished() | StageReused():
                self._commit(run, event)
            case StageLost():
                self._lose(run, event)
            case StageRestarted():
                run.error = event.error
                run.attempts += 1
            case StageInterrupted():
                run.ended_at = event.at
                run.state = StageState.WAITING if run.missing else StageState.INTERRUPTED
                self._skip_if_hopeless(run)

    def check(self, event: StageEvent) -> None:
        """Check that `apply` would accept the event; changes nothing. Raises: as `apply`."""
        run = self._run(event.stage_id)
        if run.state not in _ALLOWED[type(event)]:
            raise _illegal(event, run.state.value)
        if isinstance(event, StageRestarted) and run.stage.bounded:
            raise _illegal(event, "a batch stage")
        if isinstance(event, StageStarted):
            free = self._free()
            if free is not None:
                free -= self._reserved(run.stage)
                needed = self._width(run.stage)
                if needed > free:
                    stage_id = run.stage.id
                    raise SchedulingError.of(
                        "SLOT_BUDGET_EXCEEDED", stage_id=stage_id, needed=needed, free=max(0, free)
                    )

    def _run(self, stage_id: str) -> _Run:
        try:
            return self._runs[stage_id]
        except KeyError:
            raise SchedulingError.of("UNKNOWN_STAGE", stage_id=stage_id) from None

    def _width(self, stage: Stage) -> int:
        return stage.slots if self.slots is None else min(stage.slots, self.slots)

    def _free(self) -> int | None:
        return None if self.slots is None else self.slots - self.slots_in_use

    def _reserved(self, stage: Stage, chosen: Iterable[Stage] = ()) -> int:
        """Slots, beyond those in use, that a live stage must leave for batch stages that are still to run.

        They run one after the other if need be, so the widest counts; and those that run now give theirs back.
        """
        if stage.bounded or self.slots is None:
            return 0
        chosen_ids = {one.id for one in chosen}
        open_batch = [run for run in self._runs.values() if run.stage.bounded and not run.state.ended]
        widest = max((self._width(run.stage) for run in open_batch), default=0)
        returning = sum(
            self._width(run.stage)
            for run in open_batch
            if run.state is StageState.RUNNING or run.stage.id in chosen_ids
        )
        return max(0, widest - returning)

    def _fail(self, run: _Run, event: StageFailed) -> None:
        run.error, run.ended_at = event.error, event.at
        run.failures += 1
        if event.retryable and run.failures < self.max_attempts:
            # An input that was lost while the stage ran may be the cause of the failure.
            run.state = StageState.WAITING if run.missing else StageState.READY
            self._skip_if_hopeless(run)
        else:
            run.state = StageState.FAILED
            self._skip_readers(run)

    def _lose(self, run: _Run, event: StageLost) -> None:
        run.rows = run.size_bytes = None
        run.error = event.error
        # Inputs of a reused stage may never have existed.
        run.missing = {one for one in run.stage.blocking_inputs if not self._runs[one].state.committed}
        run.state = StageState.WAITING if run.missing else StageState.READY
        for reader in map(self._runs.__getitem__, run.readers):
            if not reader.state.committed:
                reader.missing.add(run.stage.id)
                if reader.state.deployable:
                    reader.state = StageState.WAITING
        self._skip_if_hopeless(run)

    def _skip_if_hopeless(self, run: _Run) -> None:
        """Skip a stage that waits for an input that failed or is skipped, and the stages that wait for it."""
        if run.state is StageState.WAITING:
            inputs = map(self._runs.__getitem__, run.stage.blocking_inputs)
            hopeless = next((one for one in inputs if one.state in (StageState.FAILED, StageState.SKIPPED)), None)
            if hopeless is not None:
                self._skip_readers(hopeless)

    def _skip_readers(self, failed: _Run) -> None:
        pending = list(failed.readers)
        while pending:
            reader = self._runs[pending.pop(0)]
            if reader.state is StageState.WAITING:
                reader.error = f"its input {failed.stage.id} ({failed.stage.name}) failed"
                reader.state = StageState.SKIPPED
                pending += reader.readers

    def _commit(self, run: _Run, event: StageFinished | StageReused) -> None:
        run.rows, run.size_bytes, run.error = event.rows, event.size_bytes, ""
        run.failures = 0
        if run.state is StageState.RUNNING:
            run.ended_at = event.at
        run.state = StageState.FINISHED if isinstance(event, StageFinished) else StageState.REUSED
        for reader in map(self._runs.__getitem__, run.readers):
            reader.missing.discard(run.stage.id)
            if not reader.missing and reader.state is StageState.WAITING:
                reader.state = StageState.READY


def _illegal(event: StageEvent, state: str) -> SchedulingError:
    return SchedulingError.of("ILLEGAL_EVENT", stage_id=event.stage_id, state=state, event=type(event).__name__)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def _progress(run: _Run, now: float) -> StageProgress:
    seconds = 0.0
    if run.started_at is not None:
        seconds = max(0.0, (now if run.ended_at is None else run.ended_at) - run.started_at)
    return StageProgress(
        state=run.state,
        attempts=run.attempts,
        error=run.error,
        seconds=seconds,
        rows=run.rows,
        size_bytes=run.size_bytes,
    )
