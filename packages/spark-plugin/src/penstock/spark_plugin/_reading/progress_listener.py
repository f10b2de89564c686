"""A listener that reports how Kinesis queries come along: the progress of each, typed."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics
from opentelemetry.metrics import Meter
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from penstock.spark_plugin._reading.reader_numbers import COUNTERS, GAUGES, UNKNOWN, ReaderNumbers

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisProgress:
    """How one Kinesis source of a query has come along, by the query's newest progress."""

    query_id: str
    """The same after a restart from the checkpoint."""
    run_id: str
    query_name: str | None
    batch_id: int
    timestamp: str
    """When the micro-batch began; ISO 8601, UTC."""
    source: int
    """Which of the query's sources, from 0."""
    streams: tuple[str, ...]
    reader: str
    """`host:port` of the reader."""
    input_rows: int
    """Rows of the micro-batch."""
    input_rows_per_second: float
    processed_rows_per_second: float
    numbers: ReaderNumbers

    def _repr_html_(self) -> str:
        return ProgressList([self])._repr_html_()


_COLUMNS: Final = (
    *("query", "batch", "streams", "rows", "rows per second", "shards", "behind the stream: least (ms)"),
    *("average (ms)", "most (ms)", "read, not taken: records", "bytes", "losses", "condition"),
)


class ProgressList(list[KinesisProgress]):
    """The progress of the Kinesis sources of a query; a table in a notebook."""

    def _repr_html_(self) -> str:
        # Here: only notebooks draw.
        from penstock.operator_attributes import html_table

        rows = []
        for one in self:
            numbers = one.numbers
            lags = (
                numbers.min_millis_behind_latest,
                numbers.avg_millis_behind_latest,
                numbers.max_millis_behind_latest,
            )
            rows.append(
                [
                    one.query_name or one.query_id,
                    one.batch_id,
                    ", ".join(one.streams),
                    one.input_rows,
                    f"{one.processed_rows_per_second:.1f}",
                    numbers.shards,
                    *("unknown" if lag == UNKNOWN else lag for lag in lags),
                    numbers.buffered_records,
                    numbers.buffered_bytes,
                    numbers.losses,
                    numbers.condition or numbers.held_back_by or "-",
                ]
            )
        return html_table(_COLUMNS, rows)


ProgressHandler = Callable[[KinesisProgress], None]


def kinesis_progress(
    progress: "StreamingQueryProgress | StreamingQuery | Mapping[str, Any] | None",
) -> ProgressList:
    """The progress of a query's Kinesis sources, one entry each; none of other sources, or before any progress.

    A notebook shows it as a table.

    Takes a query, its `lastProgress`, or one of its `recentProgress`, classic or of Spark Connect.
    """
    if progress is None:
        return ProgressList()
    if not isinstance(progress, StreamingQueryProgress | Mapping):
        return kinesis_progress(progress.lastProgress)
    document: Mapping[str, Any] = progress
    if isinstance(progress, StreamingQueryProgress):
        document = json.loads(progress.json)
    found = ProgressList()
    for place, source in enumerate(document.get("sources", ())):
        report = source.get("latestOffset")
        if isinstance(report, str):
            report = _parsed(report)
        try:
            numbers, streams = ReaderNumbers.from_json(report), tuple(report["streams"])
        except (KeyError, TypeError, ValueError):
            continue  # of another source
        found.append(
            KinesisProgress(
                query_id=str(document["id"]),
                run_id=str(document["runId"]),
                query_name=document.get("name"),
                batch_id=int(document["batchId"]),
                timestamp=str(document["timestamp"]),
                source=place,
                streams=streams,
                reader=str(report.get("reader", "")),
                input_rows=int(source.get("numInputRows", 0)),
                input_rows_per_second=float(source.get("inputRowsPerSecond") or 0.0),
                processed_rows_per_second=float(source.get("processedRowsPerSecond") or 0.0),
                numbers=numbers,
            )
        )
    return found


def _user_records(numbers: ReaderNumbers) -> str:
    """What most streams do not have: user records of aggregates that do not belong to their shard."""
    dropped, delivered = numbers.user_records_of_siblings, numbers.user_records_outside_shard
    return f", {dropped} user records of siblings, {delivered} outside of their shard" if dropped or delivered else ""


