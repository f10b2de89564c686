"""How long registrations may take and leases live, and the clock that measures both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from penstock.registration.errors import RegistrationOptionError


@dataclass(frozen=True, kw_only=True)
class RegistrarConfig:
    """How long Kinesis may take to register and deregister a consumer.

    Raises:
        RegistrationOptionError: a time is not positive.
    """

    register_timeout: timedelta = timedelta(seconds=60)
    """Until the consumer must be ACTIVE. Not in FLIP-128; the default of Flink's later releases."""
    deregister_timeout: timedelta = timedelta(seconds=60)
    """Until the consumer must be gone. Not in FLIP-128; the default of Flink's later releases."""

    def __post_init__(self) -> None:
        for option in ("register_timeout", "deregister_timeout"):
            if getattr(self, option) <= timedelta(0):
                raise RegistrationOptionError(option=option, reason="must be positive")


@dataclass(frozen=True, kw_only=True)
class LeaseSettings:
    """How long leases live, and what they leave behind.

    Raises:
        RegistrationOptionError: an option is out of range; the error names it.
    """

    default_time_to_live: timedelta = timedelta(seconds=30)
    """For requests that name none. Default: 30 s, so that a job whose JVM pauses does not lose its consumer."""
    longest_time_to_live: timedelta = timedelta(minutes=5)
    """Cap for requests that name one. Default: 5 minutes."""
    grace_period: timedelta = timedelta(0)
    """Between the end of the last lease and the de-registration.

    Default: none, for a registry that ends with its process."""

    def __post_init__(self) -> None:
        if self.default_time_to_live <= timedelta(0):
            raise RegistrationOptionError(option="default_time_to_live", reason="must be positive")
        if self.longest_time_to_live < self.default_time_to_live:
            raise RegistrationOptionError(
                option="longest_time_to_live", reason="must not be less than default_time_to_live"
            )
        if self.grace_period < timedelta(0):
            raise RegistrationOptionError(option="grace_period", reason="must not be negative")

    def time_to_live_seconds(self, wanted: timedelta | None) -> float:
        """What a request gets."""
        return min(wanted or self.default_time_to_live, self.longest_time_to_live).total_seconds()


Clock = Callable[[], float]
"""Seconds; only grows, at the rate of real time."""


def elapsed_seconds() -> float:
    """Seconds since some moment, counting also those that the machine slept, where the system counts them.

    A registry must notice that it was away, also while a laptop was closed: on Linux `time.monotonic` does not.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)
