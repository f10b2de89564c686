"""Refreshes: a result is computed again, and the live queries that read it are restarted from their checkpoints."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.operator_attributes import StageState
from penstock.spark_plugin._stages.declare.declared import Refresh, seconds_text
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.failures import words
from penstock.spark_plugin._stages.run.runner import StageClaims, StageLookup

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_CANCELS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshProgress:
    """The refreshes of one result."""

    every_seconds: float
    running: bool = False
    """Whether the result is being computed."""
    refreshed: int = 0
    """How often live queries were restarted with a new result, in this run."""
    unchanged: int = 0
    """How often the sources had not changed."""
    seconds: float = 0.0
    """Duration of the last refresh with a new result, restarts included."""
    rows: int = 0
    """Rows of the last new result."""
    error: str = ""
    """Why the last refresh failed; empty if it succeeded. The live queries still read the old result."""

    def line(self, operator: str) -> str:
        """A line for `explain`."""
        text = f"refresh: {operator!r} every {seconds_text(self.every_seconds)}"
        if self.refreshed:
            times = "once" if self.refreshed == 1 else f"{self.refreshed} times"
            text += f", refreshed {times}, last in {self.seconds:.1f} s with {self.rows:,} rows"
        if self.running:
            text += ", running"
        if self.error:
            text += f"; FAILED, the old result is still in use: {self.error}"
        return text


class LiveRefreshes:
    """Computes the results of a run again when they are due, one at a time, on a thread of its own."""

    def __init__(
        self,
        refreshes: Sequence[Refresh],
        run: "PipelineRun",
        builder: StageBuilder,
        claims: Callable[[StageBuilder], StageClaims],
        clock: Callable[[], float],
    ) -> None:
        """Compute nothing yet.

        Args:
            refreshes: The declared refreshes.
            run: The run, whose live stages are deployed.
            builder: The builder of the results that the live stages read.
            claims: Makes what runs the stages of another builder.
            clock: Monotonic seconds.
        """
        self._refreshes = {one.operator: one for one in refreshes}
        self._run = run
        self._builder = builder
        self._claims = claims
        self._clock = clock
        self._failures = dict.fromkeys(self._refreshes, 0)
        self._due = {one.operator: clock() + one.every_seconds - self._age_seconds(one) for one in refreshes}
        self._working: tuple[Refresh, StageClaims] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock refreshes", daemon=True)
        self.progress = {one.operator: RefreshProgress(every_seconds=one.every_seconds) for one in refreshes}
        """By the operator's name."""

    def start(self) -> None:
        """Start the thread."""
        if self._refreshes:
            self._thread.start()

    def end(self) -> None:
        """Cancel a refresh that is running, and start no other."""
        self._stopping.set()
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            # Repeated: before a stage's first job, and between two jobs, there is nothing to cancel.
            if (working := self._working) is not None:
                refresh, claims = working
                claims.stop()
                for stage in refresh.stages:
                    claims.runner.cancel(stage)
            self._thread.join(_SECONDS_BETWEEN_CANCELS)

    def _age_seconds(self, refresh: Refresh) -> float:
        """The age of its oldest result, also over restarts of the driver."""
        return max((self._builder.folder(stage).age_seconds() for stage in refresh.stages), default=0.0)

    def _watch(self) -> None:
        while self._refreshes and not self._stopping.wait(_SECONDS_BETWEEN_LOOKS):
            for name, one in list(self._refreshes.items()):
                if self._stopping.is_set():
                    return
                if not any(self._run.stage_state(stage) is StageState.RUNNING for stage in one.readers):
                    del self._refreshes[name]
                elif self._clock() >= self._due[name]:
                    self._refresh(one)

    def _refresh(self, one: Refresh) -> None:
        name, began = one.operator, self._clock()
        before = self.progress[name]
        self.progress[name] = replace(before, running=True)
        try:
            rows = self._compute(one)
        except Exception as error:
            if not self._stopping.is_set():
                self._failed(one, error)
            return
        finally:
            self._working = None
        self._failures[name] = 0
        self._due[name] = max(self._clock(), began + one.every_seconds)
        if rows is None:
            self.progress[name] = replace(before, unchanged=before.unchanged + 1, error="")
            return
        seconds = self._clock() - began
        self.progress[name] = replace(before, refreshed=before.refreshed + 1, seconds=seconds, rows=rows, error="")
        _log.info("refreshed %r in %.1f s: %d rows", name, seconds, rows)

    def _failed(self, one: Refresh, error: Exception) -> None:
        name, reason = one.operator, words(error)
        self._failures[name] += 1
        pause = one.pause_seconds(self._failures[name])
        self._due[name] = self._clock() + pause
        _log.warning(
            "the refresh of %r failed, its old result is still in use, and the next attempt is in %s: %s",
            name, seconds_text(pause), reason, exc_info=error,
        )  # fmt: skip
        with contextlib.suppress(Exception):  # the store may be the cause; the next attempt pins again
            self._builder.pin()
        self.progress[name] = replace(self.progress[name], running=False, error=reason)

    def _compute(self, one: Refresh) -> int | None:
        """Rows of the operator's new result, which the live queries read when this returns; None if none is new."""
        names = {self._builder.name(stage) for stage in one.stages}
        used = self._builder.used
        builder = self._builder.again({name: pin for name, pin in used.items() if name not in names})
        claims = self._claims(builder)
        self._working = one, claims

        def pin() -> None:
            # Both: the live queries still read the old results, and no other driver may remove the new ones.
            self._builder.pin(refreshing={name: pin for name, pin in builder.used.items() if pin != used.get(name)})

        lookup = StageLookup(builder, pin)
        rows = 0
        for stage in one.stages:
            result, _ = lookup.committed(stage)
            if result is None:
                result = claims.run_bounded(stage).result
            if one.operator in stage.vertices:
                rows += result.rows
        if builder.used == used:
            return None
        self._run.restart(one.readers, claims.runner)
        self._builder = builder
        builder.store.clean_up()
        return rows
