"""A query's numbers, over all of its shards, for `lastProgress` and for OpenTelemetry."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from operator import add, attrgetter, lt
from typing import Any, Final, Self

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from penstock.efo_consumer import ShardSkew, ShardState, ShardStats, StreamPositions
from penstock.spark_plugin._options.spec import option_name

_log = logging.getLogger(__name__)
UNKNOWN = -1
"""A lag that Kinesis has not reported yet."""
INSTRUMENTATION: Final = "penstock.spark_plugin"


def _number(kind: str, unit: str, text: str, *, state: ShardState | None = None, is_new: bool = True) -> Any:
    """A number of a query: its instrument, and whether reports of older versions may lack it."""
    made = {"kind": kind, "unit": unit, "text": text, "state": state, "is_new": is_new}
    return field(default=0, metadata=made)


_gauge = partial(_number, "gauge")
_counter = partial(_number, "counter")
_shards = partial(_gauge, "{shard}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderNumbers:
    """What a query's reader has done since it was opened, and its state. Lags of -1 are not known."""

    min_millis_behind_latest: int = _gauge("ms", "How far the shard nearest to its tip is behind it", is_new=False)
    avg_millis_behind_latest: float = _gauge("ms", "How far shards are behind their tips on average", is_new=False)
    max_millis_behind_latest: int = _gauge("ms", "How far the shard farthest from its tip is behind it", is_new=False)
    shards: int = _shards(
        "Shards that the query follows; shards that were read to their end are left out", is_new=False
    )
    shards_reading: int = _shards(
        "Shards that are read and behind, or whose lag is not known", state=ShardState.READING
    )
    shards_caught_up: int = _shards("Shards that were read to their tip", state=ShardState.CAUGHT_UP)
    shards_throttled: int = _shards("Shards whose calls Kinesis throttles", state=ShardState.THROTTLED)
    shards_refused: int = _shards(
        "Shards whose calls fail: refused, without an answer, or without credentials", state=ShardState.REFUSED
    )
    shards_resubscribing: int = _shards(
        "Shards whose subscription ended, and whose next one has brought nothing yet", state=ShardState.RESUBSCRIBING
    )
    shards_starved: int = _shards("Shards that are not read because buffers are full", state=ShardState.STARVED)
    shards_held_back: int = _shards("Shards whose buffered records wait for slower shards", state=ShardState.HELD_BACK)
    shards_stuck: int = _shards(
        "Shards that return neither records nor the shards that continue them", state=ShardState.STUCK
    )
    shards_left_behind: int = _shards("Shards that no longer hold others back, because they made no progress")
    shard_skew_millis: int = _gauge(
        "ms", "How much later the last micro-batch's records arrived than the slowest shard was read; 0 if not later"
    )
    shards_at_guessed_tip: int = _shards(
        "Caught-up shards for which this is a guess: the service does not report their tips"
    )
    buffered_records: int = _gauge("{record}", "Records in the reader's buffers", is_new=False)
    buffered_bytes: int = _gauge("By", "Data and partition keys in the reader's buffers", is_new=False)
    records: int = _counter("{record}", "Records that the reader received")
    bytes: int = _counter("By", "Data and partition keys that the reader received")
    subscriptions: int = _counter("{subscription}", "Times that the reader began to follow a shard")
    replays: int = _counter("{range}", "Ranges that were read again from Kinesis")
    losses: int = _counter(
        "{position}", "Positions whose records were gone, and that were skipped (failOnDataLoss=false)"
    )
    starved: int = _counter("{subscription}", "Subscriptions that Kinesis ended because the reader's buffers were full")
    held_back_millis: int = _counter("ms", "Time for which buffered records waited for slower shards")
    user_records_of_siblings: int = _counter(
        "{record}",
        "User records of aggregates that were dropped: a producer sends them again to another shard. A range that is "
        "read again counts again",
    )
    user_records_outside_shard: int = _counter(
        "{record}", "User records of aggregates that were delivered though their keys belong to another shard"
    )
    held_back_by: str = ""
    """The stream and the shard that records wait for now; empty if none do."""
    condition: str = ""
    """What the shard in the worst trouble is doing, since when and why; empty if all are read."""

    @classmethod
    def of(
        cls,
        stats: Sequence[ShardStats],
        reached: StreamPositions | None = None,
        released: Mapping[str, int] | None = None,
        skew: "SkewProgress | None" = None,
    ) -> Self:
        """Sum up shards, and the counts of shards that were released (`released`).

        Shards that are at their end in `reached` keep their counts, and have no lag.
        """
        positions = reached.streams if reached is not None else {}

        def is_open(one: ShardStats) -> bool:
            position = positions.get(one.stream_name, {}).get(one.shard_id)
            return position is None or not position.is_shard_end

        followed = [one for one in stats if is_open(one)]
        states = Counter(one.condition.state for one in followed)
        sums = map(sum, zip(*map(_counts, stats), strict=True)) if stats else (0,) * len(_OF_SHARDS)
        skew = skew or SkewProgress()
        lags = [one.millis_behind_latest for one in followed if one.millis_behind_latest >= 0]
        return cls(
            min_millis_behind_latest=min(lags, default=UNKNOWN),
            avg_millis_behind_latest=round(sum(lags) / len(lags), 1) if lags else UNKNOWN,
            max_millis_behind_latest=max(lags, default=UNKNOWN),
            shards=len(followed),
            **{name: count + (released or {}).get(name, 0) for name, count in zip(_OF_SHARDS, sums, strict=True)},
            buffered_records=sum(one.buffered_records for one in stats),
            buffered_bytes=sum(one.buffered_bytes for one in stats),
            **{name: states[state] for name, state in _STATES.items()},
            shards_left_behind=skew.left_behind,
            shard_skew_millis=skew.skew_millis,
            held_back_millis=skew.held_back_millis,
            held_back_by=skew.held_back_by,
            shards_at_guessed_tip=sum(one.condition.is_guess for one in followed),
            condition=_worst(followed),
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The numbers in `lastProgress`.

        Raises:
            KeyError, TypeError, ValueError: it is the report of another source.
        """
        numbers: dict[str, Any] = {}
        for one in _NUMBERS:
            name = option_name(one.name)
            # A server of Spark Connect may have an older version, which does not report every number.
            value = document.get(name, 0) if one.metadata["is_new"] else document[name]
            numbers[one.name] = float(value) if name == "avgMillisBehindLatest" else int(value)
        held_back_by, condition = str(document.get("heldBackBy", "")), str(document.get("condition", ""))
        return cls(**numbers, held_back_by=held_back_by, condition=condition)

    def values(self) -> dict[str, float]:
        """The numbers by their names in progress and metrics."""
        return {option_name(one.name): getattr(self, one.name) for one in _NUMBERS}

    def to_json(self) -> dict[str, float | str]:
        """The report for `lastProgress`; `millisBehindLatest` is the largest lag."""
        return {
            "millisBehindLatest": self.max_millis_behind_latest,
            **self.values(),
            "heldBackBy": self.held_back_by,
            "condition": self.condition,
        }


_NUMBERS: Final = tuple(one for one in fields(ReaderNumbers) if one.metadata)
GAUGES, COUNTERS = (
    {option_name(n.name): (n.metadata["unit"], n.metadata["text"]) for n in _NUMBERS if n.metadata["kind"] == kind}
    for kind in ("gauge", "counter")
)
_STATES: Final = {one.name: one.metadata["state"] for one in _NUMBERS if one.metadata["state"] is not None}
_WORST_FIRST: Final = (
    ShardState.STUCK,
    ShardState.REFUSED,
    ShardState.THROTTLED,
    ShardState.STARVED,
    ShardState.RESUBSCRIBING,
)


class SkewProgress:
    """How far apart the shards of a query are, and for how long some held others back."""

    def __init__(self) -> None:
        self.skew_millis = 0
        self.left_behind = 0
        self.held_back_by = ""
        self._held_seconds = 0.0
        self._held_since: float | None = None

    @property
    def held_back_millis(self) -> int:
        """How long buffered records waited for slower shards, in all."""
        return round(self._held_seconds * 1000)

    def note(self, skew: ShardSkew, now: float) -> None:
        """Record the skew of an answer, at a time in monotonic seconds."""
        if self._held_since is not None:
            self._held_seconds += now - self._held_since
        self._held_since = now if skew.holds_back else None
        self.held_back_by = f"{skew.slowest_stream}/{skew.slowest_shard}" if skew.holds_back else ""
        self.left_behind = skew.left_behind
        if skew.latest_millis is not None and skew.slowest_millis is not None:
            self.skew_millis = max(0, skew.latest_millis - skew.slowest_millis)


_OF_SHARDS: Final = tuple(
    one.name for one in _NUMBERS if one.metadata["kind"] == "counter" and one.name != "held_back_millis"
)
_counts: Final[Callable[[ShardStats], tuple[int, ...]]] = attrgetter(*_OF_SHARDS)


def _worst(shards: Sequence[ShardStats]) -> str:
    """The condition of the shard in the worst trouble; of equal ones, the oldest."""
    troubled = [one for one in shards if not one.condition.is_well]
    if not troubled:
        return ""
    one = min(troubled, key=lambda one: (_WORST_FIRST.index(one.condition.state), one.condition.since_millis))
    return f"{one.stream_name}/{one.shard_id}: {one.condition}"


class ReleasedShards:
    """The counts of shards that a reader has released: it forgets shards that ended.

    A reader that was restarted counts from zero; what it counted before is kept as well.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[tuple[str, str], tuple[int, ...]] = {}
        self._sums = (0,) * len(_OF_SHARDS)

    def look(self, read: Callable[[], Sequence[ShardStats]]) -> tuple[Sequence[ShardStats], Mapping[str, int]]:
        """The shards of the reader, and the sums of the shards that it has released.

        Call it before the reader may release a shard: counts after the last look are not known.
        """
        with self._lock:  # the answers must be compared in their order
            stats = read()
            latest = {(one.stream_name, one.shard_id): _counts(one) for one in stats}
            for shard, counts in self._latest.items():
                now = latest.get(shard)
                # Most are the same: thousands of shards are mostly idle.
                if now != counts and (now is None or any(map(lt, now, counts))):
                    self._sums = tuple(map(add, self._sums, counts))
            self._latest = latest
            return stats, dict(zip(_OF_SHARDS, self._sums, strict=True))


Read = Callable[[], ReaderNumbers]


class QueryMetrics:
    """Instruments over the queries of this process, one time series per query, whatever its shards."""

    def __init__(self, meter: Meter | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        meter = meter or metrics.get_meter(INSTRUMENTATION)
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[int, tuple[dict[str, str], Read]] = {}
        self._read: tuple[float, list[tuple[dict[str, str], dict[str, float]]]] | None = None
        for name, (unit, text) in GAUGES.items():
            meter.create_observable_gauge(name, [self._observer(name)], unit=unit, description=text)
        for name, (unit, text) in COUNTERS.items():
            meter.create_observable_counter(name, [self._observer(name)], unit=unit, description=text)

    def watch(self, attributes: Mapping[str, str], read: Read) -> Callable[[], None]:
        """Observe a query until the returned function is called. `read` may raise: then nothing is observed."""
        key = id(read)
        with self._lock:
            self._queries[key] = (dict(attributes), read)
            self._read = None

        def end() -> None:
            with self._lock:
                self._queries.pop(key, None)
                self._read = None

        return end

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            for attributes, values in self._values():
                if values[name] != UNKNOWN:
                    yield Observation(values[name], attributes)

        return observe

    def _values(self) -> list[tuple[dict[str, str], dict[str, float]]]:
        """Values of one moment for all instruments: the reader, maybe a service, is called once per collection."""
        now = self._clock()
        with self._lock:
            if self._read is not None and now - self._read[0] < _SAME_COLLECTION_SECONDS:
                return self._read[1]
            queries = list(self._queries.values())
        found = []
        for attributes, read in queries:
            try:
                found.append((attributes, read().values()))
            except Exception:
                # The reader is away, or ends at this moment: its query reports why.
                _log.debug("the reader of %s gives no numbers", attributes, exc_info=True)
        with self._lock:
            self._read = (now, found)
        return found


_SAME_COLLECTION_SECONDS = 0.5


@cache
def query_metrics() -> QueryMetrics:
    """The metrics of this process; the application sets the provider, before or after."""
    return QueryMetrics()
