"""The consumer registry as a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.aws import AwsSession
from penstock.registration import SERVICE_NAME, ConsumerRegistryServicer, open_local_registry
from penstock.rpc import GrpcServer
from penstock.services.consumer_registry._settings import RegistrySettings


@asynccontextmanager
async def registry_server(settings: RegistrySettings) -> AsyncIterator[GrpcServer]:
    """Serve the registry, and sweep it, between enter and exit.

    Raises:
        LeaseStoreError: the store cannot be used.
        ServerStartError: the address cannot be bound.
    """
    registry = open_local_registry(AwsSession(settings.aws), settings.store, settings=settings.leases)
    try:
        # A store that cannot be used is a reason not to start, rather than to fail at the first call.
        await registry.list_consumers()
        servicer = ConsumerRegistryServicer(registry)
        async with (
            GrpcServer(settings.server, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server,
            asyncio.TaskGroup() as tasks,
        ):
            sweeper = tasks.create_task(registry.sweep_for_ever(settings.sweep_interval), name="sweep leases")
            try:
                yield server
            finally:
                servicer.drain()
                sweeper.cancel()
    finally:
        await registry.close()
