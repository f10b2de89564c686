"""Time by which leases are judged."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds; only grows, at the rate of real time."""


def elapsed_seconds() -> float:
    """Seconds since some moment, counting also those that the machine slept, where the system counts them.

    A registry must notice that it was away, also while a laptop was closed: on Linux `time.monotonic` does not.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)
