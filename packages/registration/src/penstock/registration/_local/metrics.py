"""Metrics of a registry's consumers, as of its last sweep."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from opentelemetry import metrics

from penstock.registration._lease import rules as lease_rules
from penstock.registration._lease.record import ConsumerRecord
from penstock.registration._lease.watch import Watch, is_listed

_GAUGES: Final = (
    ("consumers", "{consumer}", "Stream consumers that the registry knows, as of its last sweep"),
    ("leases", "{lease}", "Stream consumers that a job holds, as of the last sweep"),
    (
        "orphanConsumers",
        "{consumer}",
        "Stream consumers of ours that no job holds, and that cost, as of the last sweep",
    ),
)


class SweepMetrics:
    """Counts by stream, replaced by each sweep."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        _make_instruments()
        _swept.add(self)

    def swept(self, records: Iterable[ConsumerRecord], watch: Watch) -> None:
        """Take note of what there is."""
        # Streams without consumers go on with 0 for once more: a series that ends keeps its last value on a graph.
        counts: dict[str, Counter[str]] = {stream: Counter() for stream, found in self.counts.items() if found.total()}
        for record in records:
            found = counts.setdefault(record.stream_name, Counter())
            is_over = watch.is_over(record)
            found["consumers"] += is_listed(record, watch)
            found["leases"] += not is_over
            found["orphanConsumers"] += is_over and lease_rules.is_ours(record, record.consumer_arn)
        self.counts = counts


# A meter keeps what it observes for ever, and asks one instrument of a name alone: registries come and go.
_swept: weakref.WeakSet[SweepMetrics] = weakref.WeakSet()


@cache
def _make_instruments() -> None:
    meter = metrics.get_meter("penstock.registration")
    for name, unit, text in _GAUGES:
        meter.create_observable_gauge(name, [_reader(name)], unit=unit, description=text)


def _reader(name: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
    def read(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        found: Counter[str] = Counter()
        for one in list(_swept):
            for stream, counts in one.counts.items():
                found[stream] += counts[name]
        return [metrics.Observation(count, {"stream": stream}) for stream, count in found.items()]

    return read
