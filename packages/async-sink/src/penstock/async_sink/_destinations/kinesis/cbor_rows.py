"""Rows of record batches that are written in CBOR once, by columns, and leave as they are.

Arrow makes the records of some thousand rows in one buffer; a request takes its part of that. Nothing is made for a
single row, unless somebody asks for it as an entry: then it is read from what was written.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._destinations.columns import integers32
from penstock.async_sink._destinations.kinesis.cbor import (
    after_key,
    before_data,
    before_data_of_three,
    before_key,
    read_record,
)
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry

# Of data and keys: some requests' worth, so that a call of Arrow costs little and few bytes wait behind their request.
_CHUNK_BYTES = 4 << 20

_join: Any = pc.binary_join_element_wise
_binary_length: Any = pc.binary_length


def _heads(lengths: Any, make: Callable[[int], bytes]) -> Any:
    """What stands before each value: a scalar for values of one length."""
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
    """Rows as they stand in a request. The bytes of their neighbours in the same buffer stay in memory with them."""

    are_entries = False

    def __init__(self, content: memoryview, places: "memoryview[int]", ends: "array[int]") -> None:
        """`places`: where each row begins in the content, and where the last one ends."""
        self._content = content
        self._places = places
        self.ends = ends
        """Bytes of data and partition keys up to each row, and to the end of the last one."""

    def records(self, start: int, end: int) -> memoryview:
        """Some rows, one behind the other, as a list in CBOR holds them."""
        return self._content[self._places[start] : self._places[end]]

    def entries(self, start: int, end: int) -> list[KinesisRequestEntry]:
        """Entries, made anew."""
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
        """Entries, made anew."""
        return self.cut(start, end).entries(0, end - start)

    def cut(self, start: int, end: int) -> CborRecords:
        """Some rows. What is cut next is best the next rows."""
        if not self._first <= start <= end <= self._end:
            upto = bisect_right(self.ends, self.ends[start] + _CHUNK_BYTES, start, len(self.ends)) - 1
            self._write(start, max(upto, end))
        made = self._chunk.cut(start - self._first, end - self._first)
        if end == self._end:
            # Whoever holds the rows must not hold what has left.
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
