"""The hash keys of a stream's shards, and what the ranges of their parents explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.efo_consumer._model.shards import Shard

MAX_HASH_KEY = 2**128 - 1


@dataclass(frozen=True, slots=True)
class HashKeyRange:
    """A shard's hash keys, both bounds inclusive, 0 to 2^128 - 1."""

    starting: int
    ending: int

    @classmethod
    def of(cls, starting_hash_key: str, ending_hash_key: str) -> HashKeyRange:
        """Parse the decimal bounds that the service sends."""
        return cls(int(starting_hash_key), int(ending_hash_key))

    @property
    def is_whole(self) -> bool:
        """Whether it holds every key."""
        return self.starting <= 0 and self.ending >= MAX_HASH_KEY


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The hash keys of a shard and of the shard that it was split from.

    A producer that routes user records by shard may put an aggregate for a shard that has just been split. The
    aggregate arrives in one of the two children, and the producer sends the user records of the other child again. So
    a user record in the range of the parent, but not in the range of the shard, comes a second time. No producer sends
    any other user record again.

    Attributes:
        own: the keys of the shard.
        parent: the keys of the one parent of the shard; None if no split made the shard, or if the keys are unknown.
            Neither parent of a merge has keys outside of its child.
    """

    own: HashKeyRange
    parent: HashKeyRange | None = None


class StreamKeys:
    """The hash keys of the shards of a stream, as lists and the ends of shards have shown them."""

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}
        self._children: dict[str, dict[str, Shard]] = {}

    def learn(self, shards: Iterable[Shard]) -> None:
        """Add shards. Kinesis never changes the keys of a shard."""
        for shard in shards:
            self._shards[shard.shard_id] = shard
            for parent in shard.parent_shard_ids:
                self._children.setdefault(parent, {})[shard.shard_id] = shard

    @property
    def lacks_parents(self) -> bool:
        """Whether the keys of a shard that was split are unknown."""
        return any(
            len(shard.parent_shard_ids) == 1
            and shard.parent_shard_ids[0] not in self._shards
            and len(self._children[shard.parent_shard_ids[0]]) == 1
            for shard in self._shards.values()
        )

    def of(self, shard_id: str) -> ShardKeys | None:
        """Return the keys of a shard; None if the shard is not known."""
        shard = self._shards.get(shard_id)
        return None if shard is None else ShardKeys(_joined([shard]), self._parent_of(shard))

    def _parent_of(self, shard: Shard) -> HashKeyRange | None:
        if len(shard.parent_shard_ids) != 1:
            return None
        (parent_id,) = shard.parent_shard_ids
        parent = self._shards.get(parent_id)
        # A parent leaves ListShards before its children do. The children of a split divide the range of the parent, so
        # either of them proves the range for as long as both are listed.
        return _joined(self._children[parent_id].values() if parent is None else [parent])


def _joined(shards: Iterable[Shard]) -> HashKeyRange:
    ranges = [HashKeyRange.of(one.starting_hash_key, one.ending_hash_key) for one in shards]
    return HashKeyRange(min(one.starting for one in ranges), max(one.ending for one in ranges))
