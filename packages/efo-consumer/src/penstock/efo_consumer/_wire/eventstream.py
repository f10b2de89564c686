"""Frames of `application/vnd.amazon.eventstream`, decoded from arbitrary chunks. No I/O.

A frame is `total length (4), headers length (4), CRC of those 8 (4), headers, payload, CRC of all before (4)`,
big-endian, as the Smithy event-stream specification has it.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import NamedTuple

from isal import isal_zlib

from penstock.efo_consumer.errors import (
    EventStreamFrameError,
)

PRELUDE_BYTES = 12
OVERHEAD_BYTES = 16
"""A frame without headers and payload: the prelude and the message CRC."""

MAX_HEADERS_BYTES = 128 * 1024
MAX_PAYLOAD_BYTES = 24 * 1024 * 1024

HeaderValue = bool | int | bytes | str | uuid.UUID

_crc32 = isal_zlib.crc32
_unpack_prelude = struct.Struct(">III").unpack_from
_unpack_uint32 = struct.Struct(">I").unpack_from


class FrameKind(NamedTuple):
    """What a frame is, by its headers.

    Attributes:
        message_type: `event`, `exception` or `error`.
        event_type: the event's, the exception's or the error's name.
        error_message: the text of an `error` frame, which has no payload; else empty.
    """

    message_type: str
    event_type: str
    error_message: str = ""


class Frame(NamedTuple):
    """One whole frame with valid checksums.

    The payload is `buffer[payload_start:payload_end]`: it is decoded in place, without a copy.

    Attributes:
        headers: the undecoded header block; see `parse_headers`.
        buffer: holds the frame, and perhaps others.
        frame_bytes: the length of the whole frame, which HTTP/2 charges to the window.
    """

    headers: bytes
    buffer: bytes
    payload_start: int
    payload_end: int
    frame_bytes: int

    @property
    def payload(self) -> memoryview:
        """A view of the payload."""
        return memoryview(self.buffer)[self.payload_start : self.payload_end]


class FrameDecoder:
    """Cuts chunks into frames; each byte is copied at most once, when the chunks of a frame are joined.

    Raises from `feed` and `finish`:
        EventStreamFrameError: the stream is corrupt; the decoder must not be used again.
    """

    __slots__ = ("_max_payload_bytes", "_needed", "_parts", "pending_bytes")

    def __init__(self, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._parts: list[bytes | memoryview] = []
        self.pending_bytes = 0
        """Bytes of the last, incomplete frame."""
        self._needed = PRELUDE_BYTES

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that a chunk completes, in order."""
        # Immutable bytes can be kept; anything else may change once the caller has it back.
        data = chunk if type(chunk) is bytes else bytes(chunk)
        self.pending_bytes += len(data)
        if self.pending_bytes < self._needed:
            self._parts.append(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
        frames: list[Frame] = []
        view = memoryview(data)
        start = 0
        while True:
            self._needed = self._check_prelude(view, start) if self.pending_bytes >= PRELUDE_BYTES else PRELUDE_BYTES
            if self.pending_bytes < self._needed:
                break
            end = start + self._needed
            (expected,) = _unpack_uint32(view, end - 4)
            actual = _crc32(view[start : end - 4])
            if actual != expected:
                raise EventStreamFrameError.of("FRAME_CHECKSUM", part="message", expected=expected, actual=actual)
            headers_start = start + PRELUDE_BYTES
            (headers_bytes,) = _unpack_uint32(view, start + 4)
            payload_start = headers_start + headers_bytes
            headers = bytes(view[headers_start:payload_start])
            frames.append(Frame(headers, data, payload_start, end - 4, end - start))
            self.pending_bytes -= self._needed
            start = end
        self._parts = [view[start:]] if self.pending_bytes else []
        return frames

    def finish(self) -> None:
        """Mark the end of the stream.

        Raises:
            EventStreamFrameError: the last frame is not complete.
        """
        if self.pending_bytes:
            raise EventStreamFrameError.of("FRAME_TRUNCATED", expected=self._needed, actual=self.pending_bytes)

    def _check_prelude(self, view: memoryview, offset: int) -> int:
        # Checked before the length is used: a flipped bit must not make the reader wait for gigabytes.
        total, headers, expected = _unpack_prelude(view, offset)
        actual = _crc32(view[offset : offset + 8])
        if actual != expected:
            raise EventStreamFrameError.of("FRAME_CHECKSUM", part="prelude", expected=expected, actual=actual)
        if headers > MAX_HEADERS_BYTES:
            raise EventStreamFrameError.of("FRAME_LENGTH", field="headers", length=headers, limit=MAX_HEADERS_BYTES)
        if not 0 <= total - headers - OVERHEAD_BYTES <= self._max_payload_bytes:
            limit = headers + OVERHEAD_BYTES + self._max_payload_bytes
            raise EventStreamFrameError.of("FRAME_LENGTH", field="total", length=total, limit=limit)
        return int(total)


@lru_cache(maxsize=64)
def frame_kind(headers: bytes) -> FrameKind:
    """What a frame with this header block is. Kinesis repeats a handful of blocks: each is parsed once.

    Raises:
        EventStreamFrameError: the headers are malformed, or of an unknown message type.
    """
    found = parse_headers(headers)
    match found.get(":message-type", "event"):
        case "event":
            return FrameKind("event", str(found.get(":event-type", "")))
        case "exception":
            return FrameKind("exception", str(found.get(":exception-type", "")))
        case "error":
            code = str(found.get(":error-code", ""))
            return FrameKind("error", code, str(found.get(":error-message", "")))
        case other:
            raise EventStreamFrameError(f"unknown message type {other!r}")


_FIXED = {2: struct.Struct(">b"), 3: struct.Struct(">h"), 4: struct.Struct(">i"), 5: struct.Struct(">q"),
          8: struct.Struct(">q")}  # fmt: skip
_BYTE_ARRAY, _STRING, _UUID = 6, 7, 9


def parse_headers(block: bytes) -> dict[str, HeaderValue]:
    """Decode a header block. A timestamp is left as milliseconds since the epoch.

    Raises:
        EventStreamFrameError: the block is malformed, names a header twice, or has an unknown type.
    """
    headers: dict[str, HeaderValue] = {}
    offset = 0
    while offset < len(block):
        name_end = offset + 1 + block[offset]
        if name_end >= len(block):
            raise EventStreamFrameError.of("FRAME_TRUNCATED", expected=name_end + 1, actual=len(block))
        try:
            name = block[offset + 1 : name_end].decode()
            value, offset = _header_value(block, block[name_end], name_end + 1)
        except UnicodeDecodeError as error:
            raise EventStreamFrameError(f"a header is not UTF-8: {error.reason}") from error
        if name in headers:
            raise EventStreamFrameError(f"header {name!r} appears twice")
        headers[name] = value
    return headers


def _header_value(block: bytes, value_type: int, offset: int) -> tuple[HeaderValue, int]:
    if value_type in (0, 1):
        return value_type == 0, offset
    if value_type in _FIXED:
        number: int = _FIXED[value_type].unpack(_slice(block, offset, _FIXED[value_type].size))[0]
        return number, offset + _FIXED[value_type].size
    if value_type == _UUID:
        return uuid.UUID(bytes=_slice(block, offset, 16)), offset + 16
    if value_type in (_BYTE_ARRAY, _STRING):
        length = int.from_bytes(_slice(block, offset, 2), "big")
        content = _slice(block, offset + 2, length)
        return content.decode() if value_type == _STRING else content, offset + 2 + length
    raise EventStreamFrameError(f"unknown header type {value_type}")


def _slice(block: bytes, offset: int, length: int) -> bytes:
    if offset + length > len(block):
        raise EventStreamFrameError.of("FRAME_TRUNCATED", expected=offset + length, actual=len(block))
    return block[offset : offset + length]
