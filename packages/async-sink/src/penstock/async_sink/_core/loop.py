"""What a writer needs of its event loop: the time, and calls at a time."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A callback that is due."""

    def cancel(self) -> None:
        """Forget the callback."""


class Clock(Protocol):
    """Monotonic seconds, and callbacks at a time."""

    def now(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at that time, once, on the loop."""


class LoopClock:
    """The clock of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        """The loop's time."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at that time of the loop."""
        return self._loop.call_at(when, callback)
