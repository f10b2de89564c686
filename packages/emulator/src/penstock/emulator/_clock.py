"""Time as the emulator sees it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


class Timer(Protocol):
    """A call that was put off."""

    def cancel(self) -> None:
        """Forget the call; harmless when it already happened."""


class Clock(Protocol):
    """One time scale for arrival times, expiries and timers.

    It is also the monotonic clock, so that a test that moves it moves everything.
    """

    def time(self) -> float:
        """Seconds since the Unix epoch; never goes back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running loop once `time()` has reached `when`."""


@runtime_checkable
class AdjustableClock(Protocol):
    """A clock that somebody else moves."""

    def advance(self, by: timedelta | float) -> None:
        """Move the clock on; a number means seconds."""


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


class OtherClock(SystemClock):
    """Runs on its own and shows another time than this host's clock, as the clock of a service may.

    Args:
        ahead_seconds: how far ahead of this host's clock it is; negative: behind.
        rate: its seconds in one second of this host. A minute of the service then passes in a moment of a test.
    """

    def __init__(self, ahead_seconds: float, *, rate: float = 1.0) -> None:
        super().__init__()
        self._offset += ahead_seconds
        self._rate = rate
        self._began = time.monotonic()

    def time(self) -> float:
        """Seconds since the Unix epoch, by this clock."""
        return self._offset + self._began + (time.monotonic() - self._began) * self._rate

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running loop once `time()` has reached `when`."""
        return asyncio.get_running_loop().call_later(max(0.0, (when - self.time()) / self._rate), callback)

    def advance(self, by: timedelta | float) -> None:
        """Move the clock on; a number means seconds. Timers that run already are not moved."""
        self._offset += by if isinstance(by, (int, float)) else by.total_seconds()


class ManualClock:
    """A clock that stands still until it is advanced; give it to `EmulatorServer` or `running_emulator`.

    `advance` may be called from any thread: timers run on the loop that asked for them.
    """

    def __init__(self, start: float = 1_750_000_000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running loop once the clock was advanced to `when`; soon, if it is there already."""
        timer = _ManualTimer(asyncio.get_running_loop(), callback)
        with self._lock:
            if when > self._now:
                heapq.heappush(self._timers, (when, next(self._order), timer))
                return timer
        timer.fire()
        return timer

    def advance(self, by: timedelta | float) -> None:
        """Move the clock on (a number means seconds), and start the timers that this makes due."""
        seconds = by if isinstance(by, (int, float)) else by.total_seconds()
        due: list[_ManualTimer] = []
        with self._lock:
            self._now += seconds
            while self._timers and self._timers[0][0] <= self._now:
                due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            timer.fire()


class _ManualTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def fire(self) -> None:
        # A closed loop calls nothing any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        if not self._cancelled:
            self._callback()


def http_date(clock: Clock) -> str:
    """The time of a clock as a `Date` header has it (RFC 9110, IMF-fixdate): whole seconds, rounded down."""
    return formatdate(int(clock.time()), usegmt=True)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait on a clock."""
    if seconds <= 0:
        return
    done = asyncio.Event()
    timer = clock.call_at(clock.time() + seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()
