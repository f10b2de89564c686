"""What writers hold at this moment, observed: one instrument a name, whatever the number of writers."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry import metrics

from penstock.async_sink._telemetry.metrics import SinkGauges
from penstock.async_sink._telemetry.per_provider import PerProvider

_GAUGES: Final = (
    ("bufferedRecords", "{record}", "Entries that wait", "buffer_records"),
    ("bufferedBytes", "By", "Bytes that wait", "buffer_bytes"),
    ("bufferAge", "s", "Age of the oldest entry that waits", "buffer_age_seconds"),
    ("inFlightRequests", "{request}", "Requests without an answer", "in_flight_requests"),
    ("inFlightMessages", "{record}", "Entries without an answer", "in_flight_messages"),
    ("rateLimit", "{record}", "The strategy's limit", "limit"),
)


class WatchedWriters:
    """Writers of a meter. A meter keeps the callbacks of the first instrument of a name alone, and for ever."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._writers: dict[weakref.WeakMethod[Callable[[], SinkGauges]], Mapping[str, str]] = {}
        for name, unit, description, field in _GAUGES:
            meter.create_observable_gauge(name, [self._reader(field)], unit, description)

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
                    found[key] = max(before, value) if field == "buffer_age_seconds" else before + value
            return [metrics.Observation(value, dict(key)) for key, value in found.items()]

        return read


watched_writers: Final = PerProvider(WatchedWriters)
