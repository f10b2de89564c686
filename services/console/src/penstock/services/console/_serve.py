"""The console as a server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from penstock.registration import ReaderDirectory, ReaderFiles, RemoteReaderDirectory
from penstock.rpc import AuditLog, OpenCalls
from penstock.services.console._access.connection import Connection, Limits, time_is_taken
from penstock.services.console._access.guard import HEADERS, Guard
from penstock.services.console._access.listener import Listener
from penstock.services.console._access.logins import Sessions
from penstock.services.console._access.tls import TlsFiles
from penstock.services.console._actions import ActionLog, Actions
from penstock.services.console._endpoints import Endpoint
from penstock.services.console._pages import Pages
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources.collector import Collector
from penstock.services.console._sources.day import DayHistory
from penstock.services.console._sources.dead_letters import DeadLetters
from penstock.services.console._sources.drivers import DriversSource
from penstock.services.console._sources.history import History
from penstock.services.console._sources.kinesis import KinesisSource
from penstock.services.console._sources.records import RecordsSource
from penstock.services.console._sources.services import (
    AnySource,
    Plans,
    ReaderSource,
    RegistrySource,
    SinkSource,
    StagesSource,
)
from penstock.services.console._values import Kind
from penstock.services.console._views.streams import known_streams
from penstock.services.console._views.templates import Templates

_LARGEST_FORM = 16 * 1024
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
async def console_server(settings: ConsoleSettings, *, limits: Limits | None = None) -> AsyncIterator[ConsoleServer]:
    """Serve the console between enter and exit.

    Args:
        settings: all that it needs to know.
        limits: how long connections may keep it waiting.

    Raises:
        RpcOptionError: a certificate cannot be used, or a file not be read or written.
        ConsoleOptionError: the file of the history cannot be used.
        ServerStartError: the address cannot be bound.
    """
    limits = limits or Limits()
    tls = TlsFiles(settings.server.security)
    day = None
    if settings.history_file is not None:
        day = DayHistory(settings.history_file, max_series=settings.history_series)
    history = History(points=settings.history_points, max_series=settings.history_series, day=day)
    services: list[AnySource] = [_SOURCES[endpoint.kind](endpoint) for endpoint in settings.endpoints]
    sources = [(source, settings.interval_seconds) for source in services]
    sources += [(source, settings.interval_seconds) for source in _drivers(settings)]
    kinesis: KinesisSource | None = None
    if settings.aws is not None:
        kinesis = KinesisSource(
            settings.aws, lambda: known_streams(collector.snapshot(), settings.streams), lists_all=settings.list_streams
        )
        sources.append((kinesis, settings.shards_interval_seconds))
    collector = Collector(sources, history)
    audit = None if settings.server.audit_log is None else AuditLog(settings.server.audit_log, "console")
    app = _application(settings, collector, history, services, kinesis, limits, audit)
    async with AsyncExitStack() as stack:
        if audit is not None:
            stack.callback(audit.close)
        if day is not None:
            await stack.enter_async_context(day)
        await stack.enter_async_context(collector)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=settings.server.drain_seconds)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        server = runner.server
        assert server is not None  # it is set up

        def connection(on_end: Callable[[Connection], None]) -> Connection:
            return Connection(server, limits, HEADERS, on_end)

        host = settings.server.host
        listener = Listener(
            host.strip("[]"),
            settings.server.port,
            connection,
            tls,
            limits=limits,
            max_connections=settings.server.max_connections,
        )
        port = (await stack.enter_async_context(listener)).port
        address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        yield ConsoleServer(address, f"{'http' if tls.context() is None else 'https'}://{address}/")


def _drivers(settings: ConsoleSettings) -> Iterator[DriversSource]:
    """What lists the readers inside drivers: registries, and the files of this user."""
    for endpoint in settings.endpoints:
        if endpoint.kind is Kind.REGISTRY:
            yield DriversSource(partial(_directory_at, endpoint), endpoint.address)
    if settings.local_readers:
        yield DriversSource(ReaderFiles, "files of this user")


def _directory_at(endpoint: Endpoint) -> ReaderDirectory:
    return RemoteReaderDirectory(endpoint.address, endpoint.security())


def _application(
    settings: ConsoleSettings,
    collector: Collector,
    history: History,
    services: list[AnySource],
    kinesis: KinesisSource | None,
    limits: Limits,
    audit: AuditLog | None,
) -> web.Application:
    templates, sessions, log = Templates(), Sessions(), ActionLog(audit)
    names = frozenset({*settings.allowed_hosts, socket.gethostname(), settings.server.host.strip("[]")})
    open_calls = OpenCalls(settings.server.calls_at_once)
    guard = Guard(settings.server.security, sessions, names, templates, audit, open_calls)
    registry = next((one for one in services if isinstance(one, RegistrySource)), None)
    stages = next((one for one in services if isinstance(one, StagesSource)), None)
    app = web.Application(
        middlewares=[time_is_taken, guard.headers, guard.host, guard.login], client_max_size=_LARGEST_FORM
    )

    def unlisted(stream: str) -> str:
        return "" if kinesis is None else kinesis.failures.get(stream, "")

    records = None
    if settings.show_records and settings.aws is not None:
        records = RecordsSource(settings.aws, settings.avro_schemas)
    letters = DeadLetters(settings.dead_letters, settings.aws)
    pages = Pages(
        settings,
        collector,
        history,
        guard,
        templates,
        Plans(stages),
        log,
        unlisted=unlisted,
        records=records,
        dead_letters=letters,
    )
    pages.add_to(app)
    actions = Actions(
        settings,
        collector,
        guard,
        sessions,
        templates,
        log,
        limits,
        registry=registry,
        stages=stages,
        dead_letters=letters,
    )
    actions.add_to(app)
    return app
