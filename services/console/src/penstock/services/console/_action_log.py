"""What was done by the console."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """An action.

    Attributes:
        clock: when, UTC.
        who: who asked for it; no secret.
        what: in words.
        outcome: in words.
        succeeded: whether it was done.
    """

    clock: str
    who: str
    what: str
    outcome: str
    succeeded: bool


class ActionLog:
    """Writes each action to the log, and remembers the newest for the pages; logins are for the log alone."""

    def __init__(self, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._newest: deque[Done] = deque(maxlen=20)

    def add(self, who: str, what: str, outcome: str, *, succeeded: bool, shown: bool = True) -> None:
        """Record an action that was tried."""
        clock = time.strftime("%H:%M:%S UTC", time.gmtime(self._wall_clock()))
        if shown:
            self._newest.appendleft(Done(clock, who, what, outcome, succeeded))
        # As literals: a name with line ends must not make lines of its own.
        _log.log(logging.INFO if succeeded else logging.WARNING, "%s: %r: %r", who, what, outcome)

    def newest(self) -> list[Done]:
        """The newest first."""
        return list(self._newest)
