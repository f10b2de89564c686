"""The bytes of a durable gateway's journal. No I/O.

A file begins with eight bytes: `PSGJ`, the version, three zeros. Records follow: the length of the payload, its CRC-32,
and the CRC-32 of these two (little endian, four bytes each); then the payload in MessagePack. A file that was cut off
within a record, or whose end was never written (zeros), has lost nothing that anybody was told of. Damage anywhere else
is an error: the checksum of the head tells a length that was damaged from a record that was cut off.
"""

import struct
import zlib
from collections.abc import Iterator

import msgspec

from penstock.async_sink.errors import JournalError

VERSION = 2
HEADER = b"PSGJ" + bytes((VERSION, 0, 0, 0))
_FRAME = struct.Struct("<III")
_CHECKED_HEAD_BYTES = 8


class AcceptedBatch(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """A batch that was taken on."""

    sequence: int
    """Counts up over all files of a journal."""
    kind: str
    destination: str
    client_id: str
    weight: int
    batch: bytes
    """The contract's `Batch`."""


class SettledBatch(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A batch of which every entry has its word."""

    sequence: int


Record = AcceptedBatch | SettledBatch
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """The record with its frame."""
    payload = _encoder.encode(record)
    head = _FRAME.pack(len(payload), zlib.crc32(payload), 0)[:_CHECKED_HEAD_BYTES]
    return head + zlib.crc32(head).to_bytes(4, "little") + payload


def decode(framed: bytes, name: str, offset: int) -> Record:
    """The record of a frame that `scan` has found at that place, read again.

    Raises:
        JournalError: the file was damaged since.
    """
    payload = framed[_FRAME.size :]
    if len(framed) < _FRAME.size or zlib.crc32(payload) != _FRAME.unpack_from(framed)[1]:
        raise JournalError(name, offset, "is damaged: a checksum is wrong")
    record: Record = _decoder.decode(payload)
    return record


def scan(content: bytes, name: str) -> Iterator[tuple[int, int, Record]]:
    """(offset, length, record) of each whole record; ends silently where the file was cut off.

    Raises:
        JournalError: the file is damaged, no journal, or of a version that is not known.
    """
    if len(content) < len(HEADER) and HEADER.startswith(content):
        return
    if not content[: len(HEADER)].strip(b"\0") and not content.strip(b"\0"):
        # Nothing of it reached the disk before the power went.
        return
    if content[:4] != HEADER[:4]:
        raise JournalError(name, 0, "is no journal of a sink gateway")
    if content[4] != VERSION:
        raise JournalError(name, 4, f"has version {content[4]}, this release reads version {VERSION}")
    offset, size = len(HEADER), len(content)
    while size - offset >= _FRAME.size:
        length, crc, head_crc = _FRAME.unpack_from(content, offset)
        end = offset + _FRAME.size + length
        if zlib.crc32(content[offset : offset + _CHECKED_HEAD_BYTES]) != head_crc:
            if not content[offset:].strip(b"\0"):
                return
            raise JournalError(name, offset, "is damaged: the checksum of a record's head is wrong")
        if end > size:
            return
        payload = content[offset + _FRAME.size : end]
        if zlib.crc32(payload) != crc:
            if end == size:
                return
            raise JournalError(name, offset, "is damaged: a checksum is wrong")
        try:
            record = _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise JournalError(name, offset, f"is damaged: {error}") from error
        yield offset, end - offset, record
        offset = end
