"""Columns as Python values."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink._columns import binary_values, string_values


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(0, 5), st.integers(0, 30), st.integers(0, 30))
def test_binaries_are_the_same_as_by_scalars(values: list[bytes], offset: int, start: int, length: int) -> None:
    """For slices of slices too."""
    column = pa.array(values, pa.binary()).slice(offset)
    end = min(start + length, len(column))
    start = min(start, end)
    assert binary_values(column, start, end) == column.slice(start, end - start).to_pylist()


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=30), st.integers(0, 5))
def test_strings_are_the_same_as_by_scalars(values: list[str], offset: int) -> None:
    """Of ASCII and of any script."""
    column = pa.array(values, pa.string()).slice(offset)
    assert string_values(column, 0, len(column)) == column.to_pylist()
