"""Regions: what pipelined edges join is deployed together."""

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from penstock.operator_attributes._compile.graph import ResultPartitionType
from penstock.operator_attributes._compile.partition_types import Decisions
from penstock.operator_attributes._compile.topology import (
    CanonicalGraph,
    UnionFind,
    strongly_connected,
    topological_order,
)

# Deep, dense graphs would need as many copies as vertices times blocking edges above each other.
_MAX_TIMES = 8
_MAX_SMALL = 1_000


class CyclicRegions(StrEnum):
    """What to do with regions that would wait for each other, for themselves, or for a region that never ends; and
    with bounded vertices that several results need."""

    MERGE = "merge"
    """Deploy them as one region. A blocking edge inside of a region has no effect."""
    READ_TWICE = "read-twice"
    """Read a bounded source, and repeat what is computed from it without blocking, in each region that needs it:
    then regions do not wait for each other in a circle. If that would repeat most of a large job many times, the
    regions are merged instead."""
    PER_RESULT = "per-result"
    """As READ_TWICE, and the same without a circle: a bounded region that hands several results over, or writes them,
    becomes one for each. So each is computed, retried and committed separately. Results that are computed from a chain
    with a full-dam operator stay together, so that it is done once."""
    HAND_OVER = "hand-over"
    """Do bounded vertices once, and hand their records over by a blocking edge to each region that needs them later.
    An edge that the user declared pipelined is kept; where that leaves a circle, it is merged."""


@dataclass(frozen=True, slots=True)
class RegionEdge:
    """An edge, in one of the regions that read by it."""

    edge: int
    source_region: int
    target_region: int


