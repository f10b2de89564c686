"""Operations on stream consumers, SubscribeToShard among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator._operations.tags import checked_tags
from penstock.emulator._state.positions import resolve_position
from penstock.emulator.errors import KinesisError, invalid_argument

if TYPE_CHECKING:
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.subscription import Subscription

_MAX_PAGE = 100
_CONSUMERS = "consumers"


def register_stream_consumer(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """RegisterStreamConsumer."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    tags = checked_tags({}, params.get("Tags", {}))
    consumer = stream.register(params["ConsumerName"], now)
    consumer.tags = tags
    return {"Consumer": consumer.as_dict(now)}


def describe_stream_consumer(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DescribeStreamConsumer, by ARN or by stream and name."""
    consumer = kinesis.find_consumer(params)
    return {"ConsumerDescription": consumer.as_dict(now) | {"StreamARN": consumer.stream_arn}}


def list_stream_consumers(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListStreamConsumers, in order of the names."""
    stream = kinesis.find_stream(params)
    wanted = params.get("StreamCreationTimestamp")
    if wanted is not None and int(wanted) != int(stream.created):
        raise KinesisError(
            "ResourceNotFoundException", f"Stream {stream.name} with creation timestamp {int(wanted)} not found."
        )
    after = ""
    if "NextToken" in params:
        content = kinesis.tokens.open(_CONSUMERS, params["NextToken"])
        if content is None or content[1:3] != [stream.name, stream.created]:
            raise invalid_argument("NextToken is invalid.")
        if now - content[0] > kinesis.config.next_token_lifetime.total_seconds():
            raise KinesisError("ExpiredNextTokenException", "The NextToken has expired.")
        after = content[3]
    names = sorted(name for name in stream.consumers if name > after)
    limit = min(params.get("MaxResults", _MAX_PAGE), _MAX_PAGE)
    answer: dict[str, Any] = {"Consumers": [stream.consumers[name].as_dict(now) for name in names[:limit]]}
    if len(names) > limit:
        answer["NextToken"] = kinesis.tokens.seal(_CONSUMERS, [now, stream.name, stream.created, names[limit - 1]])
    return answer


def deregister_stream_consumer(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DeregisterStreamConsumer, by ARN or by stream and name; harmless while the consumer is DELETING."""
    consumer = kinesis.find_consumer(params)
    if consumer.deleted_at is None:
        kinesis.deregister(consumer, now=now)
    return {}


def subscribe_to_shard(kinesis: Kinesis, params: dict[str, Any], now: float) -> Subscription:
    """SubscribeToShard: everything that can be refused is refused here, before the stream begins."""
    consumer = kinesis.find_consumer(params)
    stream = kinesis.stream_of(consumer)
    shard = stream.shard(params["ShardId"])
    start = params["StartingPosition"]
    begin = resolve_position(
        shard,
        kind=start["Type"],
        sequence_number=start.get("SequenceNumber"),
        timestamp=start.get("Timestamp"),
        horizon=stream.horizon(now),
        now=now,
        behaviour=kinesis.behaviour,
    )
    return kinesis.subscribe(consumer, shard, begin.position, now=now)
