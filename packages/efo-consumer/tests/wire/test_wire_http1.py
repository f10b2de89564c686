"""The HTTP/1.1 client against servers that are scripted byte by byte, over real sockets, with TLS and without."""

import asyncio
import json
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.aws import UNREADABLE_ANSWER, AwsServiceError, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer._wire.http1 import Http1Subscription, Http1Transport
from penstock.efo_consumer._wire.subscription import SubscribeRequest
from penstock.efo_consumer.errors import SubscriptionConnectionError
from penstock.emulator.testing import server_context

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUEST = SubscribeRequest("arn:consumer", "shardId-000000000000", ShardPosition.trim_horizon())
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADERS = b"\x0b:event-type\x07\x00\x15SubscribeToShardEvent"
PADDING = 50_000
WINDOW_BYTES = 256 * 1024


def chunk(number: int, padding: int = PADDING, records: Sequence[object] = ()) -> bytes:
    """An event that is known by its continuation, in a chunk of its own."""
    payload = json.dumps({"Records": records, "ContinuationSequenceNumber": str(number)}).encode() + b" " * padding
    lengths = struct.pack(">II", 16 + len(HEADERS) + len(payload), len(HEADERS))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + HEADERS + payload
    frame = body + struct.pack(">I", zlib.crc32(body))
    return b"%x\r\n%s\r\n" % (len(frame), frame)


@asynccontextmanager
async def serving(
    script: Script,
    tmp_path: Path,
    *,
    tls: bool = False,
    connect_timeout: timedelta = timedelta(seconds=20),
    heads: list[bytes] | None = None,
) -> AsyncIterator[Http1Transport]:
    """A transport to a server that answers each request by the script and then closes the connection."""
    handlers: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST / HTTP/1.1\r\n")
            if heads is not None:
                heads.append(head)
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            assert json.loads(await reader.readexactly(int(length.split(b":")[1])))["ConsumerARN"] == "arn:consumer"
            await script(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    ca_file = tmp_path / "ca.pem"
    context = server_context("127.0.0.1", ca_file) if tls else None
    async with asyncio.timeout(120):
        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        scheme = "https" if tls else "http"
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session = AwsSession(emulator_options(url, str(ca_file) if tls else None))
        transport = Http1Transport(session, window_bytes=WINDOW_BYTES, connect_timeout=connect_timeout)
        try:
            yield transport
        finally:
            await transport.close()
            server.close()
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)


async def rest(subscription: Http1Subscription) -> list[int]:
    """The events up to the end."""
    found = []
    while (event := await subscription.receive()) is not None:
        found.append(int(event.payload.continuation or 0))
    return found


