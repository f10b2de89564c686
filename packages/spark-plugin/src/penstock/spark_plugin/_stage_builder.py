"""Builds the DataFrames of a stage from the pipeline's functions."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import Stage, StagePlan, VertexKind
from penstock.spark_plugin._code_fingerprint import digest, function_fingerprint
from penstock.spark_plugin._fingerprint import session_fingerprint, source_fingerprint
from penstock.spark_plugin._pipeline import Declared
from penstock.spark_plugin._stage_store import StageFolder, StageStore
from penstock.spark_plugin.errors import PipelineDefinitionError


class StageBuilder:
    """Builds DataFrames, and says which results they stand for. One per run: a source is built once in it."""

    def __init__(
        self, declared: Mapping[str, Declared], plan: StagePlan, spark: SparkSession, store: StageStore
    ) -> None:
        self._declared = declared
        self._plan = plan
        self._spark = spark
        self._store = store
        self._sources: dict[str, DataFrame] = {}
        self._fingerprints: dict[str, str] = {}
        self.kept: dict[str, list[DataFrame]] = {}
        """Committed results that are kept in memory, by id of the live stage that reads them."""

    def declared(self, name: str) -> Declared:
        """What was declared by that name."""
        return self._declared[name]

    def folder(self, stage: Stage) -> StageFolder:
        """Where a bounded stage's result is, or goes to."""
        return self._store.stage(stage.name, self.fingerprint(stage))

    def fingerprint(self, stage: Stage) -> str:
        """Of a bounded stage: its functions, what its sources read, and the stages that it reads."""
        if stage.id not in self._fingerprints:
            parts = [session_fingerprint(self._spark)]
            parts += [self.fingerprint(self._plan.stage(name)) for name in stage.blocking_inputs]
            for name in stage.vertices:
                one = self._declared[name]
                parts += [name, ",".join(one.inputs), function_fingerprint(one.function)]
                if one.kind is VertexKind.SOURCE:
                    parts.append(one.fingerprint or source_fingerprint(self._source(name)))
            self._fingerprints[stage.id] = digest(*parts)
        return self._fingerprints[stage.id]

    def build(self, stage: Stage, name: str) -> DataFrame:
        """The DataFrame of a source or operator in a stage.

        Raises:
            PipelineDefinitionError: The function gave something else.
        """
        return self._build(stage, name, {})

    def writer(self, stage: Stage, name: str) -> Any:
        """What a sink's function gives for its inputs."""
        built: dict[str, DataFrame] = {}
        return self._declared[name].function(*self._inputs(stage, name, built))

    def _build(self, stage: Stage, name: str, built: dict[str, DataFrame]) -> DataFrame:
        if name not in built:
            one = self._declared[name]
            if one.kind is VertexKind.SOURCE:
                built[name] = self._source(name)
            else:
                built[name] = _frame(one, one.function(*self._inputs(stage, name, built)))
        return built[name]

    def _inputs(self, stage: Stage, name: str, built: dict[str, DataFrame]) -> list[DataFrame]:
        committed = {one.source: one.stage_id for one in stage.inputs if one.target == name}
        return [
            self._committed(self._plan.stage(committed[source]), source, stage)
            if source in committed
            else self._build(stage, source, built)
            for source in self._declared[name].inputs
        ]

    def _committed(self, stage: Stage, vertex: str, reader: Stage) -> DataFrame:
        frame = self._spark.read.parquet(str(self.folder(stage).output(vertex)))
        if not reader.bounded:
            # Every micro-batch reads it: from memory that takes less than half of the time.
            frame = frame.persist()
            self.kept.setdefault(reader.id, []).append(frame)
        return frame

    def _source(self, name: str) -> DataFrame:
        if name not in self._sources:
            one = self._declared[name]
            frame = _frame(one, one.function(self._spark))
            if frame.isStreaming == one.bounded:
                said, is_ = ("bounded", "a stream") if one.bounded else ("unbounded", "not a stream")
                raise PipelineDefinitionError(
                    f"source {name!r} ({one.call_site}) is declared {said}, but its DataFrame is {is_}"
                )
            self._sources[name] = frame
        return self._sources[name]


def _frame(one: Declared, value: object) -> DataFrame:
    if not isinstance(value, DataFrame):
        raise PipelineDefinitionError(
            f"{one.name!r} ({one.call_site}) must give a DataFrame, not {type(value).__name__}"
        )
    return value
