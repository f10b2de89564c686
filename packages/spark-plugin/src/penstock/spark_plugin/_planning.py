"""How the ranges of a micro-batch become partitions: pure decisions."""

import os
from collections.abc import Mapping, Sequence

from penstock.efo_consumer import ShardRange

MOST_DEFAULT_PARTITIONS = 8
"""Beyond this, the cost of a partition outweighs what it adds on one host."""


def default_max_partitions(cores: int | None = None) -> int:
    """Half of the cores, between 1 and 8: reading shares them with the query's own work."""
    return max(1, min(MOST_DEFAULT_PARTITIONS, (cores or os.cpu_count() or 2) // 2))


def group_ranges(
    ranges: Sequence[ShardRange], weights: Mapping[tuple[str, str], int], max_partitions: int
) -> list[tuple[ShardRange, ...]]:
    """At most `max_partitions` groups of about equal weight; every range is in exactly one.

    `weights`: bytes by stream and shard; one that is not in it weighs as little as can be. The heaviest first into the
    lightest group: within 4/3 of the best, and always the same for the same input.
    """
    if not ranges:
        return []
    count = min(max_partitions, len(ranges))
    groups: list[list[ShardRange]] = [[] for _ in range(count)]
    loads = [0] * count

    def weight(one: ShardRange) -> int:
        return max(1, weights.get((one.stream_name, one.shard_id), 1))

    for one in sorted(ranges, key=lambda one: (-weight(one), one.stream_name, one.shard_id)):
        lightest = loads.index(min(loads))
        groups[lightest].append(one)
        loads[lightest] += weight(one)
    return [tuple(sorted(group, key=lambda one: (one.stream_name, one.shard_id))) for group in groups]
