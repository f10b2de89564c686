"""Values that are made row by row: one that cannot be made spoils no other."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.spark_plugin._writing._value_json import json_rows

Encoded = tuple[Any, dict[int, str]]
"""A column of binaries, and why the format or the schema does not take rows, by their place: JSON instead."""


def row_encoder(encode_row: Callable[[Any], bytes], problem: str) -> Callable[[Any], Encoded]:
    """Makes values of a record batch by what makes one of a row, a dictionary; `problem` is said before its errors."""

    def encode_rows(batch: Any) -> list[bytes]:
        return [encode_row(row) for row in batch.to_pylist(maps_as_pydicts="strict")]

    def encode(batch: Any) -> Encoded:
        faults: dict[int, str] = {}
        try:
            values = encode_rows(batch)
        except Exception:  # whatever the libraries say of a value: of which row, is found out one by one
            values = []
            for index in range(batch.num_rows):
                row = batch.slice(index, 1)
                try:
                    values += encode_rows(row)
                except Exception as error:
                    values.append(b"")
                    faults[index] = f"{problem}: {_column_of(row)}{str(error) or type(error).__name__}"
            # All at once, and taken out: a slice has the lists and maps of all rows, made JSON each time.
            texts = json_rows(batch.take(pa.array(list(faults), pa.int64()))).to_pylist() if faults else []
            for index, text in zip(faults, texts, strict=True):
                values[index] = text.encode()
        return pa.array(values, pa.binary()), faults

    return encode


def _column_of(row: Any) -> str:
    """Which column has a value that Python does not: a text that is not UTF-8, a date after the year 9999."""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            column.to_pylist(maps_as_pydicts="strict")
        except Exception:
            return f"column {name!r}: "
    return ""
