# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._buffer.owned_folder import Leftover, find_leftovers
from ._consumer.checkpoint import (
    CheckpointClaim,
    CheckpointStore,
    DynamoDbCheckpointStore,
    S3CheckpointStore,
    SqliteCheckpointStore,
)
from ._consumer.consumer import Consumer, ConsumerBatch, ConsumerRecord
from ._consumer.lag import ShardLag, measure_lag
from ._consumer.spark_checkpoint import LoggedBatch, SparkCheckpoint
from ._continuity.guard import check_streams
from ._continuity.lineage import next_shards, with_ancestors
from ._embedded.host import ReaderHost
from ._embedded.session import BlockingSession, connect_reader
from ._glue.avro import AvroDecoder, avro_reader, json_value, plain_values
from ._glue.decoder import GlueDecoder, GlueValue, ProtoFile
from ._glue.header import (
    GlueRecord,
    decode_glue_record,
    encode_glue_record,
    glue_header,
    message_index,
)
from ._glue.registry import GlueSchemas, SchemaVersion, get_version
from ._model.hash_keys import HashKeyRange, ShardKeys, StreamKeys
from ._model.positions import (
    PositionType,
    ShardPosition,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from ._model.schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION, to_read_batch
from ._model.shards import WIRE_SCHEMA, Shard, ShardEvent, StreamIdentity
from ._publish.condition import NoteSign, ShardCondition, ShardSign, ShardState
from ._publish.config import Deaggregation, RecordPublisherConfig, SubscribeTransportType
from ._publish.dynamodb_streams import DYNAMODB_STREAMS, stream_client
from ._publish.factory import RecordPublisherFactory
from ._publish.fan_out import FanOutRecordPublisher
from ._publish.list_shards import ShardFilter, ShardListing, call_patiently, list_shards
from ._publish.metrics import PublisherMetrics
from ._publish.polling import TIP_SECONDS, PollingRecordPublisher, read_once
from ._publish.publisher import RecordPublisher, RecordPublisherType
from ._reader.api import (
    FleetMember,
    FollowedBatch,
    OpenRequest,
    PositionsSnapshot,
    SessionInfo,
    ShardLineage,
    ShardReader,
    ShardSkew,
    ShardStats,
    StreamConsumer,
)
from ._reader.backend import KinesisBackend, ReaderBackend
from ._reader.config import ReaderConfig, SessionSettings
from ._reader.deaggregator import unpack_aggregates
from ._reader.local import LocalShardReader
from ._reader.replay import CheckedRead
from ._remote.client import RemoteShardReader
from ._remote.fetch import read_ranges
from ._remote.fleet import FleetShardReader
from ._remote.servicer import SERVICE_NAME, ReaderLocation, ShardReaderServicer
from ._start.initial import (
    latest_arrival_millis,
    resolve_initial_positions,
    resolve_named_shards,
)
from ._start.position import TIME_RULE, InitialPosition, InitialPositionType, parse_time
from ._wire.changes import CHANGE_SCHEMA, to_change_batch
from ._wire.kpl import DeaggregationCounts, deaggregate
from .errors import (
    CheckpointError,
    CheckpointTakenOverError,
    DataLossError,
    EfoConsumerConfigError,
    EfoConsumerError,
    FencedConsumerError,
    InitialPositionError,
    LocationMismatchError,
    PositionsError,
    RangeDeadlineError,
    ReaderUnavailableError,
    SchemaDecodeError,
    SchemaRegistryError,
    SessionNotFoundError,
    ShardFailedError,
    ShardReaderError,
    StaleEpochError,
    StreamRecreatedError,
)

__all__ = [
    "CHANGE_SCHEMA",
    "DYNAMODB_STREAMS",
    "READ_SCHEMA",
    "READ_SCHEMA_WITH_ENCRYPTION",
    "SERVICE_NAME",
    "TIME_RULE",
    "TIP_SECONDS",
    "WIRE_SCHEMA",
    "AvroDecoder",
    "BlockingSession",
    "CheckedRead",
    "CheckpointClaim",
    "CheckpointError",
    "CheckpointStore",
    "CheckpointTakenOverError",
    "Consumer",
    "ConsumerBatch",
    "ConsumerRecord",
    "DataLossError",
    "Deaggregation",
    "DeaggregationCounts",
    "DynamoDbCheckpointStore",
    "EfoConsumerConfigError",
    "EfoConsumerError",
    "FanOutRecordPublisher",
    "FencedConsumerError",
    "FleetMember",
    "FleetShardReader",
    "FollowedBatch",
    "GlueDecoder",
    "GlueRecord",
    "GlueSchemas",
    "GlueValue",
    "HashKeyRange",
    "InitialPosition",
    "InitialPositionError",
    "InitialPositionType",
    "KinesisBackend",
    "Leftover",
    "LocalShardReader",
    "LocationMismatchError",
    "LoggedBatch",
    "NoteSign",
    "OpenRequest",
    "PollingRecordPublisher",
    "PositionType",
    "PositionsError",
    "PositionsSnapshot",
    "ProtoFile",
    "PublisherMetrics",
    "RangeDeadlineError",
    "ReaderBackend",
    "ReaderConfig",
    "ReaderHost",
    "ReaderLocation",
    "ReaderUnavailableError",
    "RecordPublisher",
    "RecordPublisherConfig",
    "RecordPublisherFactory",
    "RecordPublisherType",
    "RemoteShardReader",
    "S3CheckpointStore",
    "SchemaDecodeError",
    "SchemaRegistryError",
    "SchemaVersion",
    "SessionInfo",
    "SessionNotFoundError",
    "SessionSettings",
    "Shard",
    "ShardCondition",
    "ShardEvent",
    "ShardFailedError",
    "ShardFilter",
    "ShardKeys",
    "ShardLag",
    "ShardLineage",
    "ShardListing",
    "ShardPosition",
    "ShardRange",
    "ShardReader",
    "ShardReaderError",
    "ShardReaderServicer",
    "ShardSign",
    "ShardSkew",
    "ShardState",
    "ShardStats",
    "SparkCheckpoint",
    "SqliteCheckpointStore",
    "StaleEpochError",
    "StreamConsumer",
    "StreamIdentity",
    "StreamKeys",
    "StreamPositions",
    "StreamRecreatedError",
    "SubscribeTransportType",
    "avro_reader",
    "call_patiently",
    "check_streams",
    "connect_reader",
    "deaggregate",
    "decode_glue_record",
    "encode_glue_record",
    "find_leftovers",
    "get_version",
    "glue_header",
    "json_value",
    "latest_arrival_millis",
    "list_shards",
    "measure_lag",
    "message_index",
    "next_shards",
    "parse_time",
    "plain_values",
    "ranges_between",
    "read_once",
    "read_ranges",
    "resolve_initial_positions",
    "resolve_named_shards",
    "stream_client",
    "to_change_batch",
    "to_read_batch",
    "unpack_aggregates",
    "with_ancestors",
]
