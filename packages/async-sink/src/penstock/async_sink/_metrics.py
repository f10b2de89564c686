"""Numbers about writers, and how OpenTelemetry observes them."""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from opentelemetry import metrics


@dataclass
class SinkMetrics:
    """Counts since the writer was created. Updated by the writer; read-only for callers."""

    records_out: int = 0
    """Entries that the destination has accepted, each counted once however often it was sent: the metric
    numRecordsAcknowledged."""
    bytes_out: int = 0
    """Bytes of those entries: the metric numBytesAcknowledged."""
    submitted: int = 0
    """Entries sent, counted again each time: FLIP-171's numRecordsOut."""
    bytes_submitted: int = 0
    """Bytes sent, counted again each time: FLIP-171's numBytesOut."""
    requests: int = 0
    """Requests sent."""
    failed: int = 0
    """Entries that were not accepted, counted each time (numRecordsOutErrors)."""
    retried: int = 0
    """Entries that were sent again, counted each time."""
    throttled: int = 0
    """Entries that were refused because the destination was full, counted each time."""
    rejected: int = 0
    """Entries that were abandoned because the destination refused them permanently or too often."""
    expired: int = 0
    """Entries that were abandoned because their time to live had expired."""
    dead_lettered: int = 0
    """Entries that the terminal record handler took."""
    timed_out: int = 0
    """Requests without an answer in time."""
    signs_of_life: int = 0
    """Times that a sink gateway reported progress, or that the strategy held entries back by a rate of
    its own: no answer comes meanwhile, though nothing is wrong. Not after a request that failed as a whole, unless the
    destination was full."""
    last_failure: str = ""
    """Code and message of the latest failure of an entry; empty before the first."""
    current_send_time_ms: float = 0.0
    """Milliseconds that the latest request took, whether it succeeded or not (currentSendTime)."""
    max_batch_size: int = 1
    """The largest request, for `fill_ratio`."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Accepted entries by the number of their submissions."""
    flush_reasons: Counter[str] = field(default_factory=Counter)
    """Requests by why they left: `size`, `bytes`, `time`, `flush`, `retry`, `full` (a caller waited for room), `pace`
    (shards got new tokens), `order` (what stood before them with their key was settled), `bisected` (part of a request
    that was refused whole)."""
    throttled_by_lane: Counter[str] = field(default_factory=Counter)
    """Throttled entries by lane (shard), counted again each time; where the destination names it."""
    throttled_elsewhere: int = 0
    """Throttled entries whose lane the destination did not name."""
    blocked_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by reason. Callers that waited for room, each on its own: `buffer_records`, `buffer_bytes`, and for the
    share of their lane or key `buffer_lane`, `buffer_key`. Requests that were due and had to wait: `rate` (the
    strategy), `requests_in_flight`, `back_off` (strict order)."""

    @property
    def fill_ratio(self) -> float:
        """Mean size of requests as a share of the largest request; 0 before the first."""
        return self.submitted / (self.requests * self.max_batch_size) if self.requests else 0.0


@dataclass(frozen=True, kw_only=True)
class HeldRecord:
    """The record that keeps a flush waiting: of those that are not settled, the one that was written first."""

    record_number: int
    """Counts the writer's records from zero."""
    seconds: float
    """How long it has been the first one, or how long a flush has waited, whichever is longer."""
    reason: str
    """What it waits for: `answer` of a request, `back_off` after a failure, `lane` (its shard has no room), `order`
    (another record of its key), `rate` (the strategy), `requests_in_flight`, `bisected` (its turn after a request was
    refused whole), `terminal_handler`, `batch` (it leaves next)."""
    attempts: int
    """Submissions so far."""
    error_code: str
    """Code of its latest failure; empty before the first."""
    lane: str
    """Part of the destination (the shard) that it goes to; empty where that is not known."""
    records: int
    """All records that are not settled."""


