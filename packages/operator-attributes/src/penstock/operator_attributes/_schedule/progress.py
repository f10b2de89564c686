"""How far a stage has come."""

from dataclasses import dataclass
from enum import StrEnum


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
    """It failed for the last time that it may."""
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
    """How far a stage has come."""

    state: StageState = StageState.WAITING
    attempts: int = 0
    """Deployments so far."""
    error: str = ""
    """Words of the last failure, or why it is skipped; empty if there was none."""
    seconds: float = 0.0
    """From the last deployment to its end, or to now; 0 before the first."""
    rows: int | None = None
    """Rows that it committed, where reported."""
    size_bytes: int | None = None
    """Bytes that it committed, where reported."""
