"""A checked graph in a canonical numbering, on which the rules work."""

import difflib
from dataclasses import dataclass

from penstock.operator_attributes._compile.topology import find_cycle, topological_order
from penstock.operator_attributes._graph.graph import JobGraph, ResultPartitionType, Vertex, VertexKind
from penstock.operator_attributes.errors import CycleError, InvalidVertexError, UnknownInputError


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
        UnknownInputError: an input is no vertex of the graph.
        InvalidVertexError: a sink is read.
        CycleError: vertices depend on themselves.
    """
    by_name = sorted(graph.vertices, key=lambda vertex: vertex.name)
    number = {vertex.name: position for position, vertex in enumerate(by_name)}
    successors: list[list[int]] = [[] for _ in by_name]
    for vertex in by_name:
        for one in vertex.inputs:
            source = number.get(one.source)
            if source is None:
                nearest = difflib.get_close_matches(one.source, number, n=1)
                raise UnknownInputError(vertex.name, one.source, nearest[0] if nearest else None, vertex.call_site)
            if by_name[source].kind is VertexKind.SINK:
                raise InvalidVertexError(one.source, f"a sink cannot feed {vertex.name!r}", vertex.call_site)
            successors[source].append(number[vertex.name])
    order = topological_order(successors)
    if len(order) < len(by_name):
        cycle = [by_name[position] for position in find_cycle(successors)]
        cycle.append(cycle[0])
        raise CycleError([vertex.name for vertex in cycle], [vertex.call_site for vertex in cycle])
    vertices = tuple(by_name[position] for position in order)
    number = {vertex.name: position for position, vertex in enumerate(vertices)}
    edges = tuple(
        CanonicalEdge(number[one.source], target, index, one.keyed, one.partition_type)
        for target, vertex in enumerate(vertices)
        for index, one in enumerate(vertex.inputs)
    )
    return CanonicalGraph(vertices, edges)
