"""The streaming source: offsets that are facts, partitions that read exactly what lies between two of them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.context import Context
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from penstock.efo_consumer import PositionsSnapshot, ShardRange, StreamPositions, ranges_between
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._partition import KinesisPartition, read_partition
from penstock.spark_plugin._planning import default_max_partitions, group_ranges
from penstock.spark_plugin._progress import BatchLimit, Offset, batch_limit, capped, default_limit, parse_offset
from penstock.spark_plugin._settings import warn_in_reader
from penstock.spark_plugin._signals import exit_on_sigterm, ignore_sigterm
from penstock.spark_plugin._telemetry import parent_context, traceparent_of, tracer

if TYPE_CHECKING:
    from penstock.spark_plugin._session import ReadingSession

    SessionFactory: TypeAlias = Callable[[KinesisOptions, StreamPositions], ReadingSession]

_QUIET_SECONDS = 10.0
"""After so long without a record, a query that ends at what is available has seen all of it."""


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches.

    Spark builds several of these, in several processes; only one plans, and there the session is opened when it is
    first needed. The others are pickled into tasks, where `read` needs its partition alone.
    """

    def __init__(
        self,
        options: KinesisOptions,
        *,
        session_factory: "SessionFactory | None" = None,
        resolve: Callable[[KinesisOptions], StreamPositions] | None = None,
    ) -> None:
        """Make a reader. Tests give it a session, and positions to begin at, instead of Kinesis' own."""
        self._options = options
        self._session_factory = session_factory
        self._resolve = resolve
        self._reset()

    def _reset(self) -> None:
        self._session: ReadingSession | None = None
        self._initial: dict[str, Any] | None = None
        self._root: Context | None = None
        self._planned_from_ns: int | None = None
        self._until_caught_up = False
        self._target: StreamPositions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._options = state["options"]
        self._session_factory = None
        self._resolve = None
        self._reset()

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: LATEST is resolved once, and stands in the checkpoint as a time.

        Spark asks twice, before the first micro-batch and again when it plans its partitions; and a third time after a
        crash in that micro-batch. So no session is opened here: the end of that micro-batch is where it has to be.
        """
        if self._initial is None:
            if self._resolve is None:
                from penstock.spark_plugin._initial_positions import initial_positions

                self._resolve = initial_positions
            self._initial = Offset(self._resolve(self._options), is_initial=True).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRecordsPerBatch` or `maxBytesPerBatch`, as Spark understands them."""
        return default_limit(self._options.max_records_per_batch, self._options.max_bytes_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query when it has caught up with the streams' tips."""
        self._until_caught_up = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """What the reader's buffers hold beyond `start`, within the limit; waits a moment when that is nothing."""
        began_ns = time.time_ns()
        offset = parse_offset(start, self._options.stream_name)
        positions = offset.positions
        session = self._open(positions)
        session.check()
        bound = batch_limit(limit, self._options.max_records_per_batch, self._options.max_bytes_per_batch)
        if self._until_caught_up:
            latest = self._available_now(session, positions, bound)
        else:
            latest = self._snapshot(session, positions, bound, wait=True).positions
        if latest.streams == positions.streams:
            return start
        self._planned_from_ns = began_ns
        return offset.followed_by(latest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets, in few partitions of about equal size.

        After a crash Spark asks for the range that it had logged before anything else: the session is opened at its end
        then, and the range itself is read again from Kinesis.
        """
        first = parse_offset(start, self._options.stream_name)
        last = parse_offset(end, self._options.stream_name)
        session = self._open(last.positions)
        ranges = ranges_between(first.start_for(last), last.positions)
        span = tracer().start_span("spark_plugin.plan_batch", context=self._root, start_time=self._planned_from_ns)
        self._planned_from_ns = None
        try:
            weights = {(one.stream_name, one.shard_id): one.buffered_bytes for one in session.reader.stats()}
            groups = group_ranges(ranges, weights, self._options.max_partitions or default_max_partitions())
            span.set_attribute("penstock.streams", list(self._options.stream_name))
            span.set_attribute("penstock.ranges", len(ranges))
            span.set_attribute("penstock.partitions", len(groups))
            return [self._partition(session, group, traceparent_of(span)) for group in groups]
        finally:
            span.end()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, as Arrow batches; the same ones whenever it is asked."""
        if not isinstance(partition, KinesisPartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        return read_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Let the reader drop what lies before `end`. Comes one micro-batch late, and never for the last one."""
        if self._session is not None:
            self._session.reader.commit(parse_offset(end, self._options.stream_name).positions)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Numbers about the reader, for `lastProgress.sources[].latestOffset`."""
        if self._session is None:
            return None
        stats = self._session.reader.stats()
        known = [one.millis_behind_latest for one in stats if one.millis_behind_latest >= 0]
        return {
            "millisBehindLatest": max(known, default=-1),
            "shards": len(stats),
            "records": sum(one.records for one in stats),
            "bytes": sum(one.bytes for one in stats),
            "bufferedRecords": sum(one.buffered_records for one in stats),
            "bufferedBytes": sum(one.buffered_bytes for one in stats),
            "subscriptions": sum(one.subscriptions for one in stats),
            "replays": sum(one.replays for one in stats),
        }

    def stop(self) -> None:
        """End the subscriptions and give the stream consumers back."""
        session, self._session = self._session, None
        if session is not None:
            ignore_sigterm()
            session.close()

    def _open(self, positions: StreamPositions) -> "ReadingSession":
        if self._session is None:
            exit_on_sigterm()
            warn_in_reader()
            parent = parent_context(self._options.traceparent)
            with tracer().start_as_current_span(
                "spark_plugin.start_query",
                context=parent,
                attributes={"penstock.streams": list(self._options.stream_name)},
            ) as span:
                self._session = (self._session_factory or _default_session_factory())(self._options, positions)
                # Without a parent of its own, the query's spans belong to the trace that begins here.
                self._root = parent or trace.set_span_in_context(span)
        return self._session

    def _snapshot(
        self, session: "ReadingSession", start: StreamPositions, bound: BatchLimit, *, wait: bool
    ) -> PositionsSnapshot:
        return session.reader.positions(
            start,
            max_records=bound.records,
            max_bytes=bound.bytes,
            wait_seconds=self._options.latest_offset_wait if wait else 0,
        )

    def _available_now(self, session: "ReadingSession", start: StreamPositions, bound: BatchLimit) -> StreamPositions:
        """The next offset on the way to the tip that the streams had when the reader first caught up with it."""
        quiet_since = time.monotonic()
        while True:
            if self._target is None:
                everything = self._snapshot(session, start, BatchLimit(), wait=True)
                # A shard that never had a record may never tell how far it is behind.
                quiet = everything.records == 0 and time.monotonic() - quiet_since > _QUIET_SECONDS
                if everything.millis_behind_latest == 0 or quiet:
                    self._target = everything.positions
                elif everything.records == 0:
                    session.check()
                    continue
            snapshot = self._snapshot(session, start, bound, wait=False)
            return snapshot.positions if self._target is None else capped(snapshot.positions, self._target)

    def _partition(
        self, session: "ReadingSession", ranges: tuple[ShardRange, ...], traceparent: str | None
    ) -> KinesisPartition:
        return KinesisPartition(
            address=session.address,
            security=session.security,
            session_id=session.session_id,
            ranges=ranges,
            with_encryption_type=self._options.include_encryption_type,
            traceparent=traceparent,
        )


def _default_session_factory() -> "SessionFactory":
    # Most processes that unpickle a reader never open a session: they are spared what it imports.
    from penstock.spark_plugin._session import open_session

    return open_session
