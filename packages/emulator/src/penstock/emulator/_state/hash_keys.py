"""Hash keys: where a record belongs, and how the key space is cut."""

from __future__ import annotations

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
