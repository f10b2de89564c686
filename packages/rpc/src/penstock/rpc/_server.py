"""A gRPC server with health, reflection, token check, trace context and drain."""

from __future__ import annotations

import argparse
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_health.v1.health import aio as aio_health  # type: ignore[attr-defined]  # missing in the stubs
from grpc_reflection.v1alpha import reflection
from opentelemetry.instrumentation.grpc import aio_server_interceptor

from penstock.rpc._channel import DEFAULT_MAX_MESSAGE_BYTES, channel_options
from penstock.rpc._security import ServerSecurity, is_loopback
from penstock.rpc.errors import RpcOptionError, ServerStartError

_HEALTH_PREFIX = "/grpc.health.v1.Health/"
Register = Callable[[grpc.aio.Server], None]

_SETTINGS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "host": ("HOST", str, "address to bind to; loopback unless told otherwise"),
    "port": ("PORT", int, "port to bind to; 0 lets the system pick one"),
    "certificate_file": ("CERTIFICATE_FILE", Path, "PEM of the server's certificate: turns TLS on"),
    "private_key_file": ("PRIVATE_KEY_FILE", Path, "PEM of the certificate's private key"),
    "client_ca_file": ("CLIENT_CA_FILE", Path, "PEM of the clients' authority: turns mutual TLS on"),
    "token_file": ("TOKEN_FILE", Path, "file that holds the bearer token that clients must send"),
    "drain_seconds": ("DRAIN_SECONDS", float, "seconds that calls in progress get to finish at the end"),
}


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where a server listens and what it demands."""

    host: str = "127.0.0.1"
    """Address to bind to. Default: loopback."""
    port: int = 0
    """Port to bind to. Default 0: the system picks one."""
    security: ServerSecurity = field(default_factory=ServerSecurity)
    """TLS, mutual TLS and token. Default: none."""
    drain_seconds: float = 10.0
    """Seconds that calls in progress get to finish when the server is closed."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Largest message either way, in bytes. Default: 64 MiB."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise RpcOptionError("port", f"{self.port} is not between 0 and 65535")
        if self.drain_seconds < 0:
            raise RpcOptionError("drain_seconds", "must not be negative")
        if not is_loopback(self.host) and self.security.certificate_file is None and self.security.token is None:
            raise RpcOptionError("host", f"{self.host} is reachable from other machines: set a certificate or a token")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, prefix: str) -> None:
        """Add a flag per setting; each falls back to the environment variable `<prefix>_<NAME>`.

        The token itself is never a flag, because flags can be seen by every user of a machine: it is
        read from `--token-file` or from `<prefix>_TOKEN`.
        """
        for name, (variable, kind, text) in _SETTINGS.items():
            variable = f"{prefix}_{variable}"
            parser.add_argument(
                "--" + name.replace("_", "-"),
                type=kind,
                default=os.environ.get(variable),
                help=f"{text} [{variable}]",
            )

    @classmethod
    def from_arguments(
        cls, arguments: argparse.Namespace, prefix: str, environment: Mapping[str, str] = os.environ
    ) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError: a setting is contradictory or unsafe.
        """
        given = {name: getattr(arguments, name) for name in _SETTINGS if getattr(arguments, name) is not None}
        token = environment.get(f"{prefix}_TOKEN")
        if "token_file" in given:
            try:
                token = Path(given.pop("token_file")).read_text().strip()
            except OSError as error:
                reason = f"cannot read {arguments.token_file}: {error.strerror}"
                raise RpcOptionError("token_file", reason) from error
        files = {
            name: given.pop(name)
            for name in ("certificate_file", "private_key_file", "client_ca_file")
            if name in given
        }
        return cls(security=ServerSecurity(token=token, **files), **given)


class _TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls without the token, but for health checks."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

        async def refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong")

        self._refuse = grpc.unary_unary_rpc_method_handler(refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        if handler_call_details.method.startswith(_HEALTH_PREFIX):
            return await continuation(handler_call_details)
        metadata = {str(key): value for key, value in handler_call_details.invocation_metadata}
        sent = metadata.get("authorization", "")
        if hmac.compare_digest(str(sent).encode(), self._wanted):
            return await continuation(handler_call_details)
        return self._refuse


class GrpcServer:
    """A server as an async context manager: it serves between enter and exit, and drains on exit.

    `register` are functions that add servicers; `service_names` their full names, for health and reflection.
    """

    def __init__(self, settings: ServerSettings, *, register: Sequence[Register], service_names: Sequence[str]) -> None:
        self._settings = settings
        self._register = register
        self._service_names = list(service_names)
        self._server: grpc.aio.Server | None = None
        self._health: Any = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port`, as a client would name it."""
        host = self._settings.host
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    async def __aenter__(self) -> Self:
        settings = self._settings
        interceptors: list[Any] = [aio_server_interceptor()]  # type: ignore[no-untyped-call]  # no annotations
        if settings.security.token is not None:
            interceptors.append(_TokenCheck(settings.security.token))
        server = grpc.aio.server(
            interceptors=interceptors,
            options=[
                *channel_options(settings.max_message_bytes),
                # Two servers on one port would each get half of the calls.
                ("grpc.so_reuseport", 0),
                # Half of the clients' interval: a ping that is a moment early is no offence.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        for add in self._register:
            add(server)
        self._health = aio_health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            [*self._service_names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        address = f"{settings.host}:{settings.port}"
        credentials = settings.security.server_credentials()
        try:
            if credentials is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ServerStartError(address, str(error)) from error
        await server.start()
        for name in ["", *self._service_names]:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._health is not None:
            await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(self._settings.drain_seconds)
