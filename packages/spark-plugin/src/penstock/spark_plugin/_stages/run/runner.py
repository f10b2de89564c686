"""Runs one stage: a batch job that commits, or live queries."""

import re
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import Stage, VertexKind
from penstock.spark_plugin._for_stages import current_traceparent
from penstock.spark_plugin._stages.declare.declared import Declared
from penstock.spark_plugin._stages.plans.plans import plans_of
from penstock.spark_plugin._stages.plans.session_jobs import jobs_of
from penstock.spark_plugin._stages.run.builder import Kept, StageBuilder
from penstock.spark_plugin._stages.run.checkpoints import Checkpoints
from penstock.spark_plugin._stages.run.readers import check_query
from penstock.spark_plugin._stages.store.pins import safe_name
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import PipelineDefinitionError

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
"""Some sinks make a table of the query's name."""


@dataclass(slots=True, kw_only=True)
class LiveQuery:
    """The query of a live sink. It may hold committed results in memory."""

    query: StreamingQuery
    kept: list[Kept] = field(default_factory=list)

    def release(self) -> None:
        """Release the results. Can be repeated."""
        _release(self.kept)


@dataclass(slots=True, kw_only=True)
class PreparedQuery:
    """The query of a live sink that was checked, and is not started."""

    sink: Declared
    writer: Any
    checkpoint: str
    kept: list[Kept]

    def release(self) -> None:
        """Release the results, for a query that is not to be started. Can be repeated."""
        _release(self.kept)


