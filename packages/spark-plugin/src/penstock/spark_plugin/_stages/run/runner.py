"""Runs one stage: a batch job that commits, or live queries. The stage scheduler picks one of several drivers."""

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import BlockingStageScheduler, Claim, ClaimDecision, Stage, VertexKind
from penstock.operator_attributes.errors import ClaimLostError, SchedulingError
from penstock.spark_plugin._for_stages import current_traceparent
from penstock.spark_plugin._stages.declare.declared import Declared
from penstock.spark_plugin._stages.plans.jobs import is_writer, jobs_of
from penstock.spark_plugin._stages.plans.plan import plans_of
from penstock.spark_plugin._stages.run.builder import Kept, StageBuilder
from penstock.spark_plugin._stages.run.queries import Checkpoints, check_query
from penstock.spark_plugin._stages.store.pins import safe_name
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import PipelineDefinitionError

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
"""Some sinks use the query's name as the name of a table."""
_log = logging.getLogger(__name__)
_WAIT_SECONDS = 2.0
"""For which an answer is held back; then it is checked whether the run has ended."""


@dataclass(slots=True, kw_only=True)
class LiveQuery:
    """The query of a live sink. It may hold committed results in memory."""

    query: StreamingQuery
    kept: list[Kept] = field(default_factory=list)

    def release(self) -> None:
        """Release the results. Can be repeated."""
        _release(self.kept)


@dataclass(slots=True, kw_only=True)
class PreparedQuery:
    """The query of a live sink, checked and not started."""

    sink: Declared
    writer: Any
    checkpoint: str
    kept: list[Kept]

    def release(self) -> None:
        """Release the results if the query is not started. Can be repeated."""
        _release(self.kept)


