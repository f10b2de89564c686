"""A service whose clock is not this host's."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta


class OtherClock:
    """Runs as fast as this host's clock, and shows another time; for `running_emulator(clock=…)`."""

    def __init__(self, ahead_seconds: float) -> None:
        self._offset = time.time() - time.monotonic() + ahead_seconds

    def time(self) -> float:
        """See `penstock.emulator`."""
        return self._offset + time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """See `penstock.emulator`."""
        return asyncio.get_running_loop().call_later(max(0.0, when - self.time()), callback)

    def advance(self, by: timedelta | float) -> None:
        """See `penstock.emulator`."""
        self._offset += by if isinstance(by, float | int) else by.total_seconds()
