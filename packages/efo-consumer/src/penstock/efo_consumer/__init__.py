"""A Kinesis reader to Apache Arrow: enhanced fan-out and polling, exact ranges, back-pressure."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.efo_consumer._consumer.checkpoint import (
        CheckpointStore,
        DynamoDbCheckpointStore,
        SqliteCheckpointStore,
    )
    from penstock.efo_consumer._consumer.consumer import Consumer, ConsumerBatch, ConsumerRecord
    from penstock.efo_consumer._consumer.lag import ShardLag, measure_lag
    from penstock.efo_consumer._embedded.blocking import BlockingSession, connect_reader
    from penstock.efo_consumer._embedded.host import ReaderHost
    from penstock.efo_consumer._model.events import WIRE_SCHEMA, ShardEvent
    from penstock.efo_consumer._model.positions import (
        PositionType,
        ShardPosition,
        ShardRange,
        StreamPositions,
        ranges_between,
    )
    from penstock.efo_consumer._model.schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION, to_read_batch
    from penstock.efo_consumer._model.shards import Shard, StreamIdentity
    from penstock.efo_consumer._publish.config import RecordPublisherConfig, SubscribeTransportType
    from penstock.efo_consumer._publish.factory import RecordPublisherFactory
    from penstock.efo_consumer._publish.fan_out import FanOutRecordPublisher
    from penstock.efo_consumer._publish.list_shards import ShardFilter, list_shards
    from penstock.efo_consumer._publish.metrics import PublisherMetrics
    from penstock.efo_consumer._publish.polling import PollingRecordPublisher, read_once
    from penstock.efo_consumer._publish.publisher import RecordPublisher, RecordPublisherType
    from penstock.efo_consumer._reader.api import (
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
    from penstock.efo_consumer._reader.backend import KinesisBackend, ReaderBackend
    from penstock.efo_consumer._reader.config import ReaderConfig
    from penstock.efo_consumer._reader.local import LocalShardReader
    from penstock.efo_consumer._remote.client import RemoteShardReader
    from penstock.efo_consumer._remote.fetch import read_ranges
    from penstock.efo_consumer._remote.fleet import FleetShardReader
    from penstock.efo_consumer._remote.reopening import ReopeningShardReader
    from penstock.efo_consumer._remote.servicer import SERVICE_NAME, ShardReaderServicer
    from penstock.efo_consumer._start.initial import resolve_initial_positions
    from penstock.efo_consumer._start.position import StartingPosition, StartingPositionType
    from penstock.efo_consumer._start.sequence import resolve_sequence_numbers
    from penstock.efo_consumer._wire.kpl import DeaggregationCounts, HashKeyRange, deaggregate
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
        StreamRecreatedError,
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
    "StreamRecreatedError",
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
    "to_read_batch",
]

_MODULES = {
    "_consumer.checkpoint": (
        "CheckpointStore",
        "DynamoDbCheckpointStore",
        "SqliteCheckpointStore",
    ),
    "_consumer.consumer": (
        "Consumer",
        "ConsumerBatch",
        "ConsumerRecord",
    ),
    "_consumer.lag": (
        "ShardLag",
        "measure_lag",
    ),
    "_embedded.blocking": (
        "BlockingSession",
        "connect_reader",
    ),
    "_embedded.host": ("ReaderHost",),
    "_model.events": (
        "ShardEvent",
        "WIRE_SCHEMA",
    ),
    "_model.positions": (
        "PositionType",
        "ShardPosition",
        "ShardRange",
        "StreamPositions",
        "ranges_between",
    ),
    "_model.schema": (
        "READ_SCHEMA",
        "READ_SCHEMA_WITH_ENCRYPTION",
        "to_read_batch",
    ),
    "_model.shards": (
        "Shard",
        "StreamIdentity",
    ),
    "_publish.config": (
        "RecordPublisherConfig",
        "SubscribeTransportType",
    ),
    "_publish.factory": ("RecordPublisherFactory",),
    "_publish.fan_out": ("FanOutRecordPublisher",),
    "_publish.list_shards": (
        "ShardFilter",
        "list_shards",
    ),
    "_publish.metrics": ("PublisherMetrics",),
    "_publish.polling": (
        "PollingRecordPublisher",
        "read_once",
    ),
    "_publish.publisher": (
        "RecordPublisher",
        "RecordPublisherType",
    ),
    "_reader.api": (
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
    "_reader.backend": (
        "KinesisBackend",
        "ReaderBackend",
    ),
    "_reader.config": ("ReaderConfig",),
    "_reader.local": ("LocalShardReader",),
    "_remote.client": ("RemoteShardReader",),
    "_remote.fetch": ("read_ranges",),
    "_remote.fleet": ("FleetShardReader",),
    "_remote.reopening": ("ReopeningShardReader",),
    "_remote.servicer": (
        "SERVICE_NAME",
        "ShardReaderServicer",
    ),
    "_start.initial": ("resolve_initial_positions",),
    "_start.position": (
        "StartingPosition",
        "StartingPositionType",
    ),
    "_start.sequence": ("resolve_sequence_numbers",),
    "_wire.kpl": (
        "DeaggregationCounts",
        "HashKeyRange",
        "deaggregate",
    ),
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
