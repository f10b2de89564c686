"""The console as a server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from penstock.registration import ReaderDirectory, ReaderFiles
from penstock.rpc import ServerStartError
from penstock.services.console._access import Access, tls_context
from penstock.services.console._pages import Pages
from penstock.services.console._settings import ConsoleSettings, Endpoint
from penstock.services.console._sources.bounded import BoundedDirectory
from penstock.services.console._sources.collector import Collector
from penstock.services.console._sources.drivers import DriversSource
from penstock.services.console._sources.services import (
    AnySource,
    KinesisSource,
    Plans,
    ReaderSource,
    RegistrySource,
    SinkSource,
    StagesSource,
)
from penstock.services.console._values import Kind
from penstock.services.console._views.streams import known_streams
from penstock.services.console._views.view import Templates

_SOURCES = {
    Kind.REGISTRY: RegistrySource,
    Kind.READER: ReaderSource,
    Kind.SINK: SinkSource,
    Kind.STAGES: StagesSource,
}


@dataclass(frozen=True)
class ConsoleServer:
    """A console that listens."""

    address: str
    """`host:port`."""
    url: str
    """For a browser."""


@asynccontextmanager
async def console_server(settings: ConsoleSettings) -> AsyncIterator[ConsoleServer]:
    """Serve the console between enter and exit.

    Raises:
        RpcOptionError: a certificate cannot be used, or a file cannot be read.
        ServerStartError: the address cannot be bound.
    """
    server, tls = settings.server, tls_context(settings.server.security)
    services: list[AnySource] = [_SOURCES[endpoint.kind](endpoint) for endpoint in settings.endpoints]
    sources: list[tuple[AnySource, float]] = [(one, settings.interval_seconds) for one in services]
    sources += [(one, settings.interval_seconds) for one in _drivers(settings)]
    kinesis: KinesisSource | None = None
    if settings.aws is not None:
        kinesis = KinesisSource(
            settings.aws,
            lambda: known_streams(collector.snapshot(), settings.streams),
            lists_all=settings.list_streams,
        )
        sources.append((kinesis, settings.shards_interval_seconds))
    collector = Collector(sources)
    templates, host = Templates(), server.host.strip("[]")
    access = Access(server.security, frozenset({*settings.allowed_hosts, socket.gethostname(), host}), templates)
    app = web.Application(middlewares=[access.headers, access.host, access.token])
    plans = Plans(next((one for one in services if isinstance(one, StagesSource)), None))
    Pages(settings, collector, templates, plans, kinesis).add_to(app)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(collector)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=server.drain_seconds)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, host, server.port, ssl_context=tls).start()
        except OSError as error:
            raise ServerStartError(f"{host}:{server.port}", error.strerror or str(error)) from error
        port = runner.addresses[0][1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield ConsoleServer(address, f"{'http' if tls is None else 'https'}://{address}/")


def _drivers(settings: ConsoleSettings) -> Iterator[DriversSource]:
    """What lists the readers inside drivers: registries, and the files of this user."""
    for endpoint in settings.endpoints:
        if endpoint.kind is Kind.REGISTRY:
            yield DriversSource(partial(_directory_at, endpoint), endpoint.address)
    if settings.local_readers:
        yield DriversSource(ReaderFiles, "files of this user")


def _directory_at(endpoint: Endpoint) -> ReaderDirectory:
    return BoundedDirectory(endpoint.address, endpoint.security())
