"""Operations on tags, and on the settings of a stream: retention, mode, encryption, monitoring, record size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator.errors import KinesisError, invalid_argument, limit_exceeded

if TYPE_CHECKING:
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.stream import Consumer, Stream

_MAX_TAGS = 50
_DEFAULT_PAGE = 50


def add_tags_to_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """AddTagsToStream."""
    stream = kinesis.find_stream(params)
    stream.tags = checked_tags(stream.tags, params["Tags"])
    return {}


def remove_tags_from_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """RemoveTagsFromStream; tags that are not there are passed over."""
    _remove(kinesis.find_stream(params), params["TagKeys"])
    return {}


def list_tags_for_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListTagsForStream, in order of the keys, paged by ExclusiveStartTagKey."""
    stream = kinesis.find_stream(params)
    keys = sorted(key for key in stream.tags if key > params.get("ExclusiveStartTagKey", ""))
    limit = params.get("Limit", _DEFAULT_PAGE)
    return {"Tags": _listed(stream.tags, keys[:limit]), "HasMoreTags": len(keys) > limit}


def tag_resource(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """TagResource, for streams and consumers."""
    resource = _resource(kinesis, params["ResourceARN"])
    resource.tags = checked_tags(resource.tags, params["Tags"])
    return {}


def untag_resource(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """UntagResource, for streams and consumers."""
    _remove(_resource(kinesis, params["ResourceARN"]), params["TagKeys"])
    return {}


def list_tags_for_resource(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListTagsForResource, for streams and consumers."""
    resource = _resource(kinesis, params["ResourceARN"])
    return {"Tags": _listed(resource.tags, sorted(resource.tags))}


def checked_tags(present: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """The tags of a resource with `more` tags, which replace tags of the same key.

    Raises:
        KinesisError: InvalidArgumentException for a key that is reserved, LimitExceededException for too many tags.
    """
    for key in more:
        if key.lower().startswith("aws:"):
            raise invalid_argument(f"Tag keys must not start with aws:, as {key} does.")
    tags = present | more
    if len(tags) > _MAX_TAGS:
        raise limit_exceeded(f"A resource can have {_MAX_TAGS} tags at most.")
    return tags


def _resource(kinesis: Kinesis, arn: str) -> Stream | Consumer:
    if "/consumer/" in arn:
        return kinesis.find_consumer({"ConsumerARN": arn})
    return kinesis.find_stream({"StreamARN": arn})


def _remove(resource: Stream | Consumer, keys: list[str]) -> None:
    resource.tags = {key: value for key, value in resource.tags.items() if key not in keys}


def _listed(tags: dict[str, str], keys: list[str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": tags[key]} for key in keys]


_HOUR_SECONDS = 3600
_MIN_RETENTION_HOURS = 24
_MAX_RETENTION_HOURS = 8760
_METRICS = (
    "IncomingBytes",
    "IncomingRecords",
    "IteratorAgeMilliseconds",
    "OutgoingBytes",
    "OutgoingRecords",
    "ReadProvisionedThroughputExceeded",
    "WriteProvisionedThroughputExceeded",
)


def increase_stream_retention_period(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """IncreaseStreamRetentionPeriod; what is trimmed already does not come back."""
    stream, hours = _retention(kinesis, params, now)
    if hours * _HOUR_SECONDS < stream.retention_seconds:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be shorter than existing "
            f"retention period ({stream.retention_seconds / _HOUR_SECONDS:g} hours). Use DecreaseRetentionPeriod API."
        )
    _retain(stream, hours, now)
    return {}


def decrease_stream_retention_period(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DecreaseStreamRetentionPeriod; what is older now is trimmed at once."""
    stream, hours = _retention(kinesis, params, now)
    if hours * _HOUR_SECONDS > stream.retention_seconds:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be longer than existing "
            f"retention period ({stream.retention_seconds / _HOUR_SECONDS:g} hours). Use IncreaseRetentionPeriod API."
        )
    _retain(stream, hours, now)
    return {}


def update_max_record_size(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """UpdateMaxRecordSize; records that are there already stay."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    stream.max_record_bytes = params["MaxRecordSizeInKiB"] * 1024
    stream.update(now)
    return {}


def update_stream_mode(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """UpdateStreamMode; the shards stay as they are."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    mode = params["StreamModeDetails"]["StreamMode"]
    if mode != stream.mode:
        kinesis.quotas.require_daily(stream, "UpdateStreamMode", now)
        if mode == "ON_DEMAND":
            kinesis.quotas.require_on_demand_stream()
        else:
            kinesis.quotas.require_shards(len(stream.open_shards))
        stream.mode = mode
        stream.record_change("UpdateStreamMode", now)
    stream.update(now)
    return {}


def start_stream_encryption(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """StartStreamEncryption: records that are put from now on say that they are encrypted; nothing is."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    _require_kms(params)
    if params["KeyId"] != stream.encryption_key:
        kinesis.quotas.require_daily(stream, "StartStreamEncryption", now)
        stream.encryption_key = params["KeyId"]
        stream.record_change("StartStreamEncryption", now)
    stream.update(now)
    return {}


def stop_stream_encryption(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """StopStreamEncryption."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    _require_kms(params)
    if stream.encryption_key is None:
        raise invalid_argument(f"Stream {stream.name} is not encrypted.")
    stream.encryption_key = None
    stream.update(now)
    return {}


def enable_enhanced_monitoring(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """EnableEnhancedMonitoring: remembered, and described; there are no metrics."""
    return _monitor(kinesis, params, now, enable=True)


def disable_enhanced_monitoring(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """DisableEnhancedMonitoring."""
    return _monitor(kinesis, params, now, enable=False)


def _monitor(kinesis: Kinesis, params: dict[str, Any], now: float, *, enable: bool) -> dict[str, Any]:
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    wanted = set(_METRICS if "ALL" in params["ShardLevelMetrics"] else params["ShardLevelMetrics"])
    before = stream.shard_level_metrics
    after = wanted.union(before) if enable else set(before) - wanted
    stream.shard_level_metrics = sorted(after)
    stream.update(now)
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": stream.shard_level_metrics,
    }


def _retention(kinesis: Kinesis, params: dict[str, Any], now: float) -> tuple[Stream, int]:
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    hours: int = params["RetentionPeriodHours"]
    if hours < _MIN_RETENTION_HOURS:
        raise invalid_argument(f"Minimum allowed retention period is {_MIN_RETENTION_HOURS} hours. Requested: {hours}.")
    if hours > _MAX_RETENTION_HOURS:
        raise invalid_argument(f"Maximum allowed retention period is {_MAX_RETENTION_HOURS} hours. Requested: {hours}.")
    return stream, hours


def _retain(stream: Stream, hours: int, now: float) -> None:
    # By the old retention first: what it has ended for does not come back with the new one.
    stream.trim(now)
    stream.retention_seconds = float(hours * _HOUR_SECONDS)
    stream.trim(now)
    stream.update(now)


def _require_kms(params: dict[str, Any]) -> None:
    if params["EncryptionType"] != "KMS":
        raise KinesisError(
            "ValidationException",
            "1 validation error detected: Value 'NONE' at 'encryptionType' failed to satisfy constraint: Member must "
            "satisfy enum value set: [KMS]",
        )
