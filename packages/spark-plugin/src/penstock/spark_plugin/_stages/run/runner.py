"""Runs one stage: a batch job that commits, or live queries."""

import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import Stage, VertexKind
from penstock.spark_plugin._stages.plans.batches import BatchPlan, NotByBatchError
from penstock.spark_plugin._stages.plans.plans import plans_of
from penstock.spark_plugin._stages.plans.session_jobs import jobs_of
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.checkpoints import Checkpoints
from penstock.spark_plugin._stages.run.readers import check_query
from penstock.spark_plugin._stages.run.swapping import BatchSwap, Kept, LiveQuery, plan_of_batches
from penstock.spark_plugin._stages.store.api import PipelineStore, StageResult
from penstock.spark_plugin._stages.store.store import CommittedStage
from penstock.spark_plugin._telemetry import current_traceparent
from penstock.spark_plugin.errors import PipelineDefinitionError

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
"""Some sinks make a table of the query's name."""


class StageRunner:
    """Runs the stages of one pipeline in one session."""

    def __init__(
        self,
        pipeline: str,
        builder: StageBuilder,
        spark: SparkSession,
        store: PipelineStore,
        *,
        resume: bool,
        refreshed: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """`refreshed`: ids of the stages whose results are computed again for a live stage, by that one's id."""
        self._pipeline = pipeline
        self._refreshed = refreshed or {}
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
            outputs={vertex: folder.output_name(vertex) for vertex in stage.outputs},
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
                started[sink] = self.start(stage, sink)
        except BaseException:
            for one in started.values():
                one.query.stop()
                for kept in one.kept:
                    kept.frame.unpersist()
            raise
        return started

    def start(self, stage: Stage, sink: str) -> LiveQuery:
        """Start the query of a live sink, from its checkpoint where there is one."""
        try:
            with self._job_group(stage):
                return self._start(stage, sink)
        except BaseException:
            self.builder.let_go(stage)
            raise

    def next_plan(self, stage: Stage, sink: str) -> tuple[BatchPlan, Sequence[Kept]]:
        """What the running query of a sink would do with its micro-batches, to read the results of this runner.

        Raises:
            NotByBatchError: the query has to be restarted for that.
            Exception: the query cannot read them.
        """
        try:
            writer, given = self.builder.live_writer(stage, sink)
            plan, _ = plan_of_batches(self._checked(sink, writer), given, self._refreshed.get(stage.id, frozenset()))
        except BaseException:
            self.builder.let_go(stage)
            raise
        return plan, self.builder.kept.pop(stage.id, [])

    def next_batch(self, sink: str) -> int | None:
        """The micro-batch that a sink's query comes to next; None if that cannot be seen."""
        return self._checkpoints.next_batch(self._locations[sink])

    def _start(self, stage: Stage, sink: str) -> LiveQuery:
        writer, given = self.builder.live_writer(stage, sink)
        writer = self._checked(sink, writer)
        declared = self.builder.declared(sink)
        if declared.trigger:
            try:
                writer = writer.trigger(**declared.trigger)
            except (TypeError, PySparkException) as error:
                raise PipelineDefinitionError(
                    f"sink {sink!r} ({declared.call_site}) has the trigger {dict(declared.trigger)}, which Spark does "
                    f"not take: {error}"
                ) from error
        self._store.mend_checkpoint(sink)
        plans = plans_of(writer)
        sources = plans.live_sources(plans.written(writer))
        check_query(declared, sources)
        checkpoint = self._checkpoints.location(declared, writer, sources)
        if "queryname" not in plans.options(writer):
            writer = writer.queryName(_UNSAFE.sub("_", f"{self._pipeline}_{sink}"))
        swap, by_restart = None, ""
        refreshed = self._refreshed.get(stage.id, frozenset())
        if any(one.stage_id in refreshed for one in given):
            try:
                plan, stream = plan_of_batches(writer, given, refreshed)
            except NotByBatchError as error:
                by_restart = str(error)
            else:
                function = plans.batch_function(writer)
                assert function is not None
                swap = BatchSwap(plan, function)
                writer = plans.write_instead(writer, stream).foreachBatch(swap)
        query: StreamingQuery = writer.option("checkpointLocation", checkpoint).start()
        self._locations[sink] = checkpoint
        if declared.started is not None:
            declared.started()
        return LiveQuery(query=query, kept=self.builder.kept.pop(stage.id, []), swap=swap, by_restart=by_restart)

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
