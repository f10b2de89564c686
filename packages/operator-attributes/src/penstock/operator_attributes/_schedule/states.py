"""Events and states of stages, and a counter of events."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, get_args

from opentelemetry import metrics


class StageState(StrEnum):
    """State of a stage."""

    WAITING = "waiting"
    """A blocking input is not finished."""
    READY = "ready"
    """It may be deployed, as soon as the slot budget has room."""
    RUNNING = "running"
    FINISHED = "finished"
    """Its result is committed; a live stage was stopped."""
    FAILED = "failed"
    """It failed and is not retried."""
    SKIPPED = "skipped"
    """It will not run, because a stage that it depends on failed."""
    REUSED = "reused"
    """An earlier run's committed result is used."""
    INTERRUPTED = "interrupted"
    """Its driver ended while it ran. It may be deployed like one that is READY."""

    @property
    def deployable(self) -> bool:
        """Whether it may be deployed, as soon as the slot budget has room."""
        return self in (StageState.READY, StageState.INTERRUPTED)

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (StageState.FINISHED, StageState.FAILED, StageState.SKIPPED, StageState.REUSED)

    @property
    def committed(self) -> bool:
        """Whether its result can be read."""
        return self in (StageState.FINISHED, StageState.REUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """The progress of a stage."""

    state: StageState = StageState.WAITING
    attempts: int = 0
    """Deployments so far."""
    error: str = ""
    """The text of the last failure, or why it is skipped; empty without a failure."""
    seconds: float = 0.0
    """From the last deployment to its end, or to now; 0 before the first."""
    rows: int | None = None
    """Rows that it committed, where reported."""
    size_bytes: int | None = None
    """Bytes that it committed, where reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """The stage was deployed."""

    stage_id: str
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished:
    """The stage committed its result; or, of a live stage: it was stopped."""

    stage_id: str
    at: float = 0.0
    rows: int | None = None
    """Rows that it committed, where known."""
    size_bytes: int | None = None
    """Bytes that it committed, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The stage, or its driver, failed. It is deployed again while it has attempts left."""

    stage_id: str
    at: float = 0.0
    error: str
    """The text of the failure, without secrets."""
    retryable: bool = True
    """False if another attempt would fail in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReused:
    """The stage need not run: an earlier run committed its result."""

    stage_id: str
    at: float = 0.0
    rows: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLost:
    """The committed result of the stage is gone, or cannot be read. The stage is run again."""

    stage_id: str
    at: float = 0.0
    error: str = ""
    """What was found missing, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInterrupted:
    """The driver ended while the stage ran, and came back: the attempt does not count as a failure of the stage."""

    stage_id: str
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRestarted:
    """A running live stage was restarted from its checkpoint by its driver: it keeps its slots."""

    stage_id: str
    at: float = 0.0
    error: str = ""
    """Why: the text of the failure, without secrets."""


StageEvent = StageStarted | StageFinished | StageFailed | StageReused | StageLost | StageInterrupted | StageRestarted


def event_name(event: StageEvent) -> str:
    """`started`, `finished`, `failed`, `reused`, `lost`, `interrupted` or `restarted`."""
    return type(event).__name__.removeprefix("Stage").lower()


EVENT_KINDS: Final[dict[str, type[StageEvent]]] = {
    kind.__name__.removeprefix("Stage").lower(): kind for kind in get_args(StageEvent)
}
"""By `event_name`."""

DRIVER: Final = "penstock.operator_attributes"
SERVICE: Final = "penstock.operator_attributes.service"
"""A job that reports to a service is counted by both."""


class StageMetrics:
    """Counts events by job and kind: started, finished, reused, failed, lost, interrupted, restarted."""

    def __init__(self, instrumentation: str, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(instrumentation)
        self._events = meter.create_counter(
            "stageEvents", unit="{event}", description="What happened to stages, by job and event"
        )

    def count(self, job_name: str, event: StageEvent) -> None:
        """Count an event that was applied."""
        self._events.add(1, {"penstock.job.name": job_name, "event": event_name(event)})
