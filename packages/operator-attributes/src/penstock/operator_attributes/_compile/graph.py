"""The job as the user wrote it: sources, operators and sinks, and what each one reads."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from penstock.operator_attributes._compile.attributes import (
    OperatorAttributes,
    OperatorAttributesBuilder,
    WindowAssigner,
    window_attributes,
)
from penstock.operator_attributes.errors import CompileError, InvalidDocumentError, InvalidOptionError, at

_D = TypeVar("_D", bound=msgspec.Struct)
_NO_ATTRIBUTES = OperatorAttributes()


class Boundedness(StrEnum):
    """Whether an input ends."""

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"


class ResultPartitionType(StrEnum):
    """How an edge hands its records over (Flink's `ResultPartitionType`)."""

    UNDECIDED = "undecided"
    """The compiler decides."""
    PIPELINED = "pipelined"
    """As they come: producer and consumer are deployed together."""
    BLOCKING = "blocking"
    """All of them, when the producer has finished: the consumer is deployed after it."""


class VertexKind(StrEnum):
    """What a vertex does."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a vertex."""

    source: str
    """Name of the vertex that is read."""
    keyed: bool = False
    """Whether its records are partitioned by key on their way. A keyed edge is never chained."""
    partition_type: ResultPartitionType = ResultPartitionType.UNDECIDED
    """The exchange mode that the user asks for; it is kept, whatever the operators say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A source, an operator or a sink."""

    name: str
    """Unique in the graph."""
    kind: VertexKind
    inputs: tuple[Input, ...] = ()
    """What it reads, in the order in which it takes them; none for a source."""
    boundedness: Boundedness | None = None
    """Whether a source ends; None for other vertices, whose boundedness follows from their inputs."""
    attributes: OperatorAttributes = _NO_ATTRIBUTES
    chained: bool | None = None
    """Whether it wants to be chained with its input. It is, if that input is its only one, is not keyed, has the same
    parallelism and is not declared blocking. None becomes True for an operator that is not full-dam: such a one takes
    records as they are forwarded to it. A full-dam operator gathers them first, and what a sink writes can be written
    again without being computed again: None becomes False for these."""
    parallelism: int = 1
    """Slots that it takes; at least 1."""
    call_site: str = ""
    """`file:line` of the user's code, for errors and explanations; empty if not known."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidOptionError("name", self.name, "a text that is not empty")
        if self.parallelism < 1:
            raise InvalidOptionError("parallelism", self.parallelism, "at least 1")
        if isinstance(self.attributes, OperatorAttributesBuilder):
            raise self._invalid("its attributes are a builder: call `.build()` on it")
        if not isinstance(self.attributes, OperatorAttributes):
            raise self._invalid(
                f"its attributes are of type {type(self.attributes).__name__}: give "
                "OperatorAttributes(output_only_after_end_of_stream=…, internal_sorter_supported=…)"
            )
        if self.chained is None:
            object.__setattr__(self, "chained", self.kind is VertexKind.OPERATOR and not self.full_dam)
        if self.kind is VertexKind.SOURCE:
            if self.inputs:
                raise self._invalid("a source has no inputs")
            if self.boundedness is None:
                raise self._invalid("a source is bounded or unbounded")
        else:
            if not self.inputs:
                raise self._invalid(f"{self.kind.value} without input")
            if self.boundedness is not None:
                raise self._invalid("only sources declare boundedness")

    def _invalid(self, reason: str) -> CompileError:
        return CompileError.at(self.call_site, "INVALID_VERTEX", name=self.name, reason=reason)

    @property
    def full_dam(self) -> bool:
        """Whether it emits only after the end of its inputs."""
        return self.attributes.output_only_after_end_of_stream

    @property
    def keyed(self) -> bool:
        """Whether any of its inputs is keyed."""
        return any(one.keyed for one in self.inputs)


class JobGraph:
    """Sources, operators and sinks by name. Names may be used as inputs before they are added."""

    def __init__(self, name: str = "job") -> None:
        if not name:
            raise InvalidOptionError("name", name, "a text that is not empty")
        self.name = name
        self._vertices: dict[str, Vertex] = {}

    def add(self, vertex: Vertex) -> Vertex:
        """Add a vertex and give it back.

        Raises:
            CompileError (DUPLICATE_NAME): the graph has a vertex of this name.
        """
        present = self._vertices.get(vertex.name)
        if present is not None:
            first = f" by the vertex{at(present.call_site)}" if present.call_site else ""
            raise CompileError.at(vertex.call_site, "DUPLICATE_NAME", name=vertex.name, first=first)
        self._vertices[vertex.name] = vertex
        return vertex

    def add_source(
        self, name: str, *, boundedness: Boundedness, parallelism: int = 1, call_site: str | None = None
    ) -> Vertex:
        """Add a source. `call_site` is the caller's own line unless given. Raises: as `add`."""
        return self.add(
            Vertex(
                name=name,
                kind=VertexKind.SOURCE,
                boundedness=boundedness,
                parallelism=parallelism,
                call_site=caller() if call_site is None else call_site,
            )
        )

    def add_operator(
        self,
        name: str,
        *inputs: str | Vertex | Input,
        attributes: OperatorAttributes | None = None,
        window: WindowAssigner | None = None,
        keyed: bool = False,
        chained: bool | None = None,
        parallelism: int = 1,
        call_site: str | None = None,
    ) -> Vertex:
        """Add an operator that reads `inputs`, in this order.

        `keyed` is for inputs given by name or vertex; an `Input` says it itself. `window` gives the attributes
        that FLIP-331 has for a window operator; give it or `attributes`, not both. Raises: as `add`.
        """
        if window is not None:
            if attributes is not None:
                raise InvalidOptionError("attributes", attributes, "left out when a window is given")
            attributes = window_attributes(window)
        return self.add(
            Vertex(
                name=name,
                kind=VertexKind.OPERATOR,
                inputs=_inputs(inputs, keyed=keyed),
                attributes=_NO_ATTRIBUTES if attributes is None else attributes,
                chained=chained,
                parallelism=parallelism,
                call_site=caller() if call_site is None else call_site,
            )
        )

    def add_sink(
        self,
        name: str,
        *inputs: str | Vertex | Input,
        chained: bool | None = None,
        parallelism: int = 1,
        call_site: str | None = None,
    ) -> Vertex:
        """Add a sink that reads `inputs`. Raises: as `add`."""
        return self.add(
            Vertex(
                name=name,
                kind=VertexKind.SINK,
                inputs=_inputs(inputs, keyed=False),
                chained=chained,
                parallelism=parallelism,
                call_site=caller() if call_site is None else call_site,
            )
        )

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """All vertices, in the order in which they were added."""
        return tuple(self._vertices.values())

    def to_json(self) -> str:
        """The graph as JSON, to be read again by `from_json`."""
        return document_text(_Document(version=1, name=self.name, vertices=list(self)))

    @staticmethod
    def from_json(text: str | bytes) -> "JobGraph":
        """A graph from its JSON.

        Raises:
            InvalidDocumentError: the text is not the JSON of a graph.
            CompileError (INVALID_VERTEX): a vertex contradicts its kind.
            CompileError (DUPLICATE_NAME): two vertices have one name.
        """
        document = read_document(text, _Document)
        graph = JobGraph(document.name)
        for vertex in document.vertices:
            graph.add(vertex)
        return graph

    def __getitem__(self, name: str) -> Vertex:
        return self._vertices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._vertices

    def __iter__(self) -> Iterator[Vertex]:
        return iter(self.vertices)

    def __len__(self) -> int:
        return len(self._vertices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobGraph) and self.name == other.name and self._vertices == other._vertices

    __hash__ = None  # type: ignore[assignment]  # it can still grow

    def __repr__(self) -> str:
        return f"JobGraph(name={self.name!r}, vertices={list(self._vertices)!r})"


def _inputs(inputs: tuple[str | Vertex | Input, ...], *, keyed: bool) -> tuple[Input, ...]:
    return tuple(
        one if isinstance(one, Input) else Input(one if isinstance(one, str) else one.name, keyed=keyed)
        for one in inputs
    )


_PACKAGE = str(Path(__file__).resolve().parents[1])


def caller(*, also_skip: tuple[str, ...] = ()) -> str:
    """`file:line` of the nearest frame outside of this package; empty if no such frame exists.

    `also_skip`: paths that a caller's file must not begin with either, for libraries that wrap this one.
    """
    skip = (_PACKAGE, *also_skip)
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(skip):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Document(msgspec.Struct, kw_only=True):
    version: Literal[1]
    name: str
    vertices: list[Vertex]


def document_text(document: msgspec.Struct) -> str:
    """A document as JSON, indented, with a line break at its end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def read_document(text: str | bytes, kind: type[_D]) -> _D:
    """A document from its JSON.

    A document says its version. Unknown fields are ignored and those with a default may be missing, so that a version
    can grow without breaking its readers.

    Raises:
        InvalidDocumentError: the text is not the JSON of such a document.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        # msgspec ends its words with the place: "… - at `$.vertices[0].name`".
        reason, _, path = str(error).partition(" - at ")
        raise InvalidDocumentError(path.strip("`") or "$", reason) from error
