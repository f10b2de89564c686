"""Time as the emulator sees it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """A call that was put off."""

    def cancel(self) -> None:
        """Forget the call; harmless when it already happened."""


class Clock(Protocol):
    """One time scale for arrival times, expiries and timers.

    There is no second, monotonic scale, so that a test that moves the clock moves everything.
    """

    def time(self) -> float:
        """Seconds since the Unix epoch; never goes back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running loop once `time()` has reached `when`."""


class SystemClock:
    """Real time: the wall clock at construction, moved on by the monotonic clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def time(self) -> float:
        """Seconds since the Unix epoch; a step of the system's wall clock is not followed."""
        return self._offset + time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running loop once `time()` has reached `when`."""
        return asyncio.get_running_loop().call_later(max(0.0, when - self.time()), callback)
