"""Which shards, and which time of them, the filters of a query leave: decided before anything is read."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from penstock.efo_consumer import ShardPosition
from penstock.spark_plugin._reading.bounded.bounds import BoundedShard, is_empty
from penstock.spark_plugin._spark import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

ARRIVAL_MARGIN_MICROS = 10_000_000
"""How far beyond a time in a filter is read. Kinesis does not promise that arrival times never go back within a shard:
Spark still filters, so all that this costs is up to ten seconds of records."""

_COLUMNS = ("streamName", "shardId")
_ARRIVAL = "approximateArrivalTimestamp"
_TESTS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda text, values: text in values,
    StringStartsWith: lambda text, value: bool(text.startswith(value)),
    StringEndsWith: lambda text, value: bool(text.endswith(value)),
    StringContains: lambda text, value: value in text,
}


@dataclass(frozen=True, slots=True)
class PushDown:
    """What filters leave of the shards of a bounded read. All of them hold together."""

    by_name: tuple[Filter, ...] = ()
    """On `streamName` and `shardId`: each shard passes them as a whole, or not at all."""
    since_micros: int | None = None
    """No record that arrived before this time passes."""
    until_micros: int | None = None
    """No record that arrived after this time passes."""
    is_nothing: bool = False
    """Whether no record passes at all."""

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> tuple["PushDown", list[Filter]]:
        """What the filters say, and those that Spark has to apply itself."""
        found, left = cls(), []
        for one in filters:
            if _of_names(one):
                found = replace(found, by_name=(*found.by_name, one))
                continue
            left.append(one)
            found = found._by_time(one)
        return found, left

    def of_stream(self, stream: str) -> bool:
        """Whether any record of a stream may pass."""
        return not self.is_nothing and all(
            _passes(one, stream) for one in self.by_name if _attribute(one) == "streamName"
        )

    def of_shard(self, stream: str, shard_id: str) -> bool:
        """Whether the filters on names leave a shard."""
        names = {"streamName": stream, "shardId": shard_id}
        return all(_passes(one, names[_attribute(one)]) for one in self.by_name)

    def since_millis(self, begin: int | None) -> int | None:
        """The time before which nothing is read, given that of the read itself; None without either."""
        times = [one for one in (begin, self._since_millis()) if one is not None]
        return max(times, default=None)

    def narrow(self, shards: Iterable[BoundedShard]) -> Iterator[BoundedShard]:
        """The shards that are left, each with what is read of it."""
        if self.is_nothing or self._is_empty():
            return
        for shard in shards:
            if self.of_shard(shard.stream_name, shard.shard_id):
                left = replace(shard, after=self._after(shard.after), before_micros=self._before(shard.before_micros))
                if not is_empty(left.after, left.before_micros):
                    yield left

    def _is_empty(self) -> bool:
        since, until = self.since_micros, self.until_micros
        return since is not None and until is not None and since > until

    def _after(self, after: ShardPosition) -> ShardPosition:
        # Nothing is known of the time of a sequence number.
        if self.since_micros is None or after.sequence_number is not None or after.is_shard_end:
            return after
        return ShardPosition.at_timestamp(self.since_millis(after.timestamp_millis) or 0)

    def _since_millis(self) -> int | None:
        return None if self.since_micros is None else max((self.since_micros - ARRIVAL_MARGIN_MICROS) // 1000, 0)

    def _before(self, before: int | None) -> int | None:
        if self.until_micros is None:
            return before
        last = self.until_micros + ARRIVAL_MARGIN_MICROS
        return last if before is None else min(before, last)

    def _by_time(self, one: Filter) -> "PushDown":
        if isinstance(one, IsNull) and _attribute(one) == _ARRIVAL:
            return replace(self, is_nothing=True)
        if not isinstance(one, _COMPARISONS) or _attribute(one) != _ARRIVAL:
            return self
        micros = _micros(one.value)
        if micros is None:
            return self
        since, until = self.since_micros, self.until_micros
        if not isinstance(one, LessThan | LessThanOrEqual):
            since = micros if since is None else max(since, micros)
        if not isinstance(one, GreaterThan | GreaterThanOrEqual):
            until = micros if until is None else min(until, micros)
        return replace(self, since_micros=since, until_micros=until)


_COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def _attribute(one: Filter) -> str:
    inner = one.child if isinstance(one, Not) else one
    path: Sequence[str] = getattr(inner, "attribute", ())
    # Spark gives the name as it stands in the schema, whatever the query wrote.
    return path[0] if len(path) == 1 else ""


def _of_names(one: Filter) -> bool:
    inner = one.child if isinstance(one, Not) else one
    if _attribute(one) not in _COLUMNS:
        return False
    if isinstance(inner, IsNull | IsNotNull):
        return True
    if type(inner) not in _TESTS:
        return False
    values = inner.value if isinstance(inner, In) else (inner.value,)  # type: ignore[attr-defined]  # all of them have it
    # A comparison with null is neither true nor false, which is left to Spark.
    return all(isinstance(value, str) for value in values)


def _passes(one: Filter, text: str) -> bool:
    if isinstance(one, Not):
        return not _passes(one.child, text)
    if isinstance(one, IsNull | IsNotNull):
        return isinstance(one, IsNotNull)
    return _TESTS[type(one)](text, one.value)  # type: ignore[attr-defined]  # all of them have it


def _micros(value: object) -> int | None:
    """Of a time with its zone; a column of times without one is another type, and left to Spark."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return int(value.timestamp()) * 10**6 + value.microsecond
