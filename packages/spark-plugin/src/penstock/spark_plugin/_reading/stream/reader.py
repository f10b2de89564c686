"""The streaming source: offsets that are facts, partitions that read exactly what lies between two of them."""

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.context import Context
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.efo_consumer import (
    DataLossError,
    PositionsSnapshot,
    ShardRange,
    ShardState,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer.errors import ShardFailedError
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.columns import in_layout
from penstock.spark_plugin._reading.reader_numbers import ReaderNumbers, ReleasedShards, SkewProgress, query_metrics
from penstock.spark_plugin._reading.stream.offsets import (
    BatchLimit,
    KnownTips,
    LeastRecords,
    Offset,
    OffsetMemory,
    batch_limit,
    capped,
    default_limit,
    divide_by_cuts,
    group_ranges,
    partition_bounds,
    says_more,
    turnover,
    with_ended,
    worthwhile_partitions,
)
from penstock.spark_plugin._reading.stream.partition import KinesisPartition, read_partition
from penstock.spark_plugin._reading.stream.query_streams import QueryStreams, StreamDiscovery
from penstock.spark_plugin._settings import warn_in_reader
from penstock.spark_plugin._signals import end_with_spark, exit_on_sigterm, ignore_sigterm, limit_collections
from penstock.spark_plugin._spark import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from penstock.spark_plugin._telemetry import parent_context, traceparent_of, tracer
from penstock.spark_plugin._user_errors import rows_with_remedies, with_remedies

if TYPE_CHECKING:
    from penstock.spark_plugin._reading.session.session import ReadingSession
    from penstock.spark_plugin._reading.stream.available_now import AvailableNow, Target

_log = logging.getLogger(__name__)
_QUIET_SECONDS = 10.0
"""How long shards give nothing, although records were there when the query began, before the oldest record that is left
is compared with these; and the time between two such looks."""
_TRIGGER_DELAY_SECONDS = 900.0
_TIPS_PATIENCE_SECONDS = 10.0
"""How long to wait for shards of which nothing is known, while there is nothing else to read."""
_PAUSE_SECONDS = 0.05
"""Between looks at shards that are behind, while others, which are at their end, get more records."""


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches.

    Spark builds several of these, in several processes; only one plans, and there the session is opened when it is
    first needed. The others are pickled into tasks, where `read` needs its partition alone.
    """

    def __init__(
        self,
        options: KinesisOptions,
        *,
        session_factory: Callable[..., Any] | None = None,
        resolve: Callable[[KinesisOptions], StreamPositions] | None = None,
        available_now: Callable[[KinesisOptions], Any] | None = None,
    ) -> None:
        """Make a reader. Tests give it a session, positions to begin at, and where to end, instead of Kinesis' own."""
        limit_collections()
        self._options = options
        self._session_factory = session_factory
        self._resolve = resolve
        self._available_now_factory = available_now
        self._reset()

    def _reset(self) -> None:
        self._session: ReadingSession | None = None
        self._initial: dict[str, Any] | None = None
        self._root: Context | None = None
        self._planned_from_ns: int | None = None
        self._streams = QueryStreams(self._options, self._resolve)
        self._ending: AvailableNow | None = None
        self._offsets = OffsetMemory()
        self._released = ReleasedShards()
        self._discovery: StreamDiscovery | None = None
        self._committed: set[tuple[str, str]] = set()
        self._ended_shards = self._reshards = 0
        delay = self._options.max_trigger_delay
        self._least = LeastRecords(
            self._options.min_records_per_batch or 1, _TRIGGER_DELAY_SECONDS if delay is None else delay
        )
        self._tips = KnownTips(_TIPS_PATIENCE_SECONDS)
        self._skew = SkewProgress()
        self._planned_records = 0
        self._planned_bytes = 0
        self._reached: StreamPositions | None = None
        self._end_metrics: Callable[[], None] = _nothing
        self._consumer_name = ""
        # A lease is taken over by it, and a consumer without a name of its own is named after it.
        is_named = self._options.job_id is not None and self._options.efo_consumer_name is not None
        self._query = "" if is_named or self._options.record_publisher != "efo" else uuid.uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._options = state["options"]
        self._session_factory = None
        self._resolve = None
        self._available_now_factory = None
        self._reset()

    @with_remedies
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: LATEST is resolved once, and is a time in the checkpoint.

        Spark asks twice, before the first micro-batch and again when it plans its partitions; and a third time after a
        crash in that micro-batch. So no session is opened here: the end of that micro-batch is where it has to be.
        """
        if self._initial is None:
            self._initial = Offset(self._streams.initial(), is_initial=True, query=self._query).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRecordsPerBatch` or `maxBytesPerBatch`, as Spark understands them."""
        return default_limit(self._options.max_records_per_batch, self._options.max_bytes_per_batch)

    @with_remedies
    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at what the streams hold now, by the service's clock."""
        self._ending = self._available_now()

    @with_remedies
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """What the reader's buffers hold beyond `start`, within the limit; waits a moment when that is nothing.

        With `Trigger.Once`, which asks for all that is available, it is all that was there at this call.
        """
        began_ns = time.time_ns()
        offset = self._offsets.parse(start)
        positions = self._streams.begin(offset)
        session = self._open(positions, offset)
        session.check()
        if self._ending is None and not isinstance(limit, ReadAllAvailable):
            positions = self._with_found(session, offset, positions)
        bound = batch_limit(
            limit,
            self._options.max_records_per_batch,
            self._options.max_bytes_per_batch,
            self._options.max_records_per_shard_per_batch,
            self._options.max_shard_skew,
        )
        if isinstance(limit, ReadAllAvailable):
            latest = self._to_the_end(session, positions, self._ending or self._available_now())
        elif self._ending is not None:
            latest = self._towards_the_end(session, positions, bound, self._ending)
        else:
            latest = self._when_worthwhile(session, positions, bound)
        self._reached = self._streams.keys.keyed(latest)
        begins_anew = positions is not offset.positions
        if not begins_anew and not says_more(latest, positions):
            return start
        ended, reshards = turnover(positions, latest)
        self._ended_shards, self._reshards = self._ended_shards + ended, self._reshards + reshards
        self._planned_from_ns = began_ns
        # A reader in this process serves only this query.
        epoch = session.reader.epoch if session.reader.endpoint else 0
        return self._offsets.to_json(offset.followed_by(latest, positions if begins_anew else None, epoch, self._query))

    @with_remedies
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets, in few partitions of about equal size.

        After a crash Spark asks for the range that it had logged before anything else: the session is opened at its end
        then, and the range itself is read again from Kinesis.
        """
        first, last = self._offsets.parse(start), self._offsets.parse(end)
        session = self._open(self._streams.begin(last), last, first)
        groups = self._groups(session, *self._streams.readable(first.start_for(last), last.positions))
        span = tracer().start_span("spark_plugin.plan_batch", context=self._root, start_time=self._planned_from_ns)
        self._planned_from_ns = None
        try:
            span.set_attribute("penstock.streams", list(self._streams.options.stream_name))
            span.set_attribute("penstock.ranges", sum(len(group) for group in groups))
            span.set_attribute("penstock.partitions", len(groups))
            return [self._partition(session, group, traceparent_of(span)) for group in groups]
        finally:
            span.end()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, as Arrow batches; the same ones whenever it is asked."""
        if not isinstance(partition, KinesisPartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        return rows_with_remedies(
            in_layout(read_partition(partition, self._options), self._options.columns), self._options
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Let the reader drop what lies before `end`. Comes one micro-batch late, and never for the last one."""
        if self._session is None:
            return
        positions = self._offsets.parse(end).positions
        shards = {(stream, shard) for stream, shards in positions.streams.items() for shard in shards}
        if shards != self._committed:
            # The reader releases shards that have left the positions.
            self._released.look(self._session.reader.stats)
            self._committed = shards
        self._session.reader.commit(self._streams.keys.keyed(positions))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Numbers about the reader, for `lastProgress.sources[].latestOffset`."""
        if self._session is None:
            return None
        failure = self._discovery.failure if self._discovery is not None else ""
        return {
            "streams": list(self._streams.options.stream_name),
            "reader": self._session.address,
            "consumers": len(self._streams.options.stream_name) if self._options.record_publisher == "efo" else 0,
            "shardsEnded": self._ended_shards,
            "reshards": self._reshards,
            **({"efoConsumerName": self._consumer_name} if self._consumer_name else {}),
            **({"streamDiscovery": failure} if failure else {}),
            **self._numbers(self._session).to_json(),
        }

    def stop(self) -> None:
        """End the subscriptions and give the stream consumers back."""
        session, self._session = self._session, None
        if session is not None:
            ignore_sigterm()
            if self._discovery is not None:
                self._discovery.close()
            self._end_metrics()
            session.close()

    def _open(self, named: StreamPositions, *logged: Offset) -> "ReadingSession":
        """The session. The first call opens it at the positions, with what the offsets say of earlier runs."""
        if self._session is None:
            after_epoch = max(offset.epoch for offset in logged)
            if self._query:
                # The start of a first micro-batch is not logged, but its end is: that has the former run's name.
                self._query = next((offset.query for offset in logged if offset.query), self._query)
            options, positions = self._with_consumer(self._streams.options), self._streams.keys.keyed(named)
            exit_on_sigterm()
            end_with_spark()
            warn_in_reader()
            parent = parent_context(options.traceparent)
            with tracer().start_as_current_span(
                "spark_plugin.start_query",
                context=parent,
                attributes={"penstock.streams": list(options.stream_name)},
            ) as span:
                session = self._open_session(options, positions, after_epoch, self._query)
                self._session, self._reached, self._released = session, positions, ReleasedShards()
                span.set_attribute("penstock.reader", session.address)
                if self._options.stream_name_pattern is not None:
                    interval = self._options.stream_discovery_interval
                    self._discovery = StreamDiscovery(self._streams.look, session.prepare, interval)
                self._watch_metrics(session)
                # Without a parent of its own, the query's spans belong to the trace that begins here.
                self._root = parent or trace.set_span_in_context(span)
        return self._session

    def _open_session(self, *about: Any) -> "ReadingSession":
        # Most processes that unpickle a reader never open a session: they do not need this import.
        from penstock.spark_plugin._reading.session.session import ReadingSession

        return (self._session_factory or ReadingSession)(*about)

    def _with_found(self, session: "ReadingSession", offset: Offset, positions: StreamPositions) -> StreamPositions:
        """The positions, with the streams that were found meanwhile: they are read from now on."""
        found = self._discovery.news() if self._discovery is not None else {}
        if not found:
            return positions
        self._streams.add(found)
        positions = self._streams.begin(offset)
        session.extend(self._with_consumer(self._streams.options), self._streams.keys.keyed(positions))
        _log.info("reading %s as well, which match streamNamePattern by now", ", ".join(sorted(found)))
        self._watch_metrics(session)
        return positions

    def _with_consumer(self, options: KinesisOptions) -> KinesisOptions:
        if options.record_publisher != "efo" or options.efo_registration == "none":
            return options
        self._consumer_name = options.consumer_name(self._query)
        if options.efo_consumer_name is None:
            _log.info("no efoConsumerName: this query's checkpoint names the stream consumer %s", self._consumer_name)
        return replace(options, efo_consumer_name=self._consumer_name)

    def _watch_metrics(self, session: "ReadingSession") -> None:
        self._end_metrics()
        self._end_metrics = query_metrics().watch(
            {
                "penstock.session_id": session.session_id,
                "penstock.streams": ",".join(self._streams.options.stream_name),
            },
            lambda: self._numbers(session),
        )

    def _numbers(self, session: "ReadingSession") -> ReaderNumbers:
        stats, released = self._released.look(session.reader.stats)
        return ReaderNumbers.of(stats, self._reached, released, self._skew)

    def _snapshot(
        self, session: "ReadingSession", start: StreamPositions, bound: BatchLimit, *, wait: bool
    ) -> PositionsSnapshot:
        keys = self._streams.keys
        snapshot = session.positions(
            keys.keyed(start),
            max_records=bound.records,
            max_bytes=bound.bytes,
            wait_seconds=self._options.latest_offset_wait if wait else 0,
            max_records_per_shard=bound.records_per_shard,
            max_shard_skew_seconds=bound.shard_skew,
        )
        if snapshot.skew is not None:
            self._skew.note(snapshot.skew, time.monotonic())
        self._planned_records, self._planned_bytes = snapshot.records, snapshot.bytes
        return replace(snapshot, positions=keys.named(snapshot.positions))

    def _when_worthwhile(self, session: "ReadingSession", start: StreamPositions, bound: BatchLimit) -> StreamPositions:
        """The next offset; the start itself while there are no records, or fewer than `minRecordsPerBatch`."""
        until, least = time.monotonic() + self._options.latest_offset_wait, self._options.min_records_per_batch or 1
        while True:
            snapshot = self._snapshot(session, start, bound, wait=True)
            # Of shards that come of others no record is in the same micro-batch as the last ones of these.
            is_full = turnover(start, snapshot.positions)[1] > 0
            if 0 < snapshot.records < least and bound.bytes and not is_full:
                # A limit in bytes may hold fewer records, however many are there.
                whole = self._snapshot(session, start, BatchLimit(shard_skew=bound.shard_skew), wait=False)
                is_full = bound.cuts(whole.records, whole.bytes)
                # What came in between belongs to it, too.
                snapshot = self._snapshot(session, start, bound, wait=False)
            stats, now = session.reader.stats() if snapshot.records < least else [], time.monotonic()
            is_full |= any(one.condition.state is ShardState.STARVED for one in stats)
            if self._least.holds(snapshot.records, now, is_full=is_full):
                if now >= until:
                    return start
            elif (
                snapshot.records
                or says_more(snapshot.positions, start)
                # What waits for a slower shard is there: an answer without records would say that nothing is.
                or not (self._tips.waits(stats, now) or _holds_back(snapshot))
            ):
                return snapshot.positions
            session.check()
            time.sleep(min(_PAUSE_SECONDS, self._options.latest_offset_wait))

    def _available_now(self) -> "AvailableNow":
        if self._available_now_factory is not None:
            return self._available_now_factory(self._streams.options)  # type: ignore[no-any-return]  # a fake in tests
        # The run has to wait from its beginning, and this import takes part of that.
        began = time.monotonic()
        from penstock.spark_plugin._reading.stream.available_now import AvailableNow

        return AvailableNow(self._streams.options, began)

    def _to_the_end(self, session: "ReadingSession", start: StreamPositions, ending: "AvailableNow") -> StreamPositions:
        """Where the run ends, in one step; what no longer fits into the buffers is read again by the tasks."""
        reached, records, nbytes = start, 0, 0
        while (further := self._towards_the_end(session, start, BatchLimit(), ending)).streams != start.streams:
            start, reached = further, with_ended(reached, further)
            records, nbytes = records + self._planned_records, nbytes + self._planned_bytes
        self._planned_records, self._planned_bytes = records, nbytes
        return further if further.streams == reached.streams else reached

    def _towards_the_end(
        self, session: "ReadingSession", start: StreamPositions, bound: BatchLimit, ending: "AvailableNow"
    ) -> StreamPositions:
        """The next offset on the way to where the run ends; the start itself when it is there."""
        target, patience = ending.target(start), self._options.retry_patience
        is_whole, still_since, look_at = True, math.inf, math.inf
        while not target.is_reached(start):
            snapshot = self._snapshot(session, start, bound, wait=True)
            latest = target.cap(snapshot.positions)
            if latest.streams != start.streams:
                return latest
            session.check()
            now = time.monotonic()
            if not self._stands_still(session, target, snapshot):
                still_since = look_at = math.inf
            elif still_since == math.inf:
                still_since, look_at = now, now + _QUIET_SECONDS
            elif now >= look_at:
                look_at = now + _QUIET_SECONDS
                expired = ending.expired(target.needed)
                if expired:
                    self._skip(target, expired, start)
                    is_whole = False
                elif patience and now - still_since >= patience:
                    raise _not_given(target, start, now - still_since)
                elif now - still_since < 2 * _QUIET_SECONDS:
                    names = ", ".join(f"{stream}/{shard}" for stream, shard in sorted(target.needed)[:3])
                    _log.warning("the run waits for records that were there when it began, and do not come: %s", names)
            if snapshot.records:
                time.sleep(_PAUSE_SECONDS)
        return target.with_facts(start) if is_whole else start

    def _stands_still(self, session: "ReadingSession", target: "Target", snapshot: PositionsSnapshot) -> bool:
        """Whether no shard that the run waits for seems to have anything; others may have more, beyond its end."""
        if snapshot.millis_behind_latest == 0:
            return True
        name = self._streams.keys.name
        still = {
            (name(one.stream_name), one.shard_id)
            for one in session.reader.stats()
            if not one.millis_behind_latest or one.condition.state is ShardState.STUCK
        }
        return target.needed.keys() <= still

    def _skip(self, target: "Target", expired: Iterable[tuple[str, str]], start: StreamPositions) -> None:
        """End the run without records that have expired since it began."""
        for stream, shard in sorted(expired):
            lost = DataLossError(
                stream=stream,
                shard_id=shard,
                after=str(start.get(stream, shard)),
                upto=f"record {target.needed.pop((stream, shard))}",
                reason="the record was there when the run began, and expired before it was read",
            )
            if self._options.fail_on_data_loss:
                raise lost
            _log.warning("%s", lost)

    def _groups(
        self, session: "ReadingSession", start: StreamPositions, end: StreamPositions
    ) -> list[tuple[ShardRange, ...]]:
        """The ranges between two offsets, partition by partition."""
        keys = self._streams.keys
        ranges = [keys.keyed_range(one) for one in ranges_between(start, end)]
        least, most = partition_bounds(self._options.min_partitions, self._options.max_partitions)
        if ranges and len(ranges) < least:
            cuts = self._cuts(session, start, end, least)
            return [tuple(keys.keyed_range(one) for one in group) for group in divide_by_cuts(cuts)]
        if self._planned_records:
            # After a restart the size of a logged range is unknown.
            most = worthwhile_partitions(self._planned_bytes, least, most)
        stats = session.reader.stats() if most > 1 else []
        weights = {(one.stream_name, one.shard_id): one.buffered_bytes for one in stats}
        return group_ranges(ranges, weights, most)

    def _cuts(
        self, session: "ReadingSession", start: StreamPositions, end: StreamPositions, count: int
    ) -> list[StreamPositions]:
        """Positions from start to end, with about as many records between each two.

        Only what the buffers hold can be counted: after a restart a range that was logged is not divided.
        """
        bound = BatchLimit(records=max(1, -(-self._planned_records // count)))
        cuts = [start]
        if self._planned_records > 1:
            while len(cuts) < count:
                further = capped(self._snapshot(session, cuts[-1], bound, wait=False).positions, end)
                # A shard that ended in a part stays at its end: without it, the next would have it for a new one.
                cut = with_ended(cuts[-1], further)
                if cut.streams == cuts[-1].streams:
                    break
                cuts.append(cut)
        return [*cuts, end]

    def _partition(
        self, session: "ReadingSession", ranges: tuple[ShardRange, ...], traceparent: str | None
    ) -> KinesisPartition:
        return KinesisPartition(
            address=session.address,
            sockets=session.sockets,
            security=session.security,
            session_id=session.session_id,
            ranges=ranges,
            with_encryption_type=self._options.include_encryption_type,
            traceparent=traceparent,
            patience_seconds=session.reader.patience_seconds,
            away=tuple(session.reader.away),
            deaggregates=session.reader.deaggregates,
            fail_on_data_loss=self._options.fail_on_data_loss,
            retry_patience_seconds=self._options.retry_patience,
        )


def _holds_back(snapshot: PositionsSnapshot) -> bool:
    return snapshot.skew is not None and snapshot.skew.holds_back


def _not_given(target: "Target", start: StreamPositions, seconds: float) -> ShardFailedError:
    (stream, shard), last = min(target.needed.items())
    return ShardFailedError(
        stream=stream,
        shard_id=shard,
        code="RecordNotGiven",
        reason=f"for {seconds:.0f} s (retryPatience) nothing has come after position {start.get(stream, shard)}, "
        f"although the stream still holds records up to {last}: the run would end without them. Start it again",
    )


def _nothing() -> None:
    """Before a session there is nothing to end."""
