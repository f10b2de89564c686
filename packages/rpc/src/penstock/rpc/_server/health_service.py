"""gRPC's health checking protocol, answered by a server for itself and for each of its services."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # no stubs published
    """Says whether services serve. For one event loop.

    Not gRPC's own servicer: its `Watch` writes by itself, which interceptors of streams cannot stand, and holds a lock
    meanwhile, so that a client that reads nothing would keep the others from their news and the server from its end.

    Args:
        services: full names, and an empty one for the server as a whole.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Nothing serves any more."""
        self._ending.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Whether a service serves; NOT_FOUND for one that is not here."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return self._answer()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The same now and when it changes. A service that is not here may come, as the protocol has it: no error."""
        if request.service not in self._services:
            yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        elif not self._ending.is_set():
            yield self._answer()
        await self._ending.wait()
        if request.service in self._services:
            yield self._answer()

    def _answer(self) -> health_pb2.HealthCheckResponse:
        states = health_pb2.HealthCheckResponse
        return states(status=states.NOT_SERVING if self._ending.is_set() else states.SERVING)
