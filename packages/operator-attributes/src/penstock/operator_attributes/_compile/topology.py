"""Orders and cycles of small directed graphs over numbers. Nothing here recurses: jobs may be long chains."""

import difflib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from penstock.operator_attributes._compile.graph import JobGraph, ResultPartitionType, Vertex, VertexKind
from penstock.operator_attributes.errors import CompileError, at


def topological_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Producers before consumers, the smallest number first where there is a choice.

    Numbers on a cycle, and numbers after a cycle, are left out.
    """
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready = [node for node, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for target in successors[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, target)
    return order


def find_cycle(successors: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of one cycle, along its edges, starting with the smallest; empty without a cycle."""
    predecessors: dict[int, list[int]] = {node: [] for node in range(len(successors))}
    for node, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(node)
    try:
        TopologicalSorter(predecessors).prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1][:-1]
        start = cycle.index(min(cycle))
        return cycle[start:] + cycle[:start]
    return []


def strongly_connected(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The strongly connected components of more than one number, each sorted (Tarjan's algorithm)."""
    size = len(successors)
    index = [-1] * size
    low = [0] * size
    on_stack = [False] * size
    stack: list[int] = []
    components = []
    count = 0
    for root in range(size):
        if index[root] != -1:
            continue
        work = [(root, 0)]
        while work:
            node, position = work.pop()
            if position == 0:
                index[node] = low[node] = count
                count += 1
                stack.append(node)
                on_stack[node] = True
            else:
                low[node] = min(low[node], low[successors[node][position - 1]])
            for offset in range(position, len(successors[node])):
                target = successors[node][offset]
                if index[target] == -1:
                    work.append((node, offset + 1))
                    work.append((target, 0))
                    break
                if on_stack[target]:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack[member] = False
                        component.append(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        components.append(sorted(component))
    return components


class UnionFind:
    """Disjoint sets over `0 .. size - 1`, each represented by its smallest number."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        """The representative of the set of `item`."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def union(self, first: int, second: int) -> None:
        """Make one set of the two that hold `first` and `second`."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parent[high] = low


@dataclass(frozen=True, slots=True)
class CanonicalEdge:
    """An edge between two numbers."""

    source: int
    target: int
    input_index: int
    """Which of the target's inputs it is."""
    keyed: bool
    declared: ResultPartitionType


@dataclass(frozen=True, slots=True)
class CanonicalGraph:
    """A graph without cycles.

    A vertex's number is its place in a topological order that depends on names alone, not on the order in which the
    user wrote the vertices: so the same job always has the same plan.
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[CanonicalEdge, ...]
    """By (target, input index)."""


def canonical(graph: JobGraph) -> CanonicalGraph:
    """Check the shape of a graph and number it.

    Raises:
        CompileError (UNKNOWN_INPUT): an input is not a vertex of the graph.
        CompileError (INVALID_VERTEX): a sink is read.
        CompileError (GRAPH_CYCLE): vertices depend on themselves.
    """
    by_name = sorted(graph.vertices, key=lambda vertex: vertex.name)
    number = {vertex.name: position for position, vertex in enumerate(by_name)}
    successors: list[list[int]] = [[] for _ in by_name]
    for vertex in by_name:
        for one in vertex.inputs:
            source = number.get(one.source)
            if source is None:
                nearest = difflib.get_close_matches(one.source, number, n=1)
                raise CompileError.at(
                    vertex.call_site,
                    "UNKNOWN_INPUT",
                    vertex=vertex.name,
                    unknown=one.source,
                    nearest=nearest[0] if nearest else None,
                    hint=f"; did you mean {nearest[0]!r}?" if nearest else "",
                )
            if by_name[source].kind is VertexKind.SINK:
                reason = f"a sink cannot feed {vertex.name!r}"
                raise CompileError.at(vertex.call_site, "INVALID_VERTEX", name=one.source, reason=reason)
            successors[source].append(number[vertex.name])
    order = topological_order(successors)
    if len(order) < len(by_name):
        cycle = [by_name[position] for position in find_cycle(successors)]
        names = [vertex.name for vertex in [*cycle, cycle[0]]]
        path = " -> ".join([*(vertex.name + at(vertex.call_site) for vertex in cycle), cycle[0].name])
        raise CompileError.of("GRAPH_CYCLE", cycle=names, path=path)
    vertices = tuple(by_name[position] for position in order)
    number = {vertex.name: position for position, vertex in enumerate(vertices)}
    edges = tuple(
        CanonicalEdge(number[one.source], target, index, one.keyed, one.partition_type)
        for target, vertex in enumerate(vertices)
        for index, one in enumerate(vertex.inputs)
    )
    return CanonicalGraph(vertices, edges)
