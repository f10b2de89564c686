"""How the ranges of a micro-batch become partitions: pure decisions."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise

from penstock.efo_consumer import ShardRange, StreamPositions, ranges_between

MOST_DEFAULT_PARTITIONS = 8
"""Beyond this, the cost of a partition outweighs what it adds on one host."""

WORTHWHILE_BYTES = 64 * 1024
"""Of a partition: reading less takes no time beside the 2 to 20 ms that each further partition costs."""


def default_max_partitions(cores: int | None = None) -> int:
    """Half of the cores, between 1 and 8: reading shares them with the query's own work."""
    return max(1, min(MOST_DEFAULT_PARTITIONS, (cores or os.cpu_count() or 2) // 2))


def worthwhile_partitions(nbytes: int, fewest: int, most: int) -> int:
    """How many partitions a micro-batch of so many bytes is worth, of at least `fewest` and at most `most`."""
    return max(fewest, min(most, -(-nbytes // WORTHWHILE_BYTES)))


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


def partition_bounds(least: int | None, most: int | None) -> tuple[int, int]:
    """The fewest and the most partitions, from the options. A least number raises the most of those who gave none."""
    fewest = least or 1
    return fewest, most or max(fewest, default_max_partitions())


def divide_by_cuts(cuts: Sequence[StreamPositions]) -> list[tuple[ShardRange, ...]]:
    """One group of ranges between each two successive positions; together they are what lies between the outer two."""
    steps = (tuple(ranges_between(after, upto)) for after, upto in pairwise(cuts))
    return [step for step in steps if step]