def sending(*parts: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return script


async def test_html_in_place_of_events_names_the_endpoint(tmp_path: Path) -> None:
    """A proxy or a captive portal answers with HTTP 200."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n"
    async with serving(sending(head, b"<html>"), tmp_path) as transport:
        with pytest.raises(AwsServiceError) as caught:
            await transport.subscribe(REQUEST)
        assert caught.value.code == UNREADABLE_ANSWER
        assert transport._url in caught.value.message


@pytest.mark.parametrize("tls", [False, True])
async def test_an_answer_is_read_to_its_end(tls: bool, tmp_path: Path) -> None:
    """Events come in order, then the end, with TLS and without."""
    script = sending(HEAD, *map(chunk, range(100)), b"0\r\n\r\n")
    async with serving(script, tmp_path, tls=tls) as transport:
        subscription = await transport.subscribe(REQUEST)
        assert await rest(subscription) == list(range(100))
        assert await subscription.receive() is None
        assert subscription.bytes_received > 100 * PADDING


@pytest.mark.parametrize("tls", [False, True])
async def test_an_early_end_comes_behind_the_events(tls: bool, tmp_path: Path) -> None:
    """Where the server goes without a last chunk, the events that came are given, then an error, again and again."""
    async with serving(sending(HEAD, chunk(1), chunk(2)[:-100]), tmp_path, tls=tls) as transport:
        subscription = await transport.subscribe(REQUEST)
        event = await subscription.receive()
        assert event is not None
        assert event.payload.continuation == "1"
        for _ in range(2):
            with pytest.raises(SubscriptionConnectionError):
                await subscription.receive()


@pytest.mark.parametrize("tls", [False, True])
async def test_an_answer_that_was_sent_before_anybody_asked_is_not_lost(tls: bool, tmp_path: Path) -> None:
    """A server that sends more than is read ahead, and closes at once, loses nothing to a caller who comes late."""
    sent = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await sending(HEAD, *map(chunk, range(40)), b"0\r\n\r\n")(reader, writer)
        sent.set()

    async with serving(script, tmp_path, tls=tls) as transport:
        subscription = await transport.subscribe(REQUEST)
        await sent.wait()
        assert await rest(subscription) == list(range(40))


@pytest.mark.parametrize("tls", [False, True])
async def test_a_caller_that_does_not_ask_leaves_the_socket_unread(tls: bool, tmp_path: Path) -> None:
    """The server is held up until the caller asks for more; then everything comes."""
    count = 1000
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(HEAD)
        for sent in range(1, count + 1):
            writer.write(chunk(sent - 1))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with serving(script, tmp_path, tls=tls) as transport:
        subscription = await transport.subscribe(REQUEST)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < count
        assert WINDOW_BYTES <= subscription.bytes_received < 1_000_000
        assert await rest(subscription) == list(range(count))


async def test_a_reset_keeps_what_came_before(tmp_path: Path) -> None:
    """Events that were received come before the error of a reset, which is its cause."""
    taken = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(7))
        await taken.wait()
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with serving(script, tmp_path) as transport:
        subscription = await transport.subscribe(REQUEST)
        event = await subscription.receive()
        assert event is not None
        assert event.payload.continuation == "7"
        taken.set()
        with pytest.raises(SubscriptionConnectionError) as caught:
            await subscription.receive()
        assert caught.value.__cause__ is not None


async def test_a_malformed_chunk_is_an_error_and_not_silence(tmp_path: Path) -> None:
    """A caller that waits for an event gets an error at once when what comes is not a chunk."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(7))
        await taken.wait()
        writer.write(b"no size\r\n")
        await reader.read()

    taken = asyncio.Event()
    async with serving(script, tmp_path) as transport:
        subscription = await transport.subscribe(REQUEST)
        assert await subscription.receive() is not None
        waiting = asyncio.create_task(subscription.receive(), name="receive")
        taken.set()
        with pytest.raises(SubscriptionConnectionError):
            await waiting
        with pytest.raises(SubscriptionConnectionError):
            await subscription.receive()


async def test_what_was_received_and_not_asked_for_waits(tmp_path: Path) -> None:
    """The arrival of a record is known before anybody takes it, and while somebody waits for the next."""
    record = {"SequenceNumber": "1", "ApproximateArrivalTimestamp": 1700000000.5, "Data": "", "PartitionKey": "k"}
    go_on = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await go_on.wait()
        writer.write(chunk(1, records=[record]))
        await reader.read()

    async with serving(script, tmp_path) as transport:
        subscription = await transport.subscribe(REQUEST)
        assert subscription.waits_since is None
        go_on.set()
        while subscription.waits_since is None:  # noqa: ASYNC110  # bytes that arrive have no event
            await asyncio.sleep(0.01)
        assert subscription.waits_since == 1700000000.5
        assert await subscription.receive() is not None
        assert subscription.waits_since is None
        waiting = asyncio.create_task(subscription.receive(), name="receive")
        await asyncio.sleep(0)
        assert subscription.waits_since is None
        await subscription.close()
        assert await waiting is None


async def test_a_cancelled_wait_loses_no_event(tmp_path: Path) -> None:
    """A caller that stops waiting gets the event when it asks again."""
    go_on = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await go_on.wait()
        writer.write(chunk(7) + b"0\r\n\r\n")

    async with serving(script, tmp_path) as transport:
        subscription = await transport.subscribe(REQUEST)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await subscription.receive()
        go_on.set()
        assert await rest(subscription) == [7]


async def test_a_busy_socket_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """However much a server sends, no turn of the event loop takes in more than a buffer of it."""
    script = sending(HEAD, *map(chunk, range(400)), b"0\r\n\r\n")
    async with serving(script, tmp_path, tls=True) as transport:
        subscription = await transport.subscribe(REQUEST)
        reading = asyncio.create_task(rest(subscription), name="reader")
        most = seen = 0
        while not reading.done():
            await asyncio.sleep(0)
            most, seen = max(most, subscription.bytes_received - seen), subscription.bytes_received
        assert await reading == list(range(400))
        assert 0 < most <= 1_000_000


async def test_the_request_is_sent_as_it_was_signed(tmp_path: Path) -> None:
    """Besides the signed headers there are only those that HTTP asks for."""
    heads: list[bytes] = []
    async with serving(sending(HEAD, b"0\r\n\r\n"), tmp_path, heads=heads) as transport:
        assert await rest(await transport.subscribe(REQUEST)) == []
    (head,) = heads
    assert sorted(line.partition(b":")[0] for line in head.lower().split(b"\r\n")[1:] if line) == [
        b"authorization", b"connection", b"content-length", b"content-type", b"host", b"x-amz-date", b"x-amz-target"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("date", "answered_at"),
    [
        ("Tue, 14 Nov 2023 22:13:20 GMT", 1_700_000_000.0),
        ("Tue, 14 Nov 2023 22:13:20 -0000", 1_700_000_000.0),
        ("Tue, 14 Nov 99999 22:13:20 GMT", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
async def test_an_answer_tells_when_it_was_given(date: str | None, answered_at: float | None, tmp_path: Path) -> None:
    """The service's clock is in the header `Date`; it is unknown without a valid one."""
    head = HEAD if date is None else HEAD.replace(b"\r\n", b"\r\nDate: %s\r\n" % date.encode(), 1)
    async with serving(sending(head, b"0\r\n\r\n"), tmp_path) as transport:
        assert (await transport.subscribe(REQUEST)).answered_at == answered_at


async def test_a_refusal_is_the_services_error(tmp_path: Path) -> None:
    """A status other than 200 is raised by the call, with the code and the words of its body."""
    body = b'{"__type":"ResourceNotFoundException","message":"gone"}'
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with serving(sending(refusal), tmp_path) as transport:
        with pytest.raises(AwsServiceError, match="gone") as caught:
            await transport.subscribe(REQUEST)
        assert caught.value.code == "ResourceNotFoundException"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n\r\n"], ids=["none", "cut", "other"])
async def test_what_is_no_answer_is_a_connection_error(answer: bytes, tmp_path: Path) -> None:
    """A server that closes before its answer, or speaks something else, is an error of the connection."""
    async with serving(sending(answer), tmp_path) as transport:
        with pytest.raises(SubscriptionConnectionError):
            await transport.subscribe(REQUEST)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_server_that_says_nothing_is_given_up(tls: bool, tmp_path: Path) -> None:
    """No answer within the time for connecting is an error of the connection, and the connection is closed."""
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        gone.set()

    quick = timedelta(seconds=0.5)
    async with serving(script, tmp_path, tls=tls, connect_timeout=quick) as transport:
        with pytest.raises(SubscriptionConnectionError, match="no answer"):
            await transport.subscribe(REQUEST)
        await gone.wait()


async def test_closing_ends_whoever_waits_and_the_connection(tmp_path: Path) -> None:
    """A closed transport ends calls that wait for an answer with an error, and those that wait for an event."""
    asked, gone = asyncio.Semaphore(0), asyncio.Semaphore(0)
    heads = iter([HEAD, b""])

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(heads))
        asked.release()
        assert await reader.read() == b""
        gone.release()

    async with serving(script, tmp_path) as transport:
        subscription = await transport.subscribe(REQUEST)
        receiving = asyncio.create_task(subscription.receive(), name="receive")
        subscribing = asyncio.create_task(transport.subscribe(REQUEST), name="subscribe")
        await asked.acquire()
        await asked.acquire()
        await transport.close()
        assert await receiving is None
        with pytest.raises(SubscriptionConnectionError, match="closed"):
            await subscribing
        await gone.acquire()
        await gone.acquire()


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    """TLS is checked against the session's authorities."""
    async with serving(sending(HEAD), tmp_path, tls=True) as transport:
        other = tmp_path / "other.pem"
        server_context("127.0.0.1", other)
        transport._session = AwsSession(emulator_options(transport._url.rstrip("/"), str(other)))
        with pytest.raises(SubscriptionConnectionError, match="certificate"):
            await transport.subscribe(REQUEST)
