"""Reducing rows two by two, for windows and partitions."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
"""A row by column: Python's own values, None where there is none; times are aware, in UTC."""
ReduceFunction = Callable[[Row, Row], Row]


def over_table(function: ReduceFunction, names: list[str]) -> "Callable[[pa.Table], pa.Table]":
    """For `applyInArrow`: the rows of a group as one. Columns other than `names` are left out."""
    over = over_batches(function)

    def reduce(rows: "pa.Table") -> "pa.Table":
        rows = rows.select(names)
        # There is no group without rows.
        return type(rows).from_batches(over(rows.to_batches()))

    return reduce


def over_batches(function: ReduceFunction) -> "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """For `mapInArrow`: the rows of a partition as one; none of an empty one."""

    # What workers run is inside of here: then they need this package no more than the function does.
    def reduce(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        def in_utc(kind: pa.DataType) -> pa.DataType:
            # Spark hands out the session's time zone, of which Python may not know the name, and takes back UTC.
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                return pa.timestamp(kind.unit, tz="UTC")
            if pa.types.is_struct(kind):
                return pa.struct(
                    [kind.field(index).with_type(in_utc(kind.field(index).type)) for index in range(kind.num_fields)]
                )
            if pa.types.is_map(kind):
                return pa.map_(
                    kind.key_field.with_type(in_utc(kind.key_type)), kind.item_field.with_type(in_utc(kind.item_type))
                )
            if pa.types.is_large_list(kind):
                return pa.large_list(kind.value_field.with_type(in_utc(kind.value_type)))
            if pa.types.is_list(kind):
                return pa.list_(kind.value_field.with_type(in_utc(kind.value_type)))
            return kind

        result: Row | None = None
        schema: pa.Schema | None = None
        for batch in batches:
            schema = pa.schema([field.with_type(in_utc(field.type)) for field in batch.schema])
            records = batch.cast(schema).to_pylist()
            if records:
                result = functools.reduce(function, records if result is None else [result, *records])
        if result is not None:
            yield pa.RecordBatch.from_pylist([result], schema=schema)

    return reduce
