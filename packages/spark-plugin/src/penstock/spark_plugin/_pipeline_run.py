"""Runs a pipeline: bounded stages as batch jobs with committed results, live stages as streaming queries."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry.trace import Status, StatusCode
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import (
    Stage,
    StageFailed,
    StageFinished,
    StagePlan,
    StageProgress,
    StageReused,
    StageScheduler,
    StageStarted,
    StageState,
)
from penstock.spark_plugin._settings import missing_settings
from penstock.spark_plugin._stage_builder import StageBuilder
from penstock.spark_plugin._stage_runner import StageRunner
from penstock.spark_plugin._stage_store import StageStore
from penstock.spark_plugin._telemetry import tracer
from penstock.spark_plugin.errors import PipelineError, StageFailedError

if TYPE_CHECKING:
    from penstock.spark_plugin._pipeline import Pipeline

_log = logging.getLogger(__name__)


class PipelineRun:
    """A pipeline that was run: its stages as they stand, and its live queries."""

    def __init__(
        self, plan: StagePlan, scheduler: StageScheduler, store: StageStore, *, clock: Callable[[], float]
    ) -> None:
        self.plan = plan
        self.queries: dict[str, StreamingQuery] = {}
        """The live queries by sink."""
        self._scheduler = scheduler
        self._store = store
        self._clock = clock
        self._live: dict[str, list[StreamingQuery]] = {}
        self._materialised: list[DataFrame] = []

    @property
    def progress(self) -> Mapping[str, StageProgress]:
        """State, attempts, seconds, rows and bytes by stage id, in the order of the plan."""
        self._look_at_queries()
        return self._scheduler.progress(self._clock())

    @property
    def states(self) -> dict[str, StageState]:
        """State by the stages' names, in the order of the plan."""
        self._look_at_queries()
        return {stage.name: self._scheduler.state(stage.id) for stage in self.plan.stages}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each stage has taken in this run, by name; 0 for one that was used again."""
        progress = self.progress
        return {stage.name: progress[stage.id].seconds for stage in self.plan.stages}

    def explain(self) -> str:
        """The plan with how far each stage has come."""
        return self.plan.explain(self.progress)

    def mermaid(self) -> str:
        """The plan as a Mermaid flowchart, with states."""
        return self.plan.mermaid(self.progress)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until all live queries have ended, about `timeout` seconds at most; False when some still run.

        Raises:
            pyspark.errors.StreamingQueryException: A query failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for query in self.queries.values():
            if deadline is None:
                query.awaitTermination()
            elif not query.awaitTermination(max(1, math.ceil(deadline - time.monotonic()))):
                return False
        return True

    def stop(self) -> None:
        """Stop the live queries and let another driver have the store. Can be repeated."""
        try:
            for query in self.queries.values():
                query.stop()
            self._look_at_queries()
        finally:
            for frame in self._materialised:
                frame.unpersist()
            self._store.release()

    def deploy(self, stage: Stage, queries: Mapping[str, StreamingQuery], inputs: Sequence[DataFrame]) -> None:
        """Take over the queries of a live stage, and the committed results that are kept in memory for them."""
        self._live[stage.id] = list(queries.values())
        self.queries.update(queries)
        self._materialised += inputs

    def _look_at_queries(self) -> None:
        """A live stage ends when one of its queries fails, or when all were stopped."""
        for stage_id, queries in self._live.items():
            if self._scheduler.state(stage_id) is not StageState.RUNNING:
                continue
            failed = next((error for query in queries if (error := query.exception()) is not None), None)
            if failed is not None:
                # The checkpoint is where it goes on: a new run does that, from the beginning of the failed micro-batch.
                words = _words(failed)
                self._scheduler.apply(StageFailed(stage_id=stage_id, at=self._clock(), error=words, retryable=False))
            elif not any(query.isActive for query in queries):
                self._scheduler.apply(StageFinished(stage_id=stage_id, at=self._clock()))


def run_pipeline(
    pipeline: "Pipeline",
    spark: SparkSession,
    *,
    resume: bool,
    max_attempts: int,
    clock: Callable[[], float] = time.monotonic,
) -> PipelineRun:
    """See `Pipeline.run`."""
    missing_settings(spark)
    plan = pipeline.compile()
    scheduler = StageScheduler(plan, max_attempts=max_attempts)
    store = StageStore(pipeline.store)
    store.__enter__()
    run = PipelineRun(plan, scheduler, store, clock=clock)
    try:
        if not resume:
            store.forget()
        runner = StageRunner(pipeline.name, StageBuilder(pipeline.declared, plan, spark, store), spark, store)
        while stages := scheduler.ready(clock()):
            for stage in stages:
                _deploy(runner, stage, run, scheduler, clock)
    except BaseException:
        run.stop()
        raise
    if not run.queries:
        store.release()
    _raise_if_failed(run, scheduler)
    return run


def _deploy(
    runner: StageRunner,
    stage: Stage,
    run: PipelineRun,
    scheduler: StageScheduler,
    clock: Callable[[], float],
) -> None:
    with tracer().start_as_current_span(
        "spark_plugin.stage",
        attributes={"penstock.stage.name": stage.name, "penstock.stage.bounded": stage.bounded},
    ) as span:
        committed = runner.committed(stage)
        if committed is not None:
            _log.info("stage %s is used again: %d rows", stage.name, committed.rows)
            span.set_attribute("penstock.stage.state", StageState.REUSED.value)
            scheduler.apply(
                StageReused(stage_id=stage.id, at=clock(), rows=committed.rows, size_bytes=committed.size_bytes)
            )
            return
        scheduler.apply(StageStarted(stage_id=stage.id, at=clock()))
        try:
            if stage.bounded:
                result = runner.run_bounded(stage)
                scheduler.apply(
                    StageFinished(stage_id=stage.id, at=clock(), rows=result.rows, size_bytes=result.size_bytes)
                )
            else:
                run.deploy(stage, *runner.deploy_live(stage))
        except Exception as error:
            _log.warning("stage %s failed", stage.name, exc_info=True)
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            # The same plan is refused again; anything else may have been the machine.
            retryable = not isinstance(error, AnalysisException | PipelineError)
            scheduler.apply(StageFailed(stage_id=stage.id, at=clock(), error=_words(error), retryable=retryable))
        span.set_attribute("penstock.stage.state", scheduler.state(stage.id).value)


def _raise_if_failed(run: PipelineRun, scheduler: StageScheduler) -> None:
    for stage in run.plan.stages:
        if scheduler.state(stage.id) is StageState.FAILED:
            raise StageFailedError(stage.name, run.progress[stage.id].error, run)


def _words(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
