"""A pipeline that was run."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import (
    Estimate,
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
)
from penstock.spark_plugin._reading.progress.listener import kinesis_progress
from penstock.spark_plugin._stages.plans.batches import BatchPlan, NotByBatchError
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.causes import words
from penstock.spark_plugin._stages.run.refreshing import LiveRefreshes, RefreshProgress
from penstock.spark_plugin._stages.run.restarts import NEVER, QueryRestarts, Restart, RestartPolicy
from penstock.spark_plugin._stages.run.runner import StageRunner
from penstock.spark_plugin._stages.run.swapping import BatchSwap, Kept, LiveQuery
from penstock.spark_plugin._stages.store.api import PipelineStore
from penstock.spark_plugin.errors import PipelineError, StoreLostError

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 1
_SECONDS_BETWEEN_WATCHES = 0.5
_SECONDS_BETWEEN_BOUNDARIES = 0.005


class PipelineRun:
    """A pipeline that was run: its stages as they stand, and its live queries."""

    def __init__(
        self, plan: StagePlan, scheduler: StagedJob, store: PipelineStore, *, clock: Callable[[], float]
    ) -> None:
        self.plan = plan
        self.warnings: Sequence[str] = ()
        """What was found in the functions of live stages that should be declared, and in what sources hold."""
        self.queries: dict[str, StreamingQuery] = {}
        """The live queries by sink."""
        self._scheduler = scheduler
        self._store = store
        self._clock = clock
        self.causes: dict[str, BaseException] = {}
        """Why stages failed the last time, by id."""
        self.reused_seconds: dict[str, float] = {}
        """What the stages that were used again took when they were computed, by id."""
        self._live: dict[str, list[str]] = {}
        self._arriving: dict[str, float] = {}
        self._restarts: LiveRestarts | None = None
        self._refreshes: LiveRefreshes | None = None
        self._swapping: set[str] = set()
        self._runner: StageRunner | None = None
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._watch_queries, name="penstock live stages", daemon=True)
        self._queries: dict[str, LiveQuery] = {}
        self._looking = threading.Lock()
        scheduler.observe(self._look_at_queries)

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
        """Seconds that each stage has taken in this run, by name; 0 for one that was used again."""
        progress = self.progress
        return {stage.name: progress[stage.id].seconds for stage in self.plan.stages}

    @property
    def refreshes(self) -> Mapping[str, RefreshProgress]:
        """The results that are computed again while the run goes on, by the operator's name."""
        if self._refreshes is None:
            return {}
        readers = self._refreshes.readers
        return {
            name: replace(progress, by_restart=self._by_restart(readers[name]))
            for name, progress in self._refreshes.progress.items()
        }

    def explain(self) -> str:
        """The plan with how far each stage has come, what is computed again, and what should be declared."""
        text = explain(self.plan, self.progress)
        text += "".join(f"\n{one.line(operator)}\n" for operator, one in self.refreshes.items())
        return text + "".join(f"\nwarning: {warning}\n" for warning in self.warnings)

    def mermaid(self) -> str:
        """The plan as a Mermaid flowchart, with states."""
        return mermaid(self.plan, self.progress)

    def graphviz(self) -> str:
        """The plan in Graphviz's DOT language, with states."""
        return graphviz(self.plan, self.progress)

    def html(self) -> str:
        """The plan as one HTML page, with how far each stage has come and what staging saves."""
        return html(self.plan, self.progress, estimate=self.estimate())

    def estimate(self) -> Estimate:
        """What staging saves, by what this run has measured, or the run that computed what is used again.

        What arrives meanwhile is known of Kinesis, from when a live stage has caught up with it.
        """
        measures = measures_of(self.progress)
        measures |= {stage: replace(measures[stage], seconds=seconds) for stage, seconds in self.reused_seconds.items()}
        if not self._stopping.is_set():
            self._measure_arrivals()
        for stage, sinks in self._live.items():
            arriving = math.fsum(self._arriving.get(sink, 0.0) for sink in sinks)
            measures[stage] = replace(measures[stage], arriving_bytes_per_second=arriving)
        return estimate(self.plan, measures)

    def _measure_arrivals(self) -> None:
        for sink, query in self.queries.items():
            self._arriving[sink] = arriving_bytes_per_second(query.recentProgress)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until all live queries have ended, about `timeout` seconds at most; False when some still run.

        Raises:
            pyspark.errors.StreamingQueryException: a query failed; others may still run.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._look_at_queries()
            states = {stage_id: self._scheduler.state(stage_id) for stage_id in self._live}
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
        """Stop the live queries, and let go of the store and of the stage scheduler. Can be repeated.

        What cannot be done, such as in a session that has ended, keeps nothing else from being done, and is raised.
        """
        with contextlib.ExitStack() as ending:  # from the last to the first
            ending.callback(self._scheduler.close)
            ending.callback(self._store.release)  # by the scheduler, where that decides about the store
            ending.callback(self._let_go)
            ending.callback(self._look_at_queries)
            ending.callback(self._stop_queries)
            if self._refreshes is not None:
                ending.callback(self._refreshes.end)
            ending.callback(self._end_watch)
            if not self._stopping.is_set():
                ending.callback(self._measure_arrivals)

    def lose(self, error: StoreLostError) -> None:
        """End the live stages: another driver has the store, and may run them."""
        with self._looking:
            for stage_id in self._live:
                if self._scheduler.state(stage_id) is StageState.RUNNING:
                    self.causes[stage_id] = error
                    self._scheduler.apply(
                        StageFailed(stage_id=stage_id, at=self._clock(), error=str(error), retryable=False)
                    )
        self._stop_queries()

    def deploy(self, stage: Stage, started: Mapping[str, LiveQuery]) -> None:
        """Take over the queries of a live stage, by sink."""
        self._live[stage.id] = list(started)
        for sink, one in started.items():
            self._take_over(sink, one)
        if self._restarts is not None and not self._watch.is_alive():
            self._watch.start()

    def watch(self, restarts: "LiveRestarts") -> None:
        """Start live queries again that fail, from the first one that is deployed until the run is stopped."""
        self._restarts = restarts if restarts.wanted else None

    def refresh(self, refreshes: LiveRefreshes, runner: StageRunner) -> None:
        """Compute results again, until the run is stopped; `runner` has started the live queries."""
        self._refreshes, self._runner = refreshes, runner
        refreshes.start()

    def stage_state(self, stage: Stage) -> StageState:
        """How a stage stands."""
        self._look_at_queries()
        return self._scheduler.state(stage.id)

    def swap(self, stages: Sequence[Stage], runner: StageRunner, pin: Callable[[StageBuilder], None]) -> bool:
        """Have the queries of live stages read the results of another runner, from one micro-batch on.

        Where a query's plan allows it the running query goes on, else it is started again between two micro-batches.

        Args:
            stages: Live stages; those that have ended are left as they are.
            runner: Makes the plans of queries, and starts them.
            pin: Called with the builder of the results that are read from then on, when nobody reads the others.

        Returns:
            Whether it was done: not in a run that is being stopped.

        Raises:
            Exception: a query cannot be started with these results, or go on; all go on with the former ones.
        """
        sinks = [(stage, sink) for stage in stages for sink in self._live.get(stage.id, ())]
        plans = self._next_plans(sinks, runner)
        with self._looking:
            self._swapping.update(stage.id for stage in stages)
        try:
            running = [(stage, sink) for stage, sink in sinks if self.queries[sink].isActive]
            again = [(stage, sink) for stage, sink in running if sink not in plans]
            before: dict[BatchSwap, BatchPlan] = {}
            for _, sink in again:
                self._stop_between_batches(sink)
            for sink, (plan, _) in plans.items():
                if (swap := self._queries[sink].swap) is not None:
                    before[swap] = swap.plan
                    swap.use(plan)
            if not all(swap.settle(self._stopping) for swap in before) or self._stopping.is_set():
                return False
            pin(runner.builder)
            try:
                for stage, sink in again:
                    self._take_over(sink, runner.start(stage, sink))
            except Exception:
                self._go_on_as_before(again, before, pin)
                raise
            self._runner = runner
            if self._restarts is not None:
                self._restarts.use(runner)
            for sink, (_, kept) in plans.items():
                self._take_over(sink, replace(self._queries[sink], kept=kept))
            return True
        finally:
            with self._looking:
                self._swapping.clear()
            self._release(one for _, kept in plans.values() for one in kept)

    def _next_plans(
        self, sinks: Sequence[tuple[Stage, str]], runner: StageRunner
    ) -> dict[str, tuple[BatchPlan, Sequence[Kept]]]:
        """Of the queries that can go on, by sink. Raises: Exception: a query cannot read these results."""
        plans: dict[str, tuple[BatchPlan, Sequence[Kept]]] = {}
        try:
            for stage, sink in sinks:
                if (swap := self._queries[sink].swap) is not None:
                    with contextlib.suppress(NotByBatchError):
                        plans[sink] = runner.next_plan(stage, sink)
                        if swap.takes(plans[sink][0]):
                            continue
                        self._release(plans.pop(sink)[1])
                runner.builder.check(stage, sink)  # a query that runs is not stopped for what cannot run
        except BaseException:
            self._release(one for _, kept in plans.values() for one in kept)
            raise
        return plans

    def _take_over(self, sink: str, started: LiveQuery) -> None:
        before = self._queries.get(sink)
        self._queries[sink], self.queries[sink] = started, started.query
        if before is not None:
            self._release(before.kept)

    def _release(self, kept: Iterable[Kept]) -> None:
        """Let go of what no query reads any more: Spark keeps a result once, whoever wants it kept."""
        read = {one.location for query in self._queries.values() for one in query.kept}
        with contextlib.ExitStack() as ending:
            for one in kept:
                if one.location not in read:
                    ending.callback(one.frame.unpersist)

    def _by_restart(self, stages: Sequence[Stage]) -> dict[str, str]:
        sinks = (sink for stage in stages for sink in self._live.get(stage.id, ()))
        return {sink: reason for sink in sinks if (reason := self._queries[sink].by_restart)}

    def _go_on_as_before(
        self,
        sinks: Sequence[tuple[Stage, str]],
        plans: Mapping[BatchSwap, BatchPlan],
        pin: Callable[[StageBuilder], None],
    ) -> None:
        for _, sink in sinks:
            self.queries[sink].stop()
        for swap, plan in plans.items():
            swap.use(plan)
        for swap in plans:
            swap.settle(self._stopping)
        assert self._runner is not None
        pin(self._runner.builder)
        for stage, sink in sinks:
            try:
                self._take_over(sink, self._runner.start(stage, sink))
            except Exception as error:
                with self._looking:
                    self._take_failure(stage.id, sink, error)

    def _stop_between_batches(self, sink: str) -> None:
        query = self.queries[sink]
        before = _last_batch(query)
        # Where more data is there, the next micro-batch begins as one ends: it is stopped before it has planned a job.
        while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == before:
            if self._stopping.wait(_SECONDS_BETWEEN_BOUNDARIES):
                break
        query.stop()

    def _stop_queries(self) -> None:
        with contextlib.ExitStack() as ending:
            for query in self.queries.values():
                ending.callback(query.stop)

    def _let_go(self) -> None:
        kept = [one for query in self._queries.values() for one in query.kept]
        self._queries = {sink: replace(query, kept=()) for sink, query in self._queries.items()}
        self._release(kept)

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
        """A live stage ends when one of its queries fails, or when all were stopped."""
        with self._looking:
            self._look_at_each()

    def _look_at_each(self) -> None:
        for stage_id, sinks in list(self._live.items()):
            if self._scheduler.state(stage_id) is not StageState.RUNNING or stage_id in self._swapping:
                continue
            waits = is_active = False
            for sink in sinks:
                if self._restarts is not None and not self._stopping.is_set() and self._restarts.is_due(sink):
                    self._start_again(stage_id, sink, self._restarts)
                waits |= self._restarts is not None and self._restarts.waits(sink)
                # In this order: a query that fails between the two was active, and is looked at again.
                is_active |= self.queries[sink].isActive
                failed = self.queries[sink].exception()
                if failed is not None and not (self._restarts is not None and self._restarts.waits(sink)):
                    waits |= self._take_failure(stage_id, sink, failed)
                if self._scheduler.state(stage_id) is not StageState.RUNNING:
                    break
            else:
                if not waits and not is_active:
                    self._scheduler.apply(StageFinished(stage_id=stage_id, at=self._clock()))

    def _take_failure(self, stage_id: str, sink: str, error: BaseException) -> bool:
        """Whether the query of a sink that failed is started again."""
        self.causes[stage_id] = error
        reason = words(error)
        if self._restarts is not None and not self._stopping.is_set():
            decision = self._restarts.failed(sink, error, reason)
            if decision.seconds is not None:
                _log.warning("query of sink %s is started again in %.0f s: %s", sink, decision.seconds, reason)
                self._scheduler.apply(StageRestarted(stage_id=stage_id, at=self._clock(), error=reason))
                return True
            reason = f"{reason}; {decision.reason}"
        # The checkpoint is where it goes on: a new run does that, from the beginning of the failed micro-batch.
        self._scheduler.apply(StageFailed(stage_id=stage_id, at=self._clock(), error=reason, retryable=False))
        return False

    def _start_again(self, stage_id: str, sink: str, restarts: "LiveRestarts") -> None:
        try:
            started = restarts.start(self.plan.stage(stage_id), sink)
        except Exception as error:
            self._take_failure(stage_id, sink, error)
        else:
            self._take_over(sink, started)


