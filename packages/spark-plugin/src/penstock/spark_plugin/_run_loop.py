"""Runs a pipeline: bounded stages side by side as batch jobs with committed results, then live stages."""

import contextvars
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.trace import Span, Status, StatusCode, use_span
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.operator_attributes import (
    Stage,
    StageFailed,
    StageFinished,
    StageReused,
    StageScheduler,
    StageStarted,
    StageState,
)
from penstock.spark_plugin._pipeline_run import PipelineRun, words
from penstock.spark_plugin._run_bars import RunBars
from penstock.spark_plugin._run_pins import RunPins
from penstock.spark_plugin._settings import missing_settings
from penstock.spark_plugin._stage_builder import StageBuilder
from penstock.spark_plugin._stage_runner import StageRunner
from penstock.spark_plugin._stage_store import CommittedStage, StageStore
from penstock.spark_plugin._telemetry import tracer
from penstock.spark_plugin.errors import PipelineDefinitionError, PipelineError, StageFailedError

if TYPE_CHECKING:
    from penstock.spark_plugin._pipeline import Pipeline

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_BARS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a pipeline is run; see `Pipeline.run`."""

    resume: bool = True
    refresh: bool = False
    slots: int | None = None
    max_attempts: int = 3
    progress: bool | None = None


def run_pipeline(
    pipeline: "Pipeline", spark: SparkSession, settings: RunSettings, *, clock: Callable[[], float] = time.monotonic
) -> PipelineRun:
    """See `Pipeline.run`."""
    missing_settings(spark)
    plan = pipeline.compile()
    scheduler = StageScheduler(plan, slots=settings.slots, max_attempts=settings.max_attempts)
    store = StageStore(pipeline.store, stages=pipeline.stages)
    store.__enter__()
    run = PipelineRun(plan, scheduler, store, clock=clock)
    try:
        if not settings.resume:
            store.forget()
        before = store.pins()
        going_on = before is not None and not before.ended and not settings.refresh
        pins = before.stages if before is not None and going_on else {}
        builder = StageBuilder(pipeline.declared, plan, spark, store, pins)
        runner = StageRunner(pipeline.name, builder, spark, store)
        bars = None
        if sys.stderr.isatty() if settings.progress is None else settings.progress:
            bars = RunBars(sys.stderr, spark.sparkContext.statusTracker())
        _RunLoop(pipeline.name, run, scheduler, store, builder, runner, bars, clock).run()
    except BaseException:
        run.stop()
        raise
    if not run.queries:
        store.release()
    _raise_if_failed(run, scheduler)
    return run


class _RunLoop:
    """One run, up to the moment when only live stages go on. Everything but a bounded stage's jobs is on one thread."""

    def __init__(
        self,
        pipeline: str,
        run: PipelineRun,
        scheduler: StageScheduler,
        store: StageStore,
        builder: StageBuilder,
        runner: StageRunner,
        bars: RunBars | None,
        clock: Callable[[], float],
    ) -> None:
        self._pipeline = pipeline
        self._run = run
        self._scheduler = scheduler
        self._store = store
        self._builder = builder
        self._runner = runner
        self._bars = bars
        self._clock = clock
        self._running: dict[Future[CommittedStage], tuple[Stage, Span]] = {}

    def run(self) -> None:
        """Deploy what is ready, until nothing is and nothing runs."""
        with ThreadPoolExecutor(len(self._run.plan.stages) or 1, thread_name_prefix="penstock-stage") as pool:
            try:
                while True:
                    while stages := self._scheduler.ready(self._clock()):
                        for stage in stages:
                            self._deploy(stage, pool)
                    self._draw()
                    if not self._running:
                        break
                    timeout = _SECONDS_BETWEEN_BARS if self._bars is not None else None
                    for future in wait(self._running, timeout, FIRST_COMPLETED).done:
                        self._take(future)
            except BaseException:
                for stage, _ in self._running.values():
                    self._runner.cancel(stage)
                raise
        succeeded = all(state not in (StageState.FAILED, StageState.SKIPPED) for state in self._run.states.values())
        if succeeded:
            self._pin(ended=not self._run.queries)
            self._store.clean_up()

    def _deploy(self, stage: Stage, pool: ThreadPoolExecutor) -> None:
        span = tracer().start_span(
            "spark_plugin.stage",
            attributes={"penstock.stage.name": stage.name, "penstock.stage.bounded": stage.bounded},
        )
        with use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                if stage.bounded:
                    self._builder.fingerprint(stage)
                    self._pin()
                committed = self._runner.committed(stage)
            except PipelineDefinitionError:
                span.end()
                raise
            except Exception as error:
                self._scheduler.apply(StageStarted(stage_id=stage.id, at=self._clock()))
                self._failed(stage, span, error)
                return
            if committed is not None:
                _log.info("stage %s is used again: %d rows", stage.name, committed.rows)
                rows, size = committed.rows, committed.size_bytes
                self._scheduler.apply(StageReused(stage_id=stage.id, at=self._clock(), rows=rows, size_bytes=size))
                self._end(stage, span)
                return
            self._scheduler.apply(StageStarted(stage_id=stage.id, at=self._clock()))
            if stage.bounded:
                context = contextvars.copy_context()
                self._running[pool.submit(context.run, self._runner.run_bounded, stage)] = (stage, span)
                return
            try:
                self._run.deploy(stage, *self._runner.deploy_live(stage))
            except Exception as error:
                self._failed(stage, span, error)
            else:
                self._end(stage, span)

    def _take(self, future: Future[CommittedStage]) -> None:
        stage, span = self._running.pop(future)
        error = future.exception()
        if error is None:
            result = future.result()
            rows, size = result.rows, result.size_bytes
            self._scheduler.apply(StageFinished(stage_id=stage.id, at=self._clock(), rows=rows, size_bytes=size))
            self._end(stage, span)
        elif isinstance(error, Exception):
            self._failed(stage, span, error)
        else:
            span.end()
            raise error

    def _failed(self, stage: Stage, span: Span, error: Exception) -> None:
        _log.warning("stage %s failed", stage.name, exc_info=error)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        # The same plan is refused again; anything else may have been the machine.
        retryable = not isinstance(error, AnalysisException | PipelineError)
        self._scheduler.apply(StageFailed(stage_id=stage.id, at=self._clock(), error=words(error), retryable=retryable))
        self._end(stage, span)

    def _end(self, stage: Stage, span: Span) -> None:
        span.set_attribute("penstock.stage.state", self._scheduler.state(stage.id).value)
        span.end()

    def _pin(self, *, ended: bool = False) -> None:
        """Pinned before it is looked up: no other driver cleans it up from here on."""
        self._store.pin(
            RunPins(pipeline=self._pipeline, store=str(self._store.path), stages=self._builder.used, ended=ended)
        )

    def _draw(self) -> None:
        if self._bars is not None:
            self._bars.draw(self._run.plan, self._run.progress)


def _raise_if_failed(run: PipelineRun, scheduler: StageScheduler) -> None:
    for stage in run.plan.stages:
        if scheduler.state(stage.id) is StageState.FAILED:
            raise StageFailedError(stage.name, run.progress[stage.id].error, run)
