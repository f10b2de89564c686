"""A Kinesis reader to Apache Arrow: enhanced fan-out and polling, exact ranges, back-pressure."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.efo_consumer._blocking import BlockingSession, connect_reader
    from penstock.efo_consumer._checkpoint import CheckpointStore, SqliteCheckpointStore
    from penstock.efo_consumer._checkpoint_dynamodb import DynamoDbCheckpointStore
    from penstock.efo_consumer._client import RemoteShardReader
    from penstock.efo_consumer._config import RecordPublisherConfig, SubscribeTransportType
    from penstock.efo_consumer._consumer import Consumer, ConsumerBatch
    from penstock.efo_consumer._consumer_records import ConsumerRecord
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
        SessionInfo,
        SessionListing,
        ShardLineage,
        ShardReader,
        ShardStats,
        StreamConsumer,
    )
    from penstock.efo_consumer._reader_backend import ReaderBackend
    from penstock.efo_consumer._reader_config import ReaderConfig
    from penstock.efo_consumer._reopening import ReopeningShardReader
    from penstock.efo_consumer._schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION, to_read_batch
    from penstock.efo_consumer._sequence_time import arrival_seconds
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
    "ConsumerRecord",
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
    "ReopeningShardReader",
    "SessionInfo",
    "SessionListing",
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
    "arrival_seconds",
    "connect_reader",
    "deaggregate",
    "list_shards",
    "measure_lag",
    "ranges_between",
    "read_once",
    "read_ranges",
    "resolve_initial_positions",
    "resolve_sequence_numbers",
    "to_read_batch",
]

_MODULES = {
    "_blocking": ("BlockingSession", "connect_reader"),
    "_checkpoint": ("CheckpointStore", "SqliteCheckpointStore"),
    "_checkpoint_dynamodb": ("DynamoDbCheckpointStore",),
    "_client": ("RemoteShardReader",),
    "_config": ("RecordPublisherConfig", "SubscribeTransportType"),
    "_consumer": ("Consumer", "ConsumerBatch"),
    "_consumer_records": ("ConsumerRecord",),
    "_fan_out": ("FanOutRecordPublisher",),
    "_fleet": ("FleetShardReader",),
    "_host": ("ReaderHost",),
    "_initial": ("resolve_initial_positions",),
    "_initial_sequence": ("resolve_sequence_numbers",),
    "_kinesis_backend": ("KinesisBackend",),
    "_kpl": ("DeaggregationCounts", "HashKeyRange", "deaggregate"),
    "_lag": ("ShardLag", "measure_lag"),
    "_list_shards": ("Shard", "ShardFilter", "list_shards"),
    "_polling": ("PollingRecordPublisher", "read_once"),
    "_positions": ("PositionType", "ShardPosition", "ShardRange", "StreamPositions", "ranges_between"),
    "_publisher": (
        "WIRE_SCHEMA",
        "ChildShard",
        "RecordPublisher",
        "RecordPublisherType",
        "ShardEvent",
        "StreamIdentity",
    ),
    "_publisher_factory": ("RecordPublisherFactory",),
    "_publisher_metrics": ("PublisherMetrics",),
    "_reader": ("LocalShardReader",),
    "_reader_api": (
        "BlockingShardReader",
        "FollowedBatch",
        "OpenRequest",
        "PositionsSnapshot",
        "SessionInfo",
        "SessionListing",
        "ShardLineage",
        "ShardReader",
        "ShardStats",
        "StreamConsumer",
    ),
    "_reader_backend": ("ReaderBackend",),
    "_reader_config": ("ReaderConfig",),
    "_reopening": ("ReopeningShardReader",),
    "_schema": ("READ_SCHEMA", "READ_SCHEMA_WITH_ENCRYPTION", "to_read_batch"),
    "_sequence_time": ("arrival_seconds",),
    "_servicer": ("SERVICE_NAME", "ShardReaderServicer"),
    "_starting_position": ("StartingPosition", "StartingPositionType"),
    "_tasks": ("read_ranges",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: each of Spark's Python workers imports this package, for `read_ranges` alone.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
