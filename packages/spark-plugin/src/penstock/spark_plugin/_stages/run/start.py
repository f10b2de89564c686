"""Starts a run: finds where the last run stopped, here and at the stage scheduler."""

import contextlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import (
    BlockingStageScheduler,
    Stage,
    StagedJob,
    StagePlan,
    StageState,
    VertexKind,
    open_stage_scheduler,
)
from penstock.operator_attributes.errors import SchedulerAwayError
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._for_stages import check_session, missing_settings
from penstock.spark_plugin._stages.declare.declared import Declared, find_refreshes
from penstock.spark_plugin._stages.plans.jobs import jobs_of
from penstock.spark_plugin._stages.plans.plan import plans_of
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.failures import ON_FAILURE, RestartPolicy
from penstock.spark_plugin._stages.run.loop import RunBars, RunLoop
from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun
from penstock.spark_plugin._stages.run.queries import check_consumers
from penstock.spark_plugin._stages.run.refreshing import LiveRefreshes
from penstock.spark_plugin._stages.run.runner import StageClaims, StageRunner
from penstock.spark_plugin.errors import PipelineDefinitionError, PipelineError, StageFailedError

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.declare.pipeline import Pipeline

_log = logging.getLogger(__name__)
_PREFIX = "PENSTOCK_STAGES"


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
    _check(pipeline, plan, settings)
    with contextlib.ExitStack() as opened:
        service = open_service(settings.scheduler_endpoint, settings.scheduler_security)
        if service is not None:
            opened.callback(service.close)
        else:
            _check_without_service(settings)
        store = opened.enter_context(pipeline.place.open(service))
        job = StagedJob(
            plan,
            slots=settings.slots,
            max_attempts=settings.max_attempts,
            clock=clock,
            service=service,
            job_id=f"{pipeline.name}-{store.identity()[:8]}" if service is not None else "",
        )
        opened.pop_all()
    run = PipelineRun(plan, job, store, clock=clock, restarts=settings.restarts)
    store.when_lost(run.lose)
    owner = f"{job.job_id}#{secrets.token_urlsafe(16)}"

    def claims_of(builder: StageBuilder, *, resume: bool = True) -> StageClaims:
        """Make the runner of a builder's stages."""
        return StageClaims(
            StageRunner(pipeline.name, builder, spark, store, resume=resume),
            service=service,
            results=store.results_identity() if service is not None else "",
            owner=owner,
            lease_seconds=settings.lease_seconds,
        )

    try:
        if not settings.resume:
            store.forget()
        before = store.pins()
        resumes = before is not None and not before.ended and not settings.refresh
        pins = before.stages if before is not None and resumes else {}
        builder = StageBuilder(pipeline.declared, plan, spark, store, pins)
        run.warnings = builder.warnings
        check_consumers(pipeline.readers(), builder)
        refreshes = find_refreshes(pipeline.declared, plan)
        claims = claims_of(builder, resume=settings.resume)
        run.runner = claims.runner
        claims.runner.end_predecessor()
        loop = RunLoop(run, job, claims, bars=_bars(spark, settings), clock=clock)
        _begin(job, loop, _address(settings.scheduler_endpoint), resumes=resumes)
        loop.run()
        if run.queries:
            run.refresh(LiveRefreshes(refreshes, run, builder, claims_of, clock))
    except BaseException:
        run.stop()
        raise
    if not run.queries:
        run.stop()
    _raise_failure(run, job)
    return run


class _Unrun(StageBuilder):
    """Builds stages before any has run: a committed result is an empty DataFrame with its columns."""

    def __init__(self, declared: Mapping[str, Declared], plan: StagePlan, spark: SparkSession) -> None:
        nowhere: Any = None
        super().__init__(declared, plan, spark, nowhere)

    def look(self, stage: Stage) -> None:
        """Build the sources and operators of a stage, and find what its results depend on."""
        built = self._built.setdefault(stage.id, {})
        for one in map(self.declared, stage.vertices):
            world: Sequence[str] = ()
            if one.kind is VertexKind.SINK:
                world = self._look_at_function(one).world
            else:
                frame = self._build(stage, one.name, built)
                if one.kind is VertexKind.SOURCE and stage.bounded and not one.fingerprint:
                    world = plans_of(frame).look(frame).world
            if stage.bounded:
                self._is_of_the_world(stage, one, world)

    def _committed(self, stage: Stage, vertex: str, reader: Stage) -> DataFrame:
        frame = self._build(stage, vertex, self._built.setdefault(stage.id, {}))
        return self._spark.createDataFrame([], frame.schema)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)


