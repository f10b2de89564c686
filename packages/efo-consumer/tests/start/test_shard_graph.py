"""Parents and children: who may enter the positions, and who may leave them."""

from __future__ import annotations

from penstock.efo_consumer import Shard, ShardPosition, StreamPositions, next_shards
from penstock.efo_consumer._buffer.buffer import ShardBuffer
from penstock.efo_consumer._continuity.lineage import ShardGraph, open_at
from penstock.efo_consumer._reader.reach import reach
from penstock.efo_consumer.testing import shard_event, wire_records

AT = ShardPosition.after("5")
END = ShardPosition.shard_end()


def graph(**parents: str) -> ShardGraph:
    """Shards by name, each with its parents' names as letters."""
    made = ShardGraph()
    for shard, names in parents.items():
        made.add(shard, tuple(names))
    return made


def test_children_of_a_split_enter_together_at_their_parents_end() -> None:
    """Neither child enters before, both do at the end."""
    split = graph(p="", a="p", b="p")
    assert split.entrants({"p": AT}) == []
    assert split.entrants({"p": END}) == ["a", "b"]
    assert split.entrants({"p": END, "a": AT}) == ["b"]


def test_the_child_of_a_merge_waits_for_both_parents() -> None:
    """One parent at its end is not enough."""
    merge = graph(p="", q="", c="pq")
    assert merge.entrants({"p": END, "q": AT}) == []
    assert merge.entrants({"p": END, "q": END}) == ["c"]


def test_a_merge_waits_for_a_parent_that_has_yet_to_enter() -> None:
    """A parent without a position counts as unfinished while one of its ancestors is still read."""
    family = graph(p="", q="", a="q", b="q", c="pa")
    assert family.entrants({"p": END, "q": AT}) == []
    assert family.entrants({"p": END, "q": END}) == ["a", "b"]
    assert family.entrants({"p": END, "q": END, "a": END, "b": AT}) == ["c"]


def test_an_expired_parent_does_not_hold_up_its_child() -> None:
    """A parent that nothing can bring any more counts as finished; one that was never learnt does not."""
    family = graph(p="", c="px")
    assert family.unknown({"p": END}) == {"x"}
    assert family.entrants({"p": END}) == []
    family.add("x", ())
    assert family.unknown({"p": END}) == set()
    assert family.entrants({"p": END}) == ["c"]


def test_a_child_waits_until_all_that_leads_to_it_is_known() -> None:
    """An ancestor that was only named may come of a shard that is still read."""
    family = graph(p="", q="", c="pa", a="x")
    assert family.unknown({"p": END, "q": AT}) == {"x"}
    assert family.entrants({"p": END, "q": AT}) == []
    assert family.unknown({"p": END, "q": AT, "c": AT}) == {"x"}, "its caller's positions may not have it yet"
    family.add("x", ("q",))
    assert family.unknown({"p": END, "q": AT}) == set()
    assert family.entrants({"p": END, "q": AT}) == []
    assert family.entrants({"p": END, "q": END}) == ["x"]


def test_a_parent_leaves_when_all_its_children_have_positions() -> None:
    """With one child missing it stays: its end is what lets that child in later."""
    split = graph(p="", a="p", b="p")
    assert split.leavers({"p": END, "a": AT}) == []
    assert split.leavers({"p": END, "a": AT, "b": AT}) == ["p"]
    assert split.leavers({"p": AT, "a": AT, "b": AT}) == []


def test_a_shard_without_known_children_stays() -> None:
    """An end whose children are not listed yet may not be forgotten."""
    assert graph(p="").leavers({"p": END}) == []


def listed(**parents: str) -> list[Shard]:
    """What ListShards shows: shards by name, each with its parents' names as letters."""
    return [Shard(shard, tuple(names)) for shard, names in parents.items()]


def test_a_time_begins_also_at_shards_whose_parents_expired() -> None:
    """No record since then is missed: a shard whose parents are gone is read, though it is not listed as open then."""
    shards = listed(a="g", b="g", o="", c="o", d="c")
    assert open_at(["c"], shards) == ["c", "a", "b"]
    assert open_at([], shards) == ["a", "b", "o"]
    assert open_at(["o", "a", "b"], shards) == ["o", "a", "b"]


def test_a_time_between_two_generations_begins_with_the_elder() -> None:
    """A shard that had ended by then, and whose children are younger, leads to them, though its sibling is open."""
    shards = listed(p="", a="p", b="p", c="b", d="b")
    assert open_at(["a"], shards) == ["a", "b"]
    assert open_at(["a", "c"], shards) == ["a", "c", "d"]


def test_what_is_listed_leads_on_from_ends_and_from_shards_that_are_gone() -> None:
    """Children after all of their parents; after a shard that expired its children, or the oldest that are left."""
    family = listed(p="", q="", c="pq", d="c")
    assert next_shards({"p": END, "q": AT}, family) == []
    assert next_shards({"p": END, "q": END}, family) == ["c"]
    assert next_shards({"p": END, "q": END, "c": END}, family) == ["d"]
    assert next_shards({"g": END}, listed(a="g", b="g")) == ["a", "b"]
    assert next_shards({"g": END}, listed(y="u", z="u")) == ["y", "z"]


def test_children_enter_in_the_step_that_reads_their_parent_to_its_end() -> None:
    """One answer holds the parent's last records, its end, and its child."""
    start = StreamPositions({"s": {"p": ShardPosition.trim_horizon()}})
    buffer = ShardBuffer(ShardPosition.trim_horizon())
    buffer.append(shard_event(wire_records([5, 6]), 6))
    buffer.append(shard_event(wire_records([]), None, child_shards=(Shard("a", ("p",)),)))
    found = reach(start, {("s", "p"): buffer}, {"s": graph(p="", a="p")})
    assert found.rows == 2
    assert found.positions.streams["s"] == {"p": END, "a": ShardPosition.trim_horizon()}
