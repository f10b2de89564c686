"""Rows of Spark as records of a sink: columns to columns, their ids, and the rows that no destination takes."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.async_sink import RowFault
from penstock.efo_consumer import SchemaVersion
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._schema import RECORD_ID, SinkColumns
from penstock.spark_plugin._telemetry import task_property
from penstock.spark_plugin._writing.value_rows import Encoded
from penstock.spark_plugin._writing.value_text import compute, decoded, is_utf8, join
from penstock.spark_plugin._writing.values import ValueEncoder, value_encoder

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """Which part of which write runs here."""

    job: str
    """The id of the query, or of the job for a write that is not a stream."""
    batch: int
    """Number of the micro-batch; 0 for a write that is not a stream."""
    partition: int
    attempt: int
    """Counts the task's attempts from zero: not part of its records' ids."""
    query: str = ""
    """The query's id, for a write in its `foreachBatch` that is named by its job. Of dead letters alone, as are those
    below: ids are the same each time."""
    run: str = ""
    """The query's run, for such a write, if it is known: a micro-batch that runs again does so in another run."""
    write: str = ""
    """Tells writes apart that go by the same name."""
    is_stream: bool = False
    """Whether it is of a query's own sink, which writes under the same name again when its micro-batch runs again."""

    @property
    def record_prefix(self) -> str:
        """What the ids of the task's records begin with."""
        return f"{self.job}-{self.batch}-{self.partition}-"


def this_attempt(job: str | None, write_id: str, *, is_stream: bool) -> WriteAttempt:
    """The attempt of the Spark task that runs here.

    Args:
        job: The name that the user gave to writes that are not a query's.
        write_id: Of this write alone, and of all of its tasks.
        is_stream: Whether this is the query's own sink, not a write in its `foreachBatch`.
    """
    from pyspark import TaskContext

    query = task_property("sql.streaming.queryId") or ""
    batch = task_property("streaming.sql.batchId")
    in_query = bool(query and batch)
    # Whatever writes in a `foreachBatch` has the properties of the query.
    by_query = in_query and (is_stream or job is None)
    name = (query if by_query else None) or job or write_id
    is_named = in_query and not by_query
    task = TaskContext.get()
    return WriteAttempt(
        name,
        int(batch or 0) if in_query else 0,
        task.partitionId() if task is not None else 0,
        task.attemptNumber() if task is not None else 0,
        # With a new checkpoint micro-batches are counted from zero, and are others.
        query=query if is_named else "",
        run=_run() if is_named else "",
        write="" if is_stream or name == write_id else _short(write_id) if is_named else write_id,
        is_stream=is_stream,
    )


def _run() -> str:
    """The query's run, by its group of jobs; empty where `foreachBatch` has set a group of its own for its writes."""
    group = task_property("spark.jobGroup.id") or ""
    # Spark's own group is the run's id, and a stop interrupts its tasks; groups of users are seldom like that.
    is_the_querys = _RUN_ID.fullmatch(group) and task_property("spark.job.interruptOnCancel") == "true"
    return _short(group) if is_the_querys else ""


def _short(text: str) -> str:
    # Names of files are 255 bytes at most, and the job's is the user's.
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def split_record_id(data: bytes) -> tuple[str, bytes]:
    """The id and the data of a record that was written with `recordIds` and without `valueFormat`.

    Raises:
        ValueError: the data does not begin with an id.
    """
    head, found, rest = data.partition(b"\n")
    if not found or head.count(b"-") < 3:
        raise ValueError("the data does not begin with a record id and a line break")
    return head.decode(), rest


_RANDOM_KEY_BYTES = 16
_WIDER = " (maxRecordSizeInBytes; a stream may be set to take up to 10m)"


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of one record batch, as the sink takes them."""

    batch: Any
    """A record batch of the columns that the destination's sink takes, such as `data` and `partitionKey`."""
    streams: Any
    """A column of names of streams; None: all go to the stream of the options."""
    first_row: int
    """Number of the first row in the task, counted from zero."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """Why the value's schema does not take rows, by their place."""


class RecordMaker:
    """Makes records of a task's record batches, in their order."""

    def __init__(
        self,
        columns: SinkColumns,
        options: KinesisOptions,
        *,
        kind: str = "kinesis",
        schema: SchemaVersion | str | None = None,
        id_prefix: str = "",
    ) -> None:
        self._columns = columns
        self._options = options
        self._kind = kind
        self._prefix = id_prefix
        self._encode: ValueEncoder | None = value_encoder(options, schema) if options.value_format else None
        self._rows = 0

    def of(self, batch: Any) -> Records:
        """The records of the next record batch."""
        columns, first = self._columns, self._rows
        self._rows += batch.num_rows
        if self._kind == "dynamodb":
            return Records(batch, None, first)
        data, faults = self._data(batch, first)
        arrays, names = [data], ["data"]
        if self._kind == "sqs":
            # The sink checks whether it is UTF-8, row by row.
            arrays, names = [compute.cast(data, pa.string(), safe=False)], ["body"]
            arrays += [batch.column(index) for index in columns.message]
            names += [batch.schema.names[index] for index in columns.message]
        if self._kind == "kinesis":
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
    """The records of each stream; None for records whose stream is null without a default."""
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
    row_faults: Callable[[Any, int], Iterator[RowFault]],
    max_record_bytes: int,
    needs_stream: bool,
    faults: Mapping[int, str] | None = None,
) -> list[BadRow]:
    """The bad rows among records, in their order, each with the first thing that is wrong with it.

    `streams` is the column of streams, or None; with `needs_stream` a null there has no default. `row_faults` finds
    those that break a rule of the destination. `faults` are known.
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
    for fault in row_faults(batch, max_record_bytes):
        wider = _WIDER if fault.is_size and "partitionKey" in batch.schema.names else ""
        for index in _places(fault.wrong):
            if index not in found:
                found[index] = fault.reason(index) + wider
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
