"""What a writer needs of its event loop: the time, and waking those who wait."""

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


class Signal:
    """Waiters wait for the next notification, then look at the state again."""

    def __init__(self) -> None:
        # Ordered: who waits longest looks first, so that writers who wait for room take turns.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify(self) -> None:
        """Wake all who wait now."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next notification. Cancelling forgets the waiter."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
