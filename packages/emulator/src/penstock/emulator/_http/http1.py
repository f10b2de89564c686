"""HTTP/1.1: one connection, one request after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import h11

from penstock.emulator._clock import http_date, sleep
from penstock.emulator._http.delivery import CutConnection, CutStream, abort, pump, send_body
from penstock.emulator._http.dispatch import MAX_BODY_BYTES, Request, Response

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.emulator._clock import Clock
    from penstock.emulator._http.dispatch import Router

_READ_BYTES = 256 * 1024
_WRITE_BYTES = 256 * 1024


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
            self._writer.write(rest[:_WRITE_BYTES])
            await self._writer.drain()
            rest = rest[_WRITE_BYTES:]
