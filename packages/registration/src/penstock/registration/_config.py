"""How calls to Kinesis are tried again, and how long leases live."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from penstock.aws import BackoffPolicy
from penstock.registration.errors import RegistrationOptionError

_CALLS: Final = ("register", "deregister", "list")


@dataclass(frozen=True, kw_only=True)
class RegistrarConfig:
    """Retries of the calls that register, deregister and look up consumers: FLIP-128's keys with its defaults."""

    register_max_retries: int = 10
    """Attempts after a retryable error. `flink.stream.registerstreamconsumer.maxretries`."""
    register_backoff_base: timedelta = timedelta(milliseconds=200)
    """`flink.stream.registerstreamconsumer.backoff.base`. A lazy start is staggered by up to this, too."""
    register_backoff_max: timedelta = timedelta(seconds=1)
    """`flink.stream.registerstreamconsumer.backoff.max`."""
    register_backoff_expconst: float = 1.5
    """`flink.stream.registerstreamconsumer.backoff.expconst`."""
    deregister_max_retries: int = 10
    """Attempts after a retryable error. `flink.stream.deregisterstreamconsumer.maxretries`."""
    deregister_backoff_base: timedelta = timedelta(milliseconds=200)
    """`flink.stream.deregisterstreamconsumer.backoff.base`."""
    deregister_backoff_max: timedelta = timedelta(seconds=1)
    """`flink.stream.deregisterstreamconsumer.backoff.max`."""
    deregister_backoff_expconst: float = 1.5
    """`flink.stream.deregisterstreamconsumer.backoff.expconst`."""
    list_max_retries: int = 10
    """Attempts after a retryable error, for all look-ups. `flink.stream.liststreamconsumers.maxretries`."""
    list_backoff_base: timedelta = timedelta(milliseconds=200)
    """`flink.stream.liststreamconsumers.backoff.base`. Also the first pause of a wait for a consumer."""
    list_backoff_max: timedelta = timedelta(seconds=1)
    """`flink.stream.liststreamconsumers.backoff.max`. Also the longest pause of a wait for a consumer."""
    list_backoff_expconst: float = 1.5
    """`flink.stream.liststreamconsumers.backoff.expconst`."""
    register_timeout: timedelta = timedelta(seconds=60)
    """Until the consumer must be ACTIVE. Not in FLIP-128; the default is that of Flink's later releases."""
    deregister_timeout: timedelta = timedelta(seconds=60)
    """Until the consumer must be gone. Not in FLIP-128; the default is that of Flink's later releases."""

    def __post_init__(self) -> None:
        for call in _CALLS:
            retries, expconst = f"{call}_max_retries", f"{call}_backoff_expconst"
            base, longest = f"{call}_backoff_base", f"{call}_backoff_max"
            if getattr(self, retries) < 0:
                raise RegistrationOptionError(option=retries, reason="must not be negative")
            if getattr(self, base) <= timedelta(0):
                raise RegistrationOptionError(option=base, reason="must be positive")
            if getattr(self, longest) < getattr(self, base):
                raise RegistrationOptionError(option=longest, reason=f"must not be less than {base}")
            if not getattr(self, expconst) >= 1:
                raise RegistrationOptionError(option=expconst, reason="must be at least 1")
        for option in ("register_timeout", "deregister_timeout"):
            if getattr(self, option) <= timedelta(0):
                raise RegistrationOptionError(option=option, reason="must be positive")

    def policy(self, call: str) -> BackoffPolicy:
        """The back-off of `register`, `deregister` or `list`."""
        return BackoffPolicy(
            base=getattr(self, f"{call}_backoff_base"),
            maximum=getattr(self, f"{call}_backoff_max"),
            exponent=getattr(self, f"{call}_backoff_expconst"),
            max_attempts=getattr(self, f"{call}_max_retries") + 1,
        )


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
