"""A query's numbers: of all of its shards together, for `lastProgress` and for OpenTelemetry."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import add, attrgetter, lt
from typing import Any, Final, Self

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from penstock.efo_consumer import ShardSkew, ShardState, ShardStats, StreamPositions
from penstock.spark_plugin._options.spec import field_name

_log = logging.getLogger(__name__)
UNKNOWN = -1
"""A lag that Kinesis has not reported yet."""
INSTRUMENTATION: Final = "penstock.spark_plugin"

GAUGES: Final = {
    "minMillisBehindLatest": ("ms", "How far the shard that is nearest to its tip is known to be behind it"),
    "avgMillisBehindLatest": ("ms", "How far shards are known to be behind their tips on average"),
    "maxMillisBehindLatest": ("ms", "How far the shard that is farthest from its tip is known to be behind it"),
    "shards": ("{shard}", "Shards that the query follows"),
    "shardsReading": ("{shard}", "Shards that are read and are behind their tips, or of which that is not known yet"),
    "shardsCaughtUp": ("{shard}", "Shards of which everything was read"),
    "shardsThrottled": ("{shard}", "Shards that Kinesis refuses because there are too many calls"),
    "shardsRefused": ("{shard}", "Shards whose calls fail: refused, without an answer, or without credentials"),
    "shardsResubscribing": ("{shard}", "Shards whose subscription ended, and whose next one has brought nothing yet"),
    "shardsStarved": ("{shard}", "Shards that are left unread, as the reader's buffers are full"),
    "shardsHeldBack": ("{shard}", "Shards that wait for slower ones, as what is buffered of them arrived too late"),
    "shardsStuck": ("{shard}", "Shards that give neither records nor the shards that continue them"),
    "shardsLeftBehind": ("{shard}", "Shards that hold no others back any more, as they made no progress"),
    "shardSkewMillis": ("ms", "How much later the last micro-batch's records arrived than the slowest shard was read"),
    "shardsAtGuessedTip": (
        "{shard}",
        "Caught-up shards for which this is a guess: the service does not say where their tips are",
    ),
    "bufferedRecords": ("{record}", "Records in the reader's buffers"),
    "bufferedBytes": ("By", "Data and partition keys in the reader's buffers"),
}
COUNTERS: Final = {
    "records": ("{record}", "Records that the reader received"),
    "bytes": ("By", "Data and partition keys that the reader received"),
    "subscriptions": ("{subscription}", "Times that the reader began to follow a shard"),
    "replays": ("{range}", "Ranges that were read again from Kinesis"),
    "losses": ("{position}", "Positions whose records were gone, and that were skipped"),
    "starved": ("{subscription}", "Subscriptions that Kinesis cut because the reader had no room for their events"),
    "heldBackMillis": ("ms", "Time for which buffered records waited for slower shards"),
    "userRecordsOfSiblings": (
        "{record}",
        "User records of aggregates that were dropped: a producer sends them again to another shard",
    ),
    "userRecordsOutsideShard": (
        "{record}",
        "User records of aggregates that were delivered though their keys belong to another shard",
    ),
}


_STATES: Final = {
    "shards_reading": ShardState.READING,
    "shards_caught_up": ShardState.CAUGHT_UP,
    "shards_throttled": ShardState.THROTTLED,
    "shards_refused": ShardState.REFUSED,
    "shards_resubscribing": ShardState.RESUBSCRIBING,
    "shards_starved": ShardState.STARVED,
    "shards_held_back": ShardState.HELD_BACK,
    "shards_stuck": ShardState.STUCK,
}
_NEW_GAUGES: Final = frozenset(
    name
    for name in GAUGES
    if field_name(name) in {*_STATES, "shards_left_behind", "shard_skew_millis", "shards_at_guessed_tip"}
)
_WORST_FIRST: Final = (
    ShardState.STUCK,
    ShardState.REFUSED,
    ShardState.THROTTLED,
    ShardState.STARVED,
    ShardState.RESUBSCRIBING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderNumbers:
    """What a query's reader has done since it was opened, and where it stands. Lags of -1 are not known."""

    min_millis_behind_latest: int
    avg_millis_behind_latest: float
    max_millis_behind_latest: int
    shards: int
    """That are followed; not those that were read to their end."""
    records: int
    bytes: int
    """Data and partition keys."""
    subscriptions: int
    """Times that the reader began to follow a shard."""
    replays: int
    """Ranges that were read again from Kinesis."""
    losses: int
    """Positions whose records were gone, and that were skipped (`failOnDataLoss=false`)."""
    starved: int
    """Subscriptions that Kinesis cut because the reader had no room for their events; they were renewed."""
    buffered_records: int
    buffered_bytes: int
    user_records_of_siblings: int = 0
    """User records of aggregates that were dropped, because a producer sends them again to another shard. Like the next
    one, it counts them again where a range is read again."""
    user_records_outside_shard: int = 0
    """User records of aggregates that were delivered although their keys belong to another shard."""
    shards_reading: int = 0
    """Of the shards that are followed, those that are read and are behind; the next ones as their names say."""
    shards_caught_up: int = 0
    shards_throttled: int = 0
    shards_refused: int = 0
    shards_resubscribing: int = 0
    shards_starved: int = 0
    shards_held_back: int = 0
    shards_stuck: int = 0
    shards_left_behind: int = 0
    shard_skew_millis: int = 0
    """How much later the records of the last micro-batch arrived than the slowest shard was read; 0 if not later."""
    held_back_millis: int = 0
    """For how long buffered records waited for slower shards, in all."""
    held_back_by: str = ""
    """The stream and the shard that records wait for now; empty if none do."""
    shards_at_guessed_tip: int = 0
    """The caught-up shards for which this is a guess: DynamoDB Streams does not say where a shard's tip is, and the
    last answers were empty."""
    condition: str = ""
    """What the shard in the worst trouble is doing, since when and why; empty if all are read."""

    @classmethod
    def of(
        cls,
        stats: Sequence[ShardStats],
        reached: StreamPositions | None = None,
        let_go: Mapping[str, int] | None = None,
        skew: "SkewProgress | None" = None,
    ) -> Self:
        """Sum up shards, with what those counted that were let go.

        Shards that `reached` has at their end count for what they gave, and lag behind nothing.
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
            **{name: count + (let_go or {}).get(name, 0) for name, count in zip(_OF_SHARDS, sums, strict=True)},
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
        """Out of `lastProgress`.

        Raises:
            KeyError, TypeError, ValueError: it is the report of another source.
        """
        average = float(document["avgMillisBehindLatest"])
        numbers = {
            # A server of Spark Connect may have an older version, which does not count everything.
            field_name(name): int(document.get(name, 0) if name in COUNTERS or name in _NEW_GAUGES else document[name])
            for name in (*GAUGES, *COUNTERS)
            if name != "avgMillisBehindLatest"
        }
        return cls(
            avg_millis_behind_latest=average,
            held_back_by=str(document.get("heldBackBy", "")),
            condition=str(document.get("condition", "")),
            **numbers,
        )

    def values(self) -> dict[str, float]:
        """By the names that progress and metrics have."""
        return {name: getattr(self, field_name(name)) for name in (*GAUGES, *COUNTERS)}

    def to_json(self) -> dict[str, float | str]:
        """For `lastProgress`; with `millisBehindLatest`, which is the largest."""
        return {
            "millisBehindLatest": self.max_millis_behind_latest,
            **self.values(),
            "heldBackBy": self.held_back_by,
            "condition": self.condition,
        }


assert {field_name(name) for name in (*GAUGES, *COUNTERS)} == {one.name for one in fields(ReaderNumbers)} - {
    "condition",
    "held_back_by",
}


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
        """For how long buffered records waited for slower shards, in all."""
        return round(self._held_seconds * 1000)

    def note(self, skew: ShardSkew, now: float) -> None:
        """Take what an answer says, at a time in monotonic seconds."""
        if self._held_since is not None:
            self._held_seconds += now - self._held_since
        self._held_since = now if skew.holds_back else None
        self.held_back_by = f"{skew.slowest_stream}/{skew.slowest_shard}" if skew.holds_back else ""
        self.left_behind = skew.left_behind
        if skew.latest_millis is not None and skew.slowest_millis is not None:
            self.skew_millis = max(0, skew.latest_millis - skew.slowest_millis)


_OF_SHARDS: Final = tuple(field_name(name) for name in COUNTERS if name != "heldBackMillis")
_counts: Final[Callable[[ShardStats], tuple[int, ...]]] = attrgetter(*_OF_SHARDS)


def _worst(shards: Sequence[ShardStats]) -> str:
    """The condition of the shard that is in the worst trouble, and of those for the longest time."""
    troubled = [one for one in shards if not one.condition.is_well]
    if not troubled:
        return ""
    one = min(troubled, key=lambda one: (_WORST_FIRST.index(one.condition.state), one.condition.since_millis))
    return f"{one.stream_name}/{one.shard_id}: {one.condition}"


class LetGo:
    """What the shards counted that a reader has let go since: it forgets those that ended.

    A reader that was started anew counts from zero; what it counted before is kept as well.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[tuple[str, str], tuple[int, ...]] = {}
        self._sums = (0,) * len(_OF_SHARDS)

    def look(self, read: Callable[[], Sequence[ShardStats]]) -> tuple[Sequence[ShardStats], Mapping[str, int]]:
        """The shards of the reader, and the sums of all that are no longer among them.

        To be called before the reader may let go of any, as what it counts after the last look is not known.
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
        """Of one moment for all instruments: the reader, which may be a service, is asked once per collection."""
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
                # A reader that is away, or ends at this moment: its query says why.
                _log.debug("the reader of %s gives no numbers", attributes, exc_info=True)
        with self._lock:
            self._read = (now, found)
        return found


_SAME_COLLECTION_SECONDS = 0.5


@cache
def query_metrics() -> QueryMetrics:
    """Those of this process; the provider is the application's, set before or after."""
    return QueryMetrics()
