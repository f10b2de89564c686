"""Begins a run: finds where the last one was left, here and at the stage scheduler."""

import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from penstock.operator_attributes import BlockingStageScheduler, StagedJob, StagePlan, StageState
from penstock.operator_attributes.errors import RemoteSchedulerError, SchedulerClosedError
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._interpreters import check_session
from penstock.spark_plugin._settings import missing_settings
from penstock.spark_plugin._stages.declare.refreshes import find_refreshes, refreshed_by_reader
from penstock.spark_plugin._stages.plans.session_jobs import jobs_of
from penstock.spark_plugin._stages.run.bars import RunBars
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.claims import StageClaims
from penstock.spark_plugin._stages.run.loop import RunLoop, RunParts
from penstock.spark_plugin._stages.run.pipeline_run import LiveRestarts, PipelineRun
from penstock.spark_plugin._stages.run.readers import check_consumers
from penstock.spark_plugin._stages.run.refreshing import LiveRefreshes, RefreshParts
from penstock.spark_plugin._stages.run.restarts import ON_FAILURE, RestartPolicy
from penstock.spark_plugin._stages.run.runner import StageRunner
from penstock.spark_plugin._stages.run.scheduler_service import address_of, job_id, open_service
from penstock.spark_plugin._stages.store.api import PipelineStore
from penstock.spark_plugin.errors import (
    PipelineDefinitionError,
    PipelineError,
    SchedulerUnavailableError,
    StageFailedError,
)

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.declare.pipeline import Pipeline

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a pipeline is run; see `Pipeline.run`."""

    resume: bool = True
    refresh: bool = False
    slots: int | None = None
    max_attempts: int = 3
    progress: bool | None = None
    scheduler_endpoint: str | None = None
    scheduler_security: ClientSecurity | None = field(default=None, repr=False)
    lease_seconds: float | None = None
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


def run_pipeline(
    pipeline: "Pipeline", spark: SparkSession, settings: RunSettings, *, clock: Callable[[], float] = time.monotonic
) -> PipelineRun:
    """See `Pipeline.run`."""
    check_session(spark)
    missing_settings(spark)
    plan = pipeline.compile()
    if settings.restarts.restart == ON_FAILURE and all(stage.bounded for stage in plan.stages):
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r} ({pipeline.site}) has restart={ON_FAILURE!r}, which is of live queries, and "
            "all that it reads is bounded: leave it out; a bounded stage is tried max_attempts times"
        )
    with contextlib.ExitStack() as opened:
        service = open_service(settings.scheduler_endpoint, settings.scheduler_security)
        if service is not None:
            opened.callback(service.close)
        else:
            _check_without_service(settings)
        store = pipeline.place.open(service)
        store.__enter__()
        opened.callback(store.release)
        job = _job(pipeline, store, plan, settings, service, clock)
        opened.pop_all()
    run = PipelineRun(plan, job, store, clock=clock)
    store.when_lost(run.lose)
    try:
        if not settings.resume:
            store.forget()
        before = store.pins()
        going_on = before is not None and not before.ended and not settings.refresh
        builder = StageBuilder(
            pipeline.declared, plan, spark, store, before.stages if before is not None and going_on else {}
        )
        run.warnings = builder.warnings
        check_consumers(pipeline.readers(), builder)
        refreshes = find_refreshes(pipeline.declared, plan)
        results = store.results_identity() if service is not None else ""
        owner = f"{job.job_id}#{secrets.token_urlsafe(16)}"

        def create(builder: StageBuilder, *, resume: bool = True) -> tuple[StageRunner, StageClaims]:
            runner = StageRunner(
                pipeline.name, builder, spark, store, resume=resume, refreshed=refreshed_by_reader(refreshes)
            )
            claims = StageClaims(
                runner,
                builder,
                service=service,
                results=results,
                owner=owner,
                lease_seconds=settings.lease_seconds,
            )
            return runner, claims

        runner, claims = create(builder, resume=settings.resume)
        bars = None
        if sys.stderr.isatty() if settings.progress is None else settings.progress:
            tracker = jobs_of(spark).tracker()
            bars = RunBars(sys.stderr, tracker) if tracker is not None else None
        loop = RunLoop(
            RunParts(
                pipeline=pipeline.name,
                run=run,
                job=job,
                store=store,
                builder=builder,
                refreshing=before.refreshing if before is not None and going_on else {},
                runner=runner,
                claims=claims,
                bars=bars,
                clock=clock,
            )
        )
        _begin(loop, job, settings, going_on=going_on)
        run.watch(LiveRestarts(runner, settings.restarts))
        loop.run()
        if run.queries:
            parts = RefreshParts(
                pipeline=pipeline.name,
                run=run,
                store=store,
                builder=builder,
                create=create,
                resumed=before.refreshing if before is not None and going_on else None,
                clock=clock,
            )
            run.refresh(LiveRefreshes(refreshes, parts), runner)
    except BaseException:
        run.stop()
        raise
    if not run.queries:
        run.stop()
    for stage in plan.stages:
        if job.state(stage.id) is StageState.FAILED:
            cause = run.causes.get(stage.id)
            if isinstance(cause, PipelineError):
                cause = cause.with_traceback(None)  # its words name the user's place; where it was found is none of it
            raise StageFailedError(stage.name, run.progress[stage.id].error, run) from cause
    return run


def _check_without_service(settings: RunSettings) -> None:
    for name in ("scheduler_security", "lease_seconds"):
        if getattr(settings, name) is not None:
            raise PipelineDefinitionError(
                f"{name} is of a stage scheduler, and none is given: give scheduler_endpoint or "
                "PENSTOCK_STAGES_ENDPOINT, or leave it out"
            )


def _job(
    pipeline: "Pipeline",
    store: PipelineStore,
    plan: StagePlan,
    settings: RunSettings,
    service: BlockingStageScheduler | None,
    clock: Callable[[], float],
) -> StagedJob:
    return StagedJob(
        plan,
        slots=settings.slots,
        max_attempts=settings.max_attempts,
        clock=clock,
        service=service,
        job_id=job_id(pipeline.name, store.identity()) if service is not None else "",
    )


def _begin(loop: RunLoop, job: StagedJob, settings: RunSettings, *, going_on: bool) -> None:
    try:
        committed = job.begin(resume=going_on)
        loop.go_on(committed)
        job.go_on()
    except (RemoteSchedulerError, SchedulerClosedError) as error:
        raise SchedulerUnavailableError(address_of(settings.scheduler_endpoint), str(error)) from error
    if job.job_id:
        _log.info("the stage scheduler at %s knows this job as %s", address_of(settings.scheduler_endpoint), job.job_id)
