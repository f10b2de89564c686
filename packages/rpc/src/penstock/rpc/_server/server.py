"""A gRPC server with health, reflection, token check, trace context and drain."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_reflection.v1alpha import reflection
from opentelemetry.instrumentation.grpc import aio_server_interceptor

from penstock.rpc._client.channel import DEFAULT_MAX_MESSAGE_BYTES, channel_options
from penstock.rpc._flags import Setting, add_settings, add_switch, read_settings, read_switch
from penstock.rpc._own_files import is_answered
from penstock.rpc._security.security import ServerSecurity
from penstock.rpc._server.access import RECHECK_SECONDS, Access
from penstock.rpc._server.audit import AuditLog
from penstock.rpc._server.rules import calls_of
from penstock.rpc._server.token_check import Callers
from penstock.rpc.errors import RpcOptionError, ServerStartError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # no stubs published
    """Says whether services serve. For one event loop.

    Not gRPC's own servicer: its `Watch` writes directly, which interceptors of streams do not support, and holds a lock
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
            await context.abort(grpc.StatusCode.NOT_FOUND, "the server does not have this service")
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


MAX_SOCKET_PATH_BYTES = 100
"""Longest path of a socket: Linux allows 107 bytes, macOS 103."""


def check_socket_path(path: Path) -> None:
    """Refuse a path that no socket can have.

    Raises:
        RpcOptionError: it is too long, or not absolute.
    """
    if not path.is_absolute():
        raise RpcOptionError("socket_path", f"{path} is not absolute: clients run in other folders")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise RpcOptionError("socket_path", f"{path} is longer than {MAX_SOCKET_PATH_BYTES} bytes, a socket's most")


def listen_on_socket(server: grpc.aio.Server, path: Path, credentials: grpc.ServerCredentials | None) -> None:
    """Let a server that has not started listen on a Unix socket, which goes when it ends.

    What a killed server left there is replaced; a server that lives is left alone.

    Raises:
        ServerStartError: the path cannot be listened on.
    """
    endpoint = f"unix:{path}"
    if is_answered(path):
        raise ServerStartError(endpoint, "another server listens there: choose another path")
    # The mask applies to the whole process: files that other threads create now are private, too. A mode that is set
    # after the socket is there would let others in before.
    before = os.umask(0o077)
    try:
        _add_port(server, endpoint, credentials)
    except (RuntimeError, OSError) as error:
        reason = "its folder must exist, and nothing but an old socket lie there: choose another path"
        raise ServerStartError(endpoint, reason) from error
    finally:
        os.umask(before)


def _add_port(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    if credentials is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, credentials)


DEFAULT_MAX_CONNECTIONS = 4_096
Register = Callable[[grpc.aio.Server], None]

_SETTINGS = (
    Setting("host", "address to bind to; default: loopback"),
    Setting("port", "port to bind to; 0 lets the system pick one", int),
    Setting("socket_path", "Unix socket to listen on besides, for this machine's endpoint unix:PATH", Path),
    Setting("certificate_file", "PEM of the server's certificate: turns TLS on", Path),
    Setting("private_key_file", "PEM of the certificate's private key", Path),
    Setting("client_ca_file", "PEM of the clients' authority: turns mutual TLS on", Path),
    Setting("token_file", "file of the bearer tokens that clients may send, one per line", Path),
    Setting("principals", "TOML file of who may do what, in place of tokens that may do all", Path),
    Setting("audit_log", "file for a line of JSON per refused call and per change; - is standard output"),
    Setting("max_connections", "connections at a time; more are closed when they come", int),
    Setting("calls_at_once", "calls that a caller may have open; default: as many as it likes", int),
    Setting("drain_seconds", "seconds that calls in progress get to finish at the end", float),
)
_SWITCHES: Mapping[str, str] = {
    "allow_plain_text": "listen beyond loopback without TLS, as behind a proxy that encrypts",
    "allow_unauthenticated": "listen beyond loopback for everybody, with neither tokens nor clients' certificates",
}


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where a server listens and what it demands."""

    host: str = "127.0.0.1"
    """Address to bind to. Default: loopback."""
    port: int = 0
    """Port to bind to. Default 0: the system picks one."""
    socket_path: Path | None = None
    """Unix socket to listen on besides, of this user alone; clients call it `unix:PATH`. The security is the same."""
    security: ServerSecurity = field(default_factory=ServerSecurity)
    """TLS, mutual TLS and token. Default: none."""
    drain_seconds: float = 10.0
    """Seconds that calls in progress get to finish when the server is closed."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Largest message either way, in bytes. Default: 64 MiB."""
    audit_log: str | None = None
    """File for a line of JSON per refused call and per change; `-` is standard output. Default: none is written."""
    recheck_seconds: float = RECHECK_SECONDS
    """Between two looks at whether the caller of a stream may still call, where tokens and principals can change."""
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    """Connections at a time; a client that comes when there are as many is turned away, and tries again."""
    calls_at_once: int | None = None
    """Calls that a caller may have open: a principal, unless its file says otherwise, or all who have the token.

    Each may hold a message of the largest size in memory. None, the default: as many as they like.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise RpcOptionError("port", f"{self.port} is not between 0 and 65535")
        if self.socket_path is not None:
            check_socket_path(self.socket_path)
        for name in ("max_connections", "calls_at_once"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RpcOptionError(name, "must be at least 1")
        if not self.drain_seconds >= 0:
            raise RpcOptionError("drain_seconds", "must not be negative")
        self.security.check_host(self.host)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, prefix: str) -> None:
        """Add a flag per setting; each falls back to the environment variable `<prefix>_<NAME>`.

        The token itself is never a flag, because flags can be seen by every user of a machine: it is
        read from `--token-file` or from `<prefix>_TOKEN`.
        """
        add_settings(parser, prefix, _SETTINGS)
        for name, text in _SWITCHES.items():
            add_switch(parser, prefix, name, text)

    @classmethod
    def from_arguments(
        cls, arguments: argparse.Namespace, prefix: str, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError: a setting is contradictory or unsafe.
        """
        environment = os.environ if environment is None else environment
        given = read_settings(arguments, _SETTINGS)
        # The file is the nearer wish: a token in the environment may be another's.
        token = None if "token_file" in given or "principals" in given else environment.get(f"{prefix}_TOKEN")
        files = {
            name: given.pop(name)
            for name in ("certificate_file", "private_key_file", "client_ca_file", "token_file", "principals")
            if name in given
        }
        switches = {name: read_switch(name, getattr(arguments, name)) for name in _SWITCHES}
        security = ServerSecurity(token=token, **files, **switches)  # type: ignore[arg-type]  # by their names
        security.check_files()
        return cls(security=security, **given)


