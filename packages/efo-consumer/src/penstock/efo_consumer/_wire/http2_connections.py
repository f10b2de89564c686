"""HTTP/2 connections by awscrt, shared by subscriptions up to the server's limit of streams."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import sys
import threading
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from awscrt import http, io
from awscrt.exceptions import AwsCrtError

from penstock.efo_consumer.errors import Http2NotNegotiatedError, SubscriptionConnectionError

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.aws import HttpProxy

_T = TypeVar("_T")

# RFC 9113 recommends that servers allow no fewer; assumed until the server's SETTINGS arrive.
_STREAMS_UNTIL_SETTINGS = 100

_UNSUPPORTED_PROTOCOL = "AWS_ERROR_HTTP_UNSUPPORTED_PROTOCOL"


class _PooledConnection:
    """A connection and how many streams use it.

    Attributes:
        streams: open streams; the server limits these.
        wanted: open streams whose consumer has not left.
        retired: gets no further streams, and is closed when none is wanted.
    """

    def __init__(self) -> None:
        self.connection: http.Http2ClientConnection | None = None
        self.streams = 0
        self.wanted = 0
        self.max_streams: float = _STREAMS_UNTIL_SETTINGS
        self.retired = False

    def on_settings(self, settings: list[http.Http2Setting]) -> None:
        """Note the server's limit of streams. Runs on the connection's thread, so it only assigns a value."""
        for setting in settings:
            if setting.id == http.Http2SettingID.MAX_CONCURRENT_STREAMS:
                self.max_streams = setting.value

    @property
    def has_room(self) -> bool:
        """Whether another stream can be opened."""
        if self.retired or self.connection is None or not self.connection.is_open():
            return False
        return self.streams < self.max_streams

    def close_if_unwanted(self) -> None:
        """Close a retired connection without readers."""
        if self.retired and not self.wanted and self.connection is not None:
            self.connection.close()


class StreamSlot:
    """A stream's place on a connection. Used on the event loop only."""

    __slots__ = ("_held", "_open", "_wanted")

    def __init__(self, held: _PooledConnection) -> None:
        held.streams += 1
        held.wanted += 1
        self._held = held
        self._wanted = True
        self._open = True

    @property
    def connection(self) -> http.Http2ClientConnection:
        """The connection to open the stream on."""
        return self._held.connection

    def ended(self) -> None:
        """Record that the stream has ended, or was never opened."""
        self._open = False
        self._held.streams -= 1
        self._leave()

    def abandon(self) -> None:
        """Abandon the stream, perhaps while the service still sends.

        awscrt cannot reset a stream. An uncredited stream stops at the end of its window, and its connection is
        retired: it is closed when its last wanted stream has ended, after five minutes at most.
        """
        if self._open:
            self.retire()
            self._leave()

    def retire(self) -> None:
        """Open no further streams on the connection."""
        self._held.retired = True

    def _leave(self) -> None:
        if self._wanted:
            self._wanted = False
            self._held.wanted -= 1
        self._held.close_if_unwanted()


class Http2Pool:
    """The connections to one endpoint. Belongs to one event loop."""

    def __init__(
        self,
        *,
        endpoint_url: str,
        ca_bundle: str | None,
        window_bytes: int,
        connect_timeout: timedelta,
        proxy: HttpProxy | None = None,
    ) -> None:
        parts = urlsplit(endpoint_url)
        self._host = parts.hostname or ""
        self._port = parts.port or 443
        self._window_bytes = window_bytes
        self._connect_timeout_seconds = connect_timeout.total_seconds()
        self._ca_bundle = ca_bundle
        self._proxy = proxy
        self._tls: io.ClientTlsContext | None = None
        self._connections: list[_PooledConnection] = []
        # One at a time: a burst of subscriptions shares the connection that the first of them opens.
        self._connecting = asyncio.Lock()

    async def acquire(self) -> StreamSlot:
        """Reserve a stream on a connection that has room, or on a new one.

        Raises:
            Http2NotNegotiatedError: the endpoint did not choose h2.
            SubscriptionConnectionError: the connection could not be made.
        """
        async with self._connecting:
            self._connections = [held for held in self._connections if held.streams or held.has_room]
            for held in self._connections:
                if held.has_room:
                    break
            else:
                held = await self._connect()
                self._connections.append(held)
            return StreamSlot(held)

    async def close(self) -> None:
        """Close every connection, and wait until they are closed."""
        held, self._connections = self._connections, []
        for one in held:
            one.retired = True
            if one.connection is not None:
                # A connection that failed before reports it again here.
                with contextlib.suppress(AwsCrtError, TimeoutError):
                    async with asyncio.timeout(self._connect_timeout_seconds):
                        await _awaitable(one.connection.close())

    async def _connect(self) -> _PooledConnection:
        tls = (await self._tls_context()).new_connection_options()
        tls.set_server_name(self._host)
        socket = io.SocketOptions()
        socket.connect_timeout_ms = math.ceil(self._connect_timeout_seconds * 1000)
        held = _PooledConnection()
        connecting = http.Http2ClientConnection.new(
            host_name=self._host,
            port=self._port,
            socket_options=socket,
            tls_connection_options=tls,
            proxy_options=None if self._proxy is None else _proxy_options(self._proxy),
            initial_settings=[http.Http2Setting(http.Http2SettingID.ENABLE_PUSH, 0)],
            on_remote_settings_changed=held.on_settings,
            manual_window_management=True,
            initial_window_size=self._window_bytes,
        )
        endpoint = f"{self._host}:{self._port}" + (f" by the proxy {self._proxy.authority}" if self._proxy else "")
        try:
            held.connection = await _awaitable(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close)
            raise
        except AwsCrtError as error:
            if error.name == _UNSUPPORTED_PROTOCOL:
                raise Http2NotNegotiatedError(endpoint=endpoint) from error
            raise SubscriptionConnectionError(f"no connection to {endpoint}: {error}") from error
        return held

    async def _tls_context(self) -> io.ClientTlsContext:
        if self._tls is None:
            # In a thread: it reads the trust store.
            self._tls = await asyncio.to_thread(_new_tls_context, self._ca_bundle)
        return self._tls


