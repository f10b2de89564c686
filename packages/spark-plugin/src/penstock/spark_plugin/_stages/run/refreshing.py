"""Computes results again while live stages read them, and swaps them in."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.operator_attributes import StageState
from penstock.spark_plugin._stages.declare.refreshes import Refresh, seconds_text
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.causes import words
from penstock.spark_plugin._stages.run.claims import StageClaims
from penstock.spark_plugin._stages.run.lookup import StageLookup
from penstock.spark_plugin._stages.run.runner import StageRunner
from penstock.spark_plugin._stages.store.api import PipelineStore
from penstock.spark_plugin._stages.store.pins import Pin, RunPins

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_CANCELS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshProgress:
    """How a result that is computed again stands."""

    every_seconds: float
    running: bool = False
    """Whether it is computed again just now."""
    swaps: int = 0
    """How often live stages have begun to read a new result, in this run."""
    unchanged: int = 0
    """How often the sources held what they had held before."""
    seconds: float = 0.0
    """That the last new result took, with the swap."""
    rows: int = 0
    """Of the last new result."""
    error: str = ""
    """Why the last refresh failed, so that the result of before is still read; empty if it did not."""
    by_restart: Mapping[str, str] = field(default_factory=dict)
    """Sinks whose queries are started again to read a new result, and why; all others go on."""

    def line(self, operator: str) -> str:
        """For people."""
        text = f"refresh: {operator!r} every {seconds_text(self.every_seconds)}"
        if self.swaps:
            times = "once" if self.swaps == 1 else f"{self.swaps} times"
            text += f", swapped in {times}, the last time after {self.seconds:.1f} s with {self.rows:,} rows"
        if self.running:
            text += ", being computed"
        if self.error:
            text += f"; FAILED, and the result of before is still read: {self.error}"
        for sink, reason in self.by_restart.items():
            text += f"\n  the query of {sink!r} is started again for it: {reason}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshParts:
    """What refreshes are made of."""

    pipeline: str
    run: "PipelineRun"
    store: PipelineStore
    builder: StageBuilder
    create: Callable[[StageBuilder], tuple[StageRunner, StageClaims]]
    """Makes what runs the stages of a builder."""
    resumed: Mapping[str, Pin] | None
    """Where the run goes on: the results of a refresh that was interrupted; None where it began anew."""
    clock: Callable[[], float]


class LiveRefreshes:
    """The results of a run that are computed again, in a thread of its own, one at a time."""

    def __init__(self, refreshes: Sequence[Refresh], parts: RefreshParts) -> None:
        self._refreshes = {one.operator: one for one in refreshes}
        self._run = parts.run
        self._pipeline = parts.pipeline
        self._store = parts.store
        self._builder = parts.builder
        self._create = parts.create
        self._clock = parts.clock
        self._refreshing = dict(parts.resumed or {})
        self._failures = dict.fromkeys(self._refreshes, 0)
        self._due = {one.operator: self._first(one, parts.resumed) for one in refreshes}
        self._working: tuple[Refresh, StageRunner, StageClaims] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock refreshes", daemon=True)
        self.readers = {one.operator: one.readers for one in refreshes}
        """The live stages that read it, by the operator's name."""
        self.progress = {one.operator: RefreshProgress(every_seconds=one.every_seconds) for one in refreshes}
        """By the operator's name."""

    def start(self) -> None:
        """Begin to compute again what is due."""
        if self._refreshes:
            self._thread.start()

    def end(self) -> None:
        """Begin nothing more, and end what runs. Results that were committed are gone on with by the next run."""
        self._stopping.set()
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            # Again until it has ended: what comes before a stage's first job, or between two of them, finds nothing.
            if (working := self._working) is not None:
                refresh, runner, claims = working
                claims.stop()
                for stage in refresh.stages:
                    runner.cancel(stage)
            self._thread.join(_SECONDS_BETWEEN_CANCELS)

    def _first(self, refresh: Refresh, resumed: Mapping[str, Pin] | None) -> float:
        """When it is due: a result that a run goes on with is as old as it is."""
        seconds = refresh.every_seconds
        if resumed is not None:
            names = {self._builder.name(stage) for stage in refresh.stages}
            ages = (self._builder.folder(stage).age_seconds(time.time()) for stage in refresh.stages)
            seconds = 0.0 if names & resumed.keys() else max(0.0, seconds - max(ages, default=0.0))
        return self._clock() + seconds

    def _watch(self) -> None:
        while self._refreshes and not self._stopping.wait(_SECONDS_BETWEEN_LOOKS):
            for name, one in list(self._refreshes.items()):
                if self._stopping.is_set():
                    return
                if not any(self._run.stage_state(stage) is StageState.RUNNING for stage in one.readers):
                    del self._refreshes[name]
                elif self._clock() >= self._due[name]:
                    self._attempt(one)

    def _attempt(self, one: Refresh) -> None:
        name, began = one.operator, self._clock()
        self.progress[name] = replace(self.progress[name], running=True)
        try:
            swapped = self._compute(one)
        except Exception as error:
            if self._stopping.is_set():
                return
            self._failures[name] += 1
            reason = words(error)
            pause = one.pause_seconds(self._failures[name])
            self._due[name] = self._clock() + pause
            _log.warning(
                "the refresh of %r failed, and the result of before is still read; it is tried again in %s: %s",
                name, seconds_text(pause), reason, exc_info=error,
            )  # fmt: skip
            self.progress[name] = replace(self.progress[name], running=False, error=reason)
            self._forget()
            return
        self._failures[name] = 0
        self._due[name] = max(self._clock(), began + one.every_seconds)
        before = self.progress[name]
        if swapped is None:
            self.progress[name] = replace(before, running=False, unchanged=before.unchanged + 1, error="")
            return
        seconds = self._clock() - began
        self.progress[name] = replace(
            before, running=False, swaps=before.swaps + 1, seconds=seconds, rows=swapped, error=""
        )
        _log.info("the result of %r was computed again in %.1f s, and is read from now on", name, seconds)

    def _compute(self, one: Refresh) -> int | None:
        """The rows of the operator's new result, which is read from now on; None where there is no other."""
        anew = {self._builder.name(stage) for stage in one.stages}
        before = self._builder.used
        kept = {name: pin for name, pin in before.items() if name not in anew}
        builder = self._builder.again(kept | {name: pin for name, pin in self._refreshing.items() if name in anew})
        runner, claims = self._create(builder)
        self._working = one, runner, claims

        def pin() -> None:
            used = builder.used
            self._refreshing = {name: used[name] for name in anew & used.keys() if used[name] != before.get(name)}
            self._pin(self._builder, self._refreshing)

        try:
            lookup = StageLookup(builder, pin)
            rows = 0
            for stage in one.stages:
                result, _ = lookup.committed(stage)
                if result is None:
                    result = claims.run_bounded(stage).result
                if one.operator in stage.vertices:
                    rows += result.rows
            if not self._refreshing:
                return None
            if not self._run.swap(one.readers, runner, lambda used: self._pin(used, {})):
                return None
        finally:
            self._working = None
        self._builder = builder
        self._refreshing = {}
        self._store.clean_up()
        return rows

    def _forget(self) -> None:
        """What the failed refresh has committed is looked at anew by the next one, as its sources are."""
        self._refreshing = {}
        try:
            self._pin(self._builder, {})
        except Exception:  # the store may be what is away
            _log.debug("the pins of %s could not be written", self._pipeline, exc_info=True)

    def _pin(self, builder: StageBuilder, refreshing: Mapping[str, Pin]) -> None:
        self._store.pin(
            RunPins(pipeline=self._pipeline, store=self._store.name, stages=builder.used, refreshing=dict(refreshing))
        )
