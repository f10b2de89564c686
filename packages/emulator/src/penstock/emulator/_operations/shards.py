"""Operations on shards: listing, splitting, merging, scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator.errors import KinesisError, in_use, invalid_argument, limit_exceeded

if TYPE_CHECKING:
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.stream import ListedShard, Stream

_MAX_PAGE = 1000
_SHARDS = "shards"
MAX_SHARDS_AT_ONCE = 10_000
"""Of UpdateShardCount, whatever the account may have."""


def list_shards(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListShards.

    The token names the stream, the filter and the last shard, so nothing else may name them beside it, as in AWS
    (which is why botocore's own ListShards paginator fails on the second page, there and here).
    """
    token = params.get("NextToken")
    if token is None:
        stream = kinesis.find_stream(params)
        # Resolved now: the pages of one listing must agree on what they list.
        shard_filter = _resolve(params.get("ShardFilter"), stream, now)
        after = params.get("ExclusiveStartShardId", "")
    else:
        stream, shard_filter, after = _continue(kinesis, token, params, now)
    _check_creation(stream, params)
    if stream.status(now) in ("CREATING", "DELETING"):
        raise in_use(f"Stream {stream.name} under account {kinesis.config.account_id} is {stream.status(now)}.")
    listed = stream.listed_shards(now)
    shards = [item for item in listed if item.shard.id > after and _matches(item, shard_filter)]
    limit = min(params.get("MaxResults", _MAX_PAGE), _MAX_PAGE)
    answer: dict[str, Any] = {"Shards": [item.description() for item in shards[:limit]]}
    if len(shards) > limit:
        answer["NextToken"] = kinesis.tokens.seal(
            _SHARDS, [now, stream.name, stream.created, shards[limit - 1].shard.id, *shard_filter]
        )
    return answer


def split_shard(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """SplitShard."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    shard = stream.shard(params["ShardToSplit"])
    if stream.mode == "PROVISIONED":
        kinesis.quotas.require_shards(1)
    stream.split(shard, int(params["NewStartingHashKey"]), now)
    return {}


def merge_shards(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """MergeShards."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    stream.merge(stream.shard(params["ShardToMerge"]), stream.shard(params["AdjacentShardToMerge"]), now)
    return {}


def update_shard_count(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """UpdateShardCount."""
    stream = kinesis.find_stream(params)
    stream.require_active(now)
    if stream.mode == "ON_DEMAND":
        raise KinesisError("ValidationException", "UpdateShardCount is not supported for ON_DEMAND streams.")
    current = len(stream.open_shards)
    target = params["TargetShardCount"]
    if target > MAX_SHARDS_AT_ONCE:
        raise limit_exceeded(f"UpdateShardCount cannot scale over {MAX_SHARDS_AT_ONCE} shards.")
    kinesis.quotas.require_shards(target - current)
    kinesis.quotas.require_daily(stream, "UpdateShardCount", now)
    stream.scale(target, now)
    stream.record_change("UpdateShardCount", now)
    return {
        "StreamName": stream.name,
        "CurrentShardCount": current,
        "TargetShardCount": params["TargetShardCount"],
        "StreamARN": stream.arn,
    }


def _continue(kinesis: Kinesis, token: str, params: dict[str, Any], now: float) -> tuple[Stream, tuple[str, Any], str]:
    for name in ("StreamName", "StreamARN", "StreamCreationTimestamp", "ExclusiveStartShardId", "ShardFilter"):
        if name in params:
            raise invalid_argument(f"NextToken and {name} cannot be provided together.")
    content = kinesis.tokens.open(_SHARDS, token)
    if content is None:
        raise invalid_argument("NextToken is invalid.")
    made, name, created, after, kind, value = content
    if now - made > kinesis.config.next_token_lifetime.total_seconds():
        raise KinesisError("ExpiredNextTokenException", "The NextToken has expired.")
    stream = kinesis.find_stream({"StreamName": name})
    if stream.created != created:
        raise invalid_argument("NextToken belongs to a stream that was deleted.")
    return stream, (kind, value), after


def _check_creation(stream: Stream, params: dict[str, Any]) -> None:
    wanted = params.get("StreamCreationTimestamp")
    if wanted is not None and int(wanted) != int(stream.created):
        raise KinesisError(
            "ResourceNotFoundException", f"Stream {stream.name} with creation timestamp {int(wanted)} not found."
        )


def _resolve(shard_filter: dict[str, Any] | None, stream: Stream, now: float) -> tuple[str, Any]:
    horizon = stream.horizon(now)
    if shard_filter is None:
        return "FROM_TIMESTAMP", horizon
    kind = shard_filter["Type"]
    if kind == "AFTER_SHARD_ID":
        if "ShardId" not in shard_filter:
            raise invalid_argument("ShardId must be specified for the ShardFilter type AFTER_SHARD_ID.")
        return kind, shard_filter["ShardId"]
    if kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP"):
        if "Timestamp" not in shard_filter:
            raise invalid_argument(f"Timestamp must be specified for the ShardFilter type {kind}.")
        return kind, max(horizon, shard_filter["Timestamp"])
    match kind:
        case "AT_TRIM_HORIZON":
            return "AT_TIMESTAMP", horizon
        case "FROM_TRIM_HORIZON":
            return "FROM_TIMESTAMP", horizon
    return kind, None


def _matches(item: ListedShard, shard_filter: tuple[str, Any]) -> bool:
    kind, value = shard_filter
    match kind:
        case "AFTER_SHARD_ID":
            return item.shard.id > str(value)
        case "AT_LATEST":
            return item.closed is None
        case "AT_TIMESTAMP" if item.shard.created > value:
            return False
    return item.closed is None or item.closed >= value
