"""How the shards of a bounded read are divided among more partitions than there are shards: pure decisions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from penstock.efo_consumer import ShardPosition
from penstock.spark_plugin._reading.bounded.bounds import BoundedShard


def divide_by_time(
    shards: Sequence[BoundedShard], least: int, now_micros: int, retention_micros: Mapping[str, int]
) -> list[BoundedShard]:
    """The shards in at least so many parts, each a time of its shard; one after a sequence number, or ended, is whole.

    A part ends before the first record that arrived at a time or later, and the next begins with that one: together
    they are the shard, once, whether or not its arrival times ever go back.

    Args:
        shards: What is read.
        least: How many parts there should be.
        now_micros: The time of planning, in microseconds since 1970.
        retention_micros: By stream, how long it keeps records: older ones need no part.
    """
    each = -(-least // max(1, len(shards)))
    return [part for shard in shards for part in _parts(shard, each, now_micros, retention_micros[shard.stream_name])]


def _parts(shard: BoundedShard, count: int, now_micros: int, retention_micros: int) -> Iterator[BoundedShard]:
    begin = max((shard.after.timestamp_millis or 0) * 1000, now_micros - retention_micros)
    end = min(now_micros, now_micros if shard.before_micros is None else shard.before_micros)
    step = (end - begin) // count // 1000
    is_timeless = shard.after.sequence_number is not None or shard.after.is_shard_end
    if is_timeless or step < 1:
        yield shard
        return
    cuts = [begin // 1000 + step * number for number in range(1, count)]
    starts = [shard.after, *(ShardPosition.at_timestamp(cut) for cut in cuts)]
    ends = [*(cut * 1000 for cut in cuts), shard.before_micros]
    for number, (after, before) in enumerate(zip(starts, ends, strict=True), 1):
        is_last = number == count
        yield replace(shard, after=after, before_micros=before, with_children=is_last and shard.with_children)


def spread(parts: Sequence[BoundedShard], count: int) -> list[tuple[BoundedShard, ...]]:
    """The parts in so many partitions.

    Whole shards in turn, as closed ones stand together and may hold little. Where shards are divided, one part behind
    the other: the times of a shard are then in order from one partition to the next.
    """
    if len({(one.stream_name, one.shard_id) for one in parts}) == len(parts):
        return [tuple(parts[first::count]) for first in range(count)]
    return [tuple(parts[begin:end]) for begin, end in pairwise(len(parts) * n // count for n in range(count + 1))]
