"""A Kinesis reader to Apache Arrow: enhanced fan-out and polling, exact ranges, back-pressure."""

from penstock.efo_consumer._blocking import BlockingSession, connect_reader
from penstock.efo_consumer._checkpoint import CheckpointStore, SqliteCheckpointStore
from penstock.efo_consumer._checkpoint_dynamodb import DynamoDbCheckpointStore
from penstock.efo_consumer._client import RemoteShardReader
from penstock.efo_consumer._config import RecordPublisherConfig, SubscribeTransportType
from penstock.efo_consumer._consumer import Consumer, ConsumerBatch
from penstock.efo_consumer._fan_out import FanOutRecordPublisher
from penstock.efo_consumer._fleet import FleetShardReader
from penstock.efo_consumer._host import ReaderHost
from penstock.efo_consumer._initial import resolve_initial_positions
from penstock.efo_consumer._initial_sequence import resolve_sequence_numbers
from penstock.efo_consumer._kinesis_backend import KinesisBackend
from penstock.efo_consumer._kpl import DeaggregationCounts, HashKeyRange, deaggregate
from penstock.efo_consumer._lag import ShardLag, measure_lag
from penstock.efo_consumer._list_shards import Shard, ShardFilter, list_shards
from penstock.efo_consumer._polling import PollingRecordPublisher, read_once
from penstock.efo_consumer._positions import (
    PositionType,
    ShardPosition,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._publisher import (
    WIRE_SCHEMA,
    ChildShard,
    RecordPublisher,
    RecordPublisherType,
    ShardEvent,
    StreamIdentity,
)
from penstock.efo_consumer._publisher_factory import RecordPublisherFactory
from penstock.efo_consumer._publisher_metrics import PublisherMetrics
from penstock.efo_consumer._reader import LocalShardReader
from penstock.efo_consumer._reader_api import (
    BlockingShardReader,
    FollowedBatch,
    OpenRequest,
    PositionsSnapshot,
    ShardLineage,
    ShardReader,
    ShardStats,
    StreamConsumer,
)
from penstock.efo_consumer._reader_backend import ReaderBackend
from penstock.efo_consumer._reader_config import ReaderConfig
from penstock.efo_consumer._schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION
from penstock.efo_consumer._servicer import SERVICE_NAME, ShardReaderServicer
from penstock.efo_consumer._starting_position import StartingPosition, StartingPositionType
from penstock.efo_consumer._tasks import read_ranges
from penstock.efo_consumer.errors import (
    CheckpointError,
    DataLossError,
    EfoConsumerConfigError,
    EfoConsumerError,
    FencedConsumerError,
    InitialPositionError,
    PositionsError,
    RangeDeadlineError,
    ReaderUnavailableError,
    SessionNotFoundError,
    ShardFailedError,
    ShardReaderError,
    StaleEpochError,
)

__all__ = [
    "READ_SCHEMA",
    "READ_SCHEMA_WITH_ENCRYPTION",
    "SERVICE_NAME",
    "WIRE_SCHEMA",
    "BlockingSession",
    "BlockingShardReader",
    "CheckpointError",
    "CheckpointStore",
    "ChildShard",
    "Consumer",
    "ConsumerBatch",
    "DataLossError",
    "DeaggregationCounts",
    "DynamoDbCheckpointStore",
    "EfoConsumerConfigError",
    "EfoConsumerError",
    "FanOutRecordPublisher",
    "FencedConsumerError",
    "FleetShardReader",
    "FollowedBatch",
    "HashKeyRange",
    "InitialPositionError",
    "KinesisBackend",
    "LocalShardReader",
    "OpenRequest",
    "PollingRecordPublisher",
    "PositionType",
    "PositionsError",
    "PositionsSnapshot",
    "PublisherMetrics",
    "RangeDeadlineError",
    "ReaderBackend",
    "ReaderConfig",
    "ReaderHost",
    "ReaderUnavailableError",
    "RecordPublisher",
    "RecordPublisherConfig",
    "RecordPublisherFactory",
    "RecordPublisherType",
    "RemoteShardReader",
    "SessionNotFoundError",
    "Shard",
    "ShardEvent",
    "ShardFailedError",
    "ShardFilter",
    "ShardLag",
    "ShardLineage",
    "ShardPosition",
    "ShardRange",
    "ShardReader",
    "ShardReaderError",
    "ShardReaderServicer",
    "ShardStats",
    "SqliteCheckpointStore",
    "StaleEpochError",
    "StartingPosition",
    "StartingPositionType",
    "StreamConsumer",
    "StreamIdentity",
    "StreamPositions",
    "SubscribeTransportType",
    "connect_reader",
    "deaggregate",
    "list_shards",
    "measure_lag",
    "ranges_between",
    "read_once",
    "read_ranges",
    "resolve_initial_positions",
    "resolve_sequence_numbers",
]
