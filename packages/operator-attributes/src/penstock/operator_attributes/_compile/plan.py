"""The plan of a job: its stages, in an order in which they can run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from penstock.operator_attributes._compile.graph import (
    JobGraph,
    ResultPartitionType,
    Vertex,
    document_text,
    read_document,
)
from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes.errors import SchedulingError, at


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEdge:
    """An edge with the exchange mode that was decided for it."""

    source: str
    target: str
    input_index: int
    """Which of the target's inputs it is, from 0."""
    partition_type: ResultPartitionType
    """PIPELINED or BLOCKING; a chained edge is PIPELINED."""
    chained: bool
    """Whether producer and consumer are one operator chain."""
    keyed: bool
    sorted: bool
    """Whether the consumer, in batch mode, gets this input sorted by key."""
    source_stage: str
    """Id of the stage that writes it."""
    target_stage: str
    """Id of the stage that reads it; the same as `source_stage` unless the edge holds a stage back."""

    @property
    def blocking(self) -> bool:
        """Whether the consumer gets the records only when the producer has finished."""
        return self.partition_type is ResultPartitionType.BLOCKING


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingReason:
    """Why a vertex hands its result over only when its stage has finished."""

    vertex: str
    """The vertex whose result waits."""
    operator: str
    """The full-dam operator in its chain; the vertex itself when the edge was declared blocking."""
    call_site: str
    """Where that was written; empty if not known."""
    declared: bool
    """True when nothing blocks but the mode that the user declared for the edge."""
    handed_over: bool = False
    """True when nothing blocks, and its records are handed over so that it need not be done twice."""

    def __str__(self) -> str:
        return self.words(at(self.call_site))

    def words(self, place: str = "") -> str:
        """The reason as text, followed by `place`."""
        if self.handed_over:
            return f"{self.vertex!r} is done once, and handed over to what needs it later{place}"
        if self.declared:
            return f"an edge of {self.vertex!r} is declared blocking{place}"
        text = f"{self.operator!r} emits only after the end of its input{place}"
        return text if self.operator == self.vertex else f"{text}, and {self.vertex!r} is chained with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """A result that a stage reads from another."""

    stage_id: str
    """The stage that makes it."""
    source: str
    """The vertex, in that stage, whose result it is."""
    target: str
    """The vertex, in this stage, that reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Vertices that are deployed together, when all blocking inputs are finished."""

    id: str
    """Unique in the plan: `stage-1`, `stage-2`, … in an order in which they can run."""
    name: str
    """For people: the vertices whose results leave the stage."""
    vertices: tuple[str, ...]
    """Producers first. A bounded vertex that is read twice is in several stages."""
    inputs: tuple[StageInput, ...]
    """One entry per edge from another stage; such edges are always blocking."""
    outputs: tuple[str, ...]
    """Vertices whose results other stages read, to be kept until they have."""
    bounded: bool
    """Whether the stage ends: it runs as a batch job. Otherwise it is a live stage."""
    slots: int
    """Slots that it takes: the highest parallelism of its vertices, which share them."""
    batch_vertices: tuple[str, ...]
    """Vertices in batch mode: full-dam operators and what is chained with them."""
    reasons: tuple[BlockingReason, ...]
    """Why its outputs block; empty when it has none."""
    merged: bool
    """Whether blocking edges lie inside of the stage, because regions would have waited for each other."""

    @property
    def blocking_inputs(self) -> tuple[str, ...]:
        """Ids of the stages that must be finished first, each once, in the order of the plan."""
        return tuple(dict.fromkeys(one.stage_id for one in self.inputs))

    @property
    def reason(self) -> str:
        """Why its outputs block, with the call sites; empty when it has none."""
        return "; ".join(str(reason) for reason in self.reasons)

    @property
    def checkpointed(self) -> bool:
        """Whether checkpoints are taken while it runs: always of a live stage; a batch stage reads again instead."""
        return not self.bounded


@dataclass(frozen=True)
class StagePlan:
    """The stages of a job. Equal graphs, in whatever order they were written, have equal plans."""

    name: str
    """The name of the job."""
    vertices: tuple[Vertex, ...]
    """Producers first."""
    edges: tuple[PlannedEdge, ...]
    """By target, then by its inputs, then by stage: an edge is there once for each stage that reads by it."""
    stages: tuple[Stage, ...]
    """In an order in which they can run."""
    cyclic_regions: CyclicRegions = CyclicRegions.READ_TWICE
    """The rule for cyclic regions that it was compiled with."""

    def _repr_html_(self) -> str:
        # Here: only notebooks draw.
        from penstock.operator_attributes._render.text import stage_table

        return stage_table(self)

    @cached_property
    def _by_id(self) -> Mapping[str, Stage]:
        return {stage.id: stage for stage in self.stages}

    def stage(self, stage_id: str) -> Stage:
        """The stage with this id.

        Raises:
            SchedulingError (UNKNOWN_STAGE): the plan has no such stage.
        """
        try:
            return self._by_id[stage_id]
        except KeyError:
            raise SchedulingError.of("UNKNOWN_STAGE", stage_id=stage_id) from None

    def stages_of(self, vertex: str) -> tuple[Stage, ...]:
        """The stages that hold a vertex: one, unless it is read twice."""
        return tuple(stage for stage in self.stages if vertex in stage.vertices)

    @property
    def blocking_edges(self) -> tuple[PlannedEdge, ...]:
        """The edges that hold a stage back."""
        return tuple(edge for edge in self.edges if edge.source_stage != edge.target_stage)

    @property
    def graph(self) -> JobGraph:
        """The graph that it was compiled from, its vertices in the order of the plan."""
        graph = JobGraph(self.name)
        for vertex in self.vertices:
            graph.add(vertex)
        return graph

    def to_json(self) -> str:
        """The plan as JSON, to be read again by `from_json`."""
        return document_text(
            _Document(
                version=1,
                name=self.name,
                cyclic_regions=self.cyclic_regions,
                vertices=self.vertices,
                edges=self.edges,
                stages=self.stages,
            )
        )

    @staticmethod
    def from_json(text: str | bytes) -> "StagePlan":
        """A plan from its JSON.

        Raises:
            InvalidDocumentError: the text is not the JSON of a plan.
        """
        document = read_document(text, _Document)
        return StagePlan(document.name, document.vertices, document.edges, document.stages, document.cyclic_regions)


class _Document(msgspec.Struct, kw_only=True):
    version: Literal[1]
    name: str
    cyclic_regions: CyclicRegions = CyclicRegions.READ_TWICE
    vertices: tuple[Vertex, ...]
    edges: tuple[PlannedEdge, ...]
    stages: tuple[Stage, ...]
