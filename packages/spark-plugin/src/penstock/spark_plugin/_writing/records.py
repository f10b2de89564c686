"""Rows of Spark as records of a sink: columns to columns, and the rows that no destination takes."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.async_sink import FirehoseSink, KinesisStreamsSink
from penstock.efo_consumer import SchemaVersion
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._schema import RECORD_ID, SinkColumns
from penstock.spark_plugin._writing.value_rows import Encoded
from penstock.spark_plugin._writing.value_text import compute, decoded, is_utf8, join
from penstock.spark_plugin._writing.values import ValueEncoder, value_encoder

_RANDOM_KEY_BYTES = 16
_WIDER = " (maxRecordSizeInBytes; a stream may be set to take up to 10m)"


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of one record batch, as the sink takes them."""

    batch: Any
    """A record batch of `data`, and for a Kinesis stream `partitionKey` and perhaps `explicitHashKey`."""
    streams: Any
    """A column of names of streams; None: all go to the stream of the options."""
    first_row: int
    """Of the task's rows, counted from zero."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """Why the value's schema does not take rows, by their place."""


class RecordMaker:
    """Makes records of a task's record batches, in their order."""

    def __init__(
        self,
        columns: SinkColumns,
        options: KinesisOptions,
        *,
        firehose: bool = False,
        schema: SchemaVersion | str | None = None,
        id_prefix: str = "",
    ) -> None:
        self._columns = columns
        self._options = options
        self._has_keys = not firehose
        self._prefix = id_prefix
        self._encode: ValueEncoder | None = value_encoder(options, schema) if options.value_format else None
        self._rows = 0

    def of(self, batch: Any) -> Records:
        """The records of the next record batch."""
        columns, first = self._columns, self._rows
        self._rows += batch.num_rows
        data, faults = self._data(batch, first)
        arrays, names = [data], ["data"]
        if self._has_keys:
            arrays.append(self._keys(batch))
            names.append("partitionKey")
            if columns.explicit_hash_key is not None:
                arrays.append(batch.column(columns.explicit_hash_key).cast(pa.string()))
                names.append("explicitHashKey")
        streams = None if columns.stream_name is None else batch.column(columns.stream_name).cast(pa.string())
        return Records(pa.RecordBatch.from_arrays(arrays, names=names), streams, first, faults)

    def _data(self, batch: Any, first: int) -> Encoded:
        options = self._options
        faults: dict[int, str] = {}
        ids = self._ids(batch.num_rows, first) if options.record_ids else None
        if self._encode is not None:
            data, faults = self._encode(_value(batch, self._columns.value, ids))
        else:
            assert self._columns.data is not None
            data = _as_binary(batch.column(self._columns.data))
            if ids is not None:
                data = join([ids.cast(pa.binary()), data], b"\n")
        if options.record_delimiter is not None:
            data = join([_as_binary(data), options.record_delimiter.encode()], b"")
        return _as_binary(data), faults

    def _ids(self, rows: int, first: int) -> Any:
        return join([self._prefix, pa.array(range(first, first + rows), pa.int64()).cast(pa.string())])

    def _keys(self, batch: Any) -> Any:
        column = self._columns.partition_key
        if column is not None:
            return batch.column(column).cast(pa.string())
        random = os.urandom(_RANDOM_KEY_BYTES * batch.num_rows).hex()
        step = 2 * _RANDOM_KEY_BYTES
        return pa.array([random[at : at + step] for at in range(0, len(random), step)], pa.string())


def by_stream(records: Records, default: str | None) -> Iterator[tuple[str | None, Records]]:
    """The records of each stream; None for those whose stream is null while there is no default."""
    if records.streams is None:
        yield default, records
        return
    streams = records.streams if default is None else compute.fill_null(records.streams, default)
    for name in compute.unique(streams).to_pylist():
        mask = compute.is_null(streams) if name is None else compute.equal(streams, name)
        part = records.batch.filter(compute.fill_null(mask, False))
        yield name, Records(part, streams, records.first_row)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be written, and why."""

    index: int
    """In its record batch."""
    reason: str


def bad_rows(
    batch: Any,
    streams: Any,
    *,
    firehose: bool,
    max_record_bytes: int,
    needs_stream: bool,
    faults: Mapping[int, str] | None = None,
) -> list[BadRow]:
    """The bad rows among records, in their order, each with the first thing that is wrong with it.

    `streams` is the column of streams, or None; with `needs_stream` a null there has no default. `faults` are known.
    """
    found: dict[int, str] = dict(faults or {})
    if streams is not None:
        if not is_utf8(streams):
            readable = pa.array(decoded(streams), pa.string()).cast(pa.binary())
            for index in _places(compute.not_equal(streams.cast(pa.binary()), readable)):
                found[index] = "its stream is not UTF-8"
        for index in _places(compute.equal(streams, "")):
            found[index] = "its stream is empty"
        if needs_stream:
            for index in _places(compute.is_null(streams)):
                found[index] = "its stream is null, and the options name none"
    for fault in (FirehoseSink if firehose else KinesisStreamsSink).row_faults(batch, max_record_bytes):
        for index in _places(fault.wrong):
            if index not in found:
                found[index] = fault.reason(index) + (_WIDER if fault.is_size and not firehose else "")
    return [BadRow(index, found[index]) for index in sorted(found)]


def _places(wrong: Any) -> list[int]:
    places: list[int] = compute.indices_nonzero(wrong).to_pylist()
    return places


def _value(batch: Any, columns: tuple[int, ...], ids: Any) -> Any:
    arrays, names = [batch.column(index) for index in columns], [batch.schema.names[index] for index in columns]
    if ids is not None:
        arrays, names = [ids, *arrays], [RECORD_ID, *names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _as_binary(column: Any) -> Any:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
