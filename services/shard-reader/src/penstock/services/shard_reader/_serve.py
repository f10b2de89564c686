"""The shard reader as a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.aws import AwsLocation, AwsSession
from penstock.efo_consumer import (
    SERVICE_NAME,
    KinesisBackend,
    LocalShardReader,
    ReaderLocation,
    ShardReaderServicer,
)
from penstock.rpc import GrpcServer
from penstock.services.shard_reader._settings import ReaderSettings

_MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""No records come in with a request."""


@asynccontextmanager
async def reader_server(settings: ReaderSettings) -> AsyncIterator[GrpcServer]:
    """Serve a reader between enter and exit; at exit, calls in progress end before the subscriptions do.

    Raises:
        AwsOptionError: no region is to be found, or the authorities to trust cannot be read.
        ServerStartError: the address cannot be bound.
    """
    session = AwsSession(settings.aws)
    # What is wrong with it is for whoever starts the service, not for its clients.
    session.ssl_context()
    backend = KinesisBackend(session, settings.reader.publisher)
    location = ReaderLocation(AwsLocation.of(session), backend.stream_arn, settings.endpoint_aliases)
    async with LocalShardReader(backend, settings.reader) as reader:
        servicer = ShardReaderServicer(reader, location=location)
        async with GrpcServer(
            settings.server,
            register=[servicer.add_to],
            service_names=[SERVICE_NAME],
            rights=[servicer.rights],
            max_request_bytes=_MAX_REQUEST_BYTES,
        ) as server:
            try:
                yield server
            finally:
                reader.drain()
