"""Graphs and plans as JSON documents.

A document says its version. Fields that are not known are ignored, and those with a default may be missing, so
that a version can grow without breaking its readers.
"""

from typing import Literal, TypeVar

import msgspec

from penstock.operator_attributes._graph import JobGraph, Vertex
from penstock.operator_attributes._plan import PlannedEdge, Stage, StagePlan
from penstock.operator_attributes._regions import CyclicRegions
from penstock.operator_attributes.errors import InvalidDocumentError


class _GraphDocument(msgspec.Struct, kw_only=True):
    version: Literal[1]
    name: str
    vertices: list[Vertex]


class _PlanDocument(msgspec.Struct, kw_only=True):
    version: Literal[1]
    name: str
    cyclic_regions: CyclicRegions = CyclicRegions.READ_TWICE
    vertices: tuple[Vertex, ...]
    edges: tuple[PlannedEdge, ...]
    stages: tuple[Stage, ...]


_Document = TypeVar("_Document", _GraphDocument, _PlanDocument)


def graph_to_json(graph: JobGraph) -> str:
    """The graph as JSON, its vertices in the order of writing."""
    return _text(_GraphDocument(version=1, name=graph.name, vertices=list(graph)))


def graph_from_json(text: str | bytes) -> JobGraph:
    """A graph from its JSON.

    Raises:
        InvalidDocumentError: It is not the JSON of a graph.
        InvalidVertexError: A vertex contradicts its kind.
        DuplicateNameError: Two vertices have one name.
    """
    document = _read(text, _GraphDocument)
    graph = JobGraph(document.name)
    for vertex in document.vertices:
        graph.add(vertex)
    return graph


def plan_to_json(plan: StagePlan) -> str:
    """The plan as JSON, with the graph that it was compiled from."""
    return _text(
        _PlanDocument(
            version=1,
            name=plan.name,
            cyclic_regions=plan.cyclic_regions,
            vertices=plan.vertices,
            edges=plan.edges,
            stages=plan.stages,
        )
    )


def plan_from_json(text: str | bytes) -> StagePlan:
    """A plan from its JSON.

    Raises:
        InvalidDocumentError: It is not the JSON of a plan.
        InvalidVertexError: A vertex contradicts its kind.
    """
    document = _read(text, _PlanDocument)
    return StagePlan(document.name, document.vertices, document.edges, document.stages, document.cyclic_regions)


def _text(document: _GraphDocument | _PlanDocument) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _read(text: str | bytes, kind: type[_Document]) -> _Document:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        # msgspec ends its words with the place: "… - at `$.vertices[0].name`".
        reason, _, path = str(error).partition(" - at ")
        raise InvalidDocumentError(path.strip("`") or "$", reason) from error
