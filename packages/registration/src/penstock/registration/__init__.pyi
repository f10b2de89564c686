# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._dead_holders import HolderWatch, LeaseMarks
from ._held import HeldLeases
from ._keeper import LeaseKeeper, OnLost, OnRegained
from ._lease.record import ConsumerRecord, Holding, LeaseStore, RegistrationPhase, Renewal
from ._local.administration import CONSUMER_SHARD_HOUR_USD
from ._local.registry import LocalConsumerRegistry, open_local_registry
from ._readers import (
    MOST_ANNOUNCED_SHARDS,
    AnnouncedReader,
    AnnouncedShard,
    KnownReaders,
    ReaderDirectory,
    ReaderFiles,
)
from ._registrar import (
    AwsClients,
    FoundConsumer,
    FoundStream,
    KinesisCalls,
    RegisteredConsumer,
    StreamConsumerRegistrar,
)
from ._registry import ConsumerRegistry, RegistryAdministration, ServedRegistry
from ._remote.readers import READERS_SERVICE_NAME, ReaderDirectoryServicer, RemoteReaderDirectory
from ._remote.registry import RemoteConsumerRegistry
from ._remote.servicer import SERVICE_NAME, ConsumerRegistryServicer
from ._stores.dynamodb import DynamoDbLeaseStore
from ._stores.sqlite import SqliteLeaseStore
from ._stores.url import default_store_path, open_store, store_location
from ._synchronous import BlockingConsumerRegistry, open_registry
from ._times import LeaseSettings, RegistrarConfig
from ._values import (
    AcquireRequest,
    ConflictPolicy,
    Consumer,
    ConsumerState,
    Heartbeat,
    Lease,
    Orphan,
    OrphanFate,
    RegistrationStrategy,
)

__all__ = [
    "CONSUMER_SHARD_HOUR_USD",
    "MOST_ANNOUNCED_SHARDS",
    "READERS_SERVICE_NAME",
    "SERVICE_NAME",
    "AcquireRequest",
    "AnnouncedReader",
    "AnnouncedShard",
    "AwsClients",
    "BlockingConsumerRegistry",
    "ConflictPolicy",
    "Consumer",
    "ConsumerRecord",
    "ConsumerRegistry",
    "ConsumerRegistryServicer",
    "ConsumerState",
    "DynamoDbLeaseStore",
    "FoundConsumer",
    "FoundStream",
    "Heartbeat",
    "HeldLeases",
    "HolderWatch",
    "Holding",
    "KinesisCalls",
    "KnownReaders",
    "Lease",
    "LeaseKeeper",
    "LeaseMarks",
    "LeaseSettings",
    "LeaseStore",
    "LocalConsumerRegistry",
    "OnLost",
    "OnRegained",
    "Orphan",
    "OrphanFate",
    "ReaderDirectory",
    "ReaderDirectoryServicer",
    "ReaderFiles",
    "RegisteredConsumer",
    "RegistrarConfig",
    "RegistrationPhase",
    "RegistrationStrategy",
    "RegistryAdministration",
    "RemoteConsumerRegistry",
    "RemoteReaderDirectory",
    "Renewal",
    "ServedRegistry",
    "SqliteLeaseStore",
    "StreamConsumerRegistrar",
    "default_store_path",
    "open_local_registry",
    "open_registry",
    "open_store",
    "store_location",
]
