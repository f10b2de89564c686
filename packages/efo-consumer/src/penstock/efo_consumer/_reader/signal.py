"""Wakes everybody who waits for a change."""

from __future__ import annotations

import asyncio


class Bell:
    """A broadcast: each `ring` wakes all who wait at that moment. For one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_seconds: float) -> None:
        """Return at the next ring, or when the time is over."""
        event = self._event
        try:
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            return
