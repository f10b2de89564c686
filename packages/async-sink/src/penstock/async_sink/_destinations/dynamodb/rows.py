"""Rows of record batches as plain values, in which maps are mappings: Arrow gives them as lists of pairs."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

_Read = Callable[[Any], Any]


def _unless_null(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _reader(kind: Any) -> _Read | None:
    """Makes mappings of the maps in a value of that type; None where there are none."""
    if pa.types.is_map(kind):
        item = _reader(kind.item_type) or (lambda value: value)
        return _unless_null(lambda pairs: {key: item(value) for key, value in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _reader(kind.value_type)
        return None if element is None else _unless_null(lambda values: list(map(element, values)))
    if pa.types.is_struct(kind):
        fields = _readers(kind)
        return _unless_null(lambda struct: _read(struct, fields)) if fields else None
    return None


def _readers(fields: Any) -> dict[str, _Read]:
    return {field.name: reader for field in fields if (reader := _reader(field.type)) is not None}


def _read(row: dict[str, Any], readers: dict[str, _Read]) -> dict[str, Any]:
    return row | {name: read(row[name]) for name, read in readers.items()}


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The values of each row, by their columns' names."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    readers = _readers(batch.schema)
    return [_read(row, readers) for row in rows] if readers else rows
