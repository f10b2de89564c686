"""HTTP/1.1 answers of any kind, cut anywhere: events, one end, and never a hang."""

import json
import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.aws import AwsServiceError
from penstock.efo_consumer._wire.http1 import BufferPool, Http1Answer
from penstock.efo_consumer._wire.subscription import Outcome, SubscriptionEvent
from penstock.efo_consumer.errors import (
    EfoConsumerError,
    EventStreamTruncatedError,
    SubscriptionConnectionError,
)

HEADERS = b"\x0b:event-type\x07\x00\x15SubscribeToShardEvent"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(payload: bytes) -> bytes:
    lengths = struct.pack(">II", 16 + len(HEADERS) + len(payload), len(HEADERS))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + HEADERS + payload
    return body + struct.pack(">I", zlib.crc32(body))


def event(number: int, padding: int = 0) -> bytes:
    """An event that is known by its continuation."""
    text = json.dumps({"Records": [], "ContinuationSequenceNumber": str(number)})
    return frame(text.encode() + b" " * padding)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(bounds)]


def chunked(body: bytes, cuts: list[int], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%X%s\r\n%s\r\n" % (len(one), extension, one) for one in pieces(body, cuts))
    return chunks + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def read(
    parts: list[bytes], *, error: Exception | None = None, pool: BufferPool | None = None
) -> tuple[list[Outcome | None], Http1Answer]:
    """All outcomes of an answer that is received in these parts, before the connection ends."""
    answer = Http1Answer("host", "/", {}, b"{}", pool or BufferPool())
    outcomes: list[Outcome | None] = []
    for part in parts:
        # Sockets fill what they are given as far as they can.
        while part:
            room = answer.room(len(part))
            size = min(len(room), len(part))
            room[:size] = part[:size]
            outcomes += answer.received(size)
            part = part[size:]
    return outcomes + answer.closed(error), answer


def continuations(outcomes: list[Outcome | None]) -> list[str | None]:
    return [one.payload.continuation for one in outcomes if isinstance(one, SubscriptionEvent)]


def assert_ends_once(outcomes: list[Outcome | None]) -> None:
    *events, last = outcomes
    assert all(isinstance(one, SubscriptionEvent) for one in events)
    assert last is None or isinstance(last, EfoConsumerError | AwsServiceError)


_cuts = st.lists(st.integers(0, 100_000), max_size=12)
_paddings = st.lists(st.sampled_from([0, 1, 50, 5000]), max_size=5)


@given(_paddings, _cuts, _cuts, st.sampled_from([b"", b";a", b' ; name="\x00;"']),
       st.sampled_from([b"", b"Expires: never\r\n", b"a: b\r\nc: d\r\n"]))  # fmt: skip
def test_chunks_and_cuts_do_not_change_the_events(
    paddings: list[int], chunk_cuts: list[int], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    """However a body is chunked, and whatever the pieces it is received in, the same events come, and the end."""
    body = b"".join(event(number, padding) for number, padding in enumerate(paddings))
    outcomes, answer = read(pieces(CHUNKED + chunked(body, chunk_cuts, extension, trailer), cuts))
    assert continuations(outcomes) == [str(number) for number in range(len(paddings))]
    assert outcomes[len(paddings) :] == [None]
    assert answer.ended


@given(_paddings, _cuts, st.booleans())
def test_bodies_without_chunks_are_read_too(paddings: list[int], cuts: list[int], has_length: bool) -> None:
    """A body ends with its length, or where it has none with the connection."""
    body = b"".join(event(number, padding) for number, padding in enumerate(paddings))
    length = b"Content-Length: %d\r\n" % len(body) if has_length else b""
    outcomes, _ = read(pieces(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + body, cuts))
    assert continuations(outcomes) == [str(number) for number in range(len(paddings))]
    assert outcomes[-1] is None


@given(st.binary(max_size=300), _cuts)
@example(b"0\r\n" + b"x" * 300, [])
@example(b"FFFFFFFFFFFFFFF\r\nx", [])
@example(b"-1\r\n", [])
@example(b"0x1\r\nx\r\n", [])
@example(b"1_0\r\n" + b"x" * 16, [])
@example(b"1\nx\n", [])
def test_any_chunks_end_in_one_outcome(data: bytes, cuts: list[int]) -> None:
    """Whatever follows a proper head, there is one end, which is a typed error or None."""
    outcomes, answer = read(pieces(CHUNKED + data, cuts))
    assert_ends_once(outcomes)
    assert answer.ended


@given(st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", CHUNKED]), _cuts)
def test_any_bytes_end_in_one_outcome(data: bytes, start: bytes, cuts: list[int]) -> None:
    """Whatever a server sends, there is one end, which is a typed error or None."""
    outcomes, answer = read(pieces(start + data, cuts))
    assert_ends_once(outcomes)
    assert answer.ended


@given(_paddings, _cuts, st.data())
def test_a_changed_answer_gives_events_or_a_typed_error(
    paddings: list[int], cuts: list[int], data: st.DataObject
) -> None:
    """Whatever is changed in an answer, the events before it come unchanged, in order, and then one end."""
    body = b"".join(event(number, padding) for number, padding in enumerate(paddings))
    changed = bytearray(CHUNKED + chunked(body, cuts))
    at = data.draw(st.integers(0, len(changed)))
    changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    outcomes, _ = read(pieces(bytes(changed), data.draw(_cuts)))
    assert_ends_once(outcomes)
    found = continuations(outcomes)
    assert found == [str(number) for number in range(len(found))]


@given(_paddings, st.integers(0, 30_000), _cuts)
def test_an_answer_that_stops_is_a_connection_error(paddings: list[int], kept: int, cuts: list[int]) -> None:
    """A connection that ends before the last chunk is an error behind the events that came, never the end."""
    whole = CHUNKED + chunked(b"".join(event(number, size) for number, size in enumerate(paddings)), cuts)
    outcomes, _ = read(pieces(whole[: kept % len(whole)], cuts))
    assert_ends_once(outcomes)
    assert isinstance(outcomes[-1], SubscriptionConnectionError)


def test_a_reset_keeps_what_came_before() -> None:
    """Events that were whole come before the error of a reset, which is its cause."""
    reset = ConnectionResetError("by peer")
    outcomes, _ = read([CHUNKED + b"%x\r\n" % len(event(7)) + event(7)], error=reset)
    assert continuations(outcomes) == ["7"]
    assert isinstance(outcomes[-1], SubscriptionConnectionError)
    assert outcomes[-1].__cause__ is reset


def test_a_body_that_ends_inside_a_frame_is_truncated() -> None:
    """A last chunk in the middle of a frame is an error of the frames, also where no chunks tell the end."""
    for answer in (CHUNKED + chunked(event(1)[:-1], []), b"HTTP/1.1 200 OK\r\n\r\n" + event(1)[:-1]):
        outcomes, _ = read([answer])
        assert [type(one) for one in outcomes] == [EventStreamTruncatedError]


@pytest.mark.parametrize("cut", [None, 1, 7])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_refusal_is_the_error_that_it_names(framing: str, cut: int | None) -> None:
    """A status other than 200 is the service's error, however its body is framed and cut, also behind a 100."""
    body = b'{"__type":"ResourceInUseException","message":"busy"}'
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad Request\r\n"
    answers = {
        "length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, [5]),
        "close": head + b"Connection: close\r\n\r\n" + body,
    }
    data = answers[framing]
    parts = [data] if cut is None else [data[at : at + cut] for at in range(0, len(data), cut)]
    (error,), _ = read(parts)
    assert isinstance(error, AwsServiceError)
    assert (error.code, error.message, error.status) == ("ResourceInUseException", "busy", 400)


def test_an_endless_refusal_is_not_read_to_its_end() -> None:
    """Of the body of a refusal no more is kept than any service would send."""
    answer = Http1Answer("host", "/", {}, b"", BufferPool())
    head = b"HTTP/1.1 503 Slow Down\r\n\r\n"
    for data in (head, *[b"x" * 4096] * 16):
        assert not answer.ended
        answer.room(len(data))[: len(data)] = data
        outcomes = answer.received(len(data))
    assert isinstance(outcomes[0], AwsServiceError)
    assert answer.ended


@pytest.mark.parametrize("data", [b"1" + b";" * 5000, b"0\r\n" + b"a: b\r\n" * 5000], ids=["extension", "trailer"])
def test_endless_lines_are_refused(data: bytes) -> None:
    """A chunk extension or a trailer that does not end is an error before it fills the memory."""
    outcomes, _ = read([CHUNKED, *pieces(data, list(range(0, len(data), 100)))])
    assert isinstance(outcomes[-1], SubscriptionConnectionError)
    assert "too long" in str(outcomes[-1])


def test_long_frames_get_a_longer_buffer() -> None:
    """A frame longer than a buffer, in chunks that cut it anywhere, is put together; its buffer is let go after it."""
    body = event(1, 3_000_000) + event(2)
    data = CHUNKED + chunked(body, list(range(0, len(body), 70_001)))
    outcomes, _ = read([data[at : at + 65_536] for at in range(0, len(data), 65_536)])
    assert continuations(outcomes) == ["1", "2"]


def test_buffers_are_used_again() -> None:
    """Answers that follow each other share a buffer, and an answer that has nothing to keep holds none."""
    pool = BufferPool()
    read([CHUNKED, chunked(event(1), [])], pool=pool)
    (kept,) = pool._free
    answer = Http1Answer("host", "/", {}, b"", pool)
    answer.room(100)[: len(CHUNKED)] = CHUNKED
    assert pool._free == []
    answer.received(len(CHUNKED))
    assert pool._free == [kept]
    open_frame = b"FF\r\n" + event(1)[:20]
    answer.room(100)[: len(open_frame)] = open_frame
    answer.received(len(open_frame))
    assert pool._free == []
    answer.closed()
    assert pool._free == [kept]


def test_the_request_is_one_of_http() -> None:
    """The request has the headers that were signed, and the host and the length of the body that HTTP asks for."""
    answer = Http1Answer("host:1", "/", {"X-Amz-Target": "t", "Host": "other"}, b"{}", BufferPool())
    head, body = answer.request.split(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST / HTTP/1.1"
    assert set(head.lower().split(b"\r\n")[1:]) == {b"x-amz-target: t", b"host: host:1", b"content-length: 2"}
    assert body == b"{}"
