"""Limits on rates, as objects that know no clock of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.emulator._faults import Target

_MAX_BUCKETS = 10_000


class TokenBucket:
    """A bucket that fills at `rate` per second (None: it is never empty) and holds one second's worth.

    A single demand above what the bucket holds is let through when the bucket is full, and leaves a debt: that is how
    10 MiB of GetRecords silence the shard for the next five seconds.
    """

    __slots__ = ("_capacity", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float | None, *, now: float) -> None:
        self._rate = self._capacity = self._tokens = inf if rate is None else float(rate)
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
        missing = min(amount, self._capacity) - self._tokens
        return now + missing / self._rate if missing > 0 else now

    def is_full(self, now: float) -> bool:
        """Whether the bucket says no more than a new one would."""
        self._refill(now)
        return self._tokens >= self._capacity

    def _refill(self, now: float) -> None:
        if now > self._updated:
            self._tokens = min(self._capacity, self._tokens + (now - self._updated) * self._rate)
            self._updated = now


@dataclass(frozen=True, slots=True)
class OperationLimit:
    """How often an operation may be called."""

    per_second: float
    scope: str
    """What shares the rate: "account", "stream", "shard", or "subscription" for a consumer and a shard."""
    code: str = "LimitExceededException"


OPERATION_LIMITS = {
    "AddTagsToStream": OperationLimit(5, "account"),
    "CreateStream": OperationLimit(5, "account"),
    "DecreaseStreamRetentionPeriod": OperationLimit(5, "stream"),
    "DeleteStream": OperationLimit(5, "account"),
    "DeregisterStreamConsumer": OperationLimit(5, "stream"),
    "DescribeLimits": OperationLimit(1, "account"),
    "DescribeStream": OperationLimit(10, "account"),
    "DescribeStreamConsumer": OperationLimit(20, "stream"),
    "DescribeStreamSummary": OperationLimit(20, "account"),
    "GetShardIterator": OperationLimit(5, "shard", "ProvisionedThroughputExceededException"),
    "IncreaseStreamRetentionPeriod": OperationLimit(5, "stream"),
    "ListShards": OperationLimit(1000, "stream"),
    "ListStreamConsumers": OperationLimit(5, "stream"),
    "ListStreams": OperationLimit(5, "account"),
    "ListTagsForStream": OperationLimit(5, "account"),
    "MergeShards": OperationLimit(5, "account"),
    "RegisterStreamConsumer": OperationLimit(5, "account"),
    "RemoveTagsFromStream": OperationLimit(5, "account"),
    "SplitShard": OperationLimit(5, "account"),
    "SubscribeToShard": OperationLimit(1, "subscription"),
    "UpdateShardCount": OperationLimit(10, "account"),
}
"""The rates that the API reference, or the page on quotas, gives for calls to each operation."""

DAILY_LIMITS = {"StartStreamEncryption": 25, "UpdateShardCount": 10, "UpdateStreamMode": 2}
"""How often these may succeed per stream in any 24 hours."""


class OperationRates:
    """Counts calls against `OPERATION_LIMITS`, or against what was set instead."""

    def __init__(self, instead: Mapping[str, float | None], *, enforced: bool) -> None:
        self._instead = instead
        self._enforced = enforced
        self._buckets: dict[tuple[str | None, ...], TokenBucket] = {}

    def limit(self, operation: str) -> OperationLimit | None:
        """The limit of an operation that has one, and whose limit is not switched off."""
        limit = OPERATION_LIMITS.get(operation)
        if limit is None or not self._enforced:
            return None
        rate = self._instead.get(operation, limit.per_second)
        return replace(limit, per_second=rate) if rate is not None else None

    def admits(self, limit: OperationLimit, target: Target, now: float) -> bool:
        """Count a call; False where it has to be refused. Refused calls do not count."""
        key: tuple[str | None, ...] = (target.operation,)
        if limit.scope != "account":
            key += (target.stream,)
        if limit.scope in ("shard", "subscription"):
            key += (target.shard,)
        if limit.scope == "subscription":
            key += (target.consumer,)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets = {each: kept for each, kept in self._buckets.items() if not kept.is_full(now)}
            bucket = self._buckets[key] = _CallBucket(limit.per_second, now=now)
        if not bucket.has(1, now):
            return False
        bucket.take(1)
        return True


class _CallBucket(TokenBucket):
    """Holds one call even where less than one a second is allowed."""

    def __init__(self, rate: float, *, now: float) -> None:
        super().__init__(rate, now=now)
        self._capacity = self._tokens = max(1.0, rate)
