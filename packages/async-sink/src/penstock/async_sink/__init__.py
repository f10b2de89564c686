"""An adaptive, rate-limited asynchronous sink: Kinesis and destinations of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.async_sink._config import AsyncSinkConfig, Ordering
    from penstock.async_sink._core.classifier import FatalExceptionClassifier
    from penstock.async_sink._core.entries import (
        ElementConverter,
        EntryFailure,
        EntryListener,
        EntryRunListener,
        FailedAttempt,
        RequestEntryWrapper,
        WriteContext,
    )
    from penstock.async_sink._core.loop import Clock, Timer
    from penstock.async_sink._core.settlement import ResultHandler, TerminalReason
    from penstock.async_sink._core.state import BufferedRequestState, EntryCodec
    from penstock.async_sink._core.terminal import (
        CallbackHandler,
        DeadLetterHandler,
        DropHandler,
        TerminalRecord,
        TerminalRecordHandler,
    )
    from penstock.async_sink._core.writer import AsyncSinkBase, AsyncSinkWriter
    from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry
    from penstock.async_sink._destinations.dynamodb.writer import DynamoDbSink, dynamodb_config
    from penstock.async_sink._destinations.firehose import FirehoseRequestEntry, FirehoseSink, firehose_config
    from penstock.async_sink._destinations.kinesis.aggregate import AggregationConfig
    from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
    from penstock.async_sink._destinations.kinesis.partition_key import KinesisElementConverter, PartitionKey
    from penstock.async_sink._destinations.kinesis.sink import KinesisStreamsSink, kinesis_aggregation_config
    from penstock.async_sink._destinations.sqs.entry import SqsRequestEntry
    from penstock.async_sink._destinations.sqs.writer import SqsSink, sqs_config
    from penstock.async_sink._destinations.state_format import state_from_bytes, state_to_bytes
    from penstock.async_sink._gateway.client import RemoteSink
    from penstock.async_sink._rate.congestion import (
        CongestionControlConfig,
        CongestionControlInfo,
        CongestionControlRateLimitingStrategy,
        CongestionControlStrategy,
        ScalingDecision,
        ScalingTarget,
        ThresholdCongestionControlStrategy,
    )
    from penstock.async_sink._rate.defaults import (
        aggregation_strategy,
        aimd_strategy,
        kinesis_strategy,
        rate_strategy,
        slow_start_strategy,
    )
    from penstock.async_sink._rate.gradient import GradientRateLimitingStrategy
    from penstock.async_sink._rate.per_shard import PerShardRateLimitingStrategy
    from penstock.async_sink._rate.scaling import (
        AIMDScalingStrategy,
        NoOpScalingStrategy,
        ProportionalScalingStrategy,
        ScalingStrategy,
    )
    from penstock.async_sink._rate.strategy import (
        All,
        AsksAgain,
        HasLanes,
        HasLimit,
        LaneLimiter,
        LaneObservation,
        RateLimitingStrategy,
        RequestInfo,
        ResultInfo,
    )
    from penstock.async_sink._rate.token_bucket import TokenBucketRateLimitingStrategy
    from penstock.async_sink._telemetry.metrics import SinkGauges, SinkMetrics
    from penstock.async_sink._write_batches import SinkSummary, write_batches

__all__ = [
    "AIMDScalingStrategy",
    "AggregationConfig",
    "All",
    "AsksAgain",
    "AsyncSinkBase",
    "AsyncSinkConfig",
    "AsyncSinkWriter",
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
    "ElementConverter",
    "EntryCodec",
    "EntryFailure",
    "EntryListener",
    "EntryRunListener",
    "FailedAttempt",
    "FatalExceptionClassifier",
    "FirehoseRequestEntry",
    "FirehoseSink",
    "GradientRateLimitingStrategy",
    "HasLanes",
    "HasLimit",
    "KinesisElementConverter",
    "KinesisRequestEntry",
    "KinesisStreamsSink",
    "LaneLimiter",
    "LaneObservation",
    "NoOpScalingStrategy",
    "Ordering",
    "PartitionKey",
    "PerShardRateLimitingStrategy",
    "ProportionalScalingStrategy",
    "RateLimitingStrategy",
    "RemoteSink",
    "RequestEntryWrapper",
    "RequestInfo",
    "ResultHandler",
    "ResultInfo",
    "ScalingDecision",
    "ScalingStrategy",
    "ScalingTarget",
    "SinkGauges",
    "SinkMetrics",
    "SinkSummary",
    "SqsRequestEntry",
    "SqsSink",
    "TerminalReason",
    "TerminalRecord",
    "TerminalRecordHandler",
    "ThresholdCongestionControlStrategy",
    "Timer",
    "TokenBucketRateLimitingStrategy",
    "WriteContext",
    "aggregation_strategy",
    "aimd_strategy",
    "dynamodb_config",
    "firehose_config",
    "kinesis_aggregation_config",
    "kinesis_strategy",
    "rate_strategy",
    "slow_start_strategy",
    "sqs_config",
    "state_from_bytes",
    "state_to_bytes",
    "write_batches",
]

_MODULES = {
    "_config": ("AsyncSinkConfig", "Ordering"),
    "_core.classifier": ("FatalExceptionClassifier",),
    "_core.entries": (
        "ElementConverter",
        "EntryFailure",
        "EntryListener",
        "EntryRunListener",
        "FailedAttempt",
        "RequestEntryWrapper",
        "WriteContext",
    ),
    "_core.loop": ("Clock", "Timer"),
    "_core.settlement": ("ResultHandler", "TerminalReason"),
    "_core.state": ("BufferedRequestState", "EntryCodec"),
    "_core.terminal": (
        "CallbackHandler",
        "DeadLetterHandler",
        "DropHandler",
        "TerminalRecord",
        "TerminalRecordHandler",
    ),
    "_core.writer": ("AsyncSinkBase", "AsyncSinkWriter"),
    "_destinations.dynamodb.entry": ("DynamoDbRequestEntry",),
    "_destinations.dynamodb.writer": ("DynamoDbSink", "dynamodb_config"),
    "_destinations.firehose": ("FirehoseRequestEntry", "FirehoseSink", "firehose_config"),
    "_destinations.kinesis.aggregate": ("AggregationConfig",),
    "_destinations.kinesis.entry": ("KinesisRequestEntry",),
    "_destinations.kinesis.partition_key": ("KinesisElementConverter", "PartitionKey"),
    "_destinations.kinesis.sink": ("KinesisStreamsSink", "kinesis_aggregation_config"),
    "_destinations.sqs.entry": ("SqsRequestEntry",),
    "_destinations.sqs.writer": ("SqsSink", "sqs_config"),
    "_destinations.state_format": ("state_from_bytes", "state_to_bytes"),
    "_gateway.client": ("RemoteSink",),
    "_rate.congestion": (
        "CongestionControlConfig",
        "CongestionControlInfo",
        "CongestionControlRateLimitingStrategy",
        "CongestionControlStrategy",
        "ScalingDecision",
        "ScalingTarget",
        "ThresholdCongestionControlStrategy",
    ),
    "_rate.defaults": (
        "aggregation_strategy",
        "aimd_strategy",
        "kinesis_strategy",
        "rate_strategy",
        "slow_start_strategy",
    ),
    "_rate.gradient": ("GradientRateLimitingStrategy",),
    "_rate.per_shard": ("PerShardRateLimitingStrategy",),
    "_rate.scaling": ("AIMDScalingStrategy", "NoOpScalingStrategy", "ProportionalScalingStrategy", "ScalingStrategy"),
    "_rate.strategy": (
        "All",
        "AsksAgain",
        "HasLanes",
        "HasLimit",
        "LaneLimiter",
        "LaneObservation",
        "RateLimitingStrategy",
        "RequestInfo",
        "ResultInfo",
    ),
    "_rate.token_bucket": ("TokenBucketRateLimitingStrategy",),
    "_telemetry.metrics": ("SinkGauges", "SinkMetrics"),
    "_write_batches": ("SinkSummary", "write_batches"),
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
