"""The shards of a stream and the hash keys that each takes."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any


class ShardRanges:
    """What ListShards said: open shards by hash key, and the range of every shard by its id."""

    def __init__(self, shards: Iterable[Mapping[str, Any]]) -> None:
        """`shards` as the API describes them."""
        open_shards = []
        self._ranges: dict[str, tuple[int, int]] = {}
        for shard in shards:
            keys = shard["HashKeyRange"]
            start, end = int(keys["StartingHashKey"]), int(keys["EndingHashKey"])
            self._ranges[shard["ShardId"]] = start, end
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                open_shards.append((start, shard["ShardId"]))
        open_shards.sort()
        self._starts = [start for start, _ in open_shards]
        self._ids = [shard_id for _, shard_id in open_shards]

    def shard_of(self, hash_key: int) -> str:
        """The open shard of a hash key; empty when none is known."""
        place = bisect_right(self._starts, hash_key) - 1
        return self._ids[place] if place >= 0 else ""

    def range_of(self, shard_id: str) -> tuple[int, int] | None:
        """First and last hash key of a shard, open or closed; None when it is not known."""
        return self._ranges.get(shard_id)
