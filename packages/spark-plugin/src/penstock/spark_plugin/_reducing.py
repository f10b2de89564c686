"""Reducing rows two by two, for windows and partitions."""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
"""A row by column: Python's own values, None where there is none."""
ReduceFunction = Callable[[Row, Row], Row]


def over_table(function: ReduceFunction, names: list[str]) -> "Callable[[pa.Table], pa.Table]":
    """For `applyInArrow`: the rows of a group as one. Columns other than `names` are left out."""

    # What workers run is inside of here: then they need this package no more than the function does.
    def reduce(rows: "pa.Table") -> "pa.Table":
        rows = rows.select(names)
        result: Row | None = None
        for batch in rows.to_batches():
            records = batch.to_pylist()
            result = functools.reduce(function, records if result is None else [result, *records])
        return type(rows).from_pylist([result] if result is not None else [], schema=rows.schema)

    return reduce


def over_batches(function: ReduceFunction) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """For `mapInArrow`: the rows of a partition as one; none of an empty one."""

    def reduce(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        result: Row | None = None
        last: pa.RecordBatch | None = None
        for batch in batches:
            records = batch.to_pylist()
            if records:
                last = batch
                result = functools.reduce(function, records if result is None else [result, *records])
        if last is not None:
            yield type(last).from_pylist([result], schema=last.schema)

    return reduce
