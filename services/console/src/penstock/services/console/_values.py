"""What the services reported last, as plain values, and the rates of their counters."""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.efo_consumer import SessionInfo, Shard, ShardStats
    from penstock.operator_attributes import JobStatus
    from penstock.registration import Consumer


T = TypeVar("T", covariant=True)


def name_of(stream: str) -> str:
    """The name of a stream that may be given by its ARN, as streams of other accounts are."""
    return stream.rpartition("/")[2]


class Kind(StrEnum):
    """Kinds of what is asked."""

    REGISTRY = "registry"
    READER = "reader"
    SINK = "sink"
    STAGES = "stages"
    KINESIS = "kinesis"
    DRIVERS = "drivers"


class State(StrEnum):
    """How asking goes."""

    WAITING = "asking"
    """No answer and no failure yet."""
    UP = "up"
    """It answered."""
    DOWN = "down"
    """It did not answer; what it said before is kept."""


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """What one service said last."""

    kind: Kind
    endpoint: str
    state: State = State.WAITING
    reason: str = ""
    """Why it is down, for people."""
    value: T | None = None
    """The last that it said; None before the first."""
    left_out: int = 0
    """Entries of the last answer that were not looked at, as there were too many."""
    answered_at: float | None = None
    """Monotonic seconds of that."""

    @property
    def name(self) -> str:
        """Kind and endpoint."""
        return f"{self.kind.value} {self.endpoint}"


@dataclass(frozen=True, kw_only=True)
class SinkDestination:
    """Numbers of a sink gateway about one destination, since its start."""

    kind: str
    destination: str
    clients: int
    in_flight_requests: int
    in_flight_entries: int
    limit_entries: int
    """The rate limiting strategy's present limit on entries in flight; 0 where it has none."""
    waiting_entries: int
    """Entries in buffer and queues."""
    records_out: int
    bytes_out: int
    throttled: int
    retried: int
    given_up: int
    """Entries that were refused permanently, or that expired."""
    dead_lettered: int
    last_failure: str
    held_seconds: float
    """For which the oldest entry without an acknowledgement has kept the others waiting; 0 if none has."""
    held_attempts: int
    held_reason: str
    """What that entry waits for."""
    held_error_code: str


@dataclass(frozen=True, kw_only=True)
class DriverReader:
    """A reader of a driver, as that announced it, and what it said when it was asked. Holds no token."""

    job_id: str
    address: str
    """`host:port`."""
    query: str
    owner: str
    stream_names: tuple[str, ...]
    shards: int
    troubled_shards: int
    millis_behind_latest: int
    condition: str
    age_seconds: float
    silent_seconds: float
    on_executor: bool = False
    """Whether it runs on an executor, and is not to be asked: its driver says how it fares."""
    sessions: tuple[SessionInfo, ...] = ()
    """Its sessions; empty if it was not reached. A reader on an executor has the session of its query, with the shards
    that are in trouble or furthest behind."""
    left_out: int = 0
    """Sessions of it that were not looked at, as there were too many."""
    strange_shards: int = 0
    """Shards that it reports of streams that it did not announce; they are shown nowhere."""
    reason: str = ""
    """Why it was not; empty where it was, or was not to be asked."""


