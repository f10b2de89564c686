"""Series of the history, made of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.services.console._values import Reading, name_of

if TYPE_CHECKING:
    from penstock.efo_consumer import SessionInfo
    from penstock.services.console._history import Series
    from penstock.services.console._values import Answer, SinkDestination

_COUNTERS: dict[str, Callable[[SinkDestination], int]] = {
    "records": lambda sink: sink.records_out,
    "bytes": lambda sink: sink.bytes_out,
    "throttled": lambda sink: sink.throttled,
    "lost": lambda sink: sink.given_up + sink.dead_lettered,
}


def lag_seconds(millis: int) -> float | None:
    """Of `millis_behind_latest`: None when not known."""
    return None if millis < 0 else millis / 1000


def lags(answer: Answer[tuple[SessionInfo, ...]]) -> dict[Series, float | None]:
    """The lag of each shard that a reader reads, and the largest of each stream."""
    values: dict[Series, float | None] = {}
    for session in answer.value or ():
        for stats in session.shards:
            lag = lag_seconds(stats.millis_behind_latest)
            values[Reading(endpoint=answer.endpoint, session_id=session.session_id, stats=stats).series] = lag
            stream = stream_lag_series(answer.endpoint, name_of(stats.stream_name))
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
        for known in [one for one in self._before if one[1] == answer.endpoint]:
            del self._before[known]
            self.per_second.pop(known, None)
        self._before |= counted
        self.per_second |= {series: rate for series, rate in values.items() if series in counted and rate is not None}
        return values

    def _rate(self, series: Series, now: float, count: float) -> float | None:
        at, before = self._before.get(series, (now, count))
        return (count - before) / (now - at) if now > at and count >= before else None
