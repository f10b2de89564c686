"""The clock of a service, estimated from its answers."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_DATE_SECONDS = 1.0


class ServiceClock:
    """A service's time, bounded from both sides by the `Date` headers of its answers.

    A header has whole seconds and was written between request and answer, so each answer bounds the difference
    between the service's clock and this process's monotonic one. The bounds of all answers are combined; an answer
    that contradicts them, after a step of either clock, replaces them. Before the first answer, and for a server that
    sends no `Date`, the bounds are this host's clock. Safe to share between threads.

    Args:
        monotonic: monotonic seconds.
        wall_clock: this host's time, in seconds since the epoch.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._bounds: tuple[float, float] | None = None
        self._has_warned = False

    def monotonic(self) -> float:
        """The clock of the times that `answered` takes."""
        return self._monotonic()

    def answered(self, date: str | None, asked_at: float) -> None:
        """Process the `Date` header of an answer that has just arrived.

        Args:
            date: the header; None if there was none.
            asked_at: `monotonic()` before the request was sent.
        """
        second = date_seconds(date)
        if second is None:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("an answer has no valid Date header (%r): using this host's clock as the service's", date)
        else:
            self.answered_at(second, asked_at)

    def answered_at(self, second: float, asked_at: float) -> None:
        """Process the time of an answer that has just arrived.

        Args:
            second: `date_seconds` of the header.
            asked_at: `monotonic()` before the request was sent.
        """
        lower, upper = second - self._monotonic(), second + _DATE_SECONDS - asked_at
        with self._lock:
            if self._bounds is not None:
                known_lower, known_upper = self._bounds
                if lower <= known_upper and known_lower <= upper:
                    lower, upper = max(lower, known_lower), min(upper, known_upper)
            self._bounds = (lower, upper)

    def earliest(self) -> float:
        """Lower bound of the service's time, in seconds since the epoch."""
        return self._wall_clock() if self._bounds is None else self._monotonic() + self._bounds[0]

    def latest(self) -> float:
        """Upper bound of the service's time, in seconds since the epoch."""
        return self._wall_clock() if self._bounds is None else self._monotonic() + self._bounds[1]


@lru_cache(maxsize=16)
def date_seconds(date: str | None) -> float | None:
    """A `Date` header in seconds since the epoch; None if it is missing or not a date."""
    try:
        parsed = None if date is None else parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # The zone `-0000`, or a missing zone, means UTC: HTTP has no other.
    return None if parsed is None else (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
