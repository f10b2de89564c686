"""What a request is about, for faults; tolerant of everything that validation would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator._faults import Target
from penstock.emulator._state.hash_keys import hash_key

if TYPE_CHECKING:
    from collections.abc import Mapping

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
