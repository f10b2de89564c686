"""An adaptive, rate-limited asynchronous sink: Kinesis and destinations of your own."""

from penstock.async_sink._all import All
from penstock.async_sink._batches import Batch, BatchCreator, BatchExtent
from penstock.async_sink._blocking import SinkSummary, write_batches
from penstock.async_sink._buffer import RequestBuffer
from penstock.async_sink._classifier import EVERYTHING_IS_FATAL, FatalExceptionClassifier
from penstock.async_sink._clock import Clock, LoopClock, Timer
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
from penstock.async_sink._defaults import aimd_strategy, paced_strategy
from penstock.async_sink._dynamodb._attributes import attribute_value
from penstock.async_sink._dynamodb._entry import DynamoDbRequestEntry
from penstock.async_sink._dynamodb._sink import DynamoDbSink, dynamodb_config, dynamodb_strategy
from penstock.async_sink._dynamodb._writer import DynamoDbWriter
from penstock.async_sink._entries import EntryFailure, EntryListener, FailedAttempt, RequestEntryWrapper
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
from penstock.async_sink._kinesis._state_codec import state_from_bytes, state_to_bytes
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
from penstock.async_sink._strategy import RateLimitingStrategy, RequestInfo, ResultInfo
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
    "EntryFailure",
    "EntryListener",
    "FailedAttempt",
    "FatalExceptionClassifier",
    "FirehoseRequestEntry",
    "FirehoseSink",
    "FirehoseWriter",
    "GradientRateLimitingStrategy",
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
    "sqs_config",
    "sqs_strategy",
    "state_from_bytes",
    "state_to_bytes",
    "write_batches",
]
