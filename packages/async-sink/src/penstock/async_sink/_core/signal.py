"""Wakes everybody who waits for a change."""

import asyncio


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