class StageRunner:
    """Runs the stages of one pipeline in one session."""

    def __init__(
        self,
        pipeline: str,
        builder: StageBuilder,
        spark: SparkSession,
        store: StageStore,
        *,
        resume: bool,
    ) -> None:
        self._pipeline = pipeline
        self.builder = builder
        """Builds what it runs."""
        self._jobs = jobs_of(spark, store.scope())
        self._store = store
        store.session = self._jobs.session
        self._checkpoints = Checkpoints(spark, store, resume=resume)
        self._locations: dict[str, str] = {}
        # A stage that is retried, or was lost, must not append the same rows again.
        self._saved: set[tuple[str, str]] = set()

    def run_bounded(self, stage: Stage, stopped: threading.Event) -> CommittedStage:
        """Run a bounded stage's outputs and sinks as batch jobs, then commit.

        If another driver, on a store with the same results, computes this result, the call waits for it and uses it,
        until `stopped`.
        """
        folder = self.builder.folder(stage)
        with self._store.computing(self.builder.name(stage), self.builder.fingerprint(stage), stopped=stopped):
            return folder.committed() or self._run_bounded(stage, folder)

    def end_predecessor(self) -> None:
        """End the jobs that a killed driver of the store has left, if its session still exists.

        They add nothing to results, because their attempts are not read. A batch sink, however, writes to one place.
        """
        self._jobs.end_left(self._store.last_session)

    def cancel(self, stage: Stage) -> None:
        """End the jobs of a stage."""
        self._jobs.cancel(self.builder.name(stage))

    def _run_bounded(self, stage: Stage, folder: StageResult) -> CommittedStage:
        began, fingerprint = time.monotonic(), self.builder.fingerprint(stage)
        folder.begin(stage.name)
        try:
            with self._job_group(stage):
                self.builder.begin(stage)
                # All of them before the first job: mistakes are found before rows are computed.
                frames = {vertex: self.builder.output(stage, vertex) for vertex in stage.outputs}
                sinks = [sink for sink in self._sinks(stage) if (sink, fingerprint) not in self._saved]
                writers = {sink: self._writer(stage, sink) for sink in sinks}
                for vertex, frame in frames.items():
                    folder.write(vertex, frame)
                for sink, writer in writers.items():
                    writer.save()
                    self._saved.add((sink, fingerprint))
        finally:
            self.builder.let_go(stage)
        rows, size_bytes = folder.measure(stage.outputs)
        result = CommittedStage(
            stage=stage.name,
            fingerprint=fingerprint,
            rows=rows,
            size_bytes=size_bytes,
            seconds=time.monotonic() - began,
            outputs={vertex: safe_name(vertex) for vertex in stage.outputs},
            world=self.builder.world(stage),
        )
        return folder.commit(result)

    def _writer(self, stage: Stage, sink: str) -> Any:
        writer = self.builder.writer(stage, sink)
        if not is_writer(writer, "DataFrameWriter"):
            raise self._wrong_writer(sink, writer, "a DataFrameWriter (`df.write…`)")
        return writer

    def deploy_live(self, stage: Stage) -> dict[str, LiveQuery]:
        """Start the queries of a live stage, by sink, from their checkpoints where there are any."""
        started: dict[str, LiveQuery] = {}
        try:
            for sink in self._sinks(stage):
                started[sink] = self.start(stage, self.prepare(stage, sink))
        except BaseException:
            for one in started.values():
                one.query.stop()
                one.release()
            raise
        return started

    def prepare(self, stage: Stage, sink: str) -> PreparedQuery:
        """Build the query of a live sink. Raises: what its functions raise, or a `PipelineError`."""
        try:
            with self._job_group(stage):
                return self._prepare(stage, self.builder.declared(sink))
        except BaseException:
            self.builder.let_go(stage)
            raise

    def start(self, stage: Stage, prepared: PreparedQuery) -> LiveQuery:
        """Start a prepared query, from its checkpoint where there is one."""
        name = prepared.sink.name
        self._locations[name] = prepared.checkpoint
        try:
            with self._job_group(stage):
                self._checkpoints.end_left(prepared.checkpoint)
                self._store.mend_checkpoint(name)
                query = prepared.writer.option("checkpointLocation", prepared.checkpoint).start()
        except BaseException:
            prepared.release()
            raise
        if prepared.sink.started is not None:
            prepared.sink.started()
        return LiveQuery(query=query, kept=prepared.kept)

    def next_batch(self, sink: str) -> int | None:
        """The micro-batch that a sink's query comes to next; None if that cannot be seen."""
        return self._checkpoints.next_batch(self._locations[sink])

    def _prepare(self, stage: Stage, sink: Declared) -> PreparedQuery:
        writer = self._checked(sink.name, self.builder.writer(stage, sink.name))
        if sink.trigger:
            try:
                writer = writer.trigger(**sink.trigger)
            except (TypeError, PySparkException) as error:
                raise PipelineDefinitionError(
                    f"sink {sink.name!r} ({sink.call_site}) has the trigger {dict(sink.trigger)}, which Spark does "
                    f"not take: {error}"
                ) from error
        plans = plans_of(writer)
        sources = plans.live_sources(plans.written(writer))
        check_query(sink, sources)
        checkpoint = self._checkpoints.location(sink, writer, sources)
        if "queryname" not in plans.options(writer):
            writer = writer.queryName(_UNSAFE.sub("_", f"{self._pipeline}_{sink.name}"))
        kept = self.builder.kept.pop(stage.id, [])
        return PreparedQuery(sink=sink, writer=writer, checkpoint=checkpoint, kept=kept)

    def _checked(self, sink: str, writer: Any) -> Any:
        if not is_writer(writer, "DataStreamWriter"):
            if callable(stop := getattr(writer, "stop", None)):
                stop()  # a query that would not be stopped otherwise
            raise self._wrong_writer(sink, writer, "a DataStreamWriter (`df.writeStream…`)")
        return writer

    def _sinks(self, stage: Stage) -> list[str]:
        return [name for name in stage.vertices if self.builder.declared(name).kind is VertexKind.SINK]

    def _wrong_writer(self, sink: str, value: object, wanted: str) -> PipelineDefinitionError:
        site = self.builder.declared(sink).call_site
        return PipelineDefinitionError(
            f"sink {sink!r} ({site}) must give {wanted} that is not started, not {type(value).__name__}"
        )

    def _job_group(self, stage: Stage) -> AbstractContextManager[None]:
        """Name the jobs after the stage, and pass the trace to their tasks."""
        return self._jobs.group(
            self.builder.name(stage), f"{self._pipeline}: stage {stage.name}", current_traceparent()
        )


