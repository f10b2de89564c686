"""Writes for callers without an event loop, such as Spark tasks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

import pyarrow as pa

from penstock.async_sink._core.entries import elements_of
from penstock.async_sink._core.writer import AsyncSinkBase
from penstock.async_sink._metrics import SinkMetrics
from penstock.async_sink.errors import SinkError
from penstock.rpc import LoopThread


@dataclass(frozen=True)
class WriteSummary:
    """Counts of a call of `write_batches`, of a task, or of several tasks."""

    records: int = 0
    """Acknowledged records, each counted once."""
    bytes: int = 0
    """Bytes of data and partition keys."""
    requests: int = 0
    """Requests sent."""
    retries: int = 0
    """Records that were sent again, counted each time."""
    throttled: int = 0
    """Records that were refused because the destination was full, counted each time."""
    dead_letters: int = 0
    """Records that the terminal record handler took; not included in `records`."""
    seconds: float = 0.0
    """From the first batch to the last acknowledgement."""

    @classmethod
    def of(cls, metrics: SinkMetrics, seconds: float = 0.0) -> Self:
        """The counts of a writer."""
        return cls(
            metrics.records_out,
            metrics.bytes_out,
            metrics.requests,
            metrics.retried,
            metrics.throttled,
            metrics.dead_lettered,
            seconds,
        )

    @classmethod
    def total(cls, summaries: "Iterable[WriteSummary]") -> Self:
        """The sum of concurrent summaries; `seconds` is the longest time."""
        sums = cls()
        for one in summaries:
            sums = cls(
                sums.records + one.records,
                sums.bytes + one.bytes,
                sums.requests + one.requests,
                sums.retries + one.retries,
                sums.throttled + one.throttled,
                sums.dead_letters + one.dead_letters,
                max(sums.seconds, one.seconds),
            )
        return sums

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.bytes} bytes, {self.requests} requests, {self.retries} retries, "
            f"{self.throttled} throttled, {self.dead_letters} dead letters, {self.seconds:.3f} s"
        )


def _record_batches(given: Any) -> Iterator[pa.RecordBatch]:
    arrow = (pa.RecordBatch, pa.Table)
    for one in [given] if isinstance(given, arrow) else elements_of(given, has_converter=False):
        if not isinstance(one, arrow):
            reason = "expected record batches or tables of Arrow; a writer's `write_many` takes elements"
            raise SinkError.of("NOT_ELEMENTS", type=type(one).__name__, reason=reason)
        yield from one.to_batches() if isinstance(one, pa.Table) else [one]


def write_batches(
    sink: AsyncSinkBase[Any, Any], batches: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table]
) -> WriteSummary:
    """Write a record batch, a table, or several of them; return when the destination has acknowledged every record, or
    a handler has taken it.

    For code without an event loop: the requests run on a loop in a thread of their own while the caller's thread makes
    the next batch. The columns are the same as for the writer's `write_many`: for Kinesis `data` binary, `partitionKey`
    string, and `explicitHashKey` string where wanted. The caller's trace context is the parent of the requests' spans.

    Raises:
        SinkError: NOT_ELEMENTS: what is written is something else, such as a DataFrame or a list of elements.
        SinkOptionError: a column is missing or of a type that cannot be read.
        RecordError: a record cannot be written as it is; names the record.
        RecordsRejectedError: the destination refused records permanently; the error names them.
        SinkError: the destination refused a request permanently, or stayed unreachable. Records may have been
            written nevertheless: delivery is at least once.
    """
    began = monotonic()
    with LoopThread("async-sink") as loop:
        writer = sink.create_writer()
        loop.call(writer.__aenter__())
        try:
            for batch in _record_batches(batches):
                loop.call(writer.write_many(batch))
            loop.call(writer.flush(end_of_input=True))
        finally:
            loop.call(writer.close())
    return WriteSummary.of(writer.metrics, monotonic() - began)
