"""A server for `consume` and `shards`: answers SubscribeToShard with frames that were made before, over TLS.

It is not Kinesis: it knows nothing of streams and limits, and does as little as it can per byte, so that it is the
client that is measured. What a subscription gets, the last twelve digits of its shard's name say: six for the bytes of
a record, six for how often the frames of about 2 MB are sent before the end of the shard. Without records it is paced:
events come at the rate that the command line says, over all subscriptions in turn, or every five seconds if that is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import struct
import sys
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from benchmarks.reading.decode import make_frame, make_payloads
from penstock.emulator.testing import server_context

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_BYTES = 2_000_000
PACED_RECORD_BYTES = 1_000
PACED_RECORDS = 100
IDLE_SECONDS = 5.0

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_MAX_FRAME = 16384
_INITIAL_WINDOW = 65535
_WRITE_BYTES = 256 * 1024
_SHARD = re.compile(rb'"ShardId":\s*"shardId-(\d{6})(\d{6})"')
_CHILD = {
    "ShardId": "shardId-9",
    "ParentShards": ["shardId-0"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}

Blocks = deque[memoryview]


def records_in_block(record_bytes: int) -> int:
    """How many records one repetition brings."""
    return BLOCK_BYTES // record_bytes


@cache
def _block(record_bytes: int) -> bytes:
    return b"".join(make_payloads(record_bytes, records_in_block(record_bytes)))


@cache
def _paced_event() -> bytes:
    return make_payloads(PACED_RECORD_BYTES, PACED_RECORDS)[0]


def _empty_event(**rest: object) -> bytes:
    return make_frame(json.dumps({"Records": [], "MillisBehindLatest": 0, **rest}).encode())


_INITIAL = make_frame(b"{}", event_type=b"initial-response")
_IDLE = _empty_event(ContinuationSequenceNumber="49590338271490256608559692538361571095921575989136588898")
_END = _empty_event(ChildShards=[_CHILD])


class Stream:
    """A subscription under way."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.window = connection.initial_window
        self.request = b""
        self.pieces: Blocks = deque()
        self.ends = False

    def push(self, pieces: Iterable[bytes]) -> None:
        """Send these as soon as the windows allow."""
        self.pieces.extend(memoryview(piece) for piece in pieces)
        self.connection.pump(self)


