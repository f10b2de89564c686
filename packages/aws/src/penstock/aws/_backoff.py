"""Full-jitter back-off, and a retry loop that uses it."""

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from penstock.aws._classify import ErrorKind, classify
from penstock.aws.errors import AwsOptionError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BackoffPolicy:
    """How long to wait between attempts, and how many to make.

    The wait before attempt n+1 is random between 0 and min(maximum, base x exponent^n): full jitter keeps many
    clients from coming back together.
    """

    base: timedelta = timedelta(milliseconds=200)
    """First upper bound. Default: FLIP-128's 200 ms."""
    maximum: timedelta = timedelta(seconds=1)
    """Largest upper bound. Default: FLIP-128's 1,000 ms."""
    exponent: float = 1.5
    """Growth of the upper bound per attempt. Default: FLIP-128's 1.5."""
    max_attempts: int | None = 10
    """Total attempts, including the first; None for no limit. Default: FLIP-128's 10."""

    def __post_init__(self) -> None:
        if self.base < timedelta(0) or self.maximum < self.base:
            raise AwsOptionError("backoff.max", f"{self.maximum} must not be less than the base, {self.base}")
        if self.exponent < 1:
            raise AwsOptionError("backoff.expconst", f"{self.exponent} must be at least 1")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise AwsOptionError("maxretries", f"{self.max_attempts} must be at least 1")

    def delay_seconds(self, attempt: int, random: Callable[[], float] = random_module.random) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 0). `random` gives [0, 1)."""
        maximum = self.maximum.total_seconds()
        try:
            bound = min(maximum, self.base.total_seconds() * self.exponent**attempt)
        except OverflowError:
            bound = maximum
        return bound * random()


async def retry(
    call: Callable[[], Awaitable[T]],
    policy: BackoffPolicy,
    *,
    is_retryable: Callable[[BaseException], bool] = lambda error: classify(error) is not ErrorKind.FATAL,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    random: Callable[[], float] = random_module.random,
) -> T:
    """Call until it succeeds, fails permanently, or the attempts are used up; then raise the last error."""
    attempt = 0
    while True:
        try:
            return await call()
        except Exception as error:
            attempt += 1
            is_last = policy.max_attempts is not None and attempt >= policy.max_attempts
            if is_last or not is_retryable(error):
                raise
        await sleep(policy.delay_seconds(attempt - 1, random))
