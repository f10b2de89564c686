"""The table of operations, and the one way through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _operations_consumers as consumers
from . import _operations_records as records
from . import _operations_shards as shards
from . import _operations_streams as streams
from ._validation import validate_request
from .errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._kinesis import Kinesis
    from ._subscription import Subscription

OPERATIONS: dict[str, Callable[[Kinesis, dict[str, Any], float], dict[str, Any] | Subscription]] = {
    "CreateStream": streams.create_stream,
    "DeleteStream": streams.delete_stream,
    "DeregisterStreamConsumer": consumers.deregister_stream_consumer,
    "DescribeStream": streams.describe_stream,
    "DescribeStreamConsumer": consumers.describe_stream_consumer,
    "DescribeStreamSummary": streams.describe_stream_summary,
    "GetRecords": records.get_records,
    "GetShardIterator": records.get_shard_iterator,
    "ListShards": shards.list_shards,
    "ListStreamConsumers": consumers.list_stream_consumers,
    "ListStreams": streams.list_streams,
    "MergeShards": shards.merge_shards,
    "PutRecord": records.put_record,
    "PutRecords": records.put_records,
    "RegisterStreamConsumer": consumers.register_stream_consumer,
    "SplitShard": shards.split_shard,
    "SubscribeToShard": consumers.subscribe_to_shard,
    "UpdateShardCount": shards.update_shard_count,
}


def perform(kinesis: Kinesis, operation: str, params: Any, now: float) -> dict[str, Any] | Subscription:
    """Check a request and carry it out.

    Returns:
        The members of the answer, or the subscription that SubscribeToShard opened.

    Raises:
        KinesisError: what the API answers instead.
    """
    handler = OPERATIONS.get(operation)
    if handler is None:
        raise KinesisError("UnknownOperationException", f"{operation} is not emulated.")
    checked = validate_request(operation, params)
    if checked.get("DryRun"):
        # Answering a dry run with anything but an exception would have to do, or to pretend, the work.
        raise KinesisError("DryRunOperationException", "DryRun is not emulated; nothing was done.")
    kinesis.settle(now)
    return handler(kinesis, checked, now)