@dataclass(frozen=True)
class Reading:
    """A shard as a session of a reader sees it."""

    endpoint: str
    session_id: str
    stats: ShardStats
    taken_at: float | None = None
    """See `Snapshot.taken_at`; None where it is not known."""

    @property
    def series(self) -> tuple[str, str, str, str, str]:
        """Names the shard in the rates."""
        return ("lag", self.endpoint, self.session_id, self.stats.stream_name, self.stats.shard_id)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What all services said last."""

    registry: Answer[tuple[Consumer, ...]] | None = None
    readers: tuple[Answer[tuple[SessionInfo, ...]], ...] = ()
    drivers: tuple[Answer[tuple[DriverReader, ...]], ...] = ()
    """Readers inside drivers, by what lists them."""
    sinks: tuple[Answer[tuple[SinkDestination, ...]], ...] = ()
    stages: Answer[tuple[JobStatus, ...]] | None = None
    kinesis: Answer[Mapping[str, tuple[Shard, ...]]] | None = None
    """Shards by stream."""
    rates: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    """Of counters, per second, between the last two answers; by the names of their series."""
    taken_at: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By endpoint and session: when its query last took something of the buffers, or they were empty; monotonic."""

    lags: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By name of the stream: monotonic seconds, and the largest lag of its shards in seconds then; the oldest first."""

    @property
    def answers(self) -> tuple[Answer[Any], ...]:
        """The answers of all services that are asked; readers inside drivers come and go, and do not count."""
        all_of_them: tuple[Answer[Any] | None, ...] = (
            self.registry,
            *self.readers,
            *self.sinks,
            self.stages,
            self.kinesis,
        )
        return tuple(one for one in all_of_them if one is not None)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Ordered by stream and name."""
        return () if self.registry is None else self.registry.value or ()

    @property
    def jobs(self) -> tuple[JobStatus, ...]:
        """Ordered by id."""
        return () if self.stages is None else self.stages.value or ()

    def readings(self) -> dict[str, dict[str, list[Reading]]]:
        """By name of the stream and shard: one entry per session that reads it."""
        found: dict[str, dict[str, list[Reading]]] = {}
        for endpoint, session in self.sessions():
            for one in self.readings_of(endpoint, [session]):
                found.setdefault(name_of(one.stats.stream_name), {}).setdefault(one.stats.shard_id, []).append(one)
        return found

    def readings_of(self, endpoint: str, sessions: Iterable[SessionInfo]) -> list[Reading]:
        """One entry per shard of some sessions of a reader."""
        return [
            Reading(endpoint, session.session_id, stats, self.taken_at.get((endpoint, session.session_id)))
            for session in sessions
            for stats in session.shards
        ]

    def sessions(self) -> Iterator[tuple[str, SessionInfo]]:
        """Each session of a reader with its endpoint: first at services, then inside drivers."""
        for answer in (*self.readers, *self.drivers):
            for endpoint, sessions in sessions_by_endpoint(answer):
                for session in sessions:
                    yield endpoint, session

    def unnamed_shards(self, *, on_executors: bool = True) -> dict[str, int]:
        """By stream: how many shards its readers follow that are not known one by one, at most.

        Readers on executors name some of their shards only, those furthest behind first, and of a session no more than
        a thousand are looked at. Some of the others may be of other streams.
        """
        found: dict[str, int] = {}
        for answer in self.readers:
            for session in answer.value or ():
                _count(found, _unnamed([session]), {one.stream_name for one in session.shards})
        for listed in self.drivers:
            for driver in listed.value or ():
                if on_executors or not driver.on_executor:
                    # A reader that does not report its sessions has only announced how many shards it follows.
                    count = _unnamed(driver.sessions) if driver.sessions else driver.shards
                    _count(found, count, driver.stream_names)
        return found

    def is_cut(self, *kinds: Kind) -> bool:
        """Whether services of these kinds named more entries than were looked at."""
        return any(answer.left_out for answer in (*self.answers, *self.drivers) if answer.kind in kinds)

    def are_shards_cut(self, *, on_executors: bool = True) -> bool:
        """Whether readers follow more shards than were looked at: what is summed over shards is too small."""
        drivers = [one for answer in self.drivers for one in answer.value or () if on_executors or not one.on_executor]
        return (
            self.is_cut(Kind.READER, Kind.DRIVERS)
            or any(one.left_out or _unnamed(one.sessions) for one in drivers)
            or any(_unnamed(answer.value or ()) for answer in self.readers)
        )

    def listed(self, stream: str) -> tuple[Shard, ...] | None:
        """The stream's shards as Kinesis lists them; None where it was not asked, or has not answered."""
        if self.kinesis is None or self.kinesis.value is None:
            return None
        return self.kinesis.value.get(name_of(stream))


def sessions_by_endpoint(answer: Answer[Any]) -> list[tuple[str, Sequence[SessionInfo]]]:
    """The sessions that a reader, or the readers inside drivers, reported."""
    if answer.kind is Kind.READER:
        return [(answer.endpoint, answer.value or ())]
    return [(driver.address, driver.sessions) for driver in answer.value or ()]


def _unnamed(sessions: Sequence[SessionInfo]) -> int:
    return sum(max(0, one.shard_count - len(one.shards)) for one in sessions)


def _count(found: dict[str, int], count: int, streams: Iterable[str]) -> None:
    for name in {name_of(one) for one in streams} if count else ():
        found[name] = found.get(name, 0) + count


Series = tuple[str, ...]
_MOST_POINTS = 120
_POINT_SECONDS = 1.0
_POINTS_SECONDS = 600.0
"""A stream that no reader reports for so long loses its points."""