@dataclass(frozen=True, slots=True)
class Regions:
    """Vertices by region, and edges by the regions that they join, in an order in which regions can run."""

    vertices: tuple[tuple[int, ...], ...]
    """Per region: its vertices, producers first. One that is read twice is in several."""
    edges: tuple[RegionEdge, ...]
    """By edge, then by region."""
    handed_over: frozenset[int] = frozenset()
    """Edges that block only to compute their producers once."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """The vertices, one that is read twice being there twice."""

    vertices: list[int]
    """Per node: its vertex."""
    edges: list[tuple[int, int, int]]
    """Edge, node that it comes from, node that it goes to."""


def find_regions(graph: CanonicalGraph, decisions: Decisions, cyclic: CyclicRegions) -> Regions:
    """Join vertices that pipelined edges connect, and resolve regions that would wait for themselves."""
    placement = _Placement(
        list(range(len(graph.vertices))),
        [(number, edge.source, edge.target) for number, edge in enumerate(graph.edges)],
    )
    sets = _join(decisions, placement)
    handed_over: frozenset[int] = frozenset()
    if cyclic is not CyclicRegions.MERGE:
        circles = {
            sets.find(source)
            for edge, source, target in placement.edges
            if _blocks(decisions, edge) and sets.find(source) == sets.find(target)
        }
        again = [sets.find(number) in circles for number in range(len(graph.vertices))]
        if circles and cyclic is not CyclicRegions.HAND_OVER:
            apart = _read_twice(graph, decisions, sets, again)
            if apart is not None:
                placement, sets = apart, _join(decisions, apart)
        elif circles:
            handed_over = _hand_over(graph, decisions, sets, again)
            decisions = decisions.blocking(handed_over)
            sets = _join(decisions, placement)
    if cyclic is CyclicRegions.PER_RESULT:
        apart = _per_result(decisions, placement, sets)
        if apart is not None:
            placement, sets = apart, _join(decisions, apart)
    members: dict[int, set[int]] = defaultdict(set)
    for node, vertex in enumerate(placement.vertices):
        members[sets.find(node)].add(vertex)
    order = [region for region in topological_order(_successors(placement, sets)) if region in members]
    place = {region: position for position, region in enumerate(order)}
    edges = {(edge, place[sets.find(source)], place[sets.find(target)]) for edge, source, target in placement.edges}
    return Regions(
        tuple(tuple(sorted(members[region])) for region in order),
        tuple(RegionEdge(*edge) for edge in sorted(edges)),
        handed_over,
    )


def _blocks(decisions: Decisions, edge: int) -> bool:
    return decisions.partition_types[edge] is ResultPartitionType.BLOCKING


def _join(decisions: Decisions, placement: _Placement) -> UnionFind:
    sets = UnionFind(len(placement.vertices))
    for edge, source, target in placement.edges:
        if not _blocks(decisions, edge):
            sets.union(source, target)
    for component in strongly_connected(_successors(placement, sets)):
        for region in component[1:]:
            sets.union(component[0], region)
    # A region with a part that never ends is never finished: what would wait for it is deployed with it.
    endless = {sets.find(node) for node, vertex in enumerate(placement.vertices) if not decisions.bounded[vertex]}
    successors = _successors(placement, sets)
    for region in topological_order(successors):
        if region in endless:
            endless.update(successors[region])
    for region in endless:
        for target in successors[region]:
            sets.union(region, target)
    return sets


def _successors(placement: _Placement, sets: UnionFind) -> list[list[int]]:
    """Per node that represents a region: the regions behind its blocking edges."""
    successors: list[list[int]] = [[] for _ in placement.vertices]
    for _, source, target in placement.edges:
        before, after = sets.find(source), sets.find(target)
        if before != after:
            successors[before].append(after)
    return successors


def _read_twice(graph: CanonicalGraph, decisions: Decisions, sets: UnionFind, again: list[bool]) -> _Placement | None:
    """Place the bounded vertices of circular regions once per level at which their records are needed.

    The level of a vertex is the number of blocking edges above it, within its region; what never ends has the last
    level. Pipelined edges join vertices of the same level, and blocking edges lead to a higher one: no circle is left.

    Returns None when there would be too many of them.
    """
    last = len(graph.vertices)
    depth, outgoing = _depths(graph, decisions, sets, again)
    levels: list[set[int]] = [set() for _ in graph.vertices]
    left = _MAX_TIMES * len(graph.vertices) + _MAX_SMALL
    for vertex in reversed(range(len(graph.vertices))):
        if again[vertex] and not decisions.bounded[vertex]:
            levels[vertex].add(last)
        elif not again[vertex] or not outgoing[vertex]:
            levels[vertex].add(depth[vertex])
        else:
            for number in outgoing[vertex]:
                levels[vertex] |= {depth[vertex]} if _blocks(decisions, number) else levels[graph.edges[number].target]
        left -= len(levels[vertex])
        if left < 0:
            return None
    places = [(vertex, level) for vertex, needed in enumerate(levels) for level in sorted(needed)]
    node = {place: number for number, place in enumerate(places)}
    edges = []
    for number, edge in enumerate(graph.edges):
        for level in sorted(levels[edge.target]):
            at = depth[edge.source] if _blocks(decisions, number) else level
            edges.append((number, node[edge.source, at], node[edge.target, level]))
    return _Placement([vertex for vertex, _ in places], edges)


def _per_result(decisions: Decisions, placement: _Placement, sets: UnionFind) -> _Placement | None:
    """Place the vertices of bounded regions once per result that they are needed for.

    A result is what another region reads, or what no vertex reads. Nodes are numbered producers first.

    Returns None when there would be too many of them.
    """
    within: list[list[int]] = [[] for _ in placement.vertices]
    leaves = [False] * len(placement.vertices)
    whole = {sets.find(node) for node, vertex in enumerate(placement.vertices) if not decisions.bounded[vertex]}
    for edge, source, target in placement.edges:
        if sets.find(source) != sets.find(target):
            leaves[source] = True
        else:
            within[source].append(target)
            if _blocks(decisions, edge):  # merged: it waits for a part of itself
                whole.add(sets.find(source))
    results = UnionFind(len(placement.vertices))
    needed: list[set[int]] = [set() for _ in placement.vertices]
    left = _MAX_TIMES * len(placement.vertices) + _MAX_SMALL
    for node in reversed(range(len(placement.vertices))):
        region = sets.find(node)
        if region in whole:
            needed[node].add(region)
            continue
        is_result = leaves[node] or not within[node]
        needed[node] = {results.find(one) for target in within[node] for one in needed[target]} | (
            {node} if is_result else set()
        )
        if is_result or decisions.chain[placement.vertices[node]] in decisions.dams:
            first = min(needed[node])
            for one in needed[node]:
                results.union(first, one)
            needed[node] = {results.find(first)}
        left -= len(needed[node])
        if left < 0:
            return None
    groups = [sorted({results.find(one) for one in found}) for found in needed]
    places = [(node, group) for node, found in enumerate(groups) for group in found]
    number = {place: position for position, place in enumerate(places)}
    edges = []
    for edge, source, target in placement.edges:
        for group in groups[target]:
            # A result that another region reads is made in one group alone.
            origin = group if sets.find(source) == sets.find(target) else groups[source][0]
            edges.append((edge, number[source, origin], number[target, group]))
    return _Placement([placement.vertices[node] for node, _ in places], edges)


def _hand_over(graph: CanonicalGraph, decisions: Decisions, sets: UnionFind, again: list[bool]) -> frozenset[int]:
    """The edges that are to block so that each vertex of a circular region is done at one level only.

    A bounded vertex is computed at its depth, as soon as possible. If all of its records flow into the last level,
    which never ends, the vertex is computed there. Levels never fall along an edge, and rise along each edge that
    blocks: if no edge between levels is declared pipelined, no circle is left.
    """
    last = len(graph.vertices)
    level, outgoing = _depths(graph, decisions, sets, again)
    for vertex in reversed(range(len(graph.vertices))):
        if not again[vertex]:
            continue
        flows_on = bool(outgoing[vertex]) and all(
            again[graph.edges[number].target]
            and not _blocks(decisions, number)
            and level[graph.edges[number].target] == last
            for number in outgoing[vertex]
        )
        if flows_on or not decisions.bounded[vertex]:
            level[vertex] = last
    return frozenset(
        number
        for number, edge in enumerate(graph.edges)
        if again[edge.source]
        and sets.find(edge.source) == sets.find(edge.target)
        and level[edge.source] != level[edge.target]
        and edge.declared is ResultPartitionType.UNDECIDED
    )


def _depths(
    graph: CanonicalGraph, decisions: Decisions, sets: UnionFind, again: list[bool]
) -> tuple[list[int], list[list[int]]]:
    """Per vertex: the number of blocking edges above it, within its circular region; and its outgoing edges."""
    depth = [0] * len(graph.vertices)
    outgoing: list[list[int]] = [[] for _ in graph.vertices]
    for number, edge in enumerate(graph.edges):
        outgoing[edge.source].append(number)
        # Edges come by target, and targets in topological order, so the depth of the source is known.
        if again[edge.source] and sets.find(edge.source) == sets.find(edge.target):
            depth[edge.target] = max(depth[edge.target], depth[edge.source] + (1 if _blocks(decisions, number) else 0))
    return depth, outgoing
