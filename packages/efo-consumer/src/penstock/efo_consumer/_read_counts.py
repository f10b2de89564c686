"""What was read, counted plainly and observed when metrics are collected: an event pays for no counter."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry import metrics

from penstock.efo_consumer._metric_attributes import of_shard, per_shard

_lock = threading.Lock()


def _new_lock() -> None:
    # Another thread of the parent's may have held it at the fork.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class ReadCount:
    """Of a stream, or of a shard where those are told apart."""

    __slots__ = ("attributes", "records", "size_in_bytes")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes: Final = attributes
        self.records = 0
        self.size_in_bytes = 0

    def add(self, records: int, size_in_bytes: int) -> None:
        """Readers of several threads count in one."""
        with _lock:
            self.records += records
            self.size_in_bytes += size_in_bytes


class ReadCounts:
    """Of a meter; whoever reads, counts here."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._counts: dict[tuple[str, str], ReadCount] = {}
        meter.create_observable_counter(
            "bytesRead",
            [self._observer(lambda one: one.size_in_bytes)],
            unit="By",
            description="Data and partition keys that were read",
        )
        meter.create_observable_counter(
            "recordsRead", [self._observer(lambda one: one.records)], unit="{record}", description="Records read"
        )

    def of(self, stream: str, shard_id: str) -> ReadCount:
        """Where a shard's records are counted."""
        key = (stream, shard_id if per_shard() else "")
        return self._counts.get(key) or self._counts.setdefault(key, ReadCount(of_shard(stream, shard_id)))

    def _observer(
        self, value: Callable[[ReadCount], int]
    ) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def observe(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            return [metrics.Observation(value(one), one.attributes) for one in list(self._counts.values())]

        return observe


_of_meters: weakref.WeakKeyDictionary[metrics.Meter, ReadCounts] = weakref.WeakKeyDictionary()
_of_application: list[ReadCounts] = []


def read_counts(meter: metrics.Meter | None, instrumentation: str) -> ReadCounts:
    """Those of a meter; None: of the application's, which keeps the callbacks of the first instrument of a name."""
    if meter is None:
        if not _of_application:
            _of_application.append(ReadCounts(metrics.get_meter(instrumentation)))
        return _of_application[0]
    found = _of_meters.get(meter)
    if found is None:
        found = _of_meters[meter] = ReadCounts(meter)
    return found
