# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._config import (
    AsyncSinkConfig,
    Ordering,
)
from ._core.entries import (
    BufferedRequestState,
    ElementConverter,
    EntryCodec,
    EntryFailure,
    EntryListener,
    EntryRunListener,
    FailedAttempt,
    FatalExceptionClassifier,
    WriteContext,
)
from ._core.settlement import (
    ResultHandler,
    TerminalReason,
)
from ._core.terminal import (
    CallbackHandler,
    DeadLetterHandler,
    DropHandler,
    TerminalRecord,
    TerminalRecordHandler,
)
from ._core.writer import (
    AsyncSinkBase,
    AsyncSinkWriter,
)
from ._destinations.aws import SinkOptions
from ._destinations.columns import RowFault
from ._destinations.dynamodb import (
    DynamoDbSink,
    dynamodb_config,
)
from ._destinations.dynamodb_items import DynamoDbRequestEntry
from ._destinations.firehose import (
    FirehoseRequestEntry,
    FirehoseSink,
    firehose_config,
)
from ._destinations.kinesis.aggregate import AggregationConfig
from ._destinations.kinesis.entry import (
    KinesisElementConverter,
    KinesisRequestEntry,
    PartitionKey,
)
from ._destinations.kinesis.sink import (
    KinesisStreamsSink,
    kinesis_aggregation_config,
)
from ._destinations.sqs import (
    SqsRequestEntry,
    SqsSink,
    sqs_config,
)
from ._destinations.state_format import (
    state_from_bytes,
    state_to_bytes,
)
from ._gateway.client import RemoteSink
from ._gateway.destinations import SharedDestinations
from ._gateway.servicer import SERVICE_NAME, SinkGatewayServicer
from ._gateway.session import CreditWindow
from ._metrics import (
    HeldRecord,
    SinkGauges,
    SinkMetrics,
)
from ._rate.congestion import (
    AIMDScalingStrategy,
    CongestionControlConfig,
    CongestionControlInfo,
    CongestionControlRateLimitingStrategy,
    CongestionControlStrategy,
    GradientRateLimitingStrategy,
    NoOpScalingStrategy,
    ProportionalScalingStrategy,
    ScalingDecision,
    ScalingStrategy,
    ScalingTarget,
    ThresholdCongestionControlStrategy,
)
from ._rate.defaults import (
    aggregation_strategy,
    aimd_strategy,
    check_aimd,
    kinesis_strategy,
    rate_strategy,
    slow_start_strategy,
)
from ._rate.per_shard import PerShardRateLimitingStrategy
from ._rate.strategy import (
    All,
    AsksAgain,
    HasLanes,
    HasLimit,
    HasPace,
    LaneLimiter,
    LaneObservation,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    TokenBucketRateLimitingStrategy,
)
from ._write_batches import (
    WriteSummary,
    write_batches,
)

__all__ = [
    "SERVICE_NAME",
    "AIMDScalingStrategy",
    "AggregationConfig",
    "All",
    "AsksAgain",
    "AsyncSinkBase",
    "AsyncSinkConfig",
    "AsyncSinkWriter",
    "BufferedRequestState",
    "CallbackHandler",
    "CongestionControlConfig",
    "CongestionControlInfo",
    "CongestionControlRateLimitingStrategy",
    "CongestionControlStrategy",
    "CreditWindow",
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
    "HasPace",
    "HeldRecord",
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
    "RequestInfo",
    "ResultHandler",
    "ResultInfo",
    "RowFault",
    "ScalingDecision",
    "ScalingStrategy",
    "ScalingTarget",
    "SharedDestinations",
    "SinkGatewayServicer",
    "SinkGauges",
    "SinkMetrics",
    "SinkOptions",
    "SqsRequestEntry",
    "SqsSink",
    "TerminalReason",
    "TerminalRecord",
    "TerminalRecordHandler",
    "ThresholdCongestionControlStrategy",
    "TokenBucketRateLimitingStrategy",
    "WriteContext",
    "WriteSummary",
    "aggregation_strategy",
    "aimd_strategy",
    "check_aimd",
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
