"""Wakes everybody who waits for a change."""

import asyncio
import contextlib


class Signal:
    """Waiters wait for the next notification, then look at the state again. For one event loop."""

    def __init__(self) -> None:
        # Ordered: who waits longest looks first, so that those who wait for room take turns.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify(self) -> None:
        """Wake all who wait now."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_seconds: float | None = None) -> None:
        """Return at the next notification, or when the time is over, which None never is."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await waiter
        finally:
            self._waiters.pop(waiter, None)
