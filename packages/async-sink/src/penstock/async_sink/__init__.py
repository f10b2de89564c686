"""An adaptive, rate-limited asynchronous sink: Kinesis and destinations of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.async_sink._all import All
    from penstock.async_sink._batches import Batch, BatchCreator, BatchExtent
    from penstock.async_sink._blocking import SinkSummary, write_batches
    from penstock.async_sink._buffer import RequestBuffer
    from penstock.async_sink._classifier import EVERYTHING_IS_FATAL, FatalExceptionClassifier
    from penstock.async_sink._clock import Clock, LoopClock, Timer
    from penstock.async_sink._codec import EntryCodec
    from penstock.async_sink._config import AsyncSinkConfig
    from penstock.async_sink._congestion import CongestionControlRateLimitingStrategy, ScalingTarget
    from penstock.async_sink._congestion_config import CongestionControlConfig
    from penstock.async_sink._congestion_decision import (
        CongestionControlInfo,
        CongestionControlStrategy,
        ScalingDecision,
        ThresholdCongestionControlStrategy,
    )
    from penstock.async_sink._converter import ElementConverter, WriteContext
    from penstock.async_sink._defaults import aimd_strategy, paced_strategy, rate_strategy
    from penstock.async_sink._dynamodb._attributes import attribute_value
    from penstock.async_sink._dynamodb._entry import DynamoDbRequestEntry
    from penstock.async_sink._dynamodb._sink import DynamoDbSink, dynamodb_config, dynamodb_strategy
    from penstock.async_sink._dynamodb._writer import DynamoDbWriter
    from penstock.async_sink._entries import (
        EntryFailure,
        EntryListener,
        EntryRunListener,
        FailedAttempt,
        RequestEntryWrapper,
    )
    from penstock.async_sink._firehose._sink import FirehoseSink, firehose_config, firehose_strategy
    from penstock.async_sink._firehose._writer import FirehoseRequestEntry, FirehoseWriter
    from penstock.async_sink._gateway._client import RemoteSink, RemoteWriter
    from penstock.async_sink._gradient import GradientRateLimitingStrategy
    from penstock.async_sink._kinesis._aggregate import AggregationConfig
    from penstock.async_sink._kinesis._entry import KinesisRequestEntry
    from penstock.async_sink._kinesis._partition_key import KinesisElementConverter, PartitionKey
    from penstock.async_sink._kinesis._sink import (
        KinesisStreamsSink,
        aggregation_strategy,
        kinesis_aggregation_config,
        kinesis_strategy,
    )
    from penstock.async_sink._kinesis._writer import KinesisStreamsWriter
    from penstock.async_sink._lanes import LaneLimiter, LaneObservation
    from penstock.async_sink._metrics import SinkGauges, SinkMetrics
    from penstock.async_sink._order import Ordering
    from penstock.async_sink._per_shard import PerShardRateLimitingStrategy
    from penstock.async_sink._result import ResultHandler
    from penstock.async_sink._scaling import (
        AIMDScalingStrategy,
        NoOpScalingStrategy,
        ProportionalScalingStrategy,
        ScalingStrategy,
    )
    from penstock.async_sink._settlement import TerminalReason
    from penstock.async_sink._shard_bucket import ShardBucket
    from penstock.async_sink._shard_map import ShardMap
    from penstock.async_sink._sink import AsyncSinkBase
    from penstock.async_sink._sqs._entry import SqsRequestEntry
    from penstock.async_sink._sqs._sink import SqsSink, sqs_config, sqs_strategy
    from penstock.async_sink._sqs._writer import SqsWriter
    from penstock.async_sink._state import BufferedRequestState
    from penstock.async_sink._state_format import state_from_bytes, state_to_bytes
    from penstock.async_sink._strategy import (
        AsksAgain,
        HasLanes,
        HasLimit,
        RateLimitingStrategy,
        RequestInfo,
        ResultInfo,
    )
    from penstock.async_sink._terminal import (
        CallbackHandler,
        DeadLetterHandler,
        DropHandler,
        TerminalRecord,
        TerminalRecordHandler,
    )
    from penstock.async_sink._token_bucket import TokenBucketRateLimitingStrategy
    from penstock.async_sink._writer import AsyncSinkWriter

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
    "_all": ("All",),
    "_batches": ("Batch", "BatchCreator", "BatchExtent"),
    "_blocking": ("SinkSummary", "write_batches"),
    "_buffer": ("RequestBuffer",),
    "_classifier": ("EVERYTHING_IS_FATAL", "FatalExceptionClassifier"),
    "_clock": ("Clock", "LoopClock", "Timer"),
    "_codec": ("EntryCodec",),
    "_config": ("AsyncSinkConfig",),
    "_congestion": ("CongestionControlRateLimitingStrategy", "ScalingTarget"),
    "_congestion_config": ("CongestionControlConfig",),
    "_congestion_decision": (
        "CongestionControlInfo",
        "CongestionControlStrategy",
        "ScalingDecision",
        "ThresholdCongestionControlStrategy",
    ),
    "_converter": ("ElementConverter", "WriteContext"),
    "_defaults": ("aimd_strategy", "paced_strategy", "rate_strategy"),
    "_dynamodb._attributes": ("attribute_value",),
    "_dynamodb._entry": ("DynamoDbRequestEntry",),
    "_dynamodb._sink": ("DynamoDbSink", "dynamodb_config", "dynamodb_strategy"),
    "_dynamodb._writer": ("DynamoDbWriter",),
    "_entries": ("EntryFailure", "EntryListener", "EntryRunListener", "FailedAttempt", "RequestEntryWrapper"),
    "_firehose._sink": ("FirehoseSink", "firehose_config", "firehose_strategy"),
    "_firehose._writer": ("FirehoseRequestEntry", "FirehoseWriter"),
    "_gateway._client": ("RemoteSink", "RemoteWriter"),
    "_gradient": ("GradientRateLimitingStrategy",),
    "_kinesis._aggregate": ("AggregationConfig",),
    "_kinesis._entry": ("KinesisRequestEntry",),
    "_kinesis._partition_key": ("KinesisElementConverter", "PartitionKey"),
    "_kinesis._sink": ("KinesisStreamsSink", "aggregation_strategy", "kinesis_aggregation_config", "kinesis_strategy"),
    "_kinesis._writer": ("KinesisStreamsWriter",),
    "_lanes": ("LaneLimiter", "LaneObservation"),
    "_metrics": ("SinkGauges", "SinkMetrics"),
    "_order": ("Ordering",),
    "_per_shard": ("PerShardRateLimitingStrategy",),
    "_result": ("ResultHandler",),
    "_scaling": ("AIMDScalingStrategy", "NoOpScalingStrategy", "ProportionalScalingStrategy", "ScalingStrategy"),
    "_settlement": ("TerminalReason",),
    "_shard_bucket": ("ShardBucket",),
    "_shard_map": ("ShardMap",),
    "_sink": ("AsyncSinkBase",),
    "_sqs._entry": ("SqsRequestEntry",),
    "_sqs._sink": ("SqsSink", "sqs_config", "sqs_strategy"),
    "_sqs._writer": ("SqsWriter",),
    "_state": ("BufferedRequestState",),
    "_state_format": ("state_from_bytes", "state_to_bytes"),
    "_strategy": ("AsksAgain", "HasLanes", "HasLimit", "RateLimitingStrategy", "RequestInfo", "ResultInfo"),
    "_terminal": ("CallbackHandler", "DeadLetterHandler", "DropHandler", "TerminalRecord", "TerminalRecordHandler"),
    "_token_bucket": ("TokenBucketRateLimitingStrategy",),
    "_writer": ("AsyncSinkWriter",),
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