class GrpcServer:
    """A server as an async context manager: it serves between enter and exit, and drains on exit.

    `register` are functions that add servicers; `service_names` their full names, for health and reflection, and for
    the rules of their contracts, which principals and the audit log need. `max_request_bytes` is the largest message
    of a caller, where that is less than the settings' `max_message_bytes`: callers that make many calls at once fill
    memory by it, and only requests that hold records need to be large.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        register: Sequence[Register],
        service_names: Sequence[str],
        max_request_bytes: int | None = None,
    ) -> None:
        needed = settings.security.principals is not None or settings.audit_log is not None
        rules = calls_of(service_names)
        if needed and {path.split("/")[1] for path, one in rules.items() if one.service} != set(service_names):
            option = "audit_log" if settings.security.principals is None else "principals"
            raise RpcOptionError(option, "this server does not know what its calls act on: leave it out")
        self._rules = rules | calls_of([HEALTH_SERVICE_NAME, reflection.SERVICE_NAME])
        self._audit: AuditLog | None = None
        self._settings = settings
        most = settings.max_message_bytes
        self._max_request_bytes = most if max_request_bytes is None else min(most, max_request_bytes)
        self._register = register
        self._service_names = list(service_names)
        self._server: grpc.aio.Server | None = None
        self._health: Health | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port`, as a client would name it."""
        return self._at(self._port)

    def _at(self, port: int) -> str:
        host = self._settings.host.strip("[]")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def __aenter__(self) -> Self:
        settings = self._settings
        interceptors: list[Any] = [aio_server_interceptor(), self._access()]  # type: ignore[no-untyped-call]  # no annotations
        server = grpc.aio.server(
            interceptors=interceptors,
            options=[
                *self._receiving_options(),
                # Two servers on one port would each get half of the calls.
                ("grpc.so_reuseport", 0),
                # Half of the clients' interval: a ping that is a moment early is not an offence.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
                # Clients that connect and say nothing are disconnected after this time; gRPC's default is two minutes.
                ("grpc.server_handshake_timeout_ms", 20_000),
                ("grpc.max_allowed_incoming_connections", settings.max_connections),
                # A client's further calls wait for one to end.
                ("grpc.max_concurrent_streams", 1_000),
            ],
        )
        for add in self._register:
            add(server)
        self._health = Health(["", *self._service_names])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            [*self._service_names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        address = self._at(settings.port)
        try:
            self._port = _add_port(server, address, settings.security.server_credentials())
        except RuntimeError as error:
            # gRPC's own words only name one of its variables.
            reason = "the port is taken, or the address is not one of this machine: choose another, or port 0 for any"
            raise ServerStartError(address, reason) from error
        if settings.socket_path is not None:
            # Credentials of its own: gRPC takes those that read rotated files for one address only.
            listen_on_socket(server, settings.socket_path, settings.security.server_credentials())
        await server.start()
        self._server = server
        return self

    def _receiving_options(self) -> list[tuple[str, Any]]:
        """As of all channels, but for what comes in.

        Until it is known who makes them, calls wait unread, some thousands of them at a time, with what was sent.
        """
        options = dict(channel_options(self._settings.max_message_bytes, self._max_request_bytes))
        options |= {"grpc.max_metadata_size": 16 * 1024, "grpc.absolute_max_metadata_size": 16 * 1024}
        # Windows stay at 64 kB a call, and grow for a message that is being read: not with the bandwidth.
        options["grpc.http2.bdp_probe"] = 0
        if self._max_request_bytes < self._settings.max_message_bytes:
            options["grpc.http2.lookahead_bytes"] = 16 * 1024
        return list(options.items())

    def _access(self) -> Access:
        settings = self._settings
        name = next((one.service for one in self._rules.values()), "")
        self._audit = None if settings.audit_log is None else AuditLog(settings.audit_log, name)
        return Access(
            Callers(settings.security),
            self._rules,
            self._audit,
            recheck_seconds=settings.recheck_seconds,
            calls_at_once=settings.calls_at_once,
        )

    async def __aexit__(self, *_: object) -> None:
        if self._health is not None:
            self._health.end()
        if self._server is not None:
            await self._server.stop(self._settings.drain_seconds)
        if self._audit is not None:
            self._audit.close()
