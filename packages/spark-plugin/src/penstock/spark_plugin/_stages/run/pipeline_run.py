"""A pipeline that was run."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import (
    Estimate,
    Explanation,
    Stage,
    StagedJob,
    StageFailed,
    StageFinished,
    StagePlan,
    StageProgress,
    StageRestarted,
    StageState,
    estimate,
    explain,
    graphviz,
    html,
    measures_of,
    mermaid,
    stage_table,
)
from penstock.spark_plugin._for_stages import arriving_bytes_per_second
from penstock.spark_plugin._stages.run.failures import NEVER, QueryRestarts, Restart, RestartPolicy, words
from penstock.spark_plugin._stages.run.refreshing import LiveRefreshes, RefreshProgress
from penstock.spark_plugin._stages.run.runner import LiveQuery, PreparedQuery, StageRunner
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import PipelineError, StoreLostError

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 1
_SECONDS_BETWEEN_WATCHES = 0.5
_SECONDS_BETWEEN_BOUNDARIES = 0.005


@dataclass(slots=True, kw_only=True)
class _Live:
    """A live sink."""

    sink: str
    stage: Stage
    started: LiveQuery
    restarts: QueryRestarts
    due: float | None = None
    """When its query, which failed, is restarted."""
    arriving_bytes_per_second: float = 0.0

    @property
    def query(self) -> StreamingQuery:
        return self.started.query


class PipelineRun:
    """A pipeline that was run: the current state of its stages, and its live queries."""

    def __init__(
        self,
        plan: StagePlan,
        scheduler: StagedJob,
        store: StageStore,
        *,
        clock: Callable[[], float],
        restarts: RestartPolicy | None = None,
    ) -> None:
        self.plan = plan
        self.warnings: Sequence[str] = ()
        """Operations of live stages that should be declared, and changes of sources."""
        self._scheduler = scheduler
        self._store = store
        self._clock = clock
        self.causes: dict[str, BaseException] = {}
        """Why stages failed the last time, by id."""
        self.reused_seconds: dict[str, float] = {}
        """Seconds that reused stages took when they were computed, by id."""
        self.runner: StageRunner | None = None
        """Restarts live queries."""
        self._policy = restarts or RestartPolicy()
        self._live: dict[str, _Live] = {}
        self._refreshes: LiveRefreshes | None = None
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._watch_queries, name="penstock live stages", daemon=True)
        self._looking = threading.Lock()
        scheduler.observe(self._look_at_queries)

    @property
    def queries(self) -> dict[str, StreamingQuery]:
        """The live queries by sink."""
        return {sink: one.query for sink, one in self._live.items()}

    @property
    def job_id(self) -> str:
        """The job's name at the stage scheduler, for `penstock stages watch`; empty without one."""
        return self._scheduler.job_id

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
        """Seconds that each stage has taken in this run, by name; 0 for a reused stage."""
        progress = self.progress
        return {stage.name: progress[stage.id].seconds for stage in self.plan.stages}

    @property
    def refreshes(self) -> Mapping[str, RefreshProgress]:
        """The refreshes of results, by the operator's name."""
        return self._refreshes.progress if self._refreshes is not None else {}

    def _repr_html_(self) -> str:
        notes = [one.line(operator) for operator, one in self.refreshes.items()]
        notes += [f"warning: {warning}" for warning in self.warnings]
        return stage_table(self.plan, self.progress) + (Explanation("\n".join(notes))._repr_html_() if notes else "")

    def explain(self) -> Explanation:
        """The plan with the progress of each stage, refreshes, and warnings."""
        text = str(explain(self.plan, self.progress))
        text += "".join(f"\n{one.line(operator)}\n" for operator, one in self.refreshes.items())
        return Explanation(text + "".join(f"\nwarning: {warning}\n" for warning in self.warnings))

    def mermaid(self) -> str:
        """The plan as a Mermaid flowchart, with states."""
        return mermaid(self.plan, self.progress)

    def graphviz(self) -> str:
        """The plan in Graphviz's DOT language, with states."""
        return graphviz(self.plan, self.progress)

    def html(self) -> str:
        """The plan as one HTML page, with the progress of each stage and what staging saves."""
        return html(self.plan, self.progress, estimate=self.estimate())

    def estimate(self) -> Estimate:
        """What staging saves, measured in this run, or in the run that computed a reused result.

        The arrival rate is known for Kinesis sources, once a live stage has caught up.
        """
        measures = measures_of(self.progress)
        measures |= {stage: replace(measures[stage], seconds=seconds) for stage, seconds in self.reused_seconds.items()}
        if not self._stopping.is_set():
            self._measure_arrivals()
        for stage, sinks in self._by_stage().items():
            arriving = math.fsum(one.arriving_bytes_per_second for one in sinks)
            measures[stage] = replace(measures[stage], arriving_bytes_per_second=arriving)
        return estimate(self.plan, measures)

    def _measure_arrivals(self) -> None:
        for one in self._live.values():
            one.arriving_bytes_per_second = arriving_bytes_per_second(one.query.recentProgress)

    def _by_stage(self) -> dict[str, list[_Live]]:
        found: dict[str, list[_Live]] = {}
        for one in self._live.values():
            found.setdefault(one.stage.id, []).append(one)
        return found

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until all live queries have ended, about `timeout` seconds at most; False when some still run.

        Raises:
            pyspark.errors.StreamingQueryException: a query failed; others may still run.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._look_at_queries()
            states = {stage_id: self._scheduler.state(stage_id) for stage_id in self._by_stage()}
            for stage_id, state in states.items():
                if state is StageState.FAILED:
                    raise self.causes[stage_id]  # others may run on for ever
            running = [query for query in self.queries.values() if query.isActive]
            runs_on = bool(running) or StageState.RUNNING in states.values()
            if not runs_on or time.monotonic() >= deadline:
                return not runs_on
            if running:
                _await(running[0])
            else:
                self._stopping.wait(_SECONDS_BETWEEN_LOOKS)

    def stop(self) -> None:
        """Stop the live queries, and release the store and the stage scheduler. Can be repeated.

        A failing step, for example in a session that has ended, does not prevent the other steps, and is raised.
        """
        with contextlib.ExitStack() as ending:  # from the last to the first
            ending.callback(self._scheduler.close)
            ending.callback(self._store.release)  # may need the scheduler
            ending.callback(self._let_go)
            ending.callback(self._look_at_queries)
            ending.callback(self._stop_queries)
            if self._refreshes is not None:
                ending.callback(self._refreshes.end)
            ending.callback(self._end_watch)
            if not self._stopping.is_set():
                ending.callback(self._measure_arrivals)

    def lose(self, error: StoreLostError) -> None:
        """End the live stages: another driver has taken over the store, and may run them."""
        with self._looking:
            for stage_id in self._by_stage():
                if self._scheduler.state(stage_id) is StageState.RUNNING:
                    self.causes[stage_id] = error
                    self._scheduler.apply(
                        StageFailed(stage_id=stage_id, at=self._clock(), error=str(error), retryable=False)
                    )
        self._stop_queries()

    def deploy(self, stage: Stage, started: Mapping[str, LiveQuery]) -> None:
        """Take over the queries of a live stage, by sink."""
        for sink, one in started.items():
            self._live[sink] = _Live(sink=sink, stage=stage, started=one, restarts=QueryRestarts(self._policy))
        if not started:  # nothing writes what the stage reads
            self._scheduler.apply(StageFinished(stage_id=stage.id, at=self._clock()))
        if self._policy.restart != NEVER and not self._watch.is_alive():
            self._watch.start()

    def refresh(self, refreshes: LiveRefreshes) -> None:
        """Compute results again, until the run is stopped."""
        self._refreshes = refreshes
        refreshes.start()

    def stage_state(self, stage: Stage) -> StageState:
        """The state of a stage."""
        self._look_at_queries()
        return self._scheduler.state(stage.id)

    def restart(self, stages: Sequence[Stage], runner: StageRunner) -> None:
        """Restart the running queries of live stages from their checkpoints, on the results of another runner.

        A query is stopped between two micro-batches. A query that does not start counts as a failed live query.

        Raises:
            Exception: a query cannot be built on these results, or they cannot be pinned; all queries run on.
        """
        prepared: dict[str, PreparedQuery] = {}
        with contextlib.ExitStack() as undo:
            for sink, one in self._live.items():
                if one.stage in stages and one.query.isActive:
                    prepared[sink] = runner.prepare(one.stage, sink)
                    undo.callback(prepared[sink].release)
            runner.builder.pin()
            undo.pop_all()
        self.runner = runner
        for sink, query in prepared.items():
            self._restart(self._live[sink], query, runner)

    def _restart(self, one: _Live, prepared: PreparedQuery, runner: StageRunner) -> None:
        before = _last_batch(one.query)
        # With more data, the next micro-batch starts as one ends: the query stops before it has planned a job.
        while one.query.isActive and one.query.status["isTriggerActive"] and _last_batch(one.query) == before:
            if self._stopping.wait(_SECONDS_BETWEEN_BOUNDARIES):
                break
        with self._looking:
            try:
                if one.query.isActive and not self._stopping.is_set():
                    one.query.stop()
                    self._start(one, prepared, runner)
            except Exception as error:
                self._take_failure(one, error)
            finally:
                prepared.release()

    def _start(self, one: _Live, prepared: PreparedQuery, runner: StageRunner) -> None:
        before, one.started = one.started, runner.start(one.stage, prepared)
        before.release()

    def _stop_queries(self) -> None:
        with contextlib.ExitStack() as ending:
            for one in self._live.values():
                ending.callback(one.query.stop)

    def _let_go(self) -> None:
        with contextlib.ExitStack() as ending:
            for one in self._live.values():
                ending.callback(one.started.release)

    def _end_watch(self) -> None:
        self._stopping.set()
        if self._watch.is_alive() and self._watch is not threading.current_thread():
            self._watch.join()

    def _watch_queries(self) -> None:
        while not self._stopping.wait(_SECONDS_BETWEEN_WATCHES):
            try:
                self._look_at_queries()
            except Exception:  # such as: the session has ended meanwhile; whoever asks next sees it
                _log.debug("the queries of %s could not be looked at", self.plan.name, exc_info=True)

    def _look_at_queries(self) -> None:
        """End live stages of which one query failed, or all were stopped."""
        with self._looking:
            self._look_at_each()

    def _look_at_each(self) -> None:
        for stage_id, sinks in self._by_stage().items():
            if self._scheduler.state(stage_id) is not StageState.RUNNING:
                continue
            runs = False
            for one in sinks:
                if one.due is not None and not self._stopping.is_set() and self._clock() >= one.due:
                    self._start_again(one)
                # In this order: a query that fails between the two calls was active, and is checked again later.
                runs |= one.query.isActive or one.due is not None
                if one.due is None and (failed := one.query.exception()) is not None:
                    self._take_failure(one, failed)
                    runs |= one.due is not None
                if self._scheduler.state(stage_id) is not StageState.RUNNING:
                    break
            else:
                if not runs:
                    self._scheduler.apply(StageFinished(stage_id=stage_id, at=self._clock()))

    def _take_failure(self, one: _Live, error: BaseException) -> None:
        """Schedule the restart of a failed query, or fail its stage."""
        stage_id, reason = one.stage.id, words(error)
        if self._scheduler.state(stage_id) is not StageState.RUNNING:
            return  # another query of the stage failed before
        self.causes[stage_id] = error
        decision = self._decide(one, error, reason)
        if decision.seconds is not None:
            one.due = self._clock() + decision.seconds
            _log.warning("the query of sink %s is restarted in %.0f s: %s", one.sink, decision.seconds, reason)
            self._scheduler.apply(StageRestarted(stage_id=stage_id, at=self._clock(), error=reason))
            return
        if decision.reason:
            reason = f"{reason}; {decision.reason}"
        # A new run continues from the checkpoint, with the micro-batch that failed.
        self._scheduler.apply(StageFailed(stage_id=stage_id, at=self._clock(), error=reason, retryable=False))

    def _decide(self, one: _Live, error: BaseException, reason: str) -> Restart:
        if self._policy.restart == NEVER or self._stopping.is_set():
            return Restart(None, "")
        if isinstance(error, AnalysisException | PipelineError):
            return Restart(None, "not started again: it would be refused again")
        assert self.runner is not None
        try:
            batch_id = self.runner.next_batch(one.sink)
        except Exception:  # the checkpoint's file system may be the cause
            _log.debug("cannot read the checkpoint of sink %s", one.sink, exc_info=True)
            batch_id = None
        return one.restarts.failed(self._clock(), reason, batch_id)

    def _start_again(self, one: _Live) -> None:
        assert self.runner is not None
        one.due = None
        try:
            self._start(one, self.runner.prepare(one.stage, one.sink), self.runner)
        except Exception as error:
            self._take_failure(one, error)


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return progress["batchId"] if progress is not None else None


def _await(query: StreamingQuery) -> None:
    # Its error is reported by the stage's state.
    with contextlib.suppress(StreamingQueryException):
        query.awaitTermination(_SECONDS_BETWEEN_LOOKS)