@dataclass(frozen=True, kw_only=True)
class SinkGauges:
    """The current state of a writer."""

    buffer_records: int
    """Entries that wait."""
    buffer_bytes: int
    """Their bytes."""
    buffer_age_seconds: float
    """Seconds since the oldest waiting entry was written; 0 if none waits."""
    in_flight_requests: int
    """Requests without an answer."""
    in_flight_messages: int
    """Their entries."""
    limit: int | None
    """The strategy's limit, in its own unit; None when it has none."""
    held: HeldRecord | None = None
    """The record that has kept a flush, or the records after it, waiting for 5 s or longer; looked at every 2.5 s."""

    @property
    def held_seconds(self) -> float:
        """How long the held record has waited; 0 without one."""
        return 0.0 if self.held is None else self.held.seconds


T = TypeVar("T")

SCOPE: Final = "penstock.async_sink"


class PerProvider(Generic[T]):
    """One object for each meter provider, made from its meter and freed with it."""

    def __init__(self, make: Callable[[metrics.Meter], T]) -> None:
        self._make = make
        # Made now: writers of several threads come at the same time.
        self._of_application = make(metrics.get_meter(SCOPE))
        self._of_others: weakref.WeakKeyDictionary[metrics.MeterProvider, T] = weakref.WeakKeyDictionary()

    def of(self, provider: metrics.MeterProvider | None) -> T:
        """That of a provider; None: of the application's, set before or after."""
        if provider is None:
            return self._of_application
        found = self._of_others.get(provider)
        if found is None:
            found = self._of_others[provider] = self._make(metrics.get_meter(SCOPE, meter_provider=provider))
        return found


_Attributes = tuple[tuple[str, str], ...]
_Read = Callable[[SinkMetrics], Iterable[tuple[_Attributes, float]]]


def _of(field: str) -> _Read:
    return lambda counted: [((), getattr(counted, field))]


def _by(attribute: str, field: str) -> _Read:
    return lambda counted: [(((attribute, key),), value) for key, value in list(getattr(counted, field).items())]


def _throttled(counted: SinkMetrics) -> Iterator[tuple[_Attributes, float]]:
    lanes = list(counted.throttled_by_lane.items())
    yield from (((("shard", lane),), count) for lane, count in lanes)
    yield (), counted.throttled_elsewhere


_COUNTERS: Final[tuple[tuple[str, str, str, _Read], ...]] = (
    # As FLIP-171 defines these two: what was sent, whether it was accepted or not.
    ("numBytesOut", "By", "Bytes sent, each time", _of("bytes_submitted")),
    ("numRecordsOut", "{record}", "Entries sent, each time", _of("submitted")),
    ("numBytesAcknowledged", "By", "Bytes of accepted entries", _of("bytes_out")),
    ("numRecordsAcknowledged", "{record}", "Accepted entries, each once", _of("records_out")),
    ("numRecordsOutErrors", "{record}", "Entries that came back", _of("failed")),
    ("numRecordsThrottled", "{record}", "Entries refused as too many", _throttled),
    ("numRecordsExpired", "{record}", "Entries that expired: time to live", _of("expired")),
    ("numRecordsDeadLettered", "{record}", "Entries the terminal handler took", _of("dead_lettered")),
    ("numRecordsRetried", "{record}", "Entries sent again", _of("retried")),
    ("blockedTime", "s", "Waits, by reason", _by("reason", "blocked_seconds")),
    ("numRequests", "{request}", "Requests, by why they left", _by("reason", "flush_reasons")),
)
_SEND_TIME: Final = "currentSendTime"
_lock = threading.Lock()


