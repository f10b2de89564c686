"""The progress of queries as OpenTelemetry metrics of the application that started them."""

import threading
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import Meter

from penstock.spark_plugin._reading.progress.listener import KinesisProgress
from penstock.spark_plugin._reading.progress.metrics import COUNTERS, GAUGES, UNKNOWN

INSTRUMENTATION = "penstock.spark_plugin.progress"
OF_BATCHES: Final = {
    "microBatches": ("{batch}", "Micro-batches that ended"),
    "inputRows": ("{record}", "Rows of the micro-batches that ended"),
}
"""Counters beside those of the reader."""


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
            # A reader that was opened anew within the run counts from zero again.
            counter.add(values[name] - counted if values[name] >= counted else values[name], attributes)

    def ended(self, run_id: str) -> None:
        """Forget a run that has ended."""
        with self._lock:
            for key in [key for key in self._counted if key[0] == run_id]:
                del self._counted[key]
