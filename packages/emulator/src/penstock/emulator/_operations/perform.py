"""The table of operations, and the one way through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator._operations import records, settings, shards, streams
from penstock.emulator._operations.validation import service_model, validate_request
from penstock.emulator.errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.subscription import Subscription

OPERATIONS: dict[str, Callable[[Kinesis, dict[str, Any], float], dict[str, Any] | Subscription]] = {
    "AddTagsToStream": settings.add_tags_to_stream,
    "CreateStream": streams.create_stream,
    "DecreaseStreamRetentionPeriod": settings.decrease_stream_retention_period,
    "DeleteStream": streams.delete_stream,
    "DeregisterStreamConsumer": streams.deregister_stream_consumer,
    "DescribeLimits": streams.describe_limits,
    "DescribeStream": streams.describe_stream,
    "DescribeStreamConsumer": streams.describe_stream_consumer,
    "DescribeStreamSummary": streams.describe_stream_summary,
    "DisableEnhancedMonitoring": settings.disable_enhanced_monitoring,
    "EnableEnhancedMonitoring": settings.enable_enhanced_monitoring,
    "GetRecords": records.get_records,
    "GetShardIterator": records.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": settings.increase_stream_retention_period,
    "ListShards": shards.list_shards,
    "ListStreamConsumers": streams.list_stream_consumers,
    "ListStreams": streams.list_streams,
    "ListTagsForResource": settings.list_tags_for_resource,
    "ListTagsForStream": settings.list_tags_for_stream,
    "MergeShards": shards.merge_shards,
    "PutRecord": records.put_record,
    "PutRecords": records.put_records,
    "RegisterStreamConsumer": streams.register_stream_consumer,
    "RemoveTagsFromStream": settings.remove_tags_from_stream,
    "SplitShard": shards.split_shard,
    "StartStreamEncryption": settings.start_stream_encryption,
    "StopStreamEncryption": settings.stop_stream_encryption,
    "SubscribeToShard": streams.subscribe_to_shard,
    "TagResource": settings.tag_resource,
    "UntagResource": settings.untag_resource,
    "UpdateMaxRecordSize": settings.update_max_record_size,
    "UpdateShardCount": shards.update_shard_count,
    "UpdateStreamMode": settings.update_stream_mode,
}


def perform(kinesis: Kinesis, operation: str, params: Any, now: float) -> dict[str, Any] | Subscription:
    """Check a request and carry it out.

    Returns:
        The members of the answer, or the subscription that SubscribeToShard opened.

    Raises:
        KinesisError: what the API answers instead.
    """
    handler = OPERATIONS.get(operation)
    # A botocore older than an operation has no model to check it against.
    if handler is None or operation not in service_model().operation_names:
        raise KinesisError("UnknownOperationException", f"{operation} is not emulated.")
    checked = validate_request(operation, params)
    if checked.get("DryRun"):
        # Answering a dry run with anything but an exception would have to do, or to pretend, the work.
        raise KinesisError("DryRunOperationException", "DryRun is not emulated; nothing was done.")
    if operation != "SubscribeToShard":
        # That has rules that come before its rate.
        kinesis.quotas.admit(operation, checked, now)
    kinesis.settle(now)
    return handler(kinesis, checked, now)
