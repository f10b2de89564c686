"""What an account may do and may have, and the limits on rates, which have no clock of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from penstock.emulator._faults import Target
from penstock.emulator._state.sequence import hash_key
from penstock.emulator.errors import KinesisError, limit_exceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.emulator._config import EmulatorConfig
    from penstock.emulator._state.positions import TokenSealer
    from penstock.emulator._state.stream import Stream

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


def target_of(streams: Mapping[str, Stream], tokens: TokenSealer, operation: str, params: Any) -> Target:
    """Find stream, shard and consumer of a request, where it names them itself, by an ARN or by an iterator."""
    if not isinstance(params, dict):
        return Target(operation)
    stream, shard, consumer = (_text(params, name) for name in ("StreamName", "ShardId", "ConsumerName"))
    arn = _text(params, "ConsumerARN")
    if arn is not None:
        consumer = arn
        stream = stream or _stream_of(arn)
    arn = _text(params, "StreamARN") or _text(params, "ResourceARN")
    if arn is not None:
        stream = stream or _stream_of(arn)
        known = streams.get(stream or "")
        if consumer is not None and known is not None and consumer in known.consumers:
            consumer = known.consumers[consumer].arn
    token = _text(params, "ShardIterator")
    iterator = tokens.open_iterator(token) if token is not None else None
    if iterator is not None:
        stream, shard = iterator.stream, iterator.shard
    shard = shard or _text(params, "ShardToSplit") or _text(params, "ShardToMerge")
    written = streams.get(stream or "") if operation == "PutRecord" else None
    if written is not None:
        shard = _shard_of(written, params)
    return Target(operation, stream=stream, shard=shard, consumer=consumer)


def _shard_of(stream: Stream, params: dict[str, Any]) -> str | None:
    explicit, key = _text(params, "ExplicitHashKey"), _text(params, "PartitionKey")
    if explicit is not None and explicit.isascii() and explicit.isdigit() and len(explicit) < 40:
        return stream.shard_for(int(explicit)).id
    return stream.shard_for(hash_key(key)).id if key is not None else None


def _stream_of(arn: str) -> str | None:
    name = arn.partition(":stream/")[2].partition("/")[0]
    return name or None


def _text(params: dict[str, Any], name: str) -> str | None:
    value = params.get(name)
    return value if isinstance(value, str) else None


class Quotas:
    """The limits of an account on calls, shards and streams; refusals are LimitExceededException unless they say."""

    def __init__(self, config: EmulatorConfig, streams: Mapping[str, Stream], tokens: TokenSealer) -> None:
        self._config = config
        self._streams = streams
        self._tokens = tokens
        self._rates = OperationRates(self._config.operation_limits, enforced=self._config.enforce_limits)

    def admit(self, operation: str, params: dict[str, Any], now: float) -> None:
        """Count a call against the rate of its operation.

        Raises:
            KinesisError: LimitExceededException, or what the operation has for it.
        """
        limit = self._rates.limit(operation)
        if limit is None:
            return
        target = (
            Target(operation) if limit.scope == "account" else target_of(self._streams, self._tokens, operation, params)
        )
        if not self._rates.admits(limit, target, now):
            stream = f" for stream {target.stream}" if target.stream is not None else ""
            shard = f" for shard {target.shard} in stream {target.stream}" if target.shard is not None else stream
            raise KinesisError(limit.code, f"Rate exceeded{shard} under account {self._config.account_id}.")

    @property
    def open_shard_count(self) -> int:
        """The open shards of all provisioned streams: the others do not count."""
        provisioned = (stream for stream in self._streams.values() if stream.mode == "PROVISIONED")
        return sum(len(stream.open_shards) for stream in provisioned)

    @property
    def on_demand_stream_count(self) -> int:
        """How many on-demand streams there are."""
        return sum(stream.mode == "ON_DEMAND" for stream in self._streams.values())

    def require_room(self, mode: str, shard_count: int, now: float) -> None:
        """Refuse a new stream beyond the limits of the account."""
        creating = sum(stream.status(now) == "CREATING" for stream in self._streams.values())
        limit = self._config.streams_creating_at_once
        if limit is not None and creating >= limit:
            raise limit_exceeded(f"Account {self._config.account_id} has {creating} streams in CREATING.")
        if mode == "PROVISIONED":
            self.require_shards(shard_count)
        else:
            self.require_on_demand_stream()

    def require_shards(self, more: int) -> None:
        """Refuse more open shards than the account may have."""
        limit, current = self._config.shards_per_account, self.open_shard_count
        if limit is not None and more > 0 and current + more > limit:
            raise limit_exceeded(
                f"This request would exceed the shard limit for the account {self._config.account_id} in "
                f"{self._config.region}. Current shard count for the account: {current}. Limit: {limit}. Number of "
                f"additional shards that would have resulted from this request: {more}."
            )

    def require_on_demand_stream(self) -> None:
        """Refuse one more on-demand stream than the account may have."""
        limit = self._config.on_demand_streams
        if limit is not None and self.on_demand_stream_count >= limit:
            raise limit_exceeded(f"Account {self._config.account_id} has the maximum of {limit} on-demand streams.")

    def require_daily(self, stream: Stream, operation: str, now: float) -> None:
        """Refuse an operation that succeeded too often in the last 24 hours."""
        limit = self._config.daily_limits.get(operation, DAILY_LIMITS[operation])
        if self._config.enforce_limits and limit is not None and len(stream.recent_changes(operation, now)) >= limit:
            raise limit_exceeded(
                f"{operation} can succeed {limit:g} times in 24 hours for stream {stream.name} under account "
                f"{self._config.account_id}."
            )
