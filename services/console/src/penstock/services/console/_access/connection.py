"""A browser's connection, whose patience with the browser ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a connection may take its time for, in seconds; all are for the whole, not for each byte."""

    handshake: float = 10.0
    """Of TLS."""
    head: float = 20.0
    """From the connection, or from the last answer, to the end of a request's head."""
    form: float = 20.0
    """For the body of a request."""
    stuck: float = 20.0
    """In which an answer that waits for the browser has to come down by `PROGRESS_BYTES`, or to be taken whole."""


PROGRESS_BYTES = 48 * 1_024
"""What a browser has to take of an answer each time. The system holds some of it, and takes more in steps: what a
browser reads shows every 100 kB or so."""


class Patience:
    """When a connection has kept the console waiting for too long.

    Args:
        limits: how long it may.
        now: monotonic seconds, when it was opened.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._answering = False
        self._stuck = False
        self._waiting = 0
        self._deadline: float | None = now + limits.head

    def asked(self) -> None:
        """A request's head is there: what follows is the console's own time."""
        self._answering = True
        if not self._stuck:
            self._deadline = None

    def answered(self, now: float) -> None:
        """The answer is made; it may still be on its way."""
        self._answering = False
        if not self._stuck:
            self._deadline = now + self._limits.head

    def stuck(self, now: float, waiting: int) -> None:
        """The browser reads more slowly than the console writes; so many bytes wait for it."""
        self._stuck = True
        self._waiting = waiting
        self._deadline = now + self._limits.stuck

    def looked(self, now: float, waiting: int) -> None:
        """So many bytes wait now: a page of any size may take as long as enough of it is taken each time."""
        if self._stuck and waiting <= self._waiting - PROGRESS_BYTES:
            self.stuck(now, waiting)
        # More of the answer may have come to it.
        self._waiting = max(self._waiting, waiting)

    def freed(self, now: float) -> None:
        """It has read most of what there was."""
        self._stuck = False
        self._deadline = None if self._answering else now + self._limits.head

    def is_over(self, now: float) -> bool:
        """Whether to end the connection."""
        return self._deadline is not None and now >= self._deadline


_LINGER_SECONDS = 3.0
"""For what a browser still sends after it was refused, so that it gets to read the refusal."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """Speaks HTTP; ended by its `Listener` when it keeps the console waiting.

    Args:
        server: of the application.
        limits: how long it may take over what.
        headers: of answers that no handler makes.
        on_end: called once, when it is gone.
    """

    def __init__(
        self,
        server: web.Server,
        limits: Limits,
        headers: dict[str, str],
        on_end: Callable[[Connection], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        # Its own limit on idle connections closes those that said nothing at all in good form, before ours does.
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.head * 0.9,
            lingering_time=_LINGER_SECONDS,
            access_log=None,  # type: ignore[arg-type]  # None is for no log
        )
        self._limits = limits
        self._headers = headers
        self._on_end = on_end
        self._patience: Patience | None = None
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open, and has shaken hands."""
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._patience = Patience(self._limits, self._loop.time())
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._wire = None
        self._on_end(self)

    def pause_writing(self) -> None:
        """The browser does not read as fast as the console writes."""
        super().pause_writing()
        if self._patience is not None:
            assert self._wire is not None
            self._patience.stuck(self._loop.time(), self._wire.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if self._patience is not None:
            self._patience.freed(self._loop.time())

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP. Neither the log nor the answer repeats it: it may hold a token."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer had begun")
        words = "This is not a request that the console understands.\n" if status < 500 else "It did not work.\n"
        response = web.Response(status=status, text=words, headers=self._headers)
        response.force_close()
        return response

    def asked(self) -> None:
        """A handler has begun."""
        if self._patience is not None:
            self._patience.asked()

    def answered(self) -> None:
        """It has ended."""
        if self._patience is not None:
            self._patience.answered(self._loop.time())

    def end_if_over(self, now: float) -> bool:
        """End it without a word when its time is over; whether that was so."""
        if self._wire is None or self._patience is None:
            return False
        self._patience.looked(now, self._wire.get_write_buffer_size())
        if not self._patience.is_over(now):
            return False
        # Not `close`, which would wait for a browser that does not read.
        self._wire.abort()
        return True


@web.middleware
async def time_is_taken(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Tell the connection when its request is under way; the outermost middleware."""
    connection = request.protocol
    if not isinstance(connection, Connection):
        return await handler(request)
    connection.asked()
    try:
        return await handler(request)
    finally:
        connection.answered()