def _new_lock() -> None:
    # Another thread of the parent's may have held it at the fork.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class CountedWriters:
    """Writers of a meter: live writers, and the sums of freed ones, because a counter never decreases."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._writers: list[tuple[weakref.ref[object], _Attributes, SinkMetrics]] = []
        self._gone: dict[str, dict[_Attributes, float]] = {name: {} for name, *_ in _COUNTERS}
        self._last_send_time: dict[_Attributes, float] = {}
        for name, unit, description, read in _COUNTERS:
            meter.create_observable_counter(name, [self._reader(name, read)], unit, description)
        meter.create_observable_gauge(_SEND_TIME, [self._send_times], "ms", "Time of the latest request")

    def add(self, owner: object, counted: SinkMetrics, attributes: Mapping[str, str]) -> None:
        """Observe the counts of `owner` while it exists; it is referenced weakly."""
        with _lock:
            self._let_go()
            self._writers.append((weakref.ref(owner), tuple(sorted(attributes.items())), counted))

    def _let_go(self) -> None:
        kept = []
        for each in self._writers:
            reference, stream, counted = each
            if reference() is not None:
                kept.append(each)
                continue
            for name, _, _, read in _COUNTERS:
                _sum_up(self._gone[name], stream, read(counted))
            if _was_answered(counted):
                self._last_send_time[stream] = counted.current_send_time_ms
        self._writers = kept

    def _reader(self, name: str, read: _Read) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def observe(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            with _lock:
                self._let_go()
                found = dict(self._gone[name])
                for _, stream, counted in self._writers:
                    _sum_up(found, stream, read(counted))
            return [metrics.Observation(value, dict(key)) for key, value in found.items()]

        return observe

    def _send_times(self, _options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        with _lock:
            self._let_go()
            living: dict[_Attributes, float] = {}
            for _, stream, counted in self._writers:
                if _was_answered(counted):
                    living[stream] = max(living.get(stream, 0.0), counted.current_send_time_ms)
            found = {**self._last_send_time, **living}
        return [metrics.Observation(value, dict(key)) for key, value in found.items()]


def _was_answered(counted: SinkMetrics) -> bool:
    return bool(counted.records_out or counted.failed)


def _sum_up(sums: dict[_Attributes, float], stream: _Attributes, counts: Iterable[tuple[_Attributes, float]]) -> None:
    for attributes, value in counts:
        if value:
            key = stream + attributes
            sums[key] = sums.get(key, 0) + value


counted_writers: Final = PerProvider(CountedWriters)


_GAUGES: Final = (
    ("bufferedRecords", "{record}", "Entries that wait", "buffer_records"),
    ("bufferedBytes", "By", "Bytes that wait", "buffer_bytes"),
    ("bufferAge", "s", "Age of the oldest entry that waits", "buffer_age_seconds"),
    ("heldRecordTime", "s", "Wait of the record that holds a flush", "held_seconds"),
    ("inFlightRequests", "{request}", "Requests without an answer", "in_flight_requests"),
    ("inFlightMessages", "{record}", "Entries without an answer", "in_flight_messages"),
    ("rateLimit", "{record}", "The strategy's limit", "limit"),
)


class WatchedWriters:
    """Writers of a meter. A meter keeps the callbacks of the first instrument of a name alone, and for ever."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._writers: dict[weakref.WeakMethod[Callable[[], SinkGauges]], Mapping[str, str]] = {}
        for name, unit, description, number in _GAUGES:
            meter.create_observable_gauge(name, [self._reader(number)], unit, description)

    def add(self, gauges: Callable[[], SinkGauges], attributes: Mapping[str, str]) -> None:
        """Observe a writer, by its bound method, for as long as it lives."""
        self._writers[weakref.WeakMethod(gauges, lambda gone: self._writers.pop(gone, None))] = attributes

    def _reader(self, field: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def read(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            found: dict[tuple[tuple[str, str], ...], float] = {}
            for reference, attributes in list(self._writers.items()):
                gauges = reference()
                value = None if gauges is None else getattr(gauges(), field)
                if value is not None:
                    key = tuple(sorted(attributes.items()))
                    before = found.get(key, 0)
                    # Writers of one stream hold what they hold together; their oldest entry is the oldest of all.
                    found[key] = max(before, value) if field.endswith("_seconds") else before + value
            return [metrics.Observation(value, dict(key)) for key, value in found.items()]

        return read


watched_writers: Final = PerProvider(WatchedWriters)


class Distributions:
    """Histograms of a meter, shared by its writers."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.fill = meter.create_histogram("batchFillRatio", "1", "Share of the largest request's entries")
        self.attempts = meter.create_histogram("recordAttempts", "{attempt}", "Submissions of accepted entries")
        self.round_trip = meter.create_histogram("requestRoundTrip", "ms", "Time of requests")


distributions: Final = PerProvider(Distributions)