def log_progress(progress: KinesisProgress) -> None:
    """Log a line at INFO: the handler of a listener that was given none."""
    numbers = progress.numbers
    _log.info(
        "query %s batch %d: %d rows of %s; %s to %s ms behind (%s on average) on %d shards; "
        "%d records received, %d subscriptions, %d replays, %d losses, %d starved%s%s%s",
        progress.query_name or progress.query_id,
        progress.batch_id,
        progress.input_rows,
        ", ".join(progress.streams),
        numbers.min_millis_behind_latest,
        numbers.max_millis_behind_latest,
        numbers.avg_millis_behind_latest,
        numbers.shards,
        numbers.records,
        numbers.subscriptions,
        numbers.replays,
        numbers.losses,
        numbers.starved,
        _user_records(numbers),
        f"; records wait for {numbers.held_back_by}" if numbers.held_back_by else "",
        f"; {numbers.condition}" if numbers.condition else "",
    )


class KinesisProgressListener(StreamingQueryListener):
    """Hands the progress of Kinesis sources to handlers: `spark.streams.addListener(KinesisProgressListener(…))`.

    Handlers are called on a thread of Spark's, one after the other, and should return soon: `log_progress`, which is
    the default, a `ProgressMetrics`, or functions of your own. One that raises is logged; the others are still called.
    """

    def __init__(self, *handlers: ProgressHandler) -> None:
        self._handlers = handlers or (log_progress,)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report each Kinesis source's progress."""
        for progress in kinesis_progress(event.progress):
            for handler in self._handlers:
                try:
                    handler(progress)
                except Exception:
                    _log.exception("a handler of Kinesis progress failed")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark gives no numbers of an idle query; its `lastProgress` has them."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Let handlers with a method `ended` forget the query."""
        for handler in self._handlers:
            ended = getattr(handler, "ended", None)
            if ended is not None:
                try:
                    ended(str(event.runId))
                except Exception:
                    _log.exception("a handler of Kinesis progress failed")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


INSTRUMENTATION = "penstock.spark_plugin.progress"
OF_BATCHES: Final = {
    "microBatches": ("{batch}", "Micro-batches that ended"),
    "inputRows": ("{record}", "Rows of the micro-batches that ended"),
}
"""Counters beside the reader's."""


class ProgressMetrics:
    """A handler for `KinesisProgressListener`: the numbers of each progress under their own names.

    The attributes are the query's id and name, and its streams; not its shards.

    Args:
        meter: instead of the one of the application's provider.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter(INSTRUMENTATION)
        self._gauges = {name: meter.create_gauge(name, unit, text) for name, (unit, text) in GAUGES.items()}
        self._counters = {name: meter.create_counter(name, unit, text) for name, (unit, text) in COUNTERS.items()}
        self._batches, self._rows = (
            meter.create_counter(name, unit, text) for name, (unit, text) in OF_BATCHES.items()
        )
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, int], dict[str, float]] = {}
        """By run and source: what was reported last. The reader counts from its start on."""

    def __call__(self, progress: KinesisProgress) -> None:
        """Record one progress."""
        attributes = {
            "penstock.query_id": progress.query_id,
            "penstock.query_name": progress.query_name or "",
            "penstock.streams": ",".join(progress.streams),
        }
        values = progress.numbers.values()
        for name, gauge in self._gauges.items():
            if values[name] != UNKNOWN:
                gauge.set(values[name], attributes)
        self._batches.add(1, attributes)
        self._rows.add(progress.input_rows, attributes)
        key = (progress.run_id, progress.source)
        with self._lock:
            before = self._counted.get(key, {})
            self._counted[key] = {name: values[name] for name in self._counters}
        for name, counter in self._counters.items():
            counted = before.get(name, 0)
            # A reader that was opened again within the run counts from zero.
            counter.add(values[name] - counted if values[name] >= counted else values[name], attributes)

    def ended(self, run_id: str) -> None:
        """Forget a run that has ended."""
        with self._lock:
            for key in [key for key in self._counted if key[0] == run_id]:
                del self._counted[key]
