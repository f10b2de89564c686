"""Columns of record batches, read as the type that a destination wants."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink.errors import SinkOptionError


def read_column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    """The column, cast if need be.

    Raises:
        SinkOptionError: there is no such column, more than one, or its type cannot be read so.
    """
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise SinkOptionError(name, f"no such column, or more than one, among {', '.join(batch.schema.names)}")
    column = batch.column(index)
    try:
        return column if column.type == kind else pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise SinkOptionError(name, f"{column.type} cannot be read as {kind}: {error}") from error
    except pa.ArrowNotImplementedError as error:
        raise SinkOptionError(name, f"{column.type} cannot be read as {kind}") from error


def first_row(wrong: Any) -> int:
    """The first row for which a boolean column says true; -1 for none."""
    return int(pc.index(wrong, value=True).as_py())
