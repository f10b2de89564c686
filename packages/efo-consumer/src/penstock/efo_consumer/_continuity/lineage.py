"""Which shards follow which, and who may be read: decided without I/O.

The graph only grows: edges come from the child shards at a shard's end and from ListShards. It knows nothing
about positions; those are arguments, so that the reader's own progress and a caller's offsets are judged by
the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import ShardPosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ShardGraph:
    """Parents and children of one stream's shards."""

    def __init__(self) -> None:
        self._parents: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, set[str]] = {}

    def add(self, shard_id: str, parent_shard_ids: Iterable[str]) -> None:
        """Learn a shard. Learning it again with fewer parents (expired ones are unnamed) forgets none."""
        parents = tuple(dict.fromkeys([*self._parents.get(shard_id, ()), *parent_shard_ids]))
        self._parents[shard_id] = parents
        for parent in parents:
            self._children.setdefault(parent, set()).add(shard_id)

    def children(self, shard_id: str) -> list[str]:
        """Give the known children, ordered by id."""
        return sorted(self._children.get(shard_id, ()))

    def lineage(self, ended: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Give the children of these shards and all known ancestors of those, each with its parents."""
        pending, found = [child for shard_id in ended for child in self.children(shard_id)], {}
        while pending:
            shard_id = pending.pop()
            if shard_id in self._parents and shard_id not in found:
                found[shard_id] = self._parents[shard_id]
                pending += found[shard_id]
        return sorted(found.items())

    def unknown_parents(self) -> set[str]:
        """Give parents that were named by a child, but never learnt themselves: ask ListShards."""
        return {parent for parent in self._children if parent not in self._parents}

    def entrants(self, positions: Mapping[str, ShardPosition]) -> list[str]:
        """Give the shards that may enter these positions now: children, all of whose parents are finished.

        One that has no position, but something that came of it has, is not among them: it was read, and left, before
        its parents were known.

        A parent is finished when it stands at SHARD_END. One without a position counts as finished only when
        no ancestor of it has one either: then nothing will ever bring it (it expired before the positions
            began).
        """
        found: set[str] = set()
        for shard_id, position in positions.items():
            if not position.is_shard_end:
                continue
            for child in self._children.get(shard_id, ()):
                if self._is_passed(child, positions):
                    continue
                if all(self._is_finished(p, positions) for p in self._parents[child]):
                    found.add(child)
        return sorted(found)

    def leavers(self, positions: Mapping[str, ShardPosition]) -> list[str]:
        """Give the shards that the step *after* these positions may leave out.

        They stand at SHARD_END and every child has a position, or what came of it, so that nobody can take them for
        new again.
        """
        return [
            shard_id
            for shard_id, position in positions.items()
            if position.is_shard_end
            and self._children.get(shard_id)
            and all(self._is_passed(child, positions) for child in self._children[shard_id])
        ]

    def _is_passed(self, shard_id: str, positions: Mapping[str, ShardPosition]) -> bool:
        """Whether the shard has a position, or anything that came of it."""
        pending, seen = [shard_id], {shard_id}
        while pending:
            shard = pending.pop()
            if shard in positions:
                return True
            more = self._children.get(shard, set()) - seen
            seen |= more
            pending += more
        return False

    def _is_finished(self, shard_id: str, positions: Mapping[str, ShardPosition]) -> bool:
        position = positions.get(shard_id)
        if position is not None:
            return position.is_shard_end
        # Of a parent that was only named so far nobody knows yet where it comes from.
        return shard_id in self._parents and not self._has_ancestor_in(shard_id, positions)

    def _has_ancestor_in(self, shard_id: str, positions: Mapping[str, ShardPosition]) -> bool:
        pending, seen = list(self._parents.get(shard_id, ())), {shard_id}
        while pending:
            parent = pending.pop()
            if parent in positions:
                return True
            if parent not in seen:
                seen.add(parent)
                pending.extend(self._parents.get(parent, ()))
        return False
