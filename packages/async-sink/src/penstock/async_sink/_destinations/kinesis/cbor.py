"""PutRecords in CBOR: data without base64, a quarter less to hash and to send than in JSON."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._destinations.columns import integers32
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry

# Initial bytes of RFC 8949: the kind in three bits, then the length or its size in five.
_BYTES, _TEXT, _ARRAY, _MAP = 0x40, 0x60, 0x80, 0xA0
_KEPT_HEADS = 4_096
# A record that was refused has no sequence number.
_FAILED_COUNT, _RECEIPT = b"\x71FailedRecordCount", b"\x6eSequenceNumber"


def head(kind: int, length: int) -> bytes:
    """The head of a value with so many bytes, items or pairs."""
    if length < 24:
        return bytes((kind | length,))
    for more, size in ((24, 1), (25, 2), (26, 4)):
        if length < 1 << 8 * size:
            return bytes((kind | more,)) + length.to_bytes(size, "big")
    raise ValueError(f"{length} is more than a request holds")


class _Heads(dict[int, bytes]):
    """Heads by length; there are few lengths in a stream, or they cost a little more."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _KEPT_HEADS:
            self.clear()
        made = self[length] = self._make(length)
        return made


def _text(value: str) -> bytes:
    encoded = value.encode()
    return head(_TEXT, len(encoded)) + encoded


_DATA, _KEY, _HASH_KEY = _text("Data"), _text("PartitionKey"), _text("ExplicitHashKey")
# What stands before data, and before a key, of so many bytes.
before_data = _Heads(lambda length: head(_MAP, 2) + _DATA + head(_BYTES, length)).__getitem__
before_data_of_three = _Heads(lambda length: head(_MAP, 3) + _DATA + head(_BYTES, length)).__getitem__
before_key = _Heads(lambda length: _KEY + head(_TEXT, length)).__getitem__


def after_key(hash_key: str | None) -> bytes:
    """The fields after the key of a record."""
    return b"" if hash_key is None else _HASH_KEY + _text(hash_key)


def encode_put_records(
    stream: tuple[str, str], data: Sequence[bytes], keys: Sequence[str], hash_keys: Sequence[str | None]
) -> bytes:
    """The body of a request; `stream` is the parameter that names it, and its value."""
    count = len(data)
    encoded_keys = list(map(str.encode, keys))
    parts = [b""] * (4 * count + 1)
    parts[0] = before_records(stream, count)
    # One join of all parts: nothing of the body is copied twice.
    parts[1::4] = map(before_data, map(len, data))
    parts[2::4] = data
    parts[3::4] = map(before_key, map(len, encoded_keys))
    parts[4::4] = encoded_keys
    if any(hash_keys):
        for place, hash_key in enumerate(hash_keys):
            if hash_key is not None:
                parts[4 * place + 1] = before_data_of_three(len(data[place]))
                parts[4 * place + 4] += after_key(hash_key)
    return b"".join(parts)


def before_records(stream: tuple[str, str], count: int) -> bytes:
    """The part of a request before its records."""
    return b"".join((head(_MAP, 2), _text(stream[0]), _text(stream[1]), _text("Records"), head(_ARRAY, count)))


def read_record(content: memoryview, place: int) -> tuple[bytes, str, str | None]:
    """Data, partition key and explicit hash key of a record that was written here."""
    has_hash_key = content[place] & 0x1F == 3
    data, place = _read(content, place + 1 + len(_DATA))
    key, place = _read(content, place + len(_KEY))
    hash_key = str(_read(content, place + len(_HASH_KEY))[0], "ascii") if has_hash_key else None
    return bytes(data), str(key, "utf-8"), hash_key


def _read(content: memoryview, place: int) -> tuple[memoryview, int]:
    """The bytes of the value at a place, and the place of the next value."""
    length, place = content[place] & 0x1F, place + 1
    if length >= 24:
        size = 1 << length - 24
        length, place = int.from_bytes(content[place : place + size], "big"), place + size
    return content[place : place + length], place + length


def is_success_in_cbor(answer: bytes, entry_count: int) -> bool:
    """Whether an answer in CBOR counts no failure, and has a receipt for each entry.

    It is not read as a whole for that. False for everything else, such as answers in JSON.
    """
    if answer[:1] in (b"", b"{"):
        return False
    place = answer.find(_FAILED_COUNT)
    # A zero is written in one byte.
    return place >= 0 and answer.startswith(b"\0", place + len(_FAILED_COUNT)) and answer.count(_RECEIPT) == entry_count