class Rates:
    """The newest rate of each counter, per second. Counters that a source no longer reports are forgotten."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Mapping[Series, float]]] = {}
        self._rates: dict[str, dict[Series, float]] = {}

    def take(self, source: str, counters: Mapping[Series, float], now: float) -> None:
        """Replace the counters of a source.

        A counter has no rate before there are two answers, or when it has fallen because its service restarted.

        Args:
            source: names the service that reports the counters.
            counters: all counters of the source.
            now: monotonic seconds.
        """
        at, before = self._before.get(source, (now, {}))
        self._before[source] = now, counters
        self._rates[source] = {
            series: (count - before[series]) / (now - at)
            for series, count in counters.items()
            if now > at and series in before and count >= before[series]
        }

    def per_second(self) -> Mapping[Series, float]:
        """The rates of all sources."""
        return ChainMap(*list(self._rates.values()))


class TakenAt:
    """When the query of each session last took something of what its reader holds, as the console saw it.

    The calls of a session do not say so: a client that keeps its session alive calls without taking anything.
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[tuple[str, str], tuple[int, float]]] = {}

    def take(self, source: str, readers: Iterable[tuple[str, Sequence[SessionInfo]]], now: float) -> None:
        """Replace what is known of a source.

        Args:
            source: names the service that reports the sessions.
            readers: the endpoint and the sessions of each reader.
            now: monotonic seconds.
        """
        before, seen = self._seen.get(source, {}), {}
        for endpoint, sessions in readers:
            for session in sessions:
                waiting = sum(one.buffered_bytes for one in session.shards)
                taken = sum(one.bytes for one in session.shards) - waiting
                last, at = before.get((endpoint, session.session_id), (taken, now))
                seen[endpoint, session.session_id] = taken, at if waiting and taken == last else now
        self._seen[source] = seen

    def times(self) -> dict[tuple[str, str], float]:
        """Monotonic seconds, by endpoint and session."""
        return {key: at for seen in list(self._seen.values()) for key, (_, at) in seen.items()}


class Lags:
    """The largest lag of each stream over the last minutes, in memory alone."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, float]] = {}
        self._points: dict[str, deque[tuple[float, float]]] = {}

    def take(self, source: str, readers: Iterable[tuple[str, Sequence[SessionInfo]]], now: float) -> None:
        """Add what a source reports to the lags that the other sources reported last.

        Args:
            source: names the service that reports the sessions.
            readers: the endpoint and the sessions of each reader.
            now: monotonic seconds.
        """
        lags: dict[str, float] = {}
        for _, sessions in readers:
            for stats in (one for session in sessions for one in session.shards):
                seconds, name = lag_seconds(stats.millis_behind_latest), name_of(stats.stream_name)
                if seconds is not None:
                    lags[name] = max(seconds, lags.get(name, 0.0))
        self._latest[source] = lags
        for name in lags:
            points = self._points.setdefault(name, deque(maxlen=_MOST_POINTS))
            largest = max(one.get(name, 0.0) for one in self._latest.values())
            # What several sources report within a second is one point.
            if points and now - points[-1][0] < _POINT_SECONDS:
                points[-1] = (points[-1][0], largest)
            else:
                points.append((now, largest))
        for name in [name for name, points in self._points.items() if now - points[-1][0] > _POINTS_SECONDS]:
            del self._points[name]

    def points(self) -> dict[str, list[tuple[float, float]]]:
        """See `Snapshot.lags`."""
        return {name: list(points) for name, points in list(self._points.items())}


def sink_series(endpoint: str, sink: SinkDestination, what: str) -> Series:
    """Names a counter of a destination: `records`, `bytes`, `throttled` or `lost`."""
    return ("sink", endpoint, sink.kind, sink.destination, what)


def sink_counters(endpoint: str, sinks: Sequence[SinkDestination]) -> dict[Series, float]:
    """The counters of a gateway's destinations."""
    counters: dict[Series, float] = {}
    for sink in sinks:
        lost = sink.given_up + sink.dead_lettered
        counted = {"records": sink.records_out, "bytes": sink.bytes_out, "throttled": sink.throttled, "lost": lost}
        counters |= {sink_series(endpoint, sink, what): count for what, count in counted.items()}
    return counters


def reading_counters(readers: Iterable[tuple[str, Sequence[SessionInfo]]]) -> dict[Series, float]:
    """What readers have received, and what was taken of their buffers, by the series of each reading.

    Args:
        readers: the endpoint and the sessions of each reader.
    """
    counters: dict[Series, float] = {}
    for endpoint, sessions in readers:
        for session in sessions:
            for stats in session.shards:
                series = Reading(endpoint, session.session_id, stats).series
                taken = stats.bytes - stats.buffered_bytes
                counted = {"records": stats.records, "bytes": stats.bytes, "taken": taken}
                counters |= {(*series, what): count for what, count in counted.items()}
    return counters


def lag_seconds(millis: int) -> float | None:
    """The seconds of `millis_behind_latest`; None when the lag is not known."""
    return None if millis < 0 else millis / 1000
