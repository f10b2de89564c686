"""Pipelines: named functions over DataFrames, planned as stages."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql import SparkSession

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    OperatorAttributes,
    StagePlan,
    VertexKind,
    compile,
)
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.spark_plugin._pipeline_run import PipelineRun

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One function of a pipeline."""

    name: str
    kind: VertexKind
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    bounded: bool = False
    attributes: OperatorAttributes | None = None
    keyed: bool = False
    chained: bool = False
    parallelism: int = 1
    trigger: Mapping[str, Any] | None = None
    fingerprint: str | None = None

    @property
    def call_site(self) -> str:
        """`file:line` of the function."""
        code = inspect.unwrap(self.function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"


class Pipeline:
    """A job made of named functions: sources, operators and sinks.

    A function's parameters name what it reads; a source takes the session. Functions are called when the pipeline runs:
    operators with the DataFrames of their inputs, where the result of a blocking stage is the committed one, read back.
    An operator gives a DataFrame; a sink gives a `DataStreamWriter` (live) or a `DataFrameWriter` (bounded), which the
    pipeline starts.
    """

    def __init__(self, name: str, *, store: str | Path) -> None:
        """Begin an empty pipeline.

        Args:
            name: For people, and for the names of queries.
            store: Folder for committed results and checkpoints, which the driver and all executors can reach.
        """
        if not name:
            raise PipelineDefinitionError("a pipeline needs a name")
        self.name = name
        self.store = Path(store)
        self._declared: dict[str, Declared] = {}

    @property
    def declared(self) -> Mapping[str, Declared]:
        """What was declared, by name, in the order of writing."""
        return dict(self._declared)

    def source(
        self,
        *,
        bounded: bool,
        name: str | None = None,
        parallelism: int = 1,
        fingerprint: str | None = None,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Declare a source; the function takes the session and gives a DataFrame.

        Args:
            bounded: Whether it ends. It must be what Spark says of the DataFrame: `isStreaming` is its opposite.
            name: Default: the function's.
            parallelism: Slots that it takes.
            fingerprint: Names the data where that cannot be seen (a database, an RDD): while it stays the same, stages
                on it are used again. Files need none.
        """

        def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
            self._add(
                Declared(
                    name=name or function.__name__,
                    kind=VertexKind.SOURCE,
                    function=function,
                    inputs=(),
                    bounded=bounded,
                    parallelism=parallelism,
                    fingerprint=fingerprint,
                )
            )
            return function

        return declare

    def op(
        self,
        *,
        attributes: OperatorAttributes | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
        keyed: bool = False,
        chained: bool = False,
        parallelism: int = 1,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Declare an operator; the function takes the DataFrames of its inputs and gives one.

        Args:
            attributes: What it tells the planner; full-dam operators end a stage.
            inputs: Names of what it reads. Default: its parameters' names.
            name: Default: the function's.
            keyed: Whether its inputs are partitioned by key on their way.
            chained: Whether it goes with its only input.
            parallelism: Slots that it takes.
        """

        def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
            self._add(
                Declared(
                    name=name or function.__name__,
                    kind=VertexKind.OPERATOR,
                    function=function,
                    inputs=_inputs(function, inputs),
                    attributes=attributes,
                    keyed=keyed,
                    chained=chained,
                    parallelism=parallelism,
                )
            )
            return function

        return declare

    def sink(
        self,
        *,
        trigger: Mapping[str, Any] | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
        parallelism: int = 1,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Declare a sink; the function takes the DataFrames of its inputs and gives a writer that is not started.

        Args:
            trigger: Arguments of `DataStreamWriter.trigger`, for a live sink: `{"processingTime": "1 second"}`.
            inputs: Names of what it reads. Default: its parameters' names.
            name: Default: the function's. A live sink's query and checkpoint go by it.
            parallelism: Slots that it takes.
        """

        def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
            self._add(
                Declared(
                    name=name or function.__name__,
                    kind=VertexKind.SINK,
                    function=function,
                    inputs=_inputs(function, inputs),
                    trigger=trigger,
                    parallelism=parallelism,
                )
            )
            return function

        return declare

    def graph(self) -> JobGraph:
        """The job graph, as the planner takes it."""
        graph = JobGraph(self.name)
        for one in self._declared.values():
            if one.kind is VertexKind.SOURCE:
                graph.add_source(
                    one.name,
                    boundedness=Boundedness.BOUNDED if one.bounded else Boundedness.UNBOUNDED,
                    parallelism=one.parallelism,
                    call_site=one.call_site,
                )
            elif one.kind is VertexKind.OPERATOR:
                graph.add_operator(
                    one.name,
                    *one.inputs,
                    attributes=one.attributes,
                    keyed=one.keyed,
                    chained=one.chained,
                    parallelism=one.parallelism,
                    call_site=one.call_site,
                )
            else:
                graph.add_sink(one.name, *one.inputs, parallelism=one.parallelism, call_site=one.call_site)
        return graph

    def compile(self) -> StagePlan:
        """The stages; `explain()` and `mermaid()` of the plan show them.

        Raises:
            penstock.operator_attributes.errors.CompileError: It cannot be planned; names the place in the user's code.
        """
        return compile(self.graph())

    def run(self, spark: SparkSession, *, resume: bool = True, max_attempts: int = 3) -> "PipelineRun":
        """Run the bounded stages, each committed before what waits for it, then deploy the live ones.

        Returns when all bounded stages have ended and all live queries run.

        Args:
            spark: The session.
            resume: Use committed results whose fingerprint still matches, and go on from the live queries' checkpoints.
                False: forget both, and begin anew.
            max_attempts: Deployments of a stage before it counts as failed.

        Raises:
            StageFailedError: A stage failed for good, after all others that do not depend on it were run. Its `run` is
                what this would have returned.
            StoreInUseError: Another driver runs on the store.
        """
        from penstock.spark_plugin._pipeline_run import run_pipeline

        return run_pipeline(self, spark, resume=resume, max_attempts=max_attempts)

    def _add(self, one: Declared) -> None:
        if one.name in self._declared:
            raise PipelineDefinitionError(
                f"{one.name!r} ({one.call_site}) is declared already ({self._declared[one.name].call_site})"
            )
        self._declared[one.name] = one


def _inputs(function: Callable[..., Any], inputs: Sequence[str] | None) -> tuple[str, ...]:
    if inputs is not None:
        return tuple(inputs)
    parameters = inspect.signature(function).parameters.values()
    names = tuple(
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    )
    if not names:
        raise PipelineDefinitionError(f"{function.__name__!r} reads nothing: name its inputs as its parameters")
    return names
