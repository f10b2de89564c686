"""Connections: HTTP/1.1, one request after the other, and HTTP/2, many streams with a window each."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h11

from penstock.emulator._clock import http_date, sleep
from penstock.emulator._http.delivery import CutConnection, CutStream, abort, pump, send_body
from penstock.emulator._http.dispatch import MAX_BODY_BYTES, Request, Response

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.emulator._clock import Clock
    from penstock.emulator._http.dispatch import Router

_READ_BYTES = 256 * 1024
_HTTP1_WRITE_BYTES = 256 * 1024


class Http1Connection:
    """Serves a connection until the client closes it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, router: Router, clock: Clock
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._router = router
        self._clock = clock
        self._h11 = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        """Answer requests; returns when the connection is of no more use."""
        try:
            while (request := await self._receive()) is not None:
                response = self._router.handle(request)
                await self._send(response)
                if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                    return
                self._h11.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                headers = [("date", http_date(self._clock)), ("connection", "close"), ("content-length", "0")]
                refusal = Response(error.error_status_hint, headers, b"")
                await self._send_whole(refusal)

    async def _receive(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    self._writer.write(self._h11.send(go_on) or b"")
                self._h11.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise h11.RemoteProtocolError("body too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                return Request(head.method.decode(), head.target.decode(), headers, bytes(body))
            else:
                return None

    async def _send(self, response: Response) -> None:
        try:
            if response.subscription is not None:
                await self._while_the_client_stays(self._send_stream(response))
            elif response.delivery is not None:
                await self._while_the_client_stays(self._send_whole(response))
            else:
                await self._send_whole(response)
        except (CutConnection, CutStream):
            abort(self._writer)
            # For whoever serves connections it is gone, as if the client had left.
            raise CutConnection from None
        finally:
            if response.subscription is not None:
                response.subscription.close()

    async def _send_whole(self, response: Response) -> None:
        parts = [
            self._h11.send(h11.Response(status_code=response.status, headers=response.headers)),
            self._h11.send(h11.Data(data=response.body)),
            self._h11.send(h11.EndOfMessage()),
        ]
        whole = b"".join(part for part in parts if part)
        if response.delivery is None:
            await self._write(whole)
        else:
            await sleep(self._clock, response.delivery.delay_seconds)
            await send_body(whole, response.delivery.faults, self._clock, self._write)

    async def _send_stream(self, response: Response) -> None:
        assert response.subscription is not None
        assert response.through is not None
        if response.delivery is not None:
            await sleep(self._clock, response.delivery.delay_seconds)
        head = self._h11.send(h11.Response(status_code=response.status, headers=response.headers))
        await self._write(head or b"")
        await pump(response.subscription, self._clock, response.through(self._send_chunk))
        await self._write(self._h11.send(h11.EndOfMessage()) or b"")

    async def _while_the_client_stays(self, sending: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(sending, name="send over HTTP/1.1")
        watching = asyncio.create_task(self._watch(), name="watch for the client to go")
        try:
            await asyncio.wait((task, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (task, watching):
                each.cancel()
            await asyncio.gather(task, watching, return_exceptions=True)
        if not task.cancelled():
            task.result()

    async def _send_chunk(self, data: bytes) -> None:
        await self._write(self._h11.send(h11.Data(data=data)) or b"")

    async def _watch(self) -> None:
        # Nothing is asked of the client during a stream, so whatever comes belongs to the next request.
        while data := await self._reader.read(_READ_BYTES):
            self._h11.receive_data(data)

    async def _write(self, data: bytes) -> None:
        # What the socket does not take at once waits in a buffer that moves up with every call: keep it short.
        rest = memoryview(data)
        while rest:
            self._writer.write(rest[:_HTTP1_WRITE_BYTES])
            await self._writer.drain()
            rest = rest[_HTTP1_WRITE_BYTES:]


_logger = logging.getLogger(__name__)
# DATA frames are small; hand them to the transport in handfuls.
_HTTP2_WRITE_BYTES = 64 * 1024


@dataclass(slots=True)
class _Stream:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    writable: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Http2Connection:
    """Serves a connection until the client closes it; a stalled stream delays only itself."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, router: Router, clock: Clock
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._router = router
        self._clock = clock
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        # The receive windows stay at their defaults: awscrt does not wake a stream that waits for window when a
        # SETTINGS frame enlarges it.
        self._h2 = h2.connection.H2Connection(config)
        self._streams: dict[int, _Stream] = {}

    async def serve(self) -> None:
        """Answer requests; returns when the connection is of no more use."""
        self._h2.initiate_connection()
        await self._flush()
        try:
            while data := await self._reader.read(_READ_BYTES):
                try:
                    events = self._h2.receive_data(data)
                except h2.exceptions.ProtocolError as error:
                    # h2 has put a GOAWAY into its buffer; only this error has the reason.
                    _logger.warning("HTTP/2 connection refused: %s", error)
                    self._write()
                    return
                for event in events:
                    if isinstance(event, h2.events.ConnectionTerminated):
                        return
                    self._handle(event)
                # Without waiting: a client that is itself stuck in a write needs us to keep reading.
                self._write()
        finally:
            tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream_id), headers=headers):
                self._streams[stream_id] = _Stream({str(name): str(value) for name, value in headers or ()})
            case h2.events.DataReceived(stream_id=int(stream_id)):
                self._receive(stream_id, event)
            case h2.events.StreamEnded(stream_id=int(stream_id)):
                self._start(stream_id)
            case h2.events.StreamReset(stream_id=int(stream_id)):
                stream = self._streams.pop(stream_id, None)
                if stream is not None and stream.task is not None:
                    stream.task.cancel()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                # Both change the windows of one stream or of all; whoever still has none goes back to waiting.
                for stream in self._streams.values():
                    stream.writable.set()

    def _receive(self, stream_id: int, event: h2.events.DataReceived) -> None:
        self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.body += event.data or b""
        if len(stream.body) > MAX_BODY_BYTES:
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            del self._streams[stream_id]

    def _start(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        headers = stream.headers
        request = Request(headers[":method"], headers[":path"], headers, bytes(stream.body))
        stream.body.clear()
        stream.task = asyncio.create_task(self._respond(stream_id, request), name=f"HTTP/2 stream {stream_id}")

    async def _respond(self, stream_id: int, request: Request) -> None:
        response = None
        try:
            response = self._router.handle(request)
            await self._send(stream_id, response)
        except CutConnection:
            abort(self._writer)
        except (TimeoutError, CutStream) as error:
            cut = isinstance(error, CutStream)
            code = h2.errors.ErrorCodes.INTERNAL_ERROR if cut else h2.errors.ErrorCodes.CANCEL
            self._h2.reset_stream(stream_id, code)
            self._write()
        except (OSError, h2.exceptions.ProtocolError):
            # The client went, or reset the stream between two frames.
            pass
        finally:
            if response is not None and response.subscription is not None:
                response.subscription.close()
            self._streams.pop(stream_id, None)

    async def _send(self, stream_id: int, response: Response) -> None:
        async def send(data: bytes) -> None:
            await self._send_data(stream_id, data)

        faults = response.delivery.faults if response.delivery is not None else ()
        if response.delivery is not None:
            await sleep(self._clock, response.delivery.delay_seconds)
        if not any(fault.kind == "silence" for fault in faults):
            self._h2.send_headers(stream_id, [(":status", str(response.status)), *response.headers])
            await self._flush()
        if response.subscription is None:
            await send_body(response.body, faults, self._clock, send)
        else:
            assert response.through is not None
            await pump(response.subscription, self._clock, response.through(send))
        self._h2.end_stream(stream_id)
        await self._flush()

    async def _send_data(self, stream_id: int, data: bytes) -> None:
        rest = memoryview(data)
        pending = 0
        while rest:
            stream = self._streams[stream_id]
            size = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size, len(rest))
            if size <= 0:
                stream.writable.clear()
                await self._flush()
                pending = 0
                await stream.writable.wait()
                continue
            self._h2.send_data(stream_id, rest[:size])
            rest = rest[size:]
            pending += size
            if pending >= _HTTP2_WRITE_BYTES:
                await self._flush()
                pending = 0
        await self._flush()

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._writer.write(data)

    async def _flush(self) -> None:
        self._write()
        await self._writer.drain()
