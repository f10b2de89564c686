"""The consumer registry as a server: its settings, and what it serves."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from penstock.aws import AwsError, AwsLocation, AwsOptions, AwsSession, check_encrypted, endpoint_aliases
from penstock.registration import (
    CONSUMER_SHARD_HOUR_USD,
    READERS_SERVICE_NAME,
    SERVICE_NAME,
    ConsumerRegistryServicer,
    LeaseSettings,
    LocalConsumerRegistry,
    ReaderDirectoryServicer,
    open_local_registry,
    open_store,
    store_location,
)
from penstock.registration.errors import RegistrationError, RegistrationOptionError
from penstock.rpc import GrpcServer, ServerSettings, Setting, add_settings, read_settings
from penstock.rpc.service import ServiceKind

_logger = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""No records come in with a request."""
_PREFIX: Final = "PENSTOCK_REGISTRY"
KIND: Final = ServiceKind(
    "registry",
    (AwsError, RegistrationError),
    {
        "default_time_to_live": f"--time-to-live-seconds ({_PREFIX}_TIME_TO_LIVE_SECONDS)",
        "longest_time_to_live": f"--longest-time-to-live-seconds ({_PREFIX}_LONGEST_TIME_TO_LIVE_SECONDS)",
        "grace_period": f"--grace-seconds ({_PREFIX}_GRACE_SECONDS)",
        "force": "--force",
    },
)


def _seconds(name: str, text: str) -> Setting:
    return Setting(name, text, lambda value: timedelta(seconds=float(value)))


_OWN: Final = (
    Setting("store", "where leases are kept: sqlite:///PATH, or dynamodb://TABLE for several replicas"),
    Setting("allow_insecure_endpoint", "true: credentials may go to an http:// endpoint of another host"),
    Setting("endpoint_aliases", "further URLs, with commas, by which callers know the endpoint of Kinesis"),
    _seconds(
        "time_to_live_seconds", "seconds that a lease lives without a heartbeat, if its request names none; default 30"
    ),
    _seconds("longest_time_to_live_seconds", "most seconds that a request may name; default 300"),
    _seconds("grace_seconds", "seconds between the end of the last lease and the de-registration; default 60"),
    _seconds("sweep_seconds", "seconds between two looks for leases that ran out; default 15"),
    Setting(
        "consumer_shard_hour_usd",
        f"US dollars for a consumer, shard and hour; default {CONSUMER_SHARD_HOUR_USD:g}",
        float,
        least=0,
        most=1e6,
    ),
)


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """All that the service needs to know."""

    server: ServerSettings
    aws: AwsOptions
    store: str
    """See `penstock.registration.open_store`."""
    leases: LeaseSettings
    sweep_interval: timedelta
    consumer_shard_hour_usd: float
    """For `ls` and `gc`. Default: the list price of us-east-1."""
    endpoint_aliases: tuple[str, ...] = ()
    """Further URLs by which callers know the endpoint of Kinesis."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag for each setting, which falls back to `PENSTOCK_REGISTRY_<NAME>`."""
        ServerSettings.add_arguments(parser, KIND.prefix)
        AwsOptions.add_arguments(parser, KIND.prefix)
        add_settings(parser, KIND.prefix, _OWN)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, RegistrationOptionError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        own = read_settings(arguments, _OWN)
        if not own.get("store"):
            raise RegistrationOptionError(option="store", reason="is missing: say where, by --store sqlite:///PATH")
        # Before anything is opened: a word about the settings, not about a connection.
        store_location(own["store"])
        sweep_interval = own.get("sweep_seconds", timedelta(seconds=15))
        if sweep_interval <= timedelta(0):
            raise RegistrationOptionError(option="sweep_seconds", reason="must be positive")
        return cls(
            server=ServerSettings.from_arguments(arguments, KIND.prefix, environment),
            aws=check_encrypted(AwsOptions.from_arguments(arguments), own.get("allow_insecure_endpoint"), environment),
            endpoint_aliases=endpoint_aliases(own.get("endpoint_aliases"), "endpoint_aliases"),
            store=own["store"],
            leases=LeaseSettings(
                default_time_to_live=own.get("time_to_live_seconds", timedelta(seconds=30)),
                longest_time_to_live=own.get("longest_time_to_live_seconds", timedelta(seconds=300)),
                grace_period=own.get("grace_seconds", timedelta(seconds=60)),
            ),
            sweep_interval=sweep_interval,
            consumer_shard_hour_usd=own.get("consumer_shard_hour_usd", CONSUMER_SHARD_HOUR_USD),
        )


@asynccontextmanager
async def registry_server(settings: RegistrySettings) -> AsyncIterator[GrpcServer]:
    """Serve the registry, and sweep it, between enter and exit.

    Raises:
        AwsOptionError: no region is to be found, or the authorities to trust cannot be read.
        LeaseStoreError: the store cannot be used.
        ServerStartError: the address cannot be bound.
    """
    session = AwsSession(settings.aws)
    # What is wrong with it is for whoever starts the service, not for its clients.
    session.ssl_context()
    registry = open_local_registry(
        session,
        store=open_store(settings.store, session),
        settings=settings.leases,
        consumer_shard_hour_usd=settings.consumer_shard_hour_usd,
    )
    try:
        # A store that cannot be used is a reason not to start, rather than to fail at the first call.
        await registry.list_consumers()
        servicer = ConsumerRegistryServicer(registry, AwsLocation.of(session), settings.endpoint_aliases)
        readers = ReaderDirectoryServicer()
        async with (
            GrpcServer(
                settings.server,
                register=[servicer.add_to, readers.add_to],
                service_names=[SERVICE_NAME, READERS_SERVICE_NAME],
                max_request_bytes=_MAX_REQUEST_BYTES,
            ) as server,
            asyncio.TaskGroup() as tasks,
        ):
            sweeper = tasks.create_task(_tidy(registry, settings.sweep_interval), name="sweep leases")
            try:
                yield server
            finally:
                servicer.drain()
                sweeper.cancel()
    finally:
        await registry.close()


async def _tidy(registry: LocalConsumerRegistry, interval: timedelta) -> None:
    """See through what a predecessor had begun when it was killed; then sweep until cancelled."""
    try:
        await registry.reconcile()
    except RegistrationError as error:
        _logger.warning("what was begun before is left to the sweep: %s", error)
    await registry.sweep_for_ever(interval)