# Of data and keys: some requests' worth, so that a call of Arrow costs little and few bytes wait behind their request.
_CHUNK_BYTES = 4 << 20

_join: Any = pc.binary_join_element_wise
_binary_length: Any = pc.binary_length


def _heads(lengths: Any, make: Callable[[int], bytes]) -> Any:
    """The heads of values: a scalar if all values have one length."""
    coded = lengths.dictionary_encode()
    made = [make(length) for length in coded.dictionary.to_pylist()]
    return pa.scalar(made[0], pa.binary()) if len(made) == 1 else pa.array(made, pa.binary()).take(coded.indices)


def encode_rows(data: Any, keys: Any, hash_keys: Sequence[str | None] | None) -> Any:
    """The records of rows, a value each, in one buffer: at least one row, columns without nulls."""
    lengths = _binary_length(data)
    before = _heads(lengths, before_data)
    after: Any = b""
    if hash_keys is not None:
        has_hash_key = pa.array([key is not None for key in hash_keys])
        before = pc.if_else(has_hash_key, _heads(lengths, before_data_of_three), before)
        after = pa.array([after_key(key) for key in hash_keys], pa.binary())
    return _join(before, data, _heads(_binary_length(keys), before_key), keys.cast(pa.binary()), after, b"")


class CborRecords:
    """Rows as they are in a request. The bytes of other rows in the same buffer stay in memory with them."""

    are_entries = False

    def __init__(self, content: memoryview, places: "memoryview[int]", ends: "array[int]") -> None:
        """`places`: where each row begins in the content, and where the last one ends."""
        self._content = content
        self._places = places
        self.ends = ends
        """Bytes of data and partition keys up to each row, and to the end of the last one."""

    def records(self, start: int, end: int) -> memoryview:
        """Some rows, as items of a list in CBOR."""
        return self._content[self._places[start] : self._places[end]]

    def entries(self, start: int, end: int) -> list[KinesisRequestEntry]:
        """The entries, created for each call."""
        return [KinesisRequestEntry(*read_record(self._content, place)) for place in self._places[start:end]]

    def cut(self, start: int, end: int) -> "CborRecords":
        """Some of the rows."""
        return CborRecords(self._content, self._places[start : end + 1], self.ends[start : end + 1])


class CborRows:
    """Rows of columns, from which records are cut in order, and written in CBOR a chunk before they are needed."""

    are_entries = False

    def __init__(self, data: Any, keys: Any, hash_keys: Sequence[str | None] | None, ends: "memoryview[int]") -> None:
        self._data = data
        self._keys = keys
        self._hash_keys = hash_keys
        self.ends = ends
        """Bytes of data and partition keys up to each row, and to the end of the last one."""
        self._chunk = self._no_chunk = CborRecords(memoryview(b""), memoryview(b"").cast("i"), array("q"))
        self._first = self._end = 0

    def entries(self, start: int, end: int) -> list[KinesisRequestEntry]:
        """The entries, created for each call."""
        return self.cut(start, end).entries(0, end - start)

    def cut(self, start: int, end: int) -> CborRecords:
        """Some rows. What is cut next is best the next rows."""
        if not self._first <= start <= end <= self._end:
            upto = bisect_right(self.ends, self.ends[start] + _CHUNK_BYTES, start, len(self.ends)) - 1
            self._write(start, max(upto, end))
        made = self._chunk.cut(start - self._first, end - self._first)
        if end == self._end:
            # The rows must not keep in memory what was cut.
            self._chunk, self._first, self._end = self._no_chunk, end, end
        return made

    def _write(self, start: int, end: int) -> None:
        count = end - start
        hash_keys = None if self._hash_keys is None else self._hash_keys[start:end]
        records = encode_rows(self._data.slice(start, count), self._keys.slice(start, count), hash_keys)
        _, places, content = records.buffers()
        ends = array("q")
        # At once: the constructor would make an integer of each.
        ends.frombytes(self.ends[start : end + 1].tobytes())
        self._chunk = CborRecords(memoryview(content), integers32(places, records.offset, count + 1), ends)
        self._first, self._end = start, end
