"""The plan that takes a stream to a new shard count."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._hash_keys import uniform_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._hash_keys import HashKeyRange

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
