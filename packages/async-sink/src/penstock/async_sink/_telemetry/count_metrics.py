"""What writers have counted, observed when metrics are collected: a request pays for no instrument."""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from opentelemetry import metrics

from penstock.async_sink._telemetry.metrics import SinkMetrics
from penstock.async_sink._telemetry.per_provider import PerProvider

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
    ("numBytesOut", "By", "Bytes of accepted entries", _of("bytes_out")),
    ("numRecordsOut", "{record}", "Accepted entries, each once", _of("records_out")),
    ("numRecordsOutErrors", "{record}", "Entries that came back", _of("failed")),
    ("numRecordsThrottled", "{record}", "Entries refused as too many", _throttled),
    ("numRecordsExpired", "{record}", "Entries given up: time to live", _of("expired")),
    ("numRecordsDeadLettered", "{record}", "Entries the terminal handler took", _of("dead_lettered")),
    ("numRecordsRetried", "{record}", "Entries put back to be sent again", _of("retried")),
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
    """Writers of a meter: those that live, and the sums of those that are gone, as a counter never decreases."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._writers: list[tuple[weakref.ref[object], _Attributes, SinkMetrics]] = []
        self._gone: dict[str, dict[_Attributes, float]] = {name: {} for name, *_ in _COUNTERS}
        self._last_send_time: dict[_Attributes, float] = {}
        for name, unit, description, read in _COUNTERS:
            meter.create_observable_counter(name, [self._reader(name, read)], unit, description)
        meter.create_observable_gauge(_SEND_TIME, [self._send_times], "ms", "Time of the latest request")

    def add(self, owner: object, counted: SinkMetrics, attributes: Mapping[str, str]) -> None:
        """Observe what `owner` counts, for as long as it lives; it is held weakly."""
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
