"""What a request is about, for faults; tolerant of everything that validation would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._faults import Target
from ._hash_keys import hash_key
from ._iterators import open_iterator

if TYPE_CHECKING:
    from ._kinesis import Kinesis


def target_of(kinesis: Kinesis, operation: str, params: Any) -> Target:
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
        if consumer is not None and not consumer.startswith("arn:") and stream in kinesis.streams:
            known = kinesis.streams[stream].consumers.get(consumer)
            consumer = known.arn if known is not None else consumer
    token = _text(params, "ShardIterator")
    iterator = open_iterator(kinesis, token) if token is not None else None
    if iterator is not None:
        stream, shard = iterator.stream, iterator.shard
    shard = shard or _text(params, "ShardToSplit") or _text(params, "ShardToMerge")
    if operation == "PutRecord" and stream in kinesis.streams:
        shard = _shard_of(kinesis, stream, params)
    return Target(operation, stream=stream, shard=shard, consumer=consumer)


def _shard_of(kinesis: Kinesis, stream: str, params: dict[str, Any]) -> str | None:
    explicit, key = _text(params, "ExplicitHashKey"), _text(params, "PartitionKey")
    if explicit is not None and explicit.isascii() and explicit.isdigit() and len(explicit) < 40:
        return kinesis.streams[stream].shard_for(int(explicit)).id
    return kinesis.streams[stream].shard_for(hash_key(key)).id if key is not None else None


def _stream_of(arn: str) -> str | None:
    name = arn.partition(":stream/")[2].partition("/")[0]
    return name or None


def _text(params: dict[str, Any], name: str) -> str | None:
    value = params.get(name)
    return value if isinstance(value, str) else None
