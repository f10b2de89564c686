"""What publishers count, by FLIP-128's names."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import metrics
from opentelemetry.context import Context

from penstock.efo_consumer._model.shards import ShardEvent, of_shard, per_shard
from penstock.efo_consumer._publish.condition import ShardCondition, ShardState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.efo_consumer._reader.local import LocalShardReader
    from penstock.efo_consumer._wire.kpl import DeaggregationCounts


INSTRUMENTATION = "penstock.efo_consumer"
_NOWHERE: Final = Context()

_followed: dict[tuple[str, str], list[ObservedShard]] = {}
"""The shards that this process follows, by stream and shard; a shard may have several followers."""


class ObservedShard(Protocol):
    """A shard that is followed, for metrics."""

    @property
    def millis_behind_latest(self) -> int | None:
        """How far behind its tip; None if unknown."""
        ...

    @property
    def condition(self) -> ShardCondition:
        """What it is doing."""
        ...


@contextmanager
def watched(shard: ObservedShard, *, stream: str, shard_id: str) -> Iterator[None]:
    """Show a shard in the metrics."""
    key = (stream, shard_id)
    _followed.setdefault(key, []).append(shard)
    try:
        yield
    finally:
        left = [one for one in _followed.get(key, ()) if one is not shard]
        if left:
            _followed[key] = left
        else:
            _followed.pop(key, None)


def _lags(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    largest: dict[tuple[tuple[str, str], ...], int] = {}
    for (stream, shard_id), shards in list(_followed.items()):
        key = tuple(of_shard(stream, shard_id).items())
        for shard in list(shards):
            if (millis := shard.millis_behind_latest) is not None:
                largest[key] = max(millis, largest.get(key, 0))
    for key, millis in largest.items():
        yield metrics.Observation(millis, dict(key))


def _conditions(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    # States without a shard are reported as 0: a series that ends is not news to an alert.
    streams = {tuple(of_shard(stream, shard_id).items()) for stream, shard_id in list(_followed)}
    counts = Counter(
        (tuple(of_shard(stream, shard_id).items()), shard.condition.state)
        for (stream, shard_id), shards in list(_followed.items())
        for shard in list(shards)
    )
    for key in streams:
        for state in ShardState:
            if state is not ShardState.ENDED:
                yield metrics.Observation(counts[key, state], {**dict(key), "condition": state.value})


_lock = threading.Lock()


def _new_lock() -> None:
    # Another thread of the parent's may have held it at the fork; and the shards that are followed are the parent's.
    global _lock
    _lock = threading.Lock()
    _followed.clear()


os.register_at_fork(after_in_child=_new_lock)


class _ReadCount:
    """Counts of a stream, or of a shard if shards are distinguished."""

    __slots__ = ("attributes", "records", "size_in_bytes")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes: Final = attributes
        self.records = 0
        self.size_in_bytes = 0


class _ReadCounts:
    """Bytes and records read, for one meter. All readers count here."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._counts: dict[tuple[str, str], _ReadCount] = {}
        meter.create_observable_counter(
            "bytesRead",
            [self._observer("size_in_bytes")],
            unit="By",
            description="Data and partition keys that were read",
        )
        meter.create_observable_counter(
            "recordsRead", [self._observer("records")], unit="{record}", description="Records read"
        )

    def of(self, stream: str, shard_id: str) -> _ReadCount:
        """Where a shard's records are counted."""
        key = (stream, shard_id if per_shard() else "")
        return self._counts.get(key) or self._counts.setdefault(key, _ReadCount(of_shard(stream, shard_id)))

    def _observer(self, field: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        return lambda _: [metrics.Observation(getattr(one, field), one.attributes) for one in [*self._counts.values()]]


@functools.cache
def _read_counts(meter: metrics.Meter | None) -> _ReadCounts:
    """The counts of a meter, or of the application's: a meter keeps the first callbacks of each instrument name."""
    return _ReadCounts(meter or metrics.get_meter(INSTRUMENTATION))


_DEAGGREGATED: Final = {
    "aggregates": ("numberOfAggregatedRecords", "Aggregates that were taken apart"),
    "user_records": ("numberOfDeaggregatedRecords", "User records that aggregates gave"),
    "user_records_of_siblings": (
        "userRecordsOfSiblings",
        "User records of aggregates that were dropped: a producer sends them again to another shard",
    ),
    "user_records_outside_shard": (
        "userRecordsOutsideShard",
        "User records of aggregates that were delivered though their keys belong to another shard",
    ),
    "malformed_user_records": (
        "numberOfMalformedUserRecords",
        "User records of aggregates that were delivered with a key that Kinesis would not accept",
    ),
    "malformed": (
        "numberOfMalformedAggregates",
        "Records that begin like an aggregate and are not: each was delivered whole",
    ),
}
"""By field of `DeaggregationCounts`: the name of its counter, and what it counts."""


class PublisherMetrics:
    """Instruments of the record publishers; without a configured SDK they cost next to nothing."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        self._counts = _read_counts(meter)
        meter = meter or metrics.get_meter(INSTRUMENTATION)
        self._subscriptions = meter.create_counter(
            "subscriptions", unit="{subscription}", description="SubscribeToShard calls that ended, by outcome"
        )
        self._bytes_per_read = meter.create_histogram(
            "bytesPerRead", unit="By", description="Data and partition keys of one event or GetRecords answer"
        )
        self._records_per_read = meter.create_histogram(
            "recordsPerRead", unit="{record}", description="Records of one event or GetRecords answer"
        )
        self._deaggregated = {
            field: meter.create_counter(name, unit="{record}", description=text)
            for field, (name, text) in _DEAGGREGATED.items()
        }
        meter.create_observable_gauge(
            "millisBehindLatest",
            [_lags],
            unit="ms",
            description="How far behind its tip a shard is known to be; of a stream the largest of its shards'",
        )
        meter.create_observable_gauge(
            "shardsByCondition",
            [_conditions],
            unit="{shard}",
            description="Shards that are followed, by what they are doing (attribute `condition`)",
        )

    def subscription_ended(self, *, stream: str, shard_id: str, transport: str, outcome: str) -> None:
        """Count a SubscribeToShard call that ended, or was refused."""
        self._subscriptions.add(1, {**of_shard(stream, shard_id), "transport": transport, "outcome": outcome})

    def event_read(self, event: ShardEvent, *, stream: str, shard_id: str) -> None:
        """Count an event or a GetRecords answer."""
        if records := event.records.num_rows:
            count = self._counts.of(stream, shard_id)
            # Readers of several threads count in one.
            with _lock:
                count.records += records
                count.size_in_bytes += event.nbytes
            # No example of a span: one subscription's has all events of five minutes.
            self._bytes_per_read.record(event.nbytes, count.attributes, _NOWHERE)
            self._records_per_read.record(records, count.attributes, _NOWHERE)

    def deaggregated(self, counts: DeaggregationCounts, *, stream: str, shard_id: str) -> None:
        """Count what taking aggregates apart gave."""
        for field, counter in self._deaggregated.items():
            if number := getattr(counts, field):
                counter.add(number, of_shard(stream, shard_id))


@functools.cache
def publisher_metrics() -> PublisherMetrics:
    """The metrics of the application's meter provider, which may be set later: the API keeps each instrument."""
    return PublisherMetrics()


_meter = metrics.get_meter(INSTRUMENTATION)


_readers: weakref.WeakSet[LocalShardReader] = weakref.WeakSet()


def observe(reader: LocalShardReader) -> None:
    """Report a reader's buffers from now on, while it lives."""
    _readers.add(reader)


def stood_still(seconds: float, *, stream: str, shard_id: str) -> None:
    """Count time for which a shard was not read, because there was no room."""
    _back_pressure.add(seconds, of_shard(stream, shard_id))


def _buffered(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    yield metrics.Observation(sum(reader.buffered_bytes for reader in list(_readers)))


_back_pressure = _meter.create_counter(
    "backPressureSeconds", unit="s", description="Time for which a shard was left unread, because buffers were full"
)
_meter.create_observable_gauge(
    "bufferedBytes", [_buffered], unit="By", description="Records in the memory of the process's readers"
)
