"""Which shards follow which, and which may be read: decided without I/O.

The graph only grows: edges come from the child shards at a shard's end and from ListShards. It knows nothing
about positions; those are arguments, so that the reader's own progress and a caller's offsets are judged by
the same rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import PositionType, ShardPosition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.efo_consumer._model.shards import Shard


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

    @property
    def has_children(self) -> bool:
        """Whether any shard is known to follow another one."""
        return bool(self._children)

    def parents(self, shard_id: str) -> tuple[str, ...]:
        """Give the known parents."""
        return self._parents.get(shard_id, ())

    def children(self, shard_id: str) -> list[str]:
        """Give the known children, ordered by id."""
        return sorted(self._children.get(shard_id, ()))

    def prune(self, keep: Collection[str]) -> None:
        """Forget the shards that nothing asks for any more: neither themselves nor an ancestor is in `keep`.

        Args:
            keep: the shards that have a position.
        """
        known, pending = set(keep), list(keep)
        while pending:
            children = self._children.get(pending.pop(), set()) - known
            known |= children
            pending += children
        # The other parent of a child that is to come may have no position of its own.
        needed = known | {parent for shard in known - set(keep) for parent in self._parents.get(shard, ())}
        self._parents = {
            shard: tuple(parent for parent in parents if parent in needed)
            for shard, parents in self._parents.items()
            if shard in needed
        }
        self._children = {shard: children for shard, children in self._children.items() if shard in needed}

    def lineage(self, ended: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Give the children of these shards and all known ancestors of those, each with its parents."""
        pending, found = [child for shard_id in ended for child in self.children(shard_id)], {}
        while pending:
            shard_id = pending.pop()
            if shard_id in self._parents and shard_id not in found:
                found[shard_id] = self._parents[shard_id]
                pending += found[shard_id]
        return sorted(found.items())

    def unknown(self, positions: Mapping[str, ShardPosition], ended: Iterable[str] | None = None) -> set[str]:
        """Give the shards that were only named so far, and that lead to a child of an ended shard.

        Without them it is unknown whether the child comes after a shard that is still read. Also given for a child that
        has a position here: it has to enter the caller's positions, which are behind.

        Args:
            positions: where each shard stands.
            ended: the shards whose children are looked at; by default all that have ended.
        """
        found: list[str] = []
        seen: set[str] = set()
        pending = list(self._children_of(positions, ended))
        while pending:
            for parent in self._parents[pending.pop()]:
                if parent in positions or parent in seen:
                    continue
                seen.add(parent)
                (pending if parent in self._parents else found).append(parent)
        return set(found)

    def entrants(self, positions: Mapping[str, ShardPosition], ended: Iterable[str] | None = None) -> list[str]:
        """Give the shards that may enter these positions now: children, all of whose parents are finished.

        One that has no position, but something that came of it has, is not among them: it was read, and left, before
        its parents were known.

        A parent is finished when its position is SHARD_END. One without a position counts as finished only when
        all of its ancestors are known and none of them has one either: then nothing will ever bring it (it expired
        before the positions began).

        Args:
            positions: where each shard stands.
            ended: the shards whose children are looked at; by default all that have ended.
        """
        return sorted(
            child
            for child in self._children_of(positions, ended)
            if not self._is_passed(child, positions)
            and all(self._is_finished(parent, positions) for parent in self._parents[child])
        )

    def _children_of(self, positions: Mapping[str, ShardPosition], ended: Iterable[str] | None) -> set[str]:
        """The children of the shards at their end: of these, or of all."""
        if not self._children:
            return set()
        asked = positions if ended is None else [shard_id for shard_id in ended if shard_id in positions]
        at_end = (shard_id for shard_id in asked if positions[shard_id].is_shard_end)
        return {child for shard_id in at_end for child in self._children.get(shard_id, ())}

    def leavers(self, positions: Mapping[str, ShardPosition]) -> list[str]:
        """Give the shards that the step *after* these positions may leave out.

        They are at SHARD_END and every child, or a descendant of it, has a position, so that they cannot be mistaken
        for new shards.
        """
        return [
            shard_id
            for shard_id, position in positions.items()
            if position.is_shard_end and self._children.get(shard_id) and not self.awaited(shard_id, positions)
        ]

    def awaited(self, shard_id: str, positions: Mapping[str, ShardPosition]) -> list[str]:
        """Give the known children of a shard that are to enter the positions yet."""
        return [child for child in self._children.get(shard_id, ()) if not self._is_passed(child, positions)]

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

    def is_passed(self, shard_id: str, positions: Mapping[str, ShardPosition]) -> bool:
        """Whether a shard left the positions: it has none, and something that came of it has."""
        return shard_id not in positions and self._is_passed(shard_id, positions)

    def _is_finished(self, shard_id: str, positions: Mapping[str, ShardPosition]) -> bool:
        position = positions.get(shard_id)
        if position is not None:
            return position.is_shard_end
        pending, seen = [shard_id], {shard_id}
        while pending:
            shard = pending.pop()
            # The parents of a shard that was only named so far are not known yet.
            if shard in positions or shard not in self._parents:
                return False
            more = set(self._parents[shard]) - seen
            seen |= more
            pending += more
        return True


