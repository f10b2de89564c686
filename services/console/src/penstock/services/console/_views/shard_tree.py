"""A stream's shards as a tree: who continues whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.efo_consumer import Shard

_HASH_KEYS = 2**128


class ShardState(StrEnum):
    """Where a shard stands in its life."""

    OPEN = "open"
    CLOSED = "closed"
    """Was split or merged; its records can still be read."""
    EXPIRED = "expired"
    """Kinesis no longer lists it, because its records are gone; its children name it."""
    UNKNOWN = "unknown"
    """Kinesis was not asked, or does not list what a reader reads."""


@dataclass(frozen=True)
class ShardNode:
    """A shard in its place.

    Attributes:
        shard_id: such as `shardId-000000000000`.
        state: see there.
        depth: parents above it, along the first parent.
        parents: none, one after a split, two after a merge.
        children: those that are listed.
        share: of the hash keys, between 0 and 1; None where not known.
    """

    shard_id: str
    state: ShardState
    depth: int
    parents: tuple[str, ...]
    children: tuple[str, ...]
    share: float | None


def shard_tree(shards: Iterable[Shard] | None, read: Iterable[str] = ()) -> list[ShardNode]:
    """The shards, each parent before its children, a merged one below the first of its parents.

    Args:
        shards: as Kinesis lists them; None where it was not asked.
        read: ids of shards that readers read: those that Kinesis does not list come last.
    """
    listed = {shard.shard_id: shard for shard in shards or ()}
    children: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for shard in listed.values():
        for parent in shard.parent_shard_ids:
            children.setdefault(parent, []).append(shard.shard_id)
        for parent in shard.parent_shard_ids[:1]:
            below.setdefault(parent, []).append(shard.shard_id)
    roots = sorted({*(one for one in listed if not listed[one].parent_shard_ids), *(below.keys() - listed.keys())})
    nodes: list[ShardNode] = []
    seen: set[str] = set()
    # A stack of its own: a stream that is split again and again is deeper than Python's.
    waiting = [(one, 0) for one in reversed(roots)]
    while waiting:
        shard_id, depth = waiting.pop()
        if shard_id in seen:
            continue
        seen.add(shard_id)
        nodes.append(_node(shard_id, depth, listed.get(shard_id), children))
        waiting += [(child, depth + 1) for child in sorted(below.get(shard_id, ()), reverse=True)]
    rest = sorted({*listed, *read} - seen)
    return nodes + [_node(one, 0, listed.get(one), children, unlisted=ShardState.UNKNOWN) for one in rest]


def _node(
    shard_id: str,
    depth: int,
    shard: Shard | None,
    children: dict[str, list[str]],
    unlisted: ShardState = ShardState.EXPIRED,
) -> ShardNode:
    following = tuple(sorted(children.get(shard_id, ())))
    if shard is None:
        return ShardNode(shard_id, unlisted, depth, (), following, None)
    state = ShardState.OPEN if shard.is_open else ShardState.CLOSED
    share = (int(shard.ending_hash_key) - int(shard.starting_hash_key) + 1) / _HASH_KEYS
    return ShardNode(shard_id, state, depth, shard.parent_shard_ids, following, share)
