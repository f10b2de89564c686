"""Frames of the event stream, whatever chunks they come in."""

import itertools
import struct
import zlib
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer._wire.eventstream import (
    MAX_HEADERS_BYTES,
    FrameDecoder,
    frame_kind,
    parse_headers,
)
from penstock.efo_consumer.errors import (
    EventStreamFrameError,
)


def make_frame(headers: bytes, payload: bytes) -> bytes:
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


def string_header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value.encode())) + value.encode()


_names = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=20)
_headers = st.dictionaries(_names, st.text(max_size=30), max_size=4).map(
    lambda pairs: b"".join(string_header(name, value) for name, value in pairs.items())
)
_frames = st.lists(st.builds(make_frame, _headers, st.binary(max_size=300)), min_size=1, max_size=6)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(_frames, st.lists(st.integers(min_value=0), max_size=12))
def test_chunks_do_not_change_the_frames(frames: list[bytes], points: list[int]) -> None:
    """Any chunking of the same bytes gives the frames that botocore finds in them."""
    data = b"".join(frames)
    peer = EventStreamBuffer()
    peer.add_data(data)
    expected: list[tuple[Any, bytes]] = [(message.headers, bytes(message.payload)) for message in peer]
    decoder = FrameDecoder()
    found = [frame for chunk in cut(data, points) for frame in decoder.feed(chunk)]
    decoder.finish()
    assert [(parse_headers(frame.headers), bytes(frame.payload)) for frame in found] == expected
    assert sum(frame.frame_bytes for frame in found) == len(data)


def test_the_caller_may_reuse_its_buffer() -> None:
    """A chunk in a mutable buffer is not read again after `feed` has returned."""
    frame = make_frame(b"", b"payload")
    buffer = bytearray(frame[:15])
    decoder = FrameDecoder()
    decoder.feed(buffer)
    buffer[:] = b"\x00" * len(buffer)
    assert [bytes(found.payload) for found in decoder.feed(memoryview(frame)[15:])] == [b"payload"]


def test_a_wrong_message_checksum_says_both_values() -> None:
    """The error of a damaged message names the part and both checksums."""
    frame = bytearray(make_frame(b"", b"payload"))
    frame[14] ^= 1
    with pytest.raises(EventStreamFrameError, match="FRAME_CHECKSUM") as caught:
        FrameDecoder().feed(bytes(frame))
    assert caught.value.facts["part"] == "message"
    assert caught.value.facts["expected"] == zlib.crc32(make_frame(b"", b"payload")[:-4])
    assert caught.value.facts["actual"] != caught.value.facts["expected"]


def test_a_damaged_length_is_found_in_the_prelude() -> None:
    """A wrong length is an error as soon as the prelude is there, not a wait for gigabytes."""
    frame = bytearray(make_frame(b"", b"payload"))
    frame[0] ^= 0x40
    with pytest.raises(EventStreamFrameError, match="FRAME_CHECKSUM") as caught:
        FrameDecoder().feed(bytes(frame[:12]))
    assert caught.value.facts["part"] == "prelude"


def prelude(total: int, headers: int) -> bytes:
    lengths = struct.pack(">II", total, headers)
    return lengths + struct.pack(">I", zlib.crc32(lengths))


@pytest.mark.parametrize(
    ("total", "headers", "field"),
    [
        (2**31, 0, "total"),
        (16 + 1001, 0, "total"),
        (15, 0, "total"),
        (100, 200, "total"),
        (2**20, MAX_HEADERS_BYTES + 1, "headers"),
    ],
)
def test_lengths_beyond_the_limits_are_refused(total: int, headers: int, field: str) -> None:
    """A prelude whose checksum is right is refused all the same if its lengths cannot be."""
    with pytest.raises(EventStreamFrameError, match="FRAME_LENGTH") as caught:
        FrameDecoder(max_payload_bytes=1000).feed(prelude(total, headers))
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize("kept", [1, 11, 12, 20])
def test_an_end_inside_a_frame_is_truncation(kept: int) -> None:
    """A stream that ends inside a frame says how much of it came."""
    frame = make_frame(b"", b"payload")
    decoder = FrameDecoder()
    assert decoder.feed(frame + frame[:kept]) != []
    with pytest.raises(EventStreamFrameError, match="FRAME_TRUNCATED") as caught:
        decoder.finish()
    assert caught.value.facts["actual"] == kept
    assert caught.value.facts["expected"] == (12 if kept < 12 else len(frame))


def test_every_header_type_is_read() -> None:
    """Headers of all ten types of the specification are decoded."""
    block = b"".join(
        bytes([1]) + name + encoded
        for name, encoded in (
            (b"a", b"\x00"),
            (b"b", b"\x01"),
            (b"c", b"\x02\xff"),
            (b"d", b"\x03" + struct.pack(">h", -2)),
            (b"e", b"\x04" + struct.pack(">i", -3)),
            (b"f", b"\x05" + struct.pack(">q", -4)),
            (b"g", b"\x06\x00\x02\x01\x02"),
            (b"h", b"\x07\x00\x02hi"),
            (b"i", b"\x08" + struct.pack(">q", 1_750_000_000_123)),
            (b"j", b"\x09" + bytes(range(16))),
        )
    )
    values = parse_headers(block)
    assert list(values.values())[:9] == [True, False, -1, -2, -3, -4, b"\x01\x02", "hi", 1_750_000_000_123]
    assert str(values["j"]) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize(
    "block",
    [b"\x05ab", b"\x01a", b"\x01a\x07\x00\x09x", b"\x01a\x0a", b"\x01\xff\x00", b"\x01a\x00\x01a\x01"],
    ids=["short-name", "no-type", "short-value", "unknown-type", "not-utf8", "twice"],
)
def test_malformed_headers_are_a_typed_error(block: bytes) -> None:
    """Headers that cannot be read are an error of the frame."""
    with pytest.raises(EventStreamFrameError):
        parse_headers(block)


def test_a_frame_says_what_it_is() -> None:
    """Headers distinguish events, exceptions and errors."""
    decoder = FrameDecoder()

    def kind(*headers: tuple[str, str]) -> tuple[str, ...]:
        block = b"".join(string_header(name, value) for name, value in headers)
        return tuple(frame_kind(decoder.feed(make_frame(block, b"{}"))[0].headers))

    assert kind((":message-type", "event"), (":event-type", "E")) == ("event", "E", "")
    assert kind((":message-type", "exception"), (":exception-type", "X")) == ("exception", "X", "")
    assert kind((":message-type", "error"), (":error-code", "C"), (":error-message", "why")) == ("error", "C", "why")
    with pytest.raises(EventStreamFrameError):
        kind((":message-type", "riddle"))
