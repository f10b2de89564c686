"""Boundedness, operator chains, and which edges block: Flink's rules (FLIP-331)."""

from dataclasses import dataclass, replace

from penstock.operator_attributes._compile.graph import Boundedness, ResultPartitionType, VertexKind
from penstock.operator_attributes._compile.topology import CanonicalEdge, CanonicalGraph, UnionFind
from penstock.operator_attributes.errors import CompileError, FullDamOverUnboundedError


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the rules say of each vertex and edge, by their numbers."""

    bounded: tuple[bool, ...]
    """Per vertex: whether all sources above it end."""
    chained: tuple[bool, ...]
    """Per edge: whether its two ends are one chain."""
    chain: tuple[int, ...]
    """Per vertex: the smallest number in its chain."""
    dams: dict[int, tuple[int, ...]]
    """Per chain that holds any: its full-dam vertices."""
    partition_types: tuple[ResultPartitionType, ...]
    """Per edge: PIPELINED or BLOCKING."""

    def blocking(self, edges: frozenset[int]) -> "Decisions":
        """The same, with these edges blocking too; one that was chained is not any more."""
        if not edges:
            return self
        return replace(
            self,
            chained=tuple(joined and number not in edges for number, joined in enumerate(self.chained)),
            partition_types=tuple(
                ResultPartitionType.BLOCKING if number in edges else kind
                for number, kind in enumerate(self.partition_types)
            ),
        )


def decide(graph: CanonicalGraph) -> Decisions:
    """Apply the rules.

    Raises:
        FullDamOverUnboundedError: a full-dam operator reads from a source that never ends.
        CompileError (UNBOUNDED_BLOCKING_EDGE): an edge whose producer never ends was declared blocking.
    """
    bounded = _boundedness(graph)
    chained = tuple(_is_chained(graph, edge) for edge in graph.edges)
    sets = UnionFind(len(graph.vertices))
    for edge, joined in zip(graph.edges, chained, strict=True):
        if joined:
            sets.union(edge.source, edge.target)
    chain = tuple(sets.find(number) for number in range(len(graph.vertices)))
    dams: dict[int, tuple[int, ...]] = {}
    for number, vertex in enumerate(graph.vertices):
        if vertex.full_dam:
            dams[chain[number]] = (*dams.get(chain[number], ()), number)
    types = tuple(
        _partition_type(edge, joined=joined, dammed=chain[edge.source] in dams)
        for edge, joined in zip(graph.edges, chained, strict=True)
    )
    for edge, kind in zip(graph.edges, types, strict=True):
        if kind is ResultPartitionType.BLOCKING and not bounded[edge.source]:
            target = graph.vertices[edge.target]
            source = graph.vertices[edge.source].name
            raise CompileError.at(target.call_site, "UNBOUNDED_BLOCKING_EDGE", source=source, target=target.name)
    return Decisions(bounded, chained, chain, dams, types)


def _boundedness(graph: CanonicalGraph) -> tuple[bool, ...]:
    bounded = [vertex.boundedness is not Boundedness.UNBOUNDED for vertex in graph.vertices]
    # Edges come by target, and targets in topological order: one pass is enough.
    for edge in graph.edges:
        bounded[edge.target] = bounded[edge.target] and bounded[edge.source]
    for number, vertex in enumerate(graph.vertices):
        if vertex.full_dam and not bounded[number]:
            raise FullDamOverUnboundedError(vertex.name, vertex.call_site, _unbounded_sources(graph, number))
    return tuple(bounded)


def _unbounded_sources(graph: CanonicalGraph, number: int) -> tuple[str, ...]:
    above = {number}
    for edge in reversed(graph.edges):
        if edge.target in above:
            above.add(edge.source)
    return tuple(
        vertex.name
        for position, vertex in enumerate(graph.vertices)
        if position in above and vertex.boundedness is Boundedness.UNBOUNDED
    )


def _is_chained(graph: CanonicalGraph, edge: CanonicalEdge) -> bool:
    source, target = graph.vertices[edge.source], graph.vertices[edge.target]
    return (
        bool(target.chained)
        and target.kind is not VertexKind.SOURCE
        and len(target.inputs) == 1
        and not edge.keyed
        and source.parallelism == target.parallelism
        and edge.declared is not ResultPartitionType.BLOCKING
    )


def _partition_type(edge: CanonicalEdge, *, joined: bool, dammed: bool) -> ResultPartitionType:
    if edge.declared is not ResultPartitionType.UNDECIDED:
        return edge.declared
    # A chain is all that chained edges connect, so asking for the chain of the source is the fixpoint of spreading
    # the mark both ways along it.
    return ResultPartitionType.BLOCKING if dammed and not joined else ResultPartitionType.PIPELINED
