"""HTTP/1.1 answers of any kind, cut anywhere, over real sockets: events, one end, and never a hang."""

import asyncio
import json
import struct
import zlib
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import AwsServiceError, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer._wire.http1 import Http1Transport
from penstock.efo_consumer._wire.subscription import SubscribeRequest
from penstock.efo_consumer.errors import EfoConsumerError, SubscriptionConnectionError

REQUEST = SubscribeRequest("arn:consumer", "shardId-000000000000", ShardPosition.trim_horizon())
HEADERS = b"\x0b:event-type\x07\x00\x15SubscribeToShardEvent"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

Found = tuple[list[str | None], Exception | None]
"""The continuations of the events, and what ended them; None where the service did."""


class Wire:
    """A server that answers with parts of any bytes and closes the connection, and a transport that asks it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._parts: list[bytes] = []
        self._runner.run(self._open())

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._transport = Http1Transport(
            AwsSession(emulator_options(url)), window_bytes=64 * 1024, connect_timeout=timedelta(seconds=5)
        )

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"}}")
            for part in self._parts:
                writer.write(part)
                await writer.drain()
                # The client reads this part before the next is sent.
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def read(self, parts: list[bytes]) -> Found:
        """Everything that an answer in these parts comes to."""
        self._parts = parts
        return self._runner.run(self._read())

    async def _read(self) -> Found:
        continuations: list[str | None] = []
        async with asyncio.timeout(120):
            try:
                subscription = await self._transport.subscribe(REQUEST)
                try:
                    while (event := await subscription.receive()) is not None:
                        continuations.append(event.payload.continuation)
                finally:
                    await subscription.close()
            except (EfoConsumerError, AwsServiceError) as error:
                return continuations, error
        return continuations, None

    def close(self) -> None:
        self._runner.run(self._transport.close())
        self._server.close()
        self._runner.close()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    opened = Wire()
    yield opened
    opened.close()


def event(number: int, padding: int = 0) -> bytes:
    """An event that is known by its continuation."""
    payload = json.dumps({"Records": [], "ContinuationSequenceNumber": str(number)}).encode() + b" " * padding
    lengths = struct.pack(">II", 16 + len(HEADERS) + len(payload), len(HEADERS))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + HEADERS + payload
    return body + struct.pack(">I", zlib.crc32(body))


def events(paddings: list[int]) -> bytes:
    return b"".join(event(number, padding) for number, padding in enumerate(paddings))


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(bounds)]


def chunked(body: bytes, cuts: list[int], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%X%s\r\n%s\r\n" % (len(one), extension, one) for one in pieces(body, cuts))
    return chunks + b"0" + extension + b"\r\n" + trailer + b"\r\n"


_cuts = st.lists(st.integers(0, 100_000), max_size=12)
_paddings = st.lists(st.sampled_from([0, 1, 50, 5000]), max_size=5)


@given(_paddings, _cuts, _cuts, st.sampled_from([b"", b";a", b';name="x"']),
       st.sampled_from([b"", b"Expires: never\r\n", b"a: b\r\nc: d\r\n"]))  # fmt: skip
def test_chunks_and_cuts_do_not_change_the_events(
    wire: Wire, paddings: list[int], chunk_cuts: list[int], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    """However a body is chunked, and whatever the pieces it is received in, the same events come, and the end."""
    answer = CHUNKED + chunked(events(paddings), chunk_cuts, extension, trailer)
    assert wire.read(pieces(answer, cuts)) == (numbers(len(paddings)), None)


def test_an_endless_refusal_is_not_read_to_its_end(wire: Wire) -> None:
    """No more of a refusal's body is read than any service would send."""
    sent = [b"HTTP/1.1 503 Slow Down\r\n\r\n", *[b"x" * 65_536] * 2000]
    _, error = wire.read(sent)
    assert isinstance(error, AwsServiceError)
    assert error.status == 503


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 " + b"x" * 100_000, b"HTTP/1.1 200 OK\r\na: " + b"x" * 100_000,
     b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000],
    ids=["status", "header", "headers"],
)  # fmt: skip
def test_an_endless_head_is_refused(wire: Wire, head: bytes) -> None:
    """A head that does not end is an error before it fills the memory."""
    found, error = wire.read(pieces(head, list(range(0, len(head), 1000))))
    assert found == []
    assert isinstance(error, SubscriptionConnectionError)


@pytest.mark.parametrize("trailers", [b"a: " + b"x" * 100_000, b"a: b\r\n" * 100_000], ids=["one", "many"])
def test_endless_trailers_are_refused(wire: Wire, trailers: bytes) -> None:
    """Before they fill the memory; events before them may have to be read again."""
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(events([0, 0]), [])[: -len(b"\r\n")]
    _, error = wire.read([begun, *pieces(trailers, list(range(0, len(trailers), 1000)))])
    assert isinstance(error, SubscriptionConnectionError)