def entering(parents: Iterable[ShardPosition]) -> ShardPosition:
    """Give the position at which a child shard is entered: before its first record.

    Every record of a child arrived after its parents were closed, and what is known of a parent at its end is of a time
    at which it was open: so it is known of the child.
    """
    known = max((millis for parent in parents if (millis := parent.known_millis) is not None), default=None)
    return ShardPosition(PositionType.TRIM_HORIZON, caught_up_millis=known)


def successors(gone: str, listed: Iterable[Shard], standing: Collection[str]) -> tuple[Shard, ...]:
    """Give the shards to continue with after a shard that has left the list.

    These are its children, and what is left of children that are gone too: the oldest unread shards, which
    are not read through a descendant either. If everything is read already, as after a merge with another shard that is
    gone, they are the oldest shards, what it led to among them.

    Args:
        gone: the shard.
        listed: all shards that the stream still lists.
        standing: the shards that have a position.
    """
    shards = tuple(listed)
    read, oldest = with_ancestors(standing, shards), roots(shards)
    unread = [shard for shard in oldest if shard.shard_id not in read]
    found = [shard for shard in shards if gone in shard.parent_shard_ids]
    if found:
        # Kinesis numbers shards as they are made: what came of a child that is gone is younger than its parent.
        found += [shard for shard in unread if shard.parent_shard_ids and shard.shard_id > gone and shard not in found]
    found = found or unread or oldest
    return tuple(
        shard if gone in shard.parent_shard_ids else replace(shard, parent_shard_ids=(gone,)) for shard in found
    )


def with_ancestors(shard_ids: Iterable[str], listed: Iterable[Shard]) -> set[str]:
    """Give these shards and their ancestors, where the listed shards name the parents."""
    parents = {shard.shard_id: shard.parent_shard_ids for shard in listed}
    found, pending = set[str](), list(shard_ids)
    while pending:
        shard_id = pending.pop()
        if shard_id not in found:
            found.add(shard_id)
            pending += parents.get(shard_id, ())
    return found


def roots(listed: Collection[Shard]) -> list[Shard]:
    """Give the oldest shards: their parents are no longer listed."""
    ids = {shard.shard_id for shard in listed}
    return [shard for shard in listed if ids.isdisjoint(shard.parent_shard_ids)]


def open_at(listed_as_open: Iterable[str], listed: Collection[Shard]) -> list[str]:
    """Give the shards at which reading from a time begins: every record since is in these or their descendants.

    Those are the shards that were open then; those that lead to no such shard and come of none, as when their ancestors
    expired before anybody could list them as open; and instead of some children of a shard the shard itself, where the
    list does not show all of them yet.

    Args:
        listed_as_open: what ListShards shows for the time.
        listed: all shards that are still listed.
    """
    shards = {shard.shard_id: shard for shard in listed}
    children = _children(listed)
    chosen = set(listed_as_open)
    past = with_ancestors(chosen, listed)
    halved = {
        parent
        for parent, found in children.items()
        if parent in shards and parent in past - chosen and not shards[parent].is_covered_by(found)
    }
    chosen = (chosen | halved) - _descendants(halved, children)
    known = with_ancestors(chosen, listed) | _descendants(chosen, children)
    rest = roots([shard for shard in listed if shard.shard_id not in known])
    ordered = dict.fromkeys([*listed_as_open, *sorted(halved)])
    return [*(one for one in ordered if one in chosen), *(shard.shard_id for shard in rest)]


def of_named(begun: Iterable[str], named: Iterable[str], listed: Iterable[Shard]) -> list[str]:
    """Give the shards at which reading from a time begins if it is of named shards, and of those that they become.

    Args:
        begun: at which it begins if it is of the whole stream.
        named: the shards. One that neither is among those nor led to any of them is given as it is.
        listed: all shards that are known.
    """
    children, begins, found = _children(listed), set(begun), list[str]()
    for shard_id in named:
        family = {shard_id, *_descendants([shard_id], children)}
        found += sorted(family & begins) or [shard_id]
    return list(dict.fromkeys(found))


def oldest_of(shard_ids: Collection[str], listed: Iterable[Shard]) -> list[str]:
    """Give the shards that do not descend from another one of them; they lead to the rest."""
    later = _descendants(shard_ids, _children(listed))
    return [one for one in shard_ids if one not in later]


def _children(listed: Iterable[Shard]) -> dict[str, list[Shard]]:
    children: dict[str, list[Shard]] = {}
    for shard in listed:
        for parent in shard.parent_shard_ids:
            children.setdefault(parent, []).append(shard)
    return children


def _descendants(shard_ids: Iterable[str], children: Mapping[str, Iterable[Shard]]) -> set[str]:
    found, pending = set[str](), list(shard_ids)
    while pending:
        more = {child.shard_id for child in children.get(pending.pop(), ())} - found
        found |= more
        pending += more
    return found


def next_shards(positions: Mapping[str, ShardPosition], listed: Collection[Shard]) -> list[str]:
    """Give the shards that a session would enter next from these positions, if it saw only what is listed.

    Args:
        positions: of one stream. Shards that are not listed are at their end.
        listed: all shards that the stream still lists.
    """
    graph, ids = ShardGraph(), {shard.shard_id for shard in listed}
    for shard in listed:
        graph.add(shard.shard_id, shard.parent_shard_ids)
        for parent in set(shard.parent_shard_ids) - ids:
            graph.add(parent, ())
    for gone in positions.keys() - ids:
        for shard in successors(gone, listed, positions):
            graph.add(shard.shard_id, shard.parent_shard_ids)
    return graph.entrants(positions)