def _release(kept: list[Kept]) -> None:
    with ExitStack() as ending:
        while kept:
            ending.callback(kept.pop().release)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A result, and whether another driver had computed it meanwhile."""

    result: CommittedStage
    reused: bool


class StageClaims:
    """Runs bounded stages so that drivers with shared results compute each result once.

    The store's own claim is held as well: it still works when the scheduler is away.
    """

    def __init__(
        self,
        runner: StageRunner,
        *,
        service: BlockingStageScheduler | None = None,
        results: str = "",
        owner: str = "",
        lease_seconds: float | None = None,
    ) -> None:
        """Begin without any claim.

        Args:
            runner: Runs what is claimed.
            service: Decides; None leaves it to the file system.
            results: Names the folder of results, the same in all drivers.
            owner: Names the driver, with a secret after `#`; a driver that comes back with it takes over its claims.
            lease_seconds: After which the claim of a silent driver expires. None: the service's default.
        """
        self.runner = runner
        self.builder = runner.builder
        self._service = service
        self._results = results
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop waiting for other drivers."""
        self._stopped.set()

    def run_bounded(self, stage: Stage) -> Outcome:
        """Run a stage and commit it, or wait for the driver that does."""
        folder = self.builder.folder(stage)
        while True:
            claim = self._claim(stage)
            if claim is None or claim.decision is ClaimDecision.COMPUTE:
                return Outcome(result=self._compute(stage, claim), reused=False)
            result = folder.committed()
            if result is not None and not folder.damage():
                return Outcome(result=result, reused=True)
            # The committed result was removed since then, or lost.
            self._report("forgotten", partial(BlockingStageScheduler.forget_claim, claim=claim))

    def _claim(self, stage: Stage) -> Claim | None:
        """An answer that is not WAIT; None when no service can be asked."""
        if self._service is None:
            return None
        while not self._stopped.is_set():
            try:
                claim = self._service.claim(
                    self._results,
                    f"{self.builder.name(stage)}/{self.builder.fingerprint(stage)}",
                    owner=self._owner,
                    lease_seconds=self._lease_seconds,
                    wait_seconds=_WAIT_SECONDS,
                )
            except SchedulingError as error:
                _log.log(self._level(), "stage %s is run without a claim: %s", stage.name, error)
                return None
            if claim.decision is not ClaimDecision.WAIT:
                return claim
            _log.debug("stage %s is computed by %s", stage.name, claim.owner)
        raise RuntimeError("the run has ended")

    def _compute(self, stage: Stage, claim: Claim | None) -> CommittedStage:
        if claim is None:
            return self.runner.run_bounded(stage, self._stopped)
        try:
            result = self.runner.run_bounded(stage, self._stopped)
        except BaseException:
            self._report("released", lambda service: service.release_claim(claim))
            raise
        location = self.builder.folder(stage).location
        is_known = self._report(
            "committed",
            lambda service: service.commit_claim(
                claim, location=location, rows=result.rows, size_bytes=result.size_bytes
            ),
        )
        if not is_known:
            # Otherwise it is renewed, and others wait, for as long as this driver lives. The next driver that claims it
            # finds the marker, too.
            self._report("released", lambda service: service.release_claim(claim))
        return result

    def _report(self, what: str, call: Callable[[BlockingStageScheduler], None]) -> bool:
        """Whether the service knows."""
        assert self._service is not None
        try:
            call(self._service)
        except ClaimLostError:
            # The result has its marker: the driver that has the claim now finds it, and computes nothing.
            _log.info("a claim ran out before it was %s", what)
        except SchedulingError as error:
            _log.log(self._level(), "a claim could not be %s; it expires: %s", what, error)
            return False
        return True

    def _level(self) -> int:
        """INFO while the service does not answer: that was logged as a warning once."""
        return logging.INFO if self._service is not None and self._service.is_away else logging.WARNING


class StageLookup:
    """Looks for the results of a run's bounded stages."""

    def __init__(self, builder: StageBuilder, pin: Callable[[], None]) -> None:
        """Begin to look; `pin` is called before a result is looked at, so that no other driver cleans it up."""
        self._builder = builder
        self._pin = pin

    def committed(self, stage: Stage) -> tuple[CommittedStage | None, str]:
        """The result with the stage's fingerprint, if it is complete; and what is wrong with it.

        A damaged result is removed: the stage is then computed from the current state of its sources.
        """
        if not stage.bounded:
            return None, ""
        self._builder.fingerprint(stage)
        self._pin()
        wrong = self.lost(stage)
        if wrong:
            self._builder.fingerprint(stage)
            self._pin()
            return None, wrong
        return self._builder.folder(stage).committed(), ""

    def lost(self, stage: Stage) -> str:
        """What is wrong with a result that was committed, which is removed then; empty if nothing is."""
        folder = self._builder.folder(stage)
        wrong = _wrong(folder)
        if wrong:
            _log.warning("the committed result of stage %s is lost: %s", stage.name, wrong)
            # Another driver with the same results may have noticed it before, and compute it by now.
            self._builder.store.remove(folder, _wrong)
            self._builder.forget(stage)
        return wrong

    def lost_input(self, stage: Stage) -> str:
        """As `lost`, for a result that was committed in this run: it must exist."""
        if self._builder.folder(stage).committed() is None:
            self._builder.forget(stage)
            return "its committed result is gone"
        return self.lost(stage)


def _wrong(folder: StageResult) -> str:
    return folder.damage() if folder.committed() is not None else ""
