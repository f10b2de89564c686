"""Sequence numbers: made, taken apart and checked.

A number has 186 bits, from the top: a one (which makes all of them decimals of 56 digits that begin with 49, as in
Kinesis), the second at which the shard was created, a counter, the second of arrival, the index of the shard, a
version. Within a shard the counter alone decides the order. Children are created in a later second than their
parents (see `Kinesis.new_epoch`), so that numbers grow along the lineage too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

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
