"""SubscribeToShard over HTTP/1.1: the request's bytes, and the answer's to events. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11

from penstock.aws import service_error
from penstock.efo_consumer._http1_body import BodyBuffer, BufferPool, Framing
from penstock.efo_consumer._subscription import (
    MAX_ERROR_BODY_BYTES,
    OPERATION,
    Outcome,
    SubscriptionEvent,
    SubscriptionParser,
)
from penstock.efo_consumer.errors import EfoConsumerError, SubscriptionConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Http1Answer:
    """Reads one answer: its head by h11, its body in place.

    `received` and `closed` give outcomes in order: events, and in the end an error, or None where the service ended the
    subscription. After that, what is received is not looked at.

    Attributes:
        request: the bytes to send.
        accepted: the service has accepted the request.
        ended: the last outcome was given.
    """

    def __init__(self, host: str, target: str, headers: Mapping[str, str], body: bytes, pool: BufferPool) -> None:
        self._h11 = h11.Connection(h11.CLIENT)
        names = {name.lower(): value for name, value in headers.items()}
        names.update({"host": host, "content-length": str(len(body))})
        sent = [
            self._h11.send(h11.Request(method="POST", target=target, headers=list(names.items()))),
            self._h11.send(h11.Data(data=body)),
            self._h11.send(h11.EndOfMessage()),
        ]
        self.request = b"".join(part for part in sent if part)
        self.accepted = False
        self.ended = False
        self._status = 0
        self._headers: dict[str, str] = {}
        self._error_body = bytearray()
        self._body = BodyBuffer(pool)
        self._parser = SubscriptionParser()

    def room(self, size_hint: int = -1) -> memoryview:
        """Where to receive into; see `BodyBuffer.room`."""
        return self._body.room(size_hint)

    def received(self, size: int) -> list[Outcome | None]:
        """So many bytes were written to the room; what they complete."""
        self._body.received(size)
        if self.ended:
            return []
        return self._read(self._read_body if self.accepted else self._read_head)

    def closed(self, error: Exception | None = None) -> list[Outcome | None]:
        """The connection ended, by this error if it did not end properly."""
        if self.ended:
            return []
        # A refusal may last until the end of the connection, and so may the answer.
        last: list[Outcome | None] = []
        if error is None:
            last = self._read(self._read_last)
        if not self.ended:
            failure = SubscriptionConnectionError(f"the connection failed: {error or 'it ended before the answer did'}")
            failure.__cause__ = error
            last.append(failure)
            self._end()
        return last

    def _read(self, step: Callable[[list[Outcome | None]], None]) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = []
        try:
            step(outcomes)
        except h11.RemoteProtocolError as error:
            failure = SubscriptionConnectionError(f"the answer is not HTTP/1.1: {error}")
            failure.__cause__ = error
            outcomes.append(failure)
        except SubscriptionConnectionError as error:
            outcomes.append(error)
        if outcomes and not isinstance(outcomes[-1], SubscriptionEvent):
            self._end()
        return outcomes

    def _read_last(self, outcomes: list[Outcome | None]) -> None:
        if not self.accepted:
            self._read_head(outcomes)
        elif self._body.may_end:
            outcomes.append(self._ending())

    def _read_head(self, outcomes: list[Outcome | None]) -> None:
        # Nothing to read means the end of the connection, to h11 as well.
        self._h11.receive_data(self._body.take_raw())
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
                self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                if self._status == 200:
                    self._accept()
                    self._read_body(outcomes)
                    return
            elif isinstance(event, h11.Data):
                self._error_body += event.data
            elif not isinstance(event, h11.InformationalResponse | h11.EndOfMessage):
                return
            if isinstance(event, h11.EndOfMessage) or len(self._error_body) >= MAX_ERROR_BODY_BYTES:
                outcomes.append(service_error(OPERATION, self._status, self._headers, bytes(self._error_body)))
                return

    def _accept(self) -> None:
        self.accepted = True
        if "transfer-encoding" in self._headers:
            # h11 lets no other than chunked pass.
            self._body.frame(Framing.CHUNKED)
        elif "content-length" in self._headers:
            self._body.frame(Framing.LENGTH, int(self._headers["content-length"]))
        rest, _ = self._h11.trailing_data
        self._body.room(len(rest))[: len(rest)] = rest
        self._body.received(len(rest))

    def _read_body(self, outcomes: list[Outcome | None]) -> None:
        body, parser = self._body, self._parser
        while body.unwrap():
            found, start = parser.feed_in_place(body.data, body.start, body.end)
            body.consume(start)
            outcomes += found
            if found and isinstance(found[-1], Exception):
                return
        body.tidy()
        if body.ended:
            outcomes.append(self._ending())

    def _ending(self) -> EfoConsumerError | None:
        try:
            self._parser.finish()
        except EfoConsumerError as truncated:
            return truncated
        return None

    def _end(self) -> None:
        self.ended = True
        self._body.drop()
