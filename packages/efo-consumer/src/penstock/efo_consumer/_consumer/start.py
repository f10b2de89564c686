"""Where a `Consumer` begins: at its checkpoint, and in streams that have none at the start that it was given."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from penstock.efo_consumer._consumer.checkpoint import merged, within
from penstock.efo_consumer._model.metric_attributes import of_shard, per_shard
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer._start.initial import resolve_initial_positions
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.aws import AwsSession
    from penstock.efo_consumer._start.position import StartingPosition


async def begin(
    session: AwsSession,
    streams: Sequence[str],
    saved: StreamPositions | None,
    start: StreamPositions | StartingPosition | str | Mapping[str, StartingPosition | str],
) -> StreamPositions:
    """Give a position in each of the streams.

    Args:
        session: to Kinesis, which is asked only for streams without a checkpoint.
        streams: their names.
        saved: the checkpoint; other streams in it are left out.
        start: for streams without a checkpoint; a mapping has one for each of those.

    Raises:
        EfoConsumerConfigError: a stream has neither a checkpoint nor a start.
        InitialPositionError: the start cannot be resolved.
    """
    given = start if isinstance(start, StreamPositions) else StreamPositions({})
    found = within(given if saved is None else merged(given, saved), streams)
    new = [stream for stream in streams if stream not in found.streams]
    for stream, one in _starts(new, start).items():
        resolved = await asyncio.to_thread(resolve_initial_positions, session, [stream], one)
        found = merged(found, resolved)
    return found


def _starts(
    new: Sequence[str], start: StreamPositions | StartingPosition | str | Mapping[str, StartingPosition | str]
) -> dict[str, StartingPosition | str]:
    if isinstance(start, StreamPositions):
        missing, starts = list(new), {}
    elif isinstance(start, Mapping):
        missing, starts = [stream for stream in new if stream not in start], {**start}
    else:
        return dict.fromkeys(new, start)
    if missing:
        raise EfoConsumerConfigError(option="start", reason=f"has no positions in {', '.join(missing)}")
    return {stream: starts[stream] for stream in new}


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
