"""The emulator as a server on the running loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import ssl
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import trustme

from penstock.emulator._clock import ManualClock, SystemClock
from penstock.emulator._config import EmulatorConfig
from penstock.emulator._dynamodb_streams import DynamoDbStreams
from penstock.emulator._firehose import Firehose
from penstock.emulator._http.connections import Http1Connection, Http2Connection
from penstock.emulator._http.dispatch import Dispatcher, Router
from penstock.emulator._state.kinesis import Kinesis
from penstock.emulator.errors import EmulatorConfigError, EmulatorError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from penstock.emulator._clock import Clock
    from penstock.emulator._config import Behaviour
    from penstock.emulator._faults import FaultPlan

OWN_SERVICES = frozenset({"kinesis", "firehose", "dynamodbstreams"})
"""What the emulator itself answers."""


class Companions:
    """A server of moto's that has started."""

    def __init__(self, server: Any, services: Sequence[str]) -> None:
        self._server = server
        host, port = server.get_host_and_port()
        self.endpoints = dict.fromkeys(services, f"http://{host}:{port}")
        """The endpoint by service."""

    def stop(self) -> None:
        """End it; takes up to half a second."""
        self._server.stop()


def start_companions(services: Sequence[str]) -> Companions:
    """Start moto's server on a port of the loopback interface; blocks while moto is imported.

    Raises:
        EmulatorConfigError: moto is not installed, or does not know a service.
    """
    wanted = tuple(service for service in services if service not in OWN_SERVICES)
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise EmulatorConfigError(option="companions", reason="moto is missing; install penstock-emulator[companions]")
    # Only here: moto is optional, and takes longer to import than everything else to start.
    from moto.backend_index import backend_url_patterns
    from moto.server import ThreadedMotoServer

    known = {service for service, _ in backend_url_patterns}
    unknown = sorted(set(wanted) - known)
    if unknown:
        raise EmulatorConfigError(option="companions", reason=f"moto does not know {', '.join(unknown)}")
    # Otherwise it writes a line to standard error for every request.
    requests = logging.getLogger("werkzeug")
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return Companions(server, wanted)


def server_context(host: str, ca_file: Path) -> ssl.SSLContext:
    """Make a server certificate for localhost and `host`, and write its authority to `ca_file`.

    HTTP/2 is offered first, as Kinesis does: the client's ALPN decides.
    """
    authority = trustme.CA(organization_name="Penstock emulator")
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", host))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.cert_pem.write_to_path(str(ca_file))
    return context


# What may wait in a connection's write buffer before its writers are held back.
_WRITE_BUFFER_BYTES = 128 * 1024


