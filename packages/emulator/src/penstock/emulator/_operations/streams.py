"""Operations on streams and on stream consumers, SubscribeToShard among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator._operations.settings import checked_tags
from penstock.emulator._state.positions import resolve_position
from penstock.emulator.errors import KinesisError, in_use, invalid_argument

if TYPE_CHECKING:
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.stream import Stream
    from penstock.emulator._state.subscription import Subscription

_ON_DEMAND_SHARDS = 4
_NO_LIMIT = 2**31 - 1
_DEFAULT_PAGE = 100
_STREAM_NAME = "stream name"


def create_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """CreateStream."""
    mode = params.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
    shard_count = params.get("ShardCount")
    if mode == "ON_DEMAND":
        if shard_count is not None:
            raise invalid_argument("ShardCount must not be specified for a stream in ON_DEMAND mode.")
        shard_count = _ON_DEMAND_SHARDS
    elif shard_count is None:
        raise KinesisError("ValidationException", "ShardCount is required for a stream in PROVISIONED mode.")
    if params.get("RecordDistributionStrategy") == "AUTO":
        raise invalid_argument("The AUTO record distribution strategy is not emulated.")
    kinesis.quotas.require_room(mode, shard_count, now)
    tags = checked_tags({}, params.get("Tags", {}))
    max_record_kib = params.get("MaxRecordSizeInKiB")
    stream = kinesis.create_stream(
        params["StreamName"],
        shard_count,
        now=now,
        mode=mode,
        max_record_bytes=max_record_kib * 1024 if max_record_kib else None,
    )
    stream.tags = tags
    return {}


def describe_limits(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DescribeLimits; a limit that is switched off is reported as the greatest number there is."""
    config = kinesis.config
    return {
        "ShardLimit": config.shards_per_account or _NO_LIMIT,
        "OpenShardCount": kinesis.quotas.open_shard_count,
        "OnDemandStreamCount": kinesis.quotas.on_demand_stream_count,
        "OnDemandStreamCountLimit": config.on_demand_streams or _NO_LIMIT,
    }


def delete_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DeleteStream."""
    stream = kinesis.find_stream(params)
    if stream.consumers and not params.get("EnforceConsumerDeletion"):
        raise in_use(
            f"Stream {stream.name} under account {kinesis.config.account_id} has registered consumers. "
            "Deregister them, or set EnforceConsumerDeletion."
        )
    kinesis.delete_stream(stream, now=now)
    return {}


def describe_stream_summary(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DescribeStreamSummary."""
    stream = kinesis.find_stream(params)
    summary = _description(stream, now)
    summary["OpenShardCount"] = len(stream.open_shards)
    summary["ConsumerCount"] = len(stream.consumers)
    summary["MaxRecordSizeInKiB"] = stream.max_record_bytes // 1024
    return {"StreamDescriptionSummary": summary}


def describe_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DescribeStream, paged by ExclusiveStartShardId."""
    stream = kinesis.find_stream(params)
    after = params.get("ExclusiveStartShardId", "")
    shards = [item.description() for item in stream.listed_shards(now) if item.shard.id > after]
    if stream.status(now) == "CREATING":
        shards = []
    limit = params.get("Limit", _DEFAULT_PAGE)
    description = _description(stream, now)
    description["Shards"] = shards[:limit]
    description["HasMoreShards"] = len(shards) > limit
    return {"StreamDescription": description}


def list_streams(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListStreams, in order of the names, paged by NextToken or by ExclusiveStartStreamName."""
    after = params.get("ExclusiveStartStreamName", "")
    if "NextToken" in params:
        content = kinesis.tokens.open(_STREAM_NAME, params["NextToken"])
        if content is None:
            raise invalid_argument("NextToken is invalid.")
        after = content[0]
    names = sorted(name for name in kinesis.streams if name > after)
    limit = params.get("Limit", _DEFAULT_PAGE)
    page = [kinesis.streams[name] for name in names[:limit]]
    answer: dict[str, Any] = {
        "StreamNames": [stream.name for stream in page],
        "HasMoreStreams": len(names) > limit,
        "StreamSummaries": [
            {
                "StreamName": stream.name,
                "StreamARN": stream.arn,
                "StreamStatus": stream.status(now),
                "StreamModeDetails": {"StreamMode": stream.mode},
                "StreamCreationTimestamp": int(stream.created),
            }
            for stream in page
        ],
    }
    if len(names) > limit:
        answer["NextToken"] = kinesis.tokens.seal(_STREAM_NAME, [page[-1].name])
    return answer


def _description(stream: Stream, now: float) -> dict[str, Any]:
    description = {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status(now),
        "StreamModeDetails": {"StreamMode": stream.mode},
        "RetentionPeriodHours": int(stream.retention_seconds // 3600),
        "StreamCreationTimestamp": int(stream.created),
        "EnhancedMonitoring": [{"ShardLevelMetrics": stream.shard_level_metrics}],
        "EncryptionType": "NONE" if stream.encryption_key is None else "KMS",
    }
    if stream.encryption_key is not None:
        description["KeyId"] = stream.encryption_key
    return description


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
