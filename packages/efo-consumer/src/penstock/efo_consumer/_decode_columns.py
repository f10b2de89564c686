"""The columns of wire records from lists of their members. No I/O.

Arrow takes a list value by value. What is joined first, and numbers that are counted at once, cost half of that.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._publisher import WIRE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

# Below this, the fixed costs of Arrow's functions outweigh what they save.
_VECTOR_ROWS = 150
# From here on, joining wins over Arrow also where each value has a length of its own.
_JOIN_BYTES = 1500

# Arrow's functions as they are: what stands around them in `compute` costs more than 200 rows do.
_multiply, _to_integers = pc.get_function("multiply"), pc.get_function("cast")
_INTEGERS = pc.CastOptions(pa.int64())
_MILLION = pa.scalar(1e6)

_BINARY, _STRING, _DOUBLE = pa.binary(), pa.string(), pa.float64()
_UTC_MICROSECONDS = WIRE_SCHEMA.field("approximateArrivalTimestamp").type


def binary_column(values: list[bytes]) -> tuple[pa.Array, int]:
    """At least one value; also their bytes."""
    size = _common_size(values)
    if not size and len(values[0]) < _JOIN_BYTES:
        column = pa.array(values, _BINARY)
        return column, _value_bytes(column)
    joined = b"".join(values)
    # More than 2 GiB would not fit: a frame has 24 MiB.
    offsets = _even_offsets(size, len(values)) if size else _offsets(values)
    return pa.Array.from_buffers(_BINARY, len(values), [None, offsets, pa.py_buffer(joined)]), len(joined)


def string_column(values: list[str]) -> tuple[pa.Array, int]:
    """At least one value; also their bytes in UTF-8."""
    size = _common_size(values)
    if size and (joined := "".join(values)).isascii():
        buffers = [None, _even_offsets(size, len(values)), pa.py_buffer(joined.encode())]
        return pa.Array.from_buffers(_STRING, len(values), buffers), len(joined)
    column = pa.array(values, _STRING)
    return column, _value_bytes(column)


def arrival_column(seconds: list[float | None]) -> pa.Array:
    """Times as the service writes them, in seconds.

    Raises:
        ValueError, OverflowError: a time that no timestamp holds.
    """
    # Up to the year 2106 a float holds microseconds: rounding undoes what it did to them.
    try:
        # Looking for None first would cost more than all the rest.
        floats = array("d", cast("list[float]", seconds))
    except TypeError:
        return pa.array([None if one is None else round(one * 1e6) for one in seconds], _UTC_MICROSECONDS)
    if len(floats) >= _VECTOR_ROWS:
        column = pa.Array.from_buffers(_DOUBLE, len(floats), [None, pa.py_buffer(floats)])
        try:
            # Milliseconds come out whole, as long as the product's float is as fine as they are: nearly always.
            return _to_integers.call([_multiply.call([column, _MILLION])], _INTEGERS).view(_UTC_MICROSECONDS)
        except pa.ArrowInvalid:
            pass
    micros = array("q", [round(one * 1e6) for one in floats])
    return pa.Array.from_buffers(_UTC_MICROSECONDS, len(micros), [None, pa.py_buffer(micros)])


def encryption_column(types: list[str | None]) -> pa.Array:
    """At least one value; null where it is `NONE`."""
    # Nearly always all records of a stream are encrypted in one way, or none is.
    if types.count(types[0]) == len(types):
        return _same_type(None if types[0] == "NONE" else types[0], len(types))
    return pa.array([None if name == "NONE" else name for name in types], _STRING)


@lru_cache(maxsize=32)
def _same_type(name: str | None, rows: int) -> pa.Array:
    return pa.nulls(rows, _STRING) if name is None else pa.repeat(pa.scalar(name, _STRING), rows)


def _common_size(values: Sequence[bytes] | Sequence[str]) -> int:
    """The length of each value; 0 if they differ, or are empty."""
    size = len(values[0])
    return size if size == len(values[-1]) and len(set(map(len, values))) == 1 else 0


def _even_offsets(size: int, rows: int) -> pa.Buffer:
    # Rounded up, so that few are kept: a column may have more offsets than rows.
    return _even_offsets_of(size, 1 << (rows - 1).bit_length())


@lru_cache(maxsize=32)
def _even_offsets_of(size: int, rows: int) -> pa.Buffer:
    return pa.py_buffer(array("i", [min(row * size, 0x7FFFFFFF) for row in range(rows + 1)]))


def _offsets(values: list[bytes]) -> pa.Buffer:
    return pa.py_buffer(array("i", list(accumulate(map(len, values), initial=0))))


def _value_bytes(column: pa.Array) -> int:
    """Bytes of the values alone: the last offset, as columns built here begin at 0."""
    offsets = memoryview(column.buffers()[1]).cast("i")
    return int(offsets[len(column)])