class StageRunner:
    """Runs the stages of one pipeline in one session."""

    def __init__(
        self,
        pipeline: str,
        builder: StageBuilder,
        spark: SparkSession,
        store: StageStore,
        *,
        resume: bool,
    ) -> None:
        self._pipeline = pipeline
        self.builder = builder
        """Of what it runs."""
        self._jobs = jobs_of(spark)
        self._store = store
        self._checkpoints = Checkpoints(spark, store, resume=resume)
        self._locations: dict[str, str] = {}
        # A stage that is tried again, or was lost, must not append the same rows once more.
        self._saved: set[tuple[str, str]] = set()

    def run_bounded(self, stage: Stage, stopped: threading.Event) -> CommittedStage:
        """Run a bounded stage's outputs and sinks as batch jobs, then commit.

        Where another driver, on a store that shares its results, computes the same one, this waits for it and uses it;
        until `stopped`.
        """
        folder = self.builder.folder(stage)
        with self._store.computing(self.builder.name(stage), self.builder.fingerprint(stage), stopped=stopped):
            return folder.committed() or self._run_bounded(stage, folder)

    def cancel(self, stage: Stage) -> None:
        """End the jobs of a stage."""
        self._jobs.cancel(self.builder.name(stage))

    def _run_bounded(self, stage: Stage, folder: StageResult) -> CommittedStage:
        began, fingerprint = time.monotonic(), self.builder.fingerprint(stage)
        folder.begin(stage.name)
        built: dict[str, DataFrame] = {}
        try:
            with self._job_group(stage):
                for vertex in stage.outputs:
                    folder.write(vertex, self.builder.build(stage, vertex, built))
                for sink in self._sinks(stage):
                    if (sink, fingerprint) not in self._saved:
                        self._save(stage, sink, built)
                        self._saved.add((sink, fingerprint))
        finally:
            self.builder.let_go(stage)
        rows, size_bytes = folder.measure(stage.outputs)
        result = CommittedStage(
            stage=stage.name,
            fingerprint=fingerprint,
            rows=rows,
            size_bytes=size_bytes,
            seconds=time.monotonic() - began,
            outputs={vertex: safe_name(vertex) for vertex in stage.outputs},
            beside=self.builder.beside(stage),
        )
        return folder.commit(result)

    def _save(self, stage: Stage, sink: str, built: dict[str, DataFrame]) -> None:
        writer = self.builder.writer(stage, sink, built)
        if not self._jobs.is_batch_writer(writer):
            raise self._wrong_writer(sink, writer, "a DataFrameWriter (`df.write…`)")
        writer.save()

    def deploy_live(self, stage: Stage) -> dict[str, LiveQuery]:
        """Start the queries of a live stage, by sink, from their checkpoints where there are any."""
        started: dict[str, LiveQuery] = {}
        try:
            for sink in self._sinks(stage):
                started[sink] = self.start(stage, self.prepare(stage, sink))
        except BaseException:
            for one in started.values():
                one.query.stop()
                one.release()
            raise
        return started

    def prepare(self, stage: Stage, sink: str) -> PreparedQuery:
        """Build the query of a live sink. Raises: what its functions raise, or a `PipelineError`."""
        try:
            with self._job_group(stage):
                return self._prepare(stage, self.builder.declared(sink))
        except BaseException:
            self.builder.let_go(stage)
            raise

    def start(self, stage: Stage, prepared: PreparedQuery) -> LiveQuery:
        """Start a prepared query, from its checkpoint where there is one."""
        name = prepared.sink.name
        self._locations[name] = prepared.checkpoint
        try:
            with self._job_group(stage):
                self._store.mend_checkpoint(name)
                query = prepared.writer.option("checkpointLocation", prepared.checkpoint).start()
        except BaseException:
            prepared.release()
            raise
        if prepared.sink.started is not None:
            prepared.sink.started()
        return LiveQuery(query=query, kept=prepared.kept)

    def next_batch(self, sink: str) -> int | None:
        """The micro-batch that a sink's query comes to next; None if that cannot be seen."""
        return self._checkpoints.next_batch(self._locations[sink])

    def _prepare(self, stage: Stage, sink: Declared) -> PreparedQuery:
        writer = self._checked(sink.name, self.builder.writer(stage, sink.name, {}))
        if sink.trigger:
            try:
                writer = writer.trigger(**sink.trigger)
            except (TypeError, PySparkException) as error:
                raise PipelineDefinitionError(
                    f"sink {sink.name!r} ({sink.call_site}) has the trigger {dict(sink.trigger)}, which Spark does "
                    f"not take: {error}"
                ) from error
        plans = plans_of(writer)
        sources = plans.live_sources(plans.written(writer))
        check_query(sink, sources)
        checkpoint = self._checkpoints.location(sink, writer, sources)
        if "queryname" not in plans.options(writer):
            writer = writer.queryName(_UNSAFE.sub("_", f"{self._pipeline}_{sink.name}"))
        kept = self.builder.kept.pop(stage.id, [])
        return PreparedQuery(sink=sink, writer=writer, checkpoint=checkpoint, kept=kept)

    def _checked(self, sink: str, writer: Any) -> Any:
        if not self._jobs.is_stream_writer(writer):
            if callable(stop := getattr(writer, "stop", None)):
                stop()  # a query that nobody would stop
            raise self._wrong_writer(sink, writer, "a DataStreamWriter (`df.writeStream…`)")
        return writer

    def _sinks(self, stage: Stage) -> list[str]:
        return [name for name in stage.vertices if self.builder.declared(name).kind is VertexKind.SINK]

    def _wrong_writer(self, sink: str, value: object, wanted: str) -> PipelineDefinitionError:
        site = self.builder.declared(sink).call_site
        return PipelineDefinitionError(
            f"sink {sink!r} ({site}) must give {wanted} that is not started, not {type(value).__name__}"
        )

    def _job_group(self, stage: Stage) -> AbstractContextManager[None]:
        """Name the jobs after the stage, and let their tasks know the trace."""
        return self._jobs.group(
            self.builder.name(stage), f"{self._pipeline}: stage {stage.name}", current_traceparent()
        )


def _release(kept: list[Kept]) -> None:
    with ExitStack() as ending:
        while kept:
            ending.callback(kept.pop().release)
