"""Columns as Python values."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.async_sink._destinations.columns import ColumnValues, binary_values, byte_ends, integers


@settings(deadline=None)  # the first call loads Arrow's functions
@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(0, 5), st.integers(0, 30), st.integers(0, 30))
def test_binaries_are_the_same_as_by_scalars(values: list[bytes], offset: int, start: int, length: int) -> None:
    """For slices of slices too."""
    column = pa.array(values, pa.binary()).slice(offset)
    end = min(start + length, len(column))
    start = min(start, end)
    expected = column.slice(start, end - start).to_pylist()
    assert binary_values(column, start, end) == expected
    cut = ColumnValues(column).cut(start, end)
    assert cut.values(0, end - start) == expected
    assert cut.values((end - start) // 2, end - start) == expected[(end - start) // 2 :]


_ANY_SCRIPT = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=30)
_ASCII = st.lists(st.text(st.characters(codec="ascii"), max_size=100), max_size=30)


@settings(deadline=None)
@given(_ANY_SCRIPT | _ASCII, st.integers(0, 5))
@example(["a\r\nb", "\r", "\n"], 0)
@example(["a\r\nb" * 20, "\r" * 60, "\n"], 0)
def test_strings_are_the_same_as_by_scalars(values: list[str], offset: int) -> None:
    """Of ASCII and of any script, short and long, with the ends of lines in them."""
    column = pa.array(values, pa.string()).slice(offset)
    assert ColumnValues(column).values(0, len(column)) == column.to_pylist()
    middle = len(column) // 2
    assert ColumnValues(column).cut(middle, len(column)).values(0, len(column) - middle) == column.to_pylist()[middle:]


@given(st.lists(st.tuples(st.binary(max_size=9), st.text(max_size=5))), st.integers(0, 5))
def test_ends_count_the_bytes_of_all_columns(rows: list[tuple[bytes, str]], offset: int) -> None:
    """Between two ends are the bytes of the rows between them."""
    columns = (
        pa.array([data for data, _ in rows], pa.binary()).slice(offset),
        pa.array([text for _, text in rows], pa.string()).slice(offset),
    )
    ends = list(integers(byte_ends(*columns)))
    sizes = [len(data) + len(text.encode()) for data, text in rows[offset:]]
    assert [end - start for start, end in pairwise(ends)] == sizes
