"""Takes connections: no more than it may have at a time, each no longer than it may keep the console waiting."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Self

from penstock.rpc import ServerStartError
from penstock.services.console._access.connection import Connection, Limits
from penstock.services.console._access.tls import TlsFiles

_LOOK_SECONDS = 1.0
_BACKLOG = 1_024
# So many are tried where any may be taken.
_PORTS = 10
_SEND_BYTES = 128 * 1_024
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)
Make = Callable[[Callable[[Connection], None]], Connection]


class Listener:
    """Listens between enter and exit; connections that are open at the exit are the caller's to end.

    Args:
        host: name or address.
        port: 0 lets the system pick one.
        make: makes a connection; given what it has to call when it is gone.
        tls: what handshakes show and demand.
        limits: how long connections may keep the console waiting.
        max_connections: at a time, those in their handshake counted; more are closed when they come.
    """

    def __init__(
        self, host: str, port: int, make: Make, tls: TlsFiles, *, limits: Limits, max_connections: int
    ) -> None:
        self._host = host
        self._wanted = port
        self._make = make
        self._tls = tls
        self._limits = limits
        self._most = max_connections
        self._sockets: list[socket.socket] = []
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_full = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        """Begin. Raises: ServerStartError: the address cannot be bound."""
        try:
            await self._bind()
        except OSError as error:
            raise ServerStartError(f"{self._host}:{self._wanted}", error.strerror or str(error)) from error
        for number, one in enumerate(self._sockets):
            self._start(self._accept(one), f"accept {number}")
        self._start(self._end_slow_ones(), "end slow connections")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()

    async def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._host, self._wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
        addresses = dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)
        for tries_left in reversed(range(_PORTS)):
            try:
                self._bind_all(addresses)
            except OSError as error:
                for one in self._sockets:
                    one.close()
                self._sockets.clear()
                # Of any port: what one address has free may be somebody's at another.
                if self._wanted or error.errno != errno.EADDRINUSE or not tries_left:
                    raise
            else:
                return

    def _bind_all(self, addresses: Iterable[tuple[int, str]]) -> None:
        """Listen on those that are there, all at the port that the first was given."""
        port = self._wanted
        missing: OSError | None = None
        for family, address in addresses:
            try:
                one = socket.create_server((address, port), family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                # `localhost` has an address of IPv6 on systems that have no IPv6.
                missing = error
                continue
            one.setblocking(False)
            self._sockets.append(one)
            port = self.port
        if not self._sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, "it has no address")

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _FULL:
                    _log.warning("no connection can be taken for a second: %s", error.strerror)
                    await asyncio.sleep(1.0)
                # Otherwise: it went away before it was taken.
                continue
            if len(self._open) >= self._most:
                self._say_full(full=True)
                peer.close()
                continue
            connection = self._make(self._open.discard)
            self._open.add(connection)
            self._start(self._begin(connection, peer), "begin a connection")

    async def _begin(self, connection: Connection, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        context = self._tls.context()
        options = {} if context is None else {"ssl": context, "ssl_handshake_timeout": self._limits.handshake}
        try:
            # Systems let it grow to megabytes, which a browser that does not read would hold.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
            await loop.connect_accepted_socket(lambda: connection, peer, **options)  # type: ignore[arg-type]  # as named
        except OSError as error:
            # No TLS, no certificate that is wanted, or no end of the handshake.
            _log.debug("a connection did not come to be: %s", error)
            self._open.discard(connection)
        except BaseException:
            self._open.discard(connection)
            raise

    async def _end_slow_ones(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = loop.time()
            ended = sum([one.end_if_over(now) for one in list(self._open)])
            if ended:
                _log.debug("ended %d connections that kept the console waiting", ended)
            self._say_full(full=len(self._open) >= self._most)

    def _say_full(self, *, full: bool) -> None:
        # Once, not for each that comes.
        if full and not self._is_full:
            _log.warning("%d connections are open: more are turned away (--max-connections)", len(self._open))
        self._is_full = full