class Server:
    """What all connections share."""

    def __init__(self, events_per_second: float) -> None:
        self.events_per_second = events_per_second
        self.paced: dict[Stream, None] = {}

    def start(self, stream: Stream, body: bytes) -> None:
        """Answer a SubscribeToShard call."""
        match = _SHARD.search(body)
        record_bytes, repetitions = (int(match[1]), int(match[2])) if match else (0, 0)
        if record_bytes:
            stream.ends = True
            stream.push([_INITIAL, *[_block(record_bytes)] * repetitions, _END])
        else:
            stream.push([_INITIAL])
            self.paced[stream] = None

    async def pace(self) -> None:
        """Send paced events for ever: one each turn, or an idle one to all."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        for turn in itertools.count(1):
            await asyncio.sleep(max(0.0, started + turn * self._turn_seconds - loop.time()))
            if not self.events_per_second:
                for stream in list(self.paced):
                    stream.push([_IDLE])
            elif self.paced:
                # The one that waited longest goes to the end of the line.
                stream = next(iter(self.paced))
                del self.paced[stream]
                self.paced[stream] = None
                stream.push([_paced_event()])

    @property
    def _turn_seconds(self) -> float:
        return 1 / self.events_per_second if self.events_per_second else IDLE_SECONDS


class Connection(asyncio.Protocol):
    """HTTP/2 or HTTP/1.1, as ALPN says."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self._streams: dict[int, Stream] = {}
        self._is_http2 = False
        self._paused = False
        self._window = _INITIAL_WINDOW
        self.initial_window = _INITIAL_WINDOW

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=2 * _WRITE_BYTES)
        self._is_http2 = transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        if self._is_http2:
            self._send(_SETTINGS, 0, 0, struct.pack(">HI", 3, 100))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._paused = True
        for stream in self._streams.values():
            self._server.paced.pop(stream, None)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._paused = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self._paused = False
        for stream in list(self._streams.values()):
            self.pump(stream)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        if self._is_http2:
            self._received = self._received.removeprefix(_PREFACE)
            while len(self._received) >= 9:
                length = int.from_bytes(self._received[:3])
                if len(self._received) < 9 + length:
                    return
                kind, flags = self._received[3], self._received[4]
                number = int.from_bytes(self._received[5:9]) & 0x7FFFFFFF
                payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
                self._on_frame(kind, flags, number, payload)
        elif b"\r\n\r\n" in self._received:
            head, _, body = self._received.partition(b"\r\n\r\n")
            header = re.search(rb"(?i)content-length: *(\d+)", head)
            if len(body) >= int(header[1] if header else 0):
                self._received = b""
                self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                stream = self._streams[1] = Stream(self, 1)
                self._server.start(stream, body)

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    self.initial_window = value
            self._send(_SETTINGS, _ACK, 0)
        elif kind == _PING and not flags & _ACK:
            self._send(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            increment = int.from_bytes(payload)
            if number:
                if stream := self._streams.get(number):
                    stream.window += increment
                    self.pump(stream)
            else:
                self._window += increment
                for stream in list(self._streams.values()):
                    self.pump(stream)
        elif kind == _HEADERS:
            self._streams[number] = Stream(self, number)
        elif kind == _DATA:
            stream = self._streams[number]
            stream.request += payload
            if flags & _END_STREAM:
                # 0x88 is `:status: 200` in HPACK's static table.
                self._send(_HEADERS, _END_HEADERS, number, b"\x88")
                self._server.start(stream, stream.request)
        elif kind == _GOAWAY:
            self._transport.close()

    def pump(self, stream: Stream) -> None:
        """Write what the windows and the socket take."""
        while stream.pieces and not self._paused:
            parts: list[bytes | memoryview] = []
            room = _WRITE_BYTES
            while stream.pieces and room > 0:
                piece = stream.pieces[0]
                size = min(len(piece), _MAX_FRAME, stream.window, self._window) if self._is_http2 else len(piece)
                if not size:
                    break
                if self._is_http2:
                    stream.window -= size
                    self._window -= size
                    parts.append(size.to_bytes(3) + b"\x00\x00" + stream.number.to_bytes(4))
                    parts.append(piece[:size])
                else:
                    parts += [b"%x\r\n" % size, piece, b"\r\n"]
                room -= size
                if size == len(piece):
                    stream.pieces.popleft()
                else:
                    stream.pieces[0] = piece[size:]
            if not parts:
                return
            self._transport.write(b"".join(parts))
        if stream.ends and not stream.pieces:
            stream.ends = False
            if self._is_http2:
                del self._streams[stream.number]
                self._send(_DATA, _END_STREAM, stream.number)
            else:
                self._transport.write(b"0\r\n\r\n")

    def _send(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        self._transport.write(len(payload).to_bytes(3) + bytes([kind, flags]) + number.to_bytes(4) + payload)


async def _serve(events_per_second: float, ca_file: Path) -> None:
    loop = asyncio.get_running_loop()
    shared = Server(events_per_second)
    tls = server_context("127.0.0.1", ca_file)
    server = await loop.create_server(lambda: Connection(shared), "127.0.0.1", 0, ssl=tls, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"endpoint": f"https://127.0.0.1:{port}", "ca_file": str(ca_file)}), flush=True)
    pacing = asyncio.create_task(shared.pace(), name="pace")
    await asyncio.to_thread(sys.stdin.read)
    pacing.cancel()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events-per-second", type=float, default=0.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_serve(arguments.events_per_second, Path(folder) / "ca.pem"))


if __name__ == "__main__":
    main()
