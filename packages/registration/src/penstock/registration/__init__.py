"""Stream consumer registration for Kinesis enhanced fan-out: strategies, leases and fencing."""

from penstock.registration._administration import CONSUMER_SHARD_HOUR_USD
from penstock.registration._blocking import (
    BlockingConsumerRegistry,
    default_store_path,
    open_local_registry,
    open_registry,
)
from penstock.registration._config import (
    CONSUMER_ARN_PREFIX,
    FLIP_128_KEYS,
    ConflictPolicy,
    RegistrarConfig,
    RegistrationConfig,
    RegistrationStrategy,
    consumer_name_of,
)
from penstock.registration._dynamodb_store import DynamoDbLeaseStore
from penstock.registration._keeper import LeaseKeeper, OnLost
from penstock.registration._lease_settings import LeaseSettings
from penstock.registration._local_registry import LocalConsumerRegistry
from penstock.registration._lookups import AwsClients, FoundConsumer, FoundStream
from penstock.registration._record import ConsumerRecord, Holding, RegistrationPhase
from penstock.registration._registrar import RegisteredConsumer, StreamConsumerRegistrar
from penstock.registration._registry import ConsumerRegistry, RegistryAdministration
from penstock.registration._remote_registry import RemoteConsumerRegistry
from penstock.registration._servicer import SERVICE_NAME, ConsumerRegistryServicer, ServedRegistry
from penstock.registration._sqlite_store import SqliteLeaseStore
from penstock.registration._status import STATUS
from penstock.registration._store import LeaseStore, Renewal
from penstock.registration._store_url import open_store, store_location
from penstock.registration._values import AcquireRequest, Consumer, ConsumerState, Heartbeat, Lease, Orphan, OrphanFate

__all__ = [
    "CONSUMER_ARN_PREFIX",
    "CONSUMER_SHARD_HOUR_USD",
    "FLIP_128_KEYS",
    "SERVICE_NAME",
    "STATUS",
    "AcquireRequest",
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
    "Holding",
    "Lease",
    "LeaseKeeper",
    "LeaseSettings",
    "LeaseStore",
    "LocalConsumerRegistry",
    "OnLost",
    "Orphan",
    "OrphanFate",
    "RegisteredConsumer",
    "RegistrarConfig",
    "RegistrationConfig",
    "RegistrationPhase",
    "RegistrationStrategy",
    "RegistryAdministration",
    "RemoteConsumerRegistry",
    "Renewal",
    "ServedRegistry",
    "SqliteLeaseStore",
    "StreamConsumerRegistrar",
    "consumer_name_of",
    "default_store_path",
    "open_local_registry",
    "open_registry",
    "open_store",
    "store_location",
]
