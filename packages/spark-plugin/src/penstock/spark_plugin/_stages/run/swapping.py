"""Live queries that read another result from one micro-batch to the next, without being started again."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark_plugin._stages.plans.batches import BatchPlan, NotByBatchError, batch_plan
from penstock.spark_plugin._stages.plans.plans import plans_of

_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True, slots=True)
class Kept:
    """A DataFrame that stays in memory."""

    frame: DataFrame
    location: str = ""
    """Of the result that it is, which others may keep as well; empty if it is not one."""


@dataclass(frozen=True, slots=True)
class Given:
    """A committed result, as it was handed to the functions of a live stage."""

    stage_id: str
    frame: DataFrame


class BatchSwap:
    """What is called with each micro-batch of a query: its rows are joined with the results of that moment."""

    def __init__(self, plan: BatchPlan, function: Callable[[DataFrame, int], object]) -> None:
        """`function`: the user's own of `foreachBatch`, which is called with the rows of the plan."""
        self._plan = plan
        self._function = function
        self._changed = threading.Condition()
        self._busy: BatchPlan | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._changed:
            plan = self._busy = self._plan
        try:
            self._function(plan.rows(batch), batch_id)
        finally:
            with self._changed:
                self._busy = None
                self._changed.notify_all()

    @property
    def plan(self) -> BatchPlan:
        """That of the next micro-batch."""
        return self._plan

    def takes(self, plan: BatchPlan) -> bool:
        """Whether the running query gives what another plan wants of a micro-batch."""
        return plan.schema == self._plan.schema

    def use(self, plan: BatchPlan) -> None:
        """Compute the next micro-batch by another plan; the one that has begun goes on by its own."""
        with self._changed:
            self._plan = plan

    def settle(self, stopping: threading.Event) -> bool:
        """Wait until no micro-batch goes on by a plan of before; whether that is so, unless `stopping` was set."""
        with self._changed:
            while self._busy is not None and self._busy is not self._plan:
                if stopping.is_set():
                    return False
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQuery:
    """The running query of a live sink."""

    query: StreamingQuery
    kept: Sequence[Kept] = ()
    """Committed results that stay in memory for it."""
    swap: BatchSwap | None = None
    """What has it read other results; None if it has to be started again for that."""
    by_restart: str = ""
    """Why; empty if it goes on, or reads none that is computed again."""


def plan_of_batches(writer: Any, given: Sequence[Given], refreshed: frozenset[str]) -> tuple[BatchPlan, DataFrame]:
    """What a sink's writer would do with each micro-batch, and the stream that it would do it with.

    Args:
        writer: That is not started.
        given: The results that it was made with.
        refreshed: Ids of the stages whose results may change.

    Raises:
        NotByBatchError: the query has to be restarted for that.
    """
    plans = plans_of(writer)
    if plans.batch_function(writer) is None:
        raise NotByBatchError("it is not written by a foreachBatch of a classic session")
    results = [one.frame for one in given if one.stage_id in refreshed]
    return batch_plan(plans.written(writer), plans, lambda node: any(plans.holds(node, one) for one in results))