class LiveRestarts:
    """Which live queries of a run wait to be started again, and until when."""

    def __init__(
        self, runner: StageRunner, policy: RestartPolicy, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.wanted = policy.restart != NEVER
        """Whether any is."""
        self._runner = runner
        self._policy = policy
        self._clock = clock
        self._failures: dict[str, QueryRestarts] = {}
        self._due: dict[str, float] = {}

    def failed(self, sink: str, error: BaseException, reason: str) -> Restart:
        """Decide about a query that has failed just now."""
        if isinstance(error, AnalysisException | PipelineError):
            return Restart(None, "not started again: it would be refused again")
        try:
            batch_id = self._runner.next_batch(sink)
        except Exception:  # where the checkpoint lies may be what is away
            _log.debug("the checkpoint of sink %s could not be looked at", sink, exc_info=True)
            batch_id = None
        decision = self._failures.setdefault(sink, QueryRestarts(self._policy)).failed(self._clock(), reason, batch_id)
        if decision.seconds is not None:
            self._due[sink] = self._clock() + decision.seconds
        return decision

    def use(self, runner: StageRunner) -> None:
        """Start queries by another runner from now on."""
        self._runner = runner

    def waits(self, sink: str) -> bool:
        """Whether the query of a sink has failed, and is to be started again."""
        return sink in self._due

    def is_due(self, sink: str) -> bool:
        """Whether that is now."""
        return self.waits(sink) and self._clock() >= self._due[sink]

    def start(self, stage: Stage, sink: str) -> LiveQuery:
        """Start it."""
        del self._due[sink]
        return self._runner.start(stage, sink)


def arriving_bytes_per_second(recent: Iterable[StreamingQueryProgress | Mapping[str, Any]]) -> float:
    """What the Kinesis sources of a query bring, by its progress from when they had caught up: before, they are read
    faster than records arrive. 0 while that is not known, as it never is of other sources.
    """
    found: dict[int, list[tuple[float, int]]] = {}
    for one in (source for progress in recent for source in kinesis_progress(progress)):
        if one.source in found or 0 < one.numbers.shards == one.numbers.shards_caught_up:
            at = datetime.fromisoformat(one.timestamp).timestamp()
            found.setdefault(one.source, []).append((at, one.numbers.bytes))
    rates = []
    for points in found.values():
        (began, before), (ended, after) = points[0], points[-1]
        rates.append(max(0, after - before) / (ended - began) if ended > began else 0.0)
    return math.fsum(rates)


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return progress["batchId"] if progress is not None else None


def _await(query: StreamingQuery) -> None:
    # Its error is reported by the stage's state.
    with contextlib.suppress(StreamingQueryException):
        query.awaitTermination(_SECONDS_BETWEEN_LOOKS)