def _awaitable(future: Future[_T]) -> asyncio.Future[_T]:
    """Make awscrt's future awaitable. awscrt continues when the caller is cancelled, and cannot set a cancelled one."""
    with contextlib.suppress(InvalidStateError):
        if not future.done():
            future.set_running_or_notify_cancel()
    return asyncio.wrap_future(future)


def _close(connecting: Future[http.Http2ClientConnection]) -> None:
    if connecting.exception() is None:
        connecting.result().close()


def _new_tls_context(ca_bundle: str | None) -> io.ClientTlsContext:
    options = io.TlsContextOptions()
    # http/1.1 is offered too: an endpoint without h2 then selects it instead of failing the handshake.
    options.alpn_list = ["h2", "http/1.1"]
    if ca_bundle is not None:
        options.override_default_trust_store_from_path(ca_dirpath=None, ca_filepath=ca_bundle)
    return io.ClientTlsContext(options)


def _proxy_options(proxy: HttpProxy) -> http.HttpProxyOptions:
    auth_types = http.HttpProxyAuthenticationType
    return http.HttpProxyOptions(
        host_name=proxy.host,
        port=proxy.port,
        auth_type=auth_types.Basic if proxy.user else auth_types.Nothing,
        auth_username=proxy.user or None,
        auth_password=proxy.password if proxy.user else None,
        connection_type=http.HttpProxyConnectionType.Tunneling,
    )


_local = threading.local()


def keep_thread_state() -> None:
    """Keep the Python state of the calling thread, one of awscrt's, for its later callbacks.

    CPython creates a state for a foreign thread when it enters Python, and destroys it when it leaves. With the mapping
    and unmapping of its stack that takes 8 microseconds per chunk of 8 kB, as much as awscrt's own work on the chunk.
    A thread that has entered once more than it has left keeps its state. awscrt's few event-loop threads live as long
    as the process, so nothing is leaked.
    """
    if sys.implementation.name != "cpython" or getattr(_local, "kept", False):
        return
    _local.kept = True
    # PyDLL calls with the interpreter's lock held, so this only counts up.
    ctypes.pythonapi.PyGILState_Ensure()


class ReceiveWindow:
    """Keeps the bytes that wait for the consumer within the window.

    An event is credited when the consumer takes it. The exception is a frame longer than the rest of the window: it
    could never complete, so its beginning is credited while no whole event waits before it. Memory is thus bounded by
    the window plus one frame.

    Not thread-safe: the caller locks.
    """

    __slots__ = ("_advanced", "_owed", "_size_bytes", "_waiting")

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._owed = 0
        self._waiting = 0
        self._advanced = 0

    @property
    def owed_bytes(self) -> int:
        """Bytes received but not credited."""
        return self._owed

    def received(self, chunk_bytes: int, completed: list[int], pending_bytes: int) -> tuple[int, list[int]]:
        """Account for a chunk.

        Args:
            chunk_bytes: its length.
            completed: the wire bytes of each event it completed.
            pending_bytes: bytes that belong to no event yet.

        Returns:
            The bytes to credit now, and for each completed event the bytes to credit when it is taken.
        """
        self._owed += chunk_bytes
        costs = []
        for wire_bytes in completed:
            cost = wire_bytes - self._advanced
            self._advanced = 0
            self._waiting += cost
            costs.append(cost)
        return self._advance(pending_bytes), costs

    def taken(self, cost: int, pending_bytes: int) -> int:
        """Account for an event that the consumer took; returns the bytes to credit now."""
        self._waiting -= cost
        self._owed -= cost
        return cost + self._advance(pending_bytes)

    def _advance(self, pending_bytes: int) -> int:
        if self._waiting or self._owed * 2 <= self._size_bytes:
            return 0
        credit = pending_bytes - self._advanced
        self._advanced = pending_bytes
        self._owed -= credit
        return credit
