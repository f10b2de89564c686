"""When a live query that failed is started again: pure decisions."""

import re
from collections import deque
from dataclasses import dataclass
from typing import Self

from penstock.spark_plugin.errors import PipelineDefinitionError

NEVER, ON_FAILURE = "never", "on-failure"
_HOUR_SECONDS = 3600.0
# Names of errors that pass by themselves: what the query speaks to is away. All others are its own.
_OF_OTHERS = re.compile(
    r"^[\w.]*(Connect|Timeout|TimedOut|Unavailable|Unreachable|Throttl|BrokenPipe|Broken|Reset|EndOfFile|Interrupted)\w*"
    r"(:|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How live queries that fail are started again."""

    restart: str = NEVER
    """`never` or `on-failure`."""
    per_hour: int = 20
    """Restarts of a query within any hour, after which it is given up; at least 1."""
    first_seconds: float = 1.0
    """Before the first restart; doubled each time that the query fails again before it has come further."""
    longest_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.restart not in (NEVER, ON_FAILURE):
            raise PipelineDefinitionError(f"restart is {self.restart!r}; it must be {NEVER!r} or {ON_FAILURE!r}")
        if self.per_hour < 1:
            raise PipelineDefinitionError(f"restarts_per_hour is {self.per_hour}; it must be at least 1")

    @classmethod
    def of(cls, restart: str, per_hour: int | None) -> Self:
        """By what a user gives.

        Raises:
            PipelineDefinitionError: a value is invalid, or one has no effect beside another.
        """
        if per_hour is None:
            return cls(restart=restart)
        if restart == NEVER:
            raise PipelineDefinitionError(
                f"restarts_per_hour={per_hour} does nothing beside restart={NEVER!r}: give restart={ON_FAILURE!r}, "
                "or leave it out"
            )
        return cls(restart=restart, per_hour=per_hour)


@dataclass(frozen=True, slots=True)
class Restart:
    """What becomes of a query that failed."""

    seconds: float | None
    """Until it is started again; None if it is not."""
    reason: str
    """Why it is not; empty if it is."""


class QueryRestarts:
    """The failures of one query."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()
        self._last: tuple[str, int | None] | None = None
        self._in_a_row = 0

    def failed(self, now: float, error: str, batch_id: int | None) -> Restart:
        """Decide, and take note.

        Args:
            now: Seconds of a monotonic clock.
            error: Why, in words that begin with the name of the exception.
            batch_id: Of the micro-batch that failed; None if that is not known.
        """
        if self._policy.restart == NEVER:
            return Restart(None, "")
        before, self._last = self._last, (error, batch_id)
        same_place = before is not None and batch_id is not None and before[1] == batch_id
        if same_place and before == self._last and not _OF_OTHERS.match(error):
            return Restart(None, f"not started again: micro-batch {batch_id} failed in the same way twice")
        while self._times and now - self._times[0] >= _HOUR_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._policy.per_hour:
            return Restart(None, f"not started again: it was {self._policy.per_hour} times within an hour")
        self._times.append(now)
        self._in_a_row = self._in_a_row + 1 if same_place or batch_id is None else 0
        seconds = self._policy.first_seconds * 2.0 ** min(self._in_a_row, 30)
        return Restart(min(seconds, self._policy.longest_seconds), "")
