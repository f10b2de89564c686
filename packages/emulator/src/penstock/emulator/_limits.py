"""Throughput limits as token buckets that know no clock of their own."""

from __future__ import annotations


class TokenBucket:
    """A bucket that fills at `rate` per second and holds one second's worth.

    A single demand above what the bucket holds is let through when the bucket is full, and leaves a debt: that is how
    10 MiB of GetRecords silence the shard for the next five seconds.
    """

    __slots__ = ("_capacity", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float, *, now: float) -> None:
        self._rate = rate
        self._capacity = rate
        self._tokens = rate
        self._updated = now

    def has(self, amount: float, now: float) -> bool:
        """Whether `amount` may be taken now."""
        self._refill(now)
        # A microsecond of tolerance: seconds since the epoch, as floats, are not finer than that.
        return self._tokens + self._rate * 1e-6 >= min(amount, self._capacity)

    def take(self, amount: float) -> None:
        """Take `amount`, into debt if need be."""
        self._tokens -= amount

    def ready_at(self, amount: float, now: float) -> float:
        """The time at which `has(amount)` becomes true, if nothing is taken before."""
        self._refill(now)
        return now + max(0.0, min(amount, self._capacity) - self._tokens) / self._rate

    def _refill(self, now: float) -> None:
        if now > self._updated:
            self._tokens = min(self._capacity, self._tokens + (now - self._updated) * self._rate)
            self._updated = now
