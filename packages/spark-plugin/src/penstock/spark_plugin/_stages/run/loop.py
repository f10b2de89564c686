"""Runs a pipeline: bounded stages side by side as batch jobs with committed results, then live stages."""

import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TextIO

from opentelemetry.trace import Span, Status, StatusCode, use_span
from pyspark.core.status import StatusTracker
from pyspark.errors import AnalysisException

from penstock.operator_attributes import (
    Stage,
    StagedJob,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StagePlan,
    StageProgress,
    StageReused,
    StageStarted,
    StageState,
)
from penstock.spark_plugin._for_stages import tracer
from penstock.spark_plugin._stages.run.failures import words
from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun
from penstock.spark_plugin._stages.run.runner import Outcome, StageClaims, StageLookup
from penstock.spark_plugin._stages.store.result import CommittedStage
from penstock.spark_plugin.errors import PipelineError

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_BARS = 0.2
_BAR = 30
_SECONDS_BETWEEN_CANCELS = 0.5


def bar_line(name: str, progress: StageProgress, done: int, total: int) -> str:
    """One stage as a line; `done` and `total` count the tasks of its running jobs."""
    share = 1.0 if progress.state.committed else done / total if total else 0.0
    filled = round(share * _BAR)
    text = f"{name:<24.24} [{'#' * filled}{'.' * (_BAR - filled)}] {progress.state.value:<8} {progress.seconds:7.1f} s"
    if progress.rows is not None:
        text += f"  {progress.rows:,} rows"
    elif total:
        text += f"  {done}/{total} tasks"
    return text


class RunBars:
    """Draws a line per stage, replacing the lines that it drew before."""

    def __init__(self, stream: TextIO, tracker: StatusTracker) -> None:
        self._stream = stream
        self._tracker = tracker
        self._drawn = 0

    def draw(self, plan: StagePlan, progress: Mapping[str, StageProgress]) -> None:
        """Draw all stages as they stand."""
        lines = []
        for stage in plan.stages:
            one = progress[stage.id]
            running = stage.bounded and one.state is StageState.RUNNING
            lines.append(bar_line(stage.name, one, *(self._tasks(stage.name) if running else (0, 0))))
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._stream.write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _tasks(self, group: str) -> tuple[int, int]:
        """Tasks that are done, and all tasks, of the jobs of a group that run."""
        done = total = 0
        for job_id in self._tracker.getJobIdsForGroup(group):
            job = self._tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None and job.status == "RUNNING" else ():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
        return done, total


