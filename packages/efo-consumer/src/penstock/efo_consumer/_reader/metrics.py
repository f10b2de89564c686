"""What readers count beside their publishers: memory, and the time for which they stood still."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from opentelemetry import metrics

from penstock.efo_consumer._model.shards import of_shard

if TYPE_CHECKING:
    from collections.abc import Iterable

_meter = metrics.get_meter("penstock.efo_consumer")


class Buffering(Protocol):
    """A reader, as far as it is observed."""

    @property
    def buffered_bytes(self) -> int:
        """In memory."""
        ...


_readers: weakref.WeakSet[Buffering] = weakref.WeakSet()


def observe(reader: Buffering) -> None:
    """Tell a reader's buffers from now on, for as long as it lives."""
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
