"""The consumer registry as a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from penstock.aws import AwsLocation, AwsSession
from penstock.registration import (
    READERS_SERVICE_NAME,
    SERVICE_NAME,
    ConsumerRegistryServicer,
    LocalConsumerRegistry,
    ReaderDirectoryServicer,
    open_local_registry,
    open_store,
)
from penstock.registration.errors import RegistrationError
from penstock.rpc import GrpcServer
from penstock.services.consumer_registry._settings import RegistrySettings

_logger = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""No records come in with a request."""


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
                rights=[servicer.rights, readers.rights],
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
