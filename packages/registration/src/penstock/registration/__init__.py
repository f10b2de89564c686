"""Stream consumer registration for Kinesis enhanced fan-out: strategies, leases and fencing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.registration._administration import CONSUMER_SHARD_HOUR_USD
    from penstock.registration._blocking import (
        BlockingConsumerRegistry,
        default_store_path,
        open_local_registry,
        open_registry,
    )
    from penstock.registration._config import (
        ConflictPolicy,
        RegistrarConfig,
        RegistrationStrategy,
    )
    from penstock.registration._dynamodb_store import DynamoDbLeaseStore
    from penstock.registration._keeper import LeaseKeeper, OnLost, OnRegained
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
    from penstock.registration._values import (
        AcquireRequest,
        Consumer,
        ConsumerState,
        Heartbeat,
        Lease,
        Orphan,
        OrphanFate,
    )

__all__ = [
    "CONSUMER_SHARD_HOUR_USD",
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
    "OnRegained",
    "Orphan",
    "OrphanFate",
    "RegisteredConsumer",
    "RegistrarConfig",
    "RegistrationPhase",
    "RegistrationStrategy",
    "RegistryAdministration",
    "RemoteConsumerRegistry",
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

_MODULES = {
    "_administration": ("CONSUMER_SHARD_HOUR_USD",),
    "_blocking": ("BlockingConsumerRegistry", "default_store_path", "open_local_registry", "open_registry"),
    "_config": (
        "ConflictPolicy",
        "RegistrarConfig",
        "RegistrationStrategy",
    ),
    "_dynamodb_store": ("DynamoDbLeaseStore",),
    "_keeper": ("LeaseKeeper", "OnLost", "OnRegained"),
    "_lease_settings": ("LeaseSettings",),
    "_local_registry": ("LocalConsumerRegistry",),
    "_lookups": ("AwsClients", "FoundConsumer", "FoundStream"),
    "_record": ("ConsumerRecord", "Holding", "RegistrationPhase"),
    "_registrar": ("RegisteredConsumer", "StreamConsumerRegistrar"),
    "_registry": ("ConsumerRegistry", "RegistryAdministration"),
    "_remote_registry": ("RemoteConsumerRegistry",),
    "_servicer": ("SERVICE_NAME", "ConsumerRegistryServicer", "ServedRegistry"),
    "_sqlite_store": ("SqliteLeaseStore",),
    "_status": ("STATUS",),
    "_store": ("LeaseStore", "Renewal"),
    "_store_url": ("open_store", "store_location"),
    "_values": ("AcquireRequest", "Consumer", "ConsumerState", "Heartbeat", "Lease", "Orphan", "OrphanFate"),
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