class EmulatorServer:
    """An embedded Kinesis, listening from `async with` to its end.

    Leaving the context closes every connection, subscriptions among them, and forgets all streams. Not reusable.

    Raises:
        EmulatorConfigError: there is a clock, and a `manual_clock` is asked for as well.
    """

    def __init__(self, config: EmulatorConfig | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or EmulatorConfig()
        if clock is not None and self.config.manual_clock:
            reason = "is for an emulator without a clock of the caller's: leave one of them out"
            raise EmulatorConfigError(option="manual_clock", reason=reason)
        self.clock: Clock = clock or (ManualClock(time.time()) if self.config.manual_clock else SystemClock())
        self.kinesis = Kinesis(self.config)
        self.dynamodb_streams = DynamoDbStreams(self.kinesis, self.clock)
        self._router: Router | None = None
        self._companions: Companions | None = None
        self._resources = contextlib.ExitStack()
        self._connections: set[asyncio.Task[None]] = set()
        self._plain: asyncio.Server | None = None
        self._tls: asyncio.Server | None = None
        self._ca_file: Path | None = None

    async def __aenter__(self) -> Self:
        try:
            self._router = self._open()
            if set(self.config.companions) - OWN_SERVICES:
                # In a thread: importing them takes seconds, and other tasks have a right to the loop.
                self._companions = await asyncio.to_thread(start_companions, self.config.companions)
            self._plain = await asyncio.start_server(self._accept, self.config.host, self.config.port)
            if self.config.tls:
                context = self._make_certificate()
                self._tls = await asyncio.start_server(
                    self._accept, self.config.host, self.config.tls_port, ssl=context
                )
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def faults(self) -> FaultPlan:
        """What is to go wrong; may be changed from any thread, at any time."""
        return self.kinesis.faults

    @property
    def behaviour(self) -> Behaviour:
        """What is done where Kinesis leaves things open; may be set at any time, on this server's loop."""
        return self.kinesis.behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self.kinesis.behaviour = behaviour

    @property
    def endpoint_url(self) -> str:
        """The plain-text endpoint: HTTP/1.1."""
        return f"http://{self._address(self._plain)}"

    @property
    def tls_endpoint_url(self) -> str:
        """The TLS endpoint: HTTP/2 or HTTP/1.1, by ALPN; its certificate is good for 127.0.0.1 and localhost."""
        return f"https://{self._address(self._tls)}"

    @property
    def endpoints(self) -> dict[str, str]:
        """The endpoint of each service by the name that boto3 has for it."""
        endpoints = dict.fromkeys(("kinesis", "firehose", "dynamodbstreams"), self.endpoint_url)
        return endpoints | (self._companions.endpoints if self._companions is not None else {})

    @property
    def firehose_folder(self) -> Path:
        """Where Firehose writes, a folder for each delivery stream; a temporary folder goes with the emulator."""
        if self.config.firehose_folder is not None:
            return self.config.firehose_folder
        return self._temporary_folder / "firehose"

    @property
    def ca_file(self) -> Path:
        """The PEM file of the certificate authority that clients of the TLS endpoint have to trust."""
        if self._ca_file is None:
            raise EmulatorError("the emulator has no TLS listener")
        return self._ca_file

    def _open(self) -> Router:
        dispatcher = Dispatcher(self.kinesis, self.clock, dynamodb_streams=self.dynamodb_streams)
        firehose = Firehose(self.kinesis, self.clock, self.firehose_folder)
        return Router(dispatcher, firehose, dynamodb_streams=self.dynamodb_streams)

    def _address(self, server: asyncio.Server | None) -> str:
        if server is None or not server.sockets:
            raise EmulatorError("the emulator is not listening there")
        host, port = server.sockets[0].getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            # Clients cannot connect to "every address".
            host = "127.0.0.1"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _make_certificate(self) -> ssl.SSLContext:
        if self.config.ca_file is None:
            self._ca_file = self._temporary_folder / "ca.pem"
        else:
            self._ca_file = self.config.ca_file
        return server_context(self.config.host, self._ca_file)

    @cached_property
    def _temporary_folder(self) -> Path:
        return Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="penstock-emulator-")))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="emulator connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        assert self._router is not None
        encrypted = writer.get_extra_info("ssl_object")
        http2 = encrypted is not None and encrypted.selected_alpn_protocol() == "h2"
        connection = (Http2Connection if http2 else Http1Connection)(reader, writer, self._router, self.clock)
        try:
            await connection.serve()
            writer.close()
            await writer.wait_closed()
        except OSError:
            # The client is gone.
            pass
        finally:
            writer.transport.abort()

    async def _close(self) -> None:
        for server in (self._plain, self._tls):
            if server is not None:
                server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for server in (self._plain, self._tls):
            if server is not None:
                await server.wait_closed()
        if self._companions is not None:
            await asyncio.to_thread(self._companions.stop)
        self._resources.close()


class KinesisEmulator(EmulatorServer):
    """An `EmulatorServer` that takes the fields of `EmulatorConfig` as its keyword arguments.

    Raises:
        EmulatorConfigError: an option is out of range; the error names it.
    """

    def __init__(self, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(EmulatorConfig(**options), clock=clock)
