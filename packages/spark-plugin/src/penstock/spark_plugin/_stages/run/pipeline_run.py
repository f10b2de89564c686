"""A pipeline that was run."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import (
    Estimate,
    Stage,
    StagedJob,
    StageFailed,
    StageFinished,
    StagePlan,
    StageProgress,
    StageState,
    estimate,
    explain,
    graphviz,
    html,
    measures_of,
    mermaid,
)
from penstock.spark_plugin._stages.run.causes import words
from penstock.spark_plugin._stages.store.store import StageStore

_SECONDS_BETWEEN_LOOKS = 1


class PipelineRun:
    """A pipeline that was run: its stages as they stand, and its live queries."""

    def __init__(self, plan: StagePlan, scheduler: StagedJob, store: StageStore, *, clock: Callable[[], float]) -> None:
        self.plan = plan
        self.queries: dict[str, StreamingQuery] = {}
        """The live queries by sink."""
        self._scheduler = scheduler
        self._store = store
        self._clock = clock
        self.causes: dict[str, BaseException] = {}
        """Why stages failed the last time, by id."""
        self._live: dict[str, list[StreamingQuery]] = {}
        self._materialised: list[DataFrame] = []
        self._looking = threading.Lock()
        scheduler.observe(self._look_at_queries)

    @property
    def job_id(self) -> str:
        """The job's name at the stage scheduler, for `penstock-stages watch`; empty without one."""
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

    def explain(self) -> str:
        """The plan with how far each stage has come."""
        return explain(self.plan, self.progress)

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
        """What staging saves, by what this run has measured."""
        return estimate(self.plan, measures_of(self.progress))

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until all live queries have ended, about `timeout` seconds at most; False when some still run.

        Raises:
            pyspark.errors.StreamingQueryException: A query failed; others may still run.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            running = []
            for query in self.queries.values():
                if query.isActive:
                    running.append(query)
                else:
                    query.awaitTermination()  # raises, if it failed: others may run on for ever
            if not running or time.monotonic() >= deadline:
                return not running
            running[0].awaitTermination(_SECONDS_BETWEEN_LOOKS)

    def stop(self) -> None:
        """Stop the live queries, and let go of the store and of the stage scheduler. Can be repeated.

        What cannot be done, such as in a session that has ended, keeps nothing else from being done, and is raised.
        """
        with contextlib.ExitStack() as ending:  # from the last to the first
            ending.callback(self._store.release)
            ending.callback(self._scheduler.close)
            for frame in self._materialised:
                ending.callback(frame.unpersist)
            ending.callback(self._look_at_queries)
            for query in self.queries.values():
                ending.callback(query.stop)

    def deploy(self, stage: Stage, queries: Mapping[str, StreamingQuery], inputs: Sequence[DataFrame]) -> None:
        """Take over the queries of a live stage, and the committed results that are kept in memory for them."""
        self._live[stage.id] = list(queries.values())
        self.queries.update(queries)
        self._materialised += inputs

    def _look_at_queries(self) -> None:
        """A live stage ends when one of its queries fails, or when all were stopped."""
        with self._looking:
            self._look_at_each()

    def _look_at_each(self) -> None:
        for stage_id, queries in list(self._live.items()):
            if self._scheduler.state(stage_id) is not StageState.RUNNING:
                continue
            failed = next((error for query in queries if (error := query.exception()) is not None), None)
            if failed is not None:
                self.causes[stage_id] = failed
                # The checkpoint is where it goes on: a new run does that, from the beginning of the failed micro-batch.
                self._scheduler.apply(
                    StageFailed(stage_id=stage_id, at=self._clock(), error=words(failed), retryable=False)
                )
            elif not any(query.isActive for query in queries):
                self._scheduler.apply(StageFinished(stage_id=stage_id, at=self._clock()))
