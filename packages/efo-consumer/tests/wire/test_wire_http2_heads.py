"""Heads and trailers of answers by HTTP/2 that do not end: refused, and not kept in memory."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer._wire.http2 import Http2Transport
from penstock.efo_consumer._wire.subscription import SubscribeRequest
from penstock.efo_consumer.errors import SubscriptionConnectionError
from penstock.emulator.testing import server_context

REQUEST = SubscribeRequest("arn:consumer", "shardId-000000000000", ShardPosition.trim_horizon())
MIB = 1 << 20
MOST_GROWTH_BYTES = 32 * MIB
SENT_BYTES = 256 * MIB
"""At most, if the connection is not ended: far more than may be kept."""
HEADERS, SETTINGS, CONTINUATION = 1, 4, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
STATUS_200 = b"\x88"


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + body


def header(name: bytes, value: bytes) -> bytes:
    """As a literal that no table keeps."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


MORE = header(b"x-more", b"v" * 100) * 140
"""Nearly as many bytes as a frame has room for."""
BEGINS = {
    "head": [frame(HEADERS, 0, 1, STATUS_200)],
    "trailers": [frame(HEADERS, END_HEADERS, 1, STATUS_200), frame(HEADERS, END_STREAM, 1, MORE)],
}


class Service:
    """Answers the request of a connection with what it is given, and then with `more` as long as that is read."""

    def __init__(self, begin: list[bytes], more: bytes) -> None:
        self._begin, self._more = begin, more
        self.sent_bytes = 0
        self.ended = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACK, 0, b""))
            await reader.readuntil(b"TRIM_HORIZON")
            for one in self._begin:
                writer.write(one)
            while self._more and self.sent_bytes < SENT_BYTES and not reader.at_eof():
                writer.write(self._more)
                await writer.drain()
                # Where nothing has to be waited for it would not be seen that the other side has gone.
                await asyncio.sleep(0)
                self.sent_bytes += len(self._more)
            await reader.read()
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def transport_to(service: Service, folder: Path) -> AsyncIterator[Http2Transport]:
    ca_file = folder / "ca.pem"
    server = await asyncio.start_server(service.answer, "127.0.0.1", 0, ssl=server_context("127.0.0.1", ca_file))
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    session = AwsSession(emulator_options(url, str(ca_file)))
    transport = Http2Transport(session, window_bytes=64 * 1024, connect_timeout=timedelta(seconds=60))
    try:
        yield transport
    finally:
        await transport.close()
        server.close()


async def read_one(transport: Http2Transport) -> None:
    subscription = await transport.subscribe(REQUEST)
    await subscription.receive()


@pytest.mark.parametrize("part", BEGINS)
async def test_a_head_or_trailers_without_end_do_not_fill_the_memory(part: str, tmp_path: Path) -> None:
    """The connection ends, and whoever reads gets an error that may pass."""
    service = Service(BEGINS[part], frame(CONTINUATION, 0, 1, MORE))
    process = psutil.Process()
    async with asyncio.timeout(120), transport_to(service, tmp_path) as transport:
        before = process.memory_info().rss
        with pytest.raises(SubscriptionConnectionError):
            await read_one(transport)
        await service.ended.wait()
    assert service.sent_bytes < SENT_BYTES / 4
    assert process.memory_info().rss - before < MOST_GROWTH_BYTES


async def test_a_head_of_many_lines_is_read(tmp_path: Path) -> None:
    """It is the end that is missed above, not that there is more than one frame."""
    service = Service([frame(HEADERS, 0, 1, STATUS_200), frame(CONTINUATION, END_HEADERS, 1, MORE)], b"")
    async with asyncio.timeout(120), transport_to(service, tmp_path) as transport:
        await (await transport.subscribe(REQUEST)).close()
