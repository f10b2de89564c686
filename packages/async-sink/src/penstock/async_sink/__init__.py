"""An adaptive, rate-limited asynchronous sink: Kinesis and destinations of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.async_sink._config import AsyncSinkConfig
    from penstock.async_sink._core.batches import Batch, BatchCreator, BatchExtent
    from penstock.async_sink._core.buffer import RequestBuffer
    from penstock.async_sink._core.classifier import EVERYTHING_IS_FATAL, FatalExceptionClassifier
    from penstock.async_sink._core.clock import Clock, LoopClock, Timer
    from penstock.async_sink._core.codec import EntryCodec
    from penstock.async_sink._core.converter import ElementConverter, WriteContext
    from penstock.async_sink._core.entries import (
        EntryFailure,
        EntryListener,
        EntryRunListener,
        FailedAttempt,
        RequestEntryWrapper,
    )
    from penstock.async_sink._core.order import Ordering
    from penstock.async_sink._core.result import ResultHandler
    from penstock.async_sink._core.settlement import TerminalReason
    from penstock.async_sink._core.sink import AsyncSinkBase
    from penstock.async_sink._core.state import BufferedRequestState
    from penstock.async_sink._core.terminal import (
        CallbackHandler,
        DeadLetterHandler,
        DropHandler,
        TerminalRecord,
        TerminalRecordHandler,
    )
    from penstock.async_sink._core.writer import AsyncSinkWriter
    from penstock.async_sink._destinations.dynamodb.attributes import attribute_value
    from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry
    from penstock.async_sink._destinations.dynamodb.sink import DynamoDbSink, dynamodb_config, dynamodb_strategy
    from penstock.async_sink._destinations.dynamodb.writer import DynamoDbWriter
    from penstock.async_sink._destinations.firehose.sink import FirehoseSink, firehose_config, firehose_strategy
    from penstock.async_sink._destinations.firehose.writer import FirehoseRequestEntry, FirehoseWriter
    from penstock.async_sink._destinations.kinesis.aggregate import AggregationConfig
    from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
    from penstock.async_sink._destinations.kinesis.partition_key import KinesisElementConverter, PartitionKey
    from penstock.async_sink._destinations.kinesis.sink import (
        KinesisStreamsSink,
        aggregation_strategy,
        kinesis_aggregation_config,
        kinesis_strategy,
    )
    from penstock.async_sink._destinations.kinesis.writer import KinesisStreamsWriter
    from penstock.async_sink._destinations.sqs.entry import SqsRequestEntry
    from penstock.async_sink._destinations.sqs.sink import SqsSink, sqs_config, sqs_strategy
    from penstock.async_sink._destinations.sqs.writer import SqsWriter
    from penstock.async_sink._destinations.state_format import state_from_bytes, state_to_bytes
    from penstock.async_sink._gateway.client import RemoteSink, RemoteWriter
    from penstock.async_sink._rate.all import All
    from penstock.async_sink._rate.congestion import CongestionControlRateLimitingStrategy, ScalingTarget
    from penstock.async_sink._rate.congestion_config import CongestionControlConfig
    from penstock.async_sink._rate.congestion_decision import (
        CongestionControlInfo,
        CongestionControlStrategy,
        ScalingDecision,
        ThresholdCongestionControlStrategy,
    )
    from penstock.async_sink._rate.defaults import aimd_strategy, paced_strategy, rate_strategy
    from penstock.async_sink._rate.gradient import GradientRateLimitingStrategy
    from penstock.async_sink._rate.lanes import LaneLimiter, LaneObservation
    from penstock.async_sink._rate.per_shard import PerShardRateLimitingStrategy
    from penstock.async_sink._rate.scaling import (
        AIMDScalingStrategy,
        NoOpScalingStrategy,
        ProportionalScalingStrategy,
        ScalingStrategy,
    )
    from penstock.async_sink._rate.shard_bucket import ShardBucket
    from penstock.async_sink._rate.shard_map import ShardMap
    from penstock.async_sink._rate.strategy import (
        AsksAgain,
        HasLanes,
        HasLimit,
        RateLimitingStrategy,
        RequestInfo,
        ResultInfo,
    )
    from penstock.async_sink._rate.token_bucket import TokenBucketRateLimitingStrategy
    from penstock.async_sink._telemetry.metrics import SinkGauges, SinkMetrics
    from penstock.async_sink._write_batches import SinkSummary, write_batches

__all__ = [
    "EVERYTHING_IS_FATAL",
    "AIMDScalingStrategy",
    "AggregationConfig",
    "All",
    "AsksAgain",
    "AsyncSinkBase",
    "AsyncSinkConfig",
    "AsyncSinkWriter",
    "Batch",
    "BatchCreator",
    "BatchExtent",
    "BufferedRequestState",
    "CallbackHandler",
    "Clock",
    "CongestionControlConfig",
    "CongestionControlInfo",
    "CongestionControlRateLimitingStrategy",
    "CongestionControlStrategy",
    "DeadLetterHandler",
    "DropHandler",
    "DynamoDbRequestEntry",
    "DynamoDbSink",
    "DynamoDbWriter",
    "ElementConverter",
    "EntryCodec",
    "EntryFailure",
    "EntryListener",
    "EntryRunListener",
    "FailedAttempt",
    "FatalExceptionClassifier",
    "FirehoseRequestEntry",
    "FirehoseSink",
    "FirehoseWriter",
    "GradientRateLimitingStrategy",
    "HasLanes",
    "HasLimit",
    "KinesisElementConverter",
    "KinesisRequestEntry",
    "KinesisStreamsSink",
    "KinesisStreamsWriter",
    "LaneLimiter",
    "LaneObservation",
    "LoopClock",
    "NoOpScalingStrategy",
    "Ordering",
    "PartitionKey",
    "PerShardRateLimitingStrategy",
    "ProportionalScalingStrategy",
    "RateLimitingStrategy",
    "RemoteSink",
    "RemoteWriter",
    "RequestBuffer",
    "RequestEntryWrapper",
    "RequestInfo",
    "ResultHandler",
    "ResultInfo",
    "ScalingDecision",
    "ScalingStrategy",
    "ScalingTarget",
    "ShardBucket",
    "ShardMap",
    "SinkGauges",
    "SinkMetrics",
    "SinkSummary",
    "SqsRequestEntry",
    "SqsSink",
    "SqsWriter",
    "TerminalReason",
    "TerminalRecord",
    "TerminalRecordHandler",
    "ThresholdCongestionControlStrategy",
    "Timer",
    "TokenBucketRateLimitingStrategy",
    "WriteContext",
    "aggregation_strategy",
    "aimd_strategy",
    "attribute_value",
    "dynamodb_config",
    "dynamodb_strategy",
    "firehose_config",
    "firehose_strategy",
    "kinesis_aggregation_config",
    "kinesis_strategy",
    "paced_strategy",
    "rate_strategy",
    "sqs_config",
    "sqs_strategy",
    "state_from_bytes",
    "state_to_bytes",
    "write_batches",
]

_MODULES = {
    "_rate.all": ("All",),
    "_core.batches": ("Batch", "BatchCreator", "BatchExtent"),
    "_write_batches": ("SinkSummary", "write_batches"),
    "_core.buffer": ("RequestBuffer",),
    "_core.classifier": ("EVERYTHING_IS_FATAL", "FatalExceptionClassifier"),
    "_core.clock": ("Clock", "LoopClock", "Timer"),
    "_core.codec": ("EntryCodec",),
    "_config": ("AsyncSinkConfig",),
    "_rate.congestion": ("CongestionControlRateLimitingStrategy", "ScalingTarget"),
    "_rate.congestion_config": ("CongestionControlConfig",),
    "_rate.congestion_decision": (
        "CongestionControlInfo",
        "CongestionControlStrategy",
        "ScalingDecision",
        "ThresholdCongestionControlStrategy",
    ),
    "_core.converter": ("ElementConverter", "WriteContext"),
    "_rate.defaults": ("aimd_strategy", "paced_strategy", "rate_strategy"),
    "_destinations.dynamodb.attributes": ("attribute_value",),
    "_destinations.dynamodb.entry": ("DynamoDbRequestEntry",),
    "_destinations.dynamodb.sink": ("DynamoDbSink", "dynamodb_config", "dynamodb_strategy"),
    "_destinations.dynamodb.writer": ("DynamoDbWriter",),
    "_core.entries": ("EntryFailure", "EntryListener", "EntryRunListener", "FailedAttempt", "RequestEntryWrapper"),
    "_destinations.firehose.sink": ("FirehoseSink", "firehose_config", "firehose_strategy"),
    "_destinations.firehose.writer": ("FirehoseRequestEntry", "FirehoseWriter"),
    "_gateway.client": ("RemoteSink", "RemoteWriter"),
    "_rate.gradient": ("GradientRateLimitingStrategy",),
    "_destinations.kinesis.aggregate": ("AggregationConfig",),
    "_destinations.kinesis.entry": ("KinesisRequestEntry",),
    "_destinations.kinesis.partition_key": ("KinesisElementConverter", "PartitionKey"),
    "_destinations.kinesis.sink": (
        "KinesisStreamsSink",
        "aggregation_strategy",
        "kinesis_aggregation_config",
        "kinesis_strategy",
    ),
    "_destinations.kinesis.writer": ("KinesisStreamsWriter",),
    "_rate.lanes": ("LaneLimiter", "LaneObservation"),
    "_telemetry.metrics": ("SinkGauges", "SinkMetrics"),
    "_core.order": ("Ordering",),
    "_rate.per_shard": ("PerShardRateLimitingStrategy",),
    "_core.result": ("ResultHandler",),
    "_rate.scaling": ("AIMDScalingStrategy", "NoOpScalingStrategy", "ProportionalScalingStrategy", "ScalingStrategy"),
    "_core.settlement": ("TerminalReason",),
    "_rate.shard_bucket": ("ShardBucket",),
    "_rate.shard_map": ("ShardMap",),
    "_core.sink": ("AsyncSinkBase",),
    "_destinations.sqs.entry": ("SqsRequestEntry",),
    "_destinations.sqs.sink": ("SqsSink", "sqs_config", "sqs_strategy"),
    "_destinations.sqs.writer": ("SqsWriter",),
    "_core.state": ("BufferedRequestState",),
    "_destinations.state_format": ("state_from_bytes", "state_to_bytes"),
    "_rate.strategy": ("AsksAgain", "HasLanes", "HasLimit", "RateLimitingStrategy", "RequestInfo", "ResultInfo"),
    "_core.terminal": (
        "CallbackHandler",
        "DeadLetterHandler",
        "DropHandler",
        "TerminalRecord",
        "TerminalRecordHandler",
    ),
    "_rate.token_bucket": ("TokenBucketRateLimitingStrategy",),
    "_core.writer": ("AsyncSinkWriter",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: Spark imports this package in processes that need little of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
