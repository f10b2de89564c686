"""The sink gateway as a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

from penstock.async_sink import (
    AsyncSinkBase,
    DynamoDbSink,
    FirehoseSink,
    KinesisStreamsSink,
    SqsSink,
    dynamodb_config,
    firehose_config,
    sqs_config,
)
from penstock.async_sink.gateway import SERVICE_NAME, Journal, SharedDestinations, SinkGatewayServicer
from penstock.aws import AwsOptions
from penstock.rpc import GrpcServer
from penstock.services.sink_gateway._settings import GatewaySettings


def _sink(settings: GatewaySettings, stream: str) -> KinesisStreamsSink:
    """The sink of a stream's name or ARN."""
    if stream.startswith("arn:"):
        return KinesisStreamsSink(settings.aws, stream_arn=stream, config=settings.sink)
    return KinesisStreamsSink(settings.aws, stream, config=settings.sink)


def _others(settings: GatewaySettings) -> dict[str, Callable[[str], AsyncSinkBase[Any, Any]]]:
    """The sinks of other kinds, by the name of their destination."""

    def aws(kind: str) -> AwsOptions:
        return replace(settings.aws, endpoint_url=settings.other_endpoints.get(kind))

    limits = settings.other_limits
    return {
        "firehose": lambda name: FirehoseSink(aws("firehose"), name, config=firehose_config(**limits)),
        "dynamodb": lambda name: DynamoDbSink(aws("dynamodb"), name, config=dynamodb_config(**limits)),
        "sqs": lambda url: SqsSink(aws("sqs"), url, config=sqs_config(**limits)),
    }


@asynccontextmanager
async def gateway_server(settings: GatewaySettings) -> AsyncIterator[GrpcServer]:
    """Serve the gateway between enter and exit; the exit writes what was accepted, within the drain time.

    Raises:
        ServerStartError: the address cannot be bound.
        JournalError: the journal is damaged, or another process has it.
    """
    journal = None if settings.durable is None else await asyncio.to_thread(Journal, settings.durable)
    destinations = SharedDestinations(lambda name: _sink(settings, name), _others(settings), journal=journal)
    servicer = SinkGatewayServicer(destinations, settings.window, max_weight=settings.max_client_weight)
    drain_ends = None
    try:
        async with GrpcServer(settings.server, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
            destinations.resume()
            try:
                yield server
            finally:
                drain_ends = monotonic() + settings.server.drain_seconds
                await servicer.drain(settings.server.drain_seconds)
    finally:
        # What clients that are gone had sent is written too.
        await destinations.close(0.0 if drain_ends is None else max(1.0, drain_ends - monotonic()))