class RunLoop:
    """One run, until only live stages are running. Only the jobs of bounded stages run on other threads."""

    def __init__(
        self,
        run: PipelineRun,
        job: StagedJob,
        claims: StageClaims,
        *,
        bars: RunBars | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._job = job
        self._claims = claims
        self._builder = claims.builder
        self._bars = bars
        self._clock = clock
        self._lookup = StageLookup(self._builder, self._builder.pin)
        self._running: dict[Future[Outcome], tuple[Stage, Span]] = {}

    def go_on(self, stage_ids: tuple[str, ...]) -> None:
        """Take over what the job has committed before, if it is still there; the rest is lost."""
        for stage_id in stage_ids:
            stage = self._run.plan.stage(stage_id)
            try:
                committed, _ = self._lookup.committed(stage)
            except Exception:  # found again, and reported, when it is deployed
                _log.debug("stage %s cannot be looked up", stage.name, exc_info=True)
                continue
            if committed is not None:
                self._reuse(stage, committed)

    def run(self) -> None:
        """Deploy stages that are ready, until none is ready and none runs."""
        with ThreadPoolExecutor(len(self._run.plan.stages) or 1, thread_name_prefix="penstock-stage") as pool:
            try:
                while True:
                    while stages := self._job.ready():
                        for stage in stages:
                            if not self._deploy(stage, pool):
                                break
                    self._draw()
                    if not self._running:
                        break
                    timeout = _SECONDS_BETWEEN_BARS if self._bars is not None else None
                    for future in wait(self._running, timeout, FIRST_COMPLETED).done:
                        self._take(future)
            except BaseException:
                self._claims.stop()
                for stage, _ in self._running.values():
                    self._job.apply(StageInterrupted(stage_id=stage.id, at=self._clock()))
                self._cancel_running()
                raise
        self._builder.check_snapshots()
        succeeded = all(state not in (StageState.FAILED, StageState.SKIPPED) for state in self._run.states.values())
        if succeeded:
            self._builder.pin(ended=not self._run.queries)
            self._builder.store.clean_up()

    def _cancel_running(self) -> None:
        """Cancel until all have ended: before a stage's first job, or between two jobs, nothing can be cancelled."""
        running = {future: stage for future, (stage, _) in self._running.items()}
        while running:
            for stage in running.values():
                self._claims.runner.cancel(stage)
            for future in wait(running, _SECONDS_BETWEEN_CANCELS).done:
                del running[future]

    def _deploy(self, stage: Stage, pool: ThreadPoolExecutor) -> bool:
        """Run a stage, or reuse its result. False if its inputs are lost: other ready stages may have to wait, too."""
        if self._find_lost_inputs(stage):
            return False
        span = tracer().start_span(
            "spark_plugin.stage",
            attributes={"penstock.stage.name": stage.name, "penstock.stage.bounded": stage.bounded},
        )
        with use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                committed, wrong = self._lookup.committed(stage)
            except Exception as error:
                self._job.apply(StageStarted(stage_id=stage.id, at=self._clock()))
                self._failed(stage, span, error)
                return True
            if committed is not None:
                self._reuse(stage, committed)
                self._end(stage, span)
                return True
            if wrong:
                self._job.apply(StageReused(stage_id=stage.id, at=self._clock()))
                self._job.apply(StageLost(stage_id=stage.id, at=self._clock(), error=wrong))
            self._job.apply(StageStarted(stage_id=stage.id, at=self._clock()))
            if stage.bounded:
                context = contextvars.copy_context()
                self._running[pool.submit(context.run, self._claims.run_bounded, stage)] = (stage, span)
                return True
            try:
                self._run.deploy(stage, self._claims.runner.deploy_live(stage))
            except Exception as error:
                self._failed(stage, span, error)
            else:
                self._end(stage, span)
            return True

    def _find_lost_inputs(self, stage: Stage) -> bool:
        """Whether committed results that a stage reads are gone: they are computed again first."""
        lost = False
        for stage_id in stage.blocking_inputs:
            if self._job.state(stage_id).committed:
                before = self._run.plan.stage(stage_id)
                if wrong := self._lookup.lost_input(before):
                    self._forget_readers(before)
                    self._job.apply(StageLost(stage_id=stage_id, at=self._clock(), error=wrong))
                    lost = True
        return lost

    def _forget_readers(self, stage: Stage) -> None:
        """Forget the fingerprints of stages that are still to run: they depend on the fingerprints of their inputs."""
        gone = {stage.id}
        for one in self._run.plan.stages:
            if gone & set(one.blocking_inputs) and not self._job.state(one.id).committed:
                gone.add(one.id)
                self._builder.forget(one)

    def _reuse(self, stage: Stage, committed: CommittedStage) -> None:
        _log.info("stage %s is used again: %d rows", stage.name, committed.rows)
        rows, size = committed.rows, committed.size_bytes
        self._run.reused_seconds[stage.id] = committed.seconds
        self._job.apply(StageReused(stage_id=stage.id, at=self._clock(), rows=rows, size_bytes=size))

    def _take(self, future: Future[Outcome]) -> None:
        stage, span = self._running.pop(future)
        error = future.exception()
        if error is None:
            result = future.result().result
            if future.result().reused:
                self._reuse(stage, result)
            else:
                self._run.reused_seconds.pop(stage.id, None)  # it was, and was lost
                rows, size = result.rows, result.size_bytes
                self._job.apply(StageFinished(stage_id=stage.id, at=self._clock(), rows=rows, size_bytes=size))
            self._end(stage, span)
        elif isinstance(error, Exception):
            self._failed(stage, span, error)
        else:
            span.end()
            raise error

    def _failed(self, stage: Stage, span: Span, error: Exception) -> None:
        reason = words(error)
        is_mistake = isinstance(error, AnalysisException | PipelineError)
        # The text of a mistake in a declaration names the place to change.
        _log.warning("stage %s failed: %s", stage.name, reason, exc_info=None if is_mistake else error)
        self._run.causes[stage.id] = error
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, reason))
        # Without its input any stage fails. With it, a mistake is refused again; any other error may be temporary.
        lost = self._find_lost_inputs(stage)
        retryable = lost or not is_mistake
        self._job.apply(StageFailed(stage_id=stage.id, at=self._clock(), error=reason, retryable=retryable))
        self._end(stage, span)

    def _end(self, stage: Stage, span: Span) -> None:
        span.set_attribute("penstock.stage.state", self._job.state(stage.id).value)
        span.end()

    def _draw(self) -> None:
        if self._bars is not None:
            self._bars.draw(self._run.plan, self._run.progress)
