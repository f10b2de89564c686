"""Time that does not jump while the process lives."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds; only grows, at the rate of real time."""


def elapsed_seconds() -> float:
    """Seconds since some moment, counting also those that the machine slept, where the system can tell.

    A lease goes on running out while a laptop is closed; `time.monotonic` would not see that on Linux.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


def steady_wall_clock() -> Clock:
    """Seconds since the epoch, read once now and counted on from there.

    Leases outlive processes, so that their times must mean something to the next one: hence the epoch. Counting on
    keeps a step of the system's clock from ending every lease at once.
    """
    start = time.time() - elapsed_seconds()
    return lambda: start + elapsed_seconds()
