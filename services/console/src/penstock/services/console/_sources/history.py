"""The last values of many series, and which series the services' answers make."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.services.console._values import Reading, name_of

if TYPE_CHECKING:
    from penstock.efo_consumer import SessionInfo
    from penstock.services.console._values import Answer, SinkDestination

Series = tuple[str, ...]


class History:
    """A ring of values per series. The series that got no value for longest is forgotten when there are too many.

    Args:
        points: values that a series keeps.
        max_series: series that are kept: each takes 8 bytes a point.
    """

    def __init__(self, *, points: int = 120, max_series: int = 20_000) -> None:
        self.points = points
        self._max_series = max_series
        self._rings: OrderedDict[Series, _Ring] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rings)

    def add(self, values: Mapping[Series, float | None]) -> None:
        """Add a value to each of the series; None where it is not known."""
        for series, value in values.items():
            ring = self._rings.get(series)
            if ring is None:
                ring = self._rings[series] = _Ring(self.points)
            ring.add(math.nan if value is None else value)
            self._rings.move_to_end(series)
        while len(self._rings) > self._max_series:
            self._rings.popitem(last=False)

    def gap(self, *begin: str) -> None:
        """Add to each series whose name begins so that its value is not known."""
        for series, ring in self._rings.items():
            if series[: len(begin)] == begin:
                ring.add(math.nan)

    def values(self, series: Series) -> list[float | None]:
        """The values, oldest first, None where one is not known; none for a series that is not known."""
        ring = self._rings.get(series)
        return [] if ring is None else [None if math.isnan(value) else value for value in ring.values()]


class _Ring:
    __slots__ = ("_at", "_values")

    def __init__(self, points: int) -> None:
        self._values = array("d")
        # Where the oldest is, in a ring that is full. Below 0: places that are still free.
        self._at = -points

    def add(self, value: float) -> None:
        if self._at < 0:
            self._values.append(value)
            self._at += 1
            return
        self._values[self._at] = value
        self._at = (self._at + 1) % len(self._values)

    def values(self) -> array[float]:
        at = max(0, self._at)
        return self._values[at:] + self._values[:at]


_COUNTERS: dict[str, Callable[[SinkDestination], int]] = {
    "records": lambda sink: sink.records_out,
    "bytes": lambda sink: sink.bytes_out,
    "throttled": lambda sink: sink.throttled,
    "lost": lambda sink: sink.given_up + sink.dead_lettered,
}


def lag_seconds(millis: int) -> float | None:
    """Of `millis_behind_latest`: None when not known."""
    return None if millis < 0 else millis / 1000


def lags(endpoint: str, sessions: Sequence[SessionInfo] | None) -> dict[Series, float | None]:
    """The lag of each shard that a reader reads, and the largest of each stream."""
    values: dict[Series, float | None] = {}
    for session in sessions or ():
        for stats in session.shards:
            lag = lag_seconds(stats.millis_behind_latest)
            values[Reading(endpoint=endpoint, session_id=session.session_id, stats=stats).series] = lag
            stream = stream_lag_series(endpoint, name_of(stats.stream_name))
            known = [one for one in (lag, values.get(stream)) if one is not None]
            values[stream] = max(known, default=None)
    return values


def stream_lag_series(endpoint: str, stream: str) -> Series:
    """Names the largest lag of a stream's shards."""
    return ("stream-lag", endpoint, stream)


def sink_series(endpoint: str, sink: SinkDestination, what: str) -> Series:
    """Names a rate (`records`, `bytes`, `throttled`, `lost`) or the `limit` of a destination."""
    return ("sink", endpoint, sink.kind, sink.destination, what)


class Rates:
    """Rates of counters, from one answer to the next."""

    def __init__(self) -> None:
        self._of_source: dict[str, set[Series]] = {}
        self._before: dict[Series, tuple[float, float]] = {}
        self.per_second: dict[Series, float] = {}
        """The newest rate of each series that has one."""

    def take(self, answer: Answer[tuple[SinkDestination, ...]], now: float) -> dict[Series, float | None]:
        """What the history gets. A rate is None before there are two answers, and when a gateway began anew."""
        values: dict[Series, float | None] = {}
        counted: dict[Series, tuple[float, float]] = {}
        for sink in answer.value or ():
            values[sink_series(answer.endpoint, sink, "limit")] = float(sink.limit_entries)
            for what, count in _COUNTERS.items():
                series = sink_series(answer.endpoint, sink, what)
                counted[series] = (now, float(count(sink)))
                values[series] = self._rate(series, now, counted[series][1])
        for known in [one for one in self._before if one[:2] == ("sink", answer.endpoint)]:
            del self._before[known]
            self.per_second.pop(known, None)
        self._before |= counted
        self.per_second |= {series: rate for series, rate in values.items() if series in counted and rate is not None}
        return values

    def take_readings(self, source: str, readers: Iterable[tuple[str, Sequence[SessionInfo]]], now: float) -> None:
        """Take what readers have received, and what was taken of their buffers; by the series of each reading.

        Args:
            source: who told of them; those that it tells no more are forgotten.
            readers: the sessions of each, by its endpoint.
            now: monotonic seconds.
        """
        counted: dict[Series, tuple[float, float]] = {}
        for endpoint, sessions in readers:
            for session in sessions:
                for stats in session.shards:
                    series = Reading(endpoint=endpoint, session_id=session.session_id, stats=stats).series
                    taken = stats.bytes - stats.buffered_bytes
                    for what, count in (("records", stats.records), ("bytes", stats.bytes), ("taken", taken)):
                        counted[*series, what] = (now, float(count))
        rates = {series: self._rate(series, *value) for series, value in counted.items()}
        for gone in self._of_source.get(source, set()):
            self._before.pop(gone, None)
            self.per_second.pop(gone, None)
        self._of_source[source] = set(counted)
        self._before |= counted
        self.per_second |= {series: rate for series, rate in rates.items() if rate is not None}

    def _rate(self, series: Series, now: float, count: float) -> float | None:
        at, before = self._before.get(series, (now, count))
        return (count - before) / (now - at) if now > at and count >= before else None
