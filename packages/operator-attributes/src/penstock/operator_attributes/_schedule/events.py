"""What happens to stages.

`at` is in seconds of the monotonic clock that the caller of a `StageScheduler` has chosen. A `StageSchedulerApi` puts
the time of its own clock there.
"""

from dataclasses import dataclass


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
    """Words of the failure, without secrets."""
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
    """The driver ended while the stage ran, and is back: that attempt does not count as a failure of the stage."""

    stage_id: str
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRestarted:
    """A live stage that runs had to begin again from its checkpoint, by a policy of its driver: it keeps its slots."""

    stage_id: str
    at: float = 0.0
    error: str = ""
    """Why: words of the failure, without secrets."""


StageEvent = StageStarted | StageFinished | StageFailed | StageReused | StageLost | StageInterrupted | StageRestarted