def find_warnings(pipeline: "Pipeline", plan: StagePlan, spark: SparkSession) -> list[str]:
    """The warnings of a run when it builds its sources and operators; starts no job itself."""
    check_session(spark)
    builder = _Unrun(pipeline.declared, plan, spark)
    for stage in plan.stages:
        builder.look(stage)
    return builder.warnings


def _bars(spark: SparkSession, settings: RunSettings) -> RunBars | None:
    wanted = sys.stderr.isatty() if settings.progress is None else settings.progress
    tracker = jobs_of(spark).tracker() if wanted else None
    return RunBars(sys.stderr, tracker) if tracker is not None else None


def _begin(job: StagedJob, loop: RunLoop, address: str, *, resumes: bool) -> None:
    """Continue from the state that the stage scheduler knows, and report to it from now on."""
    try:
        loop.go_on(job.begin(resume=resumes))
        job.go_on()
    except SchedulerAwayError as error:
        raise PipelineError.of("SCHEDULER_UNAVAILABLE", endpoint=address, reason=str(error)) from error
    if job.job_id:
        _log.info("the stage scheduler at %s knows this job as %s", address, job.job_id)


def _raise_failure(run: PipelineRun, job: StagedJob) -> None:
    for stage in run.plan.stages:
        if job.state(stage.id) is StageState.FAILED:
            cause = run.causes.get(stage.id)
            if isinstance(cause, PipelineError):
                # Its text names the user's place; where it was found does not matter.
                cause = cause.with_traceback(None)
            raise StageFailedError(stage.name, run.progress[stage.id].error, run) from cause


def _check(pipeline: "Pipeline", plan: StagePlan, settings: RunSettings) -> None:
    if settings.restarts.restart == ON_FAILURE and all(stage.bounded for stage in plan.stages):
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r} ({pipeline.site}) has restart={ON_FAILURE!r}, which applies to live queries, "
            "and all of its sources are bounded: leave it out; a bounded stage is tried max_attempts times"
        )


def _check_without_service(settings: RunSettings) -> None:
    for name in ("scheduler_security", "lease_seconds"):
        if getattr(settings, name) is not None:
            raise PipelineDefinitionError(
                f"{name} has no effect without a stage scheduler: give scheduler_endpoint or "
                "PENSTOCK_STAGES_ENDPOINT, or leave it out"
            )


def open_service(endpoint: str | None, security: ClientSecurity | None) -> BlockingStageScheduler | None:
    """The service at an endpoint, by default at PENSTOCK_STAGES_ENDPOINT; None without one, or if it is empty.

    Raises:
        penstock.rpc.RpcOptionError: a file cannot be read, or the token would cross the network in plain text.
    """
    address = _address(endpoint)
    return open_stage_scheduler(address, security if security is not None else _security()) if address else None


def _address(endpoint: str | None) -> str:
    return (os.environ.get(f"{_PREFIX}_ENDPOINT") if endpoint is None else endpoint) or ""


def _security() -> ClientSecurity:
    """The security that the variables of the service's commands describe."""

    def text(name: str) -> str | None:
        return os.environ.get(f"{_PREFIX}_{name}") or None

    def path(name: str) -> Path | None:
        return Path(found) if (found := text(name)) else None

    token = text("TOKEN")
    return ClientSecurity(
        ca_file=path("CA_FILE"),
        certificate_file=path("CERTIFICATE_FILE"),
        private_key_file=path("PRIVATE_KEY_FILE"),
        token=token,
        token_file=path("TOKEN_FILE") if token is None else None,
    )
