"""Sequence numbers and hash keys: made, taken apart and checked."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from hashlib import md5
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HASH_KEY = 2**128 - 1


def hash_key(partition_key: str) -> int:
    """The MD5 of a partition key as a 128-bit number (API reference, PutRecord)."""
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


@dataclass(frozen=True, slots=True)
class HashKeyRange:
    """Hash keys from `start` to `end`, both included."""

    start: int
    end: int

    def __contains__(self, key: int) -> bool:
        return self.start <= key <= self.end

    def as_dict(self) -> dict[str, str]:
        """The range as the API writes it."""
        return {"StartingHashKey": str(self.start), "EndingHashKey": str(self.end)}


def uniform_starts(count: int) -> list[int]:
    """The starting hash keys of `count` ranges of equal size."""
    width = (MAX_HASH_KEY + 1) // count
    return [index * width for index in range(count)]


def uniform_ranges(count: int) -> list[HashKeyRange]:
    """Cut the key space into `count` ranges of equal size; the last takes the rest of the division."""
    starts = uniform_starts(count)
    ends = [start - 1 for start in starts[1:]] + [MAX_HASH_KEY]
    return [HashKeyRange(start, end) for start, end in zip(starts, ends, strict=True)]


# Divisions leave a rest, so a third of the key space and two sixths differ by a few keys. Boundaries nearer than this
# are one boundary; a shard as narrow as this would take no record in a lifetime.
_SAME_BOUNDARY = 2**64


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """First split at every key of `splits`, then merge shards that meet at the keys of `merges`, in this order."""

    splits: list[int] = field(default_factory=list)
    merges: list[int] = field(default_factory=list)


def plan_uniform_scaling(ranges: Sequence[HashKeyRange], target: int) -> ScalingPlan:
    """Plan UNIFORM_SCALING: splits at the boundaries that are missing, merges at those that are too many.

    `ranges` are the open shards by hash key. As in AWS, the shards between the two steps are real ones and short-lived.
    """
    existing = sorted(item.start for item in ranges)
    wanted = [_snap(start, existing) for start in uniform_starts(target)]
    return ScalingPlan(
        splits=[start for start in wanted if start not in existing],
        merges=[start for start in existing if start not in wanted],
    )


def _snap(start: int, existing: list[int]) -> int:
    first = bisect_left(existing, start - _SAME_BOUNDARY)
    last = bisect_right(existing, start + _SAME_BOUNDARY)
    return existing[first] if first < last else start


_VERSION = 2
_INDEX_SHIFT = 4
_INDEX_BITS = 32
_ARRIVAL_SHIFT = 36
_COUNTER_SHIFT = 85
_COUNTER_BITS = 60
_EPOCH_SHIFT = 145
_EPOCH_BITS = 40
_TOP = 1 << 185


class SequenceNumbers:
    """The sequence numbers of one shard; with `timed=False` they do not contain a time."""

    def __init__(self, *, epoch: int, index: int, timed: bool = True) -> None:
        self.epoch = epoch
        self.index = index
        self.timed = timed
        self._base = _TOP | (epoch << _EPOCH_SHIFT) | (index << _INDEX_SHIFT) | _VERSION

    def text(self, counter: int, arrival_seconds: int) -> str:
        """The sequence number of the `counter`-th event of this shard, as 56 decimal digits."""
        time = arrival_seconds << _ARRIVAL_SHIFT if self.timed else 0
        return str(self._base + (counter << _COUNTER_SHIFT) + time)

    def counter(self, text: str) -> int | None:
        """The counter inside a sequence number, or None where the number is not of this shard."""
        parts = _parse(text)
        if parts is None or parts.epoch != self.epoch or parts.index != self.index:
            return None
        return parts.counter

    def arrival_seconds(self, text: str) -> int:
        """The second at which a sequence number of this shard was given out; 0 where the numbers hold no time."""
        return (int(text) >> _ARRIVAL_SHIFT) & ((1 << (_COUNTER_SHIFT - _ARRIVAL_SHIFT)) - 1)

    def counter_of_namesake(self, text: str, created: float) -> int | None:
        """Where a number of a shard with the same index that existed before this one would be in this one's order.

        None where the number cannot be distinguished from this shard's own, or is of another shard or a later one.
        """
        parts = _parse(text)
        if parts is None or parts.index != self.index or parts.epoch > self.epoch:
            return None
        if parts.epoch < self.epoch:
            return 0
        # Epochs start over: only the time distinguishes them, if there is one.
        return parts.counter if 0 < self.arrival_seconds(text) < int(created) else None


class IssueTimes:
    """When the counters of a shard were given out, for numbers that hold no time: one entry for each second."""

    def __init__(self) -> None:
        self._counters = array("Q")
        self._seconds = array("Q")

    def note(self, counter: int, second: int) -> None:
        """Counters from `counter` on were given out at `second` or later."""
        if not self._seconds or second > self._seconds[-1]:
            self._counters.append(counter)
            self._seconds.append(second)

    def second(self, counter: int) -> int:
        """The second at which a counter was given out; 0 where it was forgotten."""
        index = bisect_right(self._counters, counter)
        return self._seconds[index - 1] if index else 0

    def forget_before(self, second: int) -> None:
        """Keep only what was given out at `second` or later."""
        index = bisect_left(self._seconds, second)
        del self._counters[:index]
        del self._seconds[:index]


@dataclass(frozen=True, slots=True)
class _Parts:
    epoch: int
    index: int
    counter: int


def _parse(text: str) -> _Parts | None:
    # ASCII only: int() would take the digits of every script.
    if not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    if number >> 185 != 1 or number & ((1 << _INDEX_SHIFT) - 1) != _VERSION:
        return None
    return _Parts(
        epoch=(number >> _EPOCH_SHIFT) & ((1 << _EPOCH_BITS) - 1),
        index=(number >> _INDEX_SHIFT) & ((1 << _INDEX_BITS) - 1),
        counter=(number >> _COUNTER_SHIFT) & ((1 << _COUNTER_BITS) - 1),
    )
