"""The body of an HTTP/1.1 answer, unwrapped inside of the buffer that it was received into. No I/O.

Frames are decoded where they lie. Bytes are moved only when a frame goes on behind the end of a chunk or of the buffer.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from penstock.efo_consumer.errors import SubscriptionConnectionError

_READ_BYTES = 256 * 1024
_LEAST_ROOM_BYTES = 4096
# No chunk extension and no trailer of a service comes near to these.
_MAX_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 16 * 1024

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class BufferPool:
    """Buffers that are used again: fresh memory costs as much as what is done with the bytes in it."""

    _MAX_KEPT = 4
    _MAX_KEPT_BYTES = 1024 * 1024

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def acquire(self, size: int) -> bytearray:
        """A buffer of at least so many bytes, whatever they are."""
        fitting = [buffer for buffer in self._free if len(buffer) >= size]
        if not fitting:
            return bytearray(1 << (size - 1).bit_length())
        smallest = min(fitting, key=len)
        self._free = [buffer for buffer in self._free if buffer is not smallest]
        return smallest

    def release(self, buffer: bytearray) -> None:
        """Give back a buffer that nobody reads from any more."""
        if 0 < len(buffer) <= self._MAX_KEPT_BYTES and len(self._free) < self._MAX_KEPT:
            self._free.append(buffer)


class Framing(Enum):
    """How the end of a body is told."""

    CHUNKED = auto()
    LENGTH = auto()
    """By the number of its bytes."""
    CLOSE = auto()
    """By the end of the connection."""


class _State(Enum):
    DATA = auto()
    AFTER_DATA = auto()
    SIZE = auto()
    TRAILER = auto()
    END = auto()


class BodyBuffer:
    """Takes in what was received, and shows the body in it piece by piece.

    `data[start:end]` is the body that was unwrapped and not consumed; behind it lies what was received and not
    unwrapped. A buffer is held only while there is one or the other.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._take_over(bytearray())
        self.start = self.end = self._raw = self._raw_end = 0
        self._state = _State.DATA
        self._framing = Framing.CLOSE
        self._left = 1 << 62
        self._line = b""
        self._trailer_bytes = 0

    @property
    def ended(self) -> bool:
        """The whole body was unwrapped."""
        return self._state is _State.END

    @property
    def may_end(self) -> bool:
        """The end of the connection is not too early."""
        return self._state is _State.END or self._framing is Framing.CLOSE

    def frame(self, framing: Framing, length: int = 0) -> None:
        """Say how the body is framed, before anything of it is unwrapped."""
        self._framing = framing
        if framing is Framing.CHUNKED:
            self._state, self._left = _State.SIZE, 0
        elif framing is Framing.LENGTH:
            self._state, self._left = (_State.DATA if length else _State.END), length

    def room(self, size_hint: int = -1) -> memoryview:
        """Where to receive into; all that was received before has to be unwrapped.

        Args:
            size_hint: how many bytes are there; negative if that is not known.
        """
        pending = self.end - self.start
        size = pending + max(_READ_BYTES if size_hint < 0 else size_hint, _LEAST_ROOM_BYTES)
        if len(self.data) < size:
            old, source = self.data, self._view[self.start : self.end]
            self._take_over(self._pool.acquire(size))
            self._view[:pending] = source
            self._pool.release(old)
        elif self.start and pending:
            self._view[:pending] = self._view[self.start : self.end]
        self.start = 0
        self.end = self._raw = self._raw_end = pending
        return self._view[pending:]

    def received(self, size: int) -> None:
        """So many bytes were written to the room."""
        self._raw_end = self._raw + size

    def take_raw(self) -> bytes:
        """Everything that was received, which is then gone."""
        raw = bytes(self._view[self._raw : self._raw_end])
        self._raw = self._raw_end
        return raw

    def unwrap(self) -> bool:
        """Extend `data[start:end]` up to the end of a chunk; False when nothing more was received.

        Raises:
            SubscriptionConnectionError: the chunks are malformed.
        """
        while self._raw < self._raw_end:
            if self._state is _State.DATA:
                self._unwrap_data()
                return True
            if self._state is _State.END:
                # Nothing else was asked for on this connection.
                self._raw = self._raw_end
            elif (line := self._next_line()) is not None:
                self._on_line(line)
        return False

    def consume(self, start: int) -> None:
        """The body before this was used up."""
        self.start = start

    def tidy(self) -> None:
        """Let the buffer go if nothing is left in it."""
        if self.start == self.end and self._raw == self._raw_end:
            self.drop()

    def drop(self) -> None:
        """Let the buffer go, whatever is in it."""
        self._pool.release(self.data)
        self._take_over(bytearray())
        self.start = self.end = self._raw = self._raw_end = 0

    def _take_over(self, buffer: bytearray) -> None:
        self.data = buffer
        self._view = memoryview(buffer)

    def _unwrap_data(self) -> None:
        size = min(self._left, self._raw_end - self._raw)
        if self.start == self.end:
            self.start = self.end = self._raw
        elif self.end != self._raw:
            self._view[self.end : self.end + size] = self._view[self._raw : self._raw + size]
        self.end += size
        self._raw += size
        self._left -= size
        if not self._left:
            self._state = _State.AFTER_DATA if self._framing is Framing.CHUNKED else _State.END

    def _next_line(self) -> bytes | None:
        """The next line without its end; None if that was not received yet."""
        end = self.data.find(b"\n", self._raw, self._raw_end)
        self._line += self._view[self._raw : self._raw_end if end < 0 else end]
        self._raw = self._raw_end if end < 0 else end + 1
        if len(self._line) > _MAX_LINE_BYTES:
            raise SubscriptionConnectionError("the answer is malformed: a line between chunks is too long")
        if end < 0:
            return None
        line, self._line = self._line, b""
        if not line.endswith(b"\r"):
            raise SubscriptionConnectionError("the answer is malformed: a line between chunks has no proper end")
        return line[:-1]

    def _on_line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise SubscriptionConnectionError("the answer is malformed: a chunk has no size")
            self._left = int(match[1], 16)
            self._state = _State.DATA if self._left else _State.TRAILER
        elif self._state is _State.AFTER_DATA:
            if line:
                raise SubscriptionConnectionError("the answer is malformed: a chunk is longer than its size")
            self._state = _State.SIZE
        elif not line:
            self._state = _State.END
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise SubscriptionConnectionError("the answer is malformed: its trailer is too long")
