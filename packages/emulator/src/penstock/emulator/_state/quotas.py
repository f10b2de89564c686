"""What an account may do, and how much it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator._faults import Target
from penstock.emulator._state.hash_keys import hash_key
from penstock.emulator._state.limits import DAILY_LIMITS, OperationRates
from penstock.emulator.errors import KinesisError, limit_exceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.emulator._config import EmulatorConfig
    from penstock.emulator._state.stream import Stream
    from penstock.emulator._state.tokens import TokenSealer


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
