"""The sink gateway as a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from penstock.async_sink import KinesisStreamsSink
from penstock.async_sink.gateway import SERVICE_NAME, SharedDestinations, SinkGatewayServicer
from penstock.rpc import GrpcServer
from penstock.services.sink_gateway._settings import GatewaySettings


def _sink(settings: GatewaySettings, stream: str) -> KinesisStreamsSink:
    """The sink of a stream's name or ARN."""
    if stream.startswith("arn:"):
        return KinesisStreamsSink(settings.aws, stream_arn=stream, config=settings.sink)
    return KinesisStreamsSink(settings.aws, stream, config=settings.sink)


@asynccontextmanager
async def gateway_server(settings: GatewaySettings) -> AsyncIterator[GrpcServer]:
    """Serve the gateway between enter and exit; the exit writes what was accepted, within the drain time.

    Raises:
        ServerStartError: the address cannot be bound.
    """
    destinations = SharedDestinations(lambda name: _sink(settings, name))
    servicer = SinkGatewayServicer(destinations, settings.window)
    drain_ends = None
    try:
        async with GrpcServer(settings.server, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
            try:
                yield server
            finally:
                drain_ends = monotonic() + settings.server.drain_seconds
                await servicer.drain(settings.server.drain_seconds)
    finally:
        # What clients that are gone had sent is written too.
        await destinations.close(0.0 if drain_ends is None else max(1.0, drain_ends - monotonic()))
