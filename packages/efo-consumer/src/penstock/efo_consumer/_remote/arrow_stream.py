"""ReadRangeResponse by hand: the generated code would copy each batch five times on its way.

The bytes are those of the contract: `padding` (2), which puts the Arrow messages on an aligned address of the receiver,
and `arrow_ipc` (1). Whatever else arrives is left to the generated code.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.efo_consumer._model.schema import empty_batch
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ARROW_TAG = 0x0A
_PADDING_TAG = 0x12
_BLOCK_TAG = b"\x1a"
# bytes objects begin at a multiple of 16.
_ALIGNMENT = 16


class BatchEncoder:
    """Turns batches into answers, copying their columns once: into the answer.

    Arrow's own `serialize` would copy them into memory of its own first.

    Args:
        schema: of all batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = encode([schema.serialize()])
        """The first answer: the schema alone."""
        self._parts = _Parts()
        self._writer = pa.ipc.new_stream(self._parts, schema)
        # The stream's writer puts the schema before its first batch.
        self._writer.write_batch(empty_batch(schema))
        self._parts.take()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Give the answer that holds the batch."""
        return encode(self.parts(batch))

    def parts(self, batch: pa.RecordBatch) -> list[memoryview]:
        """Give what `encode` puts together."""
        self._writer.write_batch(batch)
        return self._parts.take()


class _Parts(io.RawIOBase):
    """A file that keeps what is written as it is: Arrow hands over its buffers, not copies of them."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any, /) -> int:
        view = memoryview(part)
        self._parts.append(view)
        return view.nbytes

    def take(self) -> list[memoryview]:
        """Give what was written since the last time."""
        parts, self._parts = self._parts, []
        return parts


def encode(arrow_ipc: Sequence[memoryview | pa.Buffer]) -> bytes:
    """Give the response's bytes; the messages may come in parts."""
    parts = [memoryview(part) for part in arrow_ipc]
    length = _varint(sum(part.nbytes for part in parts))
    # Tag and length of the padding, then tag and length of the messages.
    used = 2 + 1 + len(length)
    padding = -used % _ALIGNMENT
    head = bytes((_PADDING_TAG, padding)) + bytes(padding) + bytes((_ARROW_TAG,)) + length
    return b"".join((head, *parts))


def encode_block(name: str, nbytes: int) -> bytes:
    """Give the response that names a block."""
    return pb.ReadRangeResponse(block=name, block_bytes=nbytes).SerializeToString()


def decode_near(message: bytes) -> pa.Buffer | tuple[str, int]:
    """Give what `decode` does, or a block's name and how many bytes are in it."""
    if message[:1] == _BLOCK_TAG:
        answer = pb.ReadRangeResponse.FromString(message)
        return answer.block, answer.block_bytes
    return decode(message)


def decode(message: bytes) -> pa.Buffer:
    """Give the response's Arrow messages; they share the memory of `message` where their address allows."""
    if len(message) > 2 and message[0] == _PADDING_TAG and message[1] < _ALIGNMENT:
        position = 2 + message[1]
        if position < len(message) and message[position] == _ARROW_TAG:
            length, position = _read_varint(message, position + 1)
            if position + length == len(message) and position % _ALIGNMENT == 0:
                return pa.py_buffer(message).slice(position)
    return pa.py_buffer(pb.ReadRangeResponse.FromString(message).arrow_ipc)


class BatchDecoder:
    """Turns the chunks of an answer into batches. The batches share the chunks' memory."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def decode(self, chunk: bytes | pa.Buffer) -> Iterator[pa.RecordBatch]:
        """Give the batches of a chunk, which holds whole messages of an Arrow IPC stream."""
        buffer = pa.py_buffer(chunk)
        messages = pa.BufferReader(buffer)
        while messages.tell() < buffer.size:
            try:
                message = pa.ipc.read_message(messages)
            except EOFError:
                # The mark at the end of a stream, which our servers leave out.
                return
            if self._schema is None:
                self._schema = pa.ipc.read_schema(message)
            else:
                yield pa.ipc.read_record_batch(message, self._schema)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, min(len(message), position + 5)):
        value |= (message[at] & 0x7F) << shift
        shift += 7
        if message[at] < 0x80:
            return value, at + 1
    return -1, position
