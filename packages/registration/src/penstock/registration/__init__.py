"""Stream consumer registration for Kinesis enhanced fan-out: strategies, leases and fencing."""

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
from penstock.registration._record import ConsumerRecord, Holding, RegistrationPhase
from penstock.registration._registrar import (
    AwsClients,
    FoundConsumer,
    RegisteredConsumer,
    StreamConsumerRegistrar,
)
from penstock.registration._registry import ConsumerRegistry
from penstock.registration._remote_registry import RemoteConsumerRegistry
from penstock.registration._servicer import SERVICE_NAME, ConsumerRegistryServicer
from penstock.registration._sqlite_store import SqliteLeaseStore
from penstock.registration._status import STATUS
from penstock.registration._store import LeaseStore, Renewal
from penstock.registration._values import AcquireRequest, Consumer, Heartbeat, Lease

__all__ = [
    "CONSUMER_ARN_PREFIX",
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
    "DynamoDbLeaseStore",
    "FoundConsumer",
    "Heartbeat",
    "Holding",
    "Lease",
    "LeaseKeeper",
    "LeaseSettings",
    "LeaseStore",
    "LocalConsumerRegistry",
    "OnLost",
    "RegisteredConsumer",
    "RegistrarConfig",
    "RegistrationConfig",
    "RegistrationPhase",
    "RegistrationStrategy",
    "RemoteConsumerRegistry",
    "Renewal",
    "SqliteLeaseStore",
    "StreamConsumerRegistrar",
    "consumer_name_of",
    "default_store_path",
    "open_local_registry",
    "open_registry",
]
