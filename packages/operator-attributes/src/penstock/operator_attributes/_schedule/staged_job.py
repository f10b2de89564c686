"""A job of a driver: scheduled here, and reported to a stage scheduler service that others can watch."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.operator_attributes._compile.plan import Stage, StagePlan
from penstock.operator_attributes._schedule.api import JobStatus, StageStatus
from penstock.operator_attributes._schedule.blocking import BlockingStageScheduler
from penstock.operator_attributes._schedule.scheduler import DEFAULT_MAX_ATTEMPTS, StageScheduler
from penstock.operator_attributes._schedule.states import (
    DRIVER,
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageMetrics,
    StageProgress,
    StageReused,
    StageStarted,
    StageState,
)
from penstock.operator_attributes.errors import SchedulerAwayError, SchedulingError

_GIVEN_UP = (StageState.FAILED, StageState.SKIPPED)
_log = logging.getLogger(__name__)
_ANSWER_SECONDS: Final = 2.0
"""How long the driver waits for an answer; a service that does not answer is away."""
_CLOSE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
"""Between two looks for a service that is away, and at the queries whose ends the driver does not report."""


def catch_up(job: JobStatus, progress: Mapping[str, StageProgress]) -> tuple[StageEvent, ...] | None:
    """The events that bring a scheduler's view of a job up to the state of its driver.

    Each event is allowed after the ones before it. Events that cannot be reported yet are left out: the start of a
    stage whose input was lost, or that needs slots that other stages must free first.

    Args:
        job: as the scheduler sees it.
        progress: as the driver does, by stage id.

    Returns:
        The events; None if the scheduler counts a stage as failed or skipped that the driver does not: no event can
        follow that, and the job has to be restarted there.
    """
    for stage in job.stages:
        if stage.progress.state in _GIVEN_UP and progress[stage.stage_id].state not in _GIVEN_UP:
            return None
    return tuple(
        event for step in (_ended, _lost, _committed, _failed, _started) for event in step(job.stages, progress)
    )


def _ended(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    """Ends of stages that run there, and no longer here. They come first because they free slots."""
    for stage in stages:
        one = progress[stage.stage_id]
        if stage.progress.state is not StageState.RUNNING or one.state is StageState.RUNNING:
            continue
        if one.state is StageState.FINISHED:
            yield StageFinished(stage_id=stage.stage_id, rows=one.rows, size_bytes=one.size_bytes)
        elif one.state is StageState.REUSED:
            yield StageReused(stage_id=stage.stage_id, rows=one.rows, size_bytes=one.size_bytes)
        elif one.state is not StageState.FAILED:
            # It will be retried. The driver counts the attempts, over a shorter time than the life of the job.
            yield StageInterrupted(stage_id=stage.stage_id)


def _lost(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    for stage in stages:
        one = progress[stage.stage_id]
        if stage.progress.state.committed and not one.state.committed:
            yield StageLost(stage_id=stage.stage_id, error=one.error)


def _committed(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    """Stages that never ran there: their results are used, whichever driver computed them."""
    for stage in stages:
        one = progress[stage.stage_id]
        reported = stage.progress.state.committed or stage.progress.state is StageState.RUNNING
        if one.state.committed and not reported:
            yield StageReused(stage_id=stage.stage_id, rows=one.rows, size_bytes=one.size_bytes)


def _failed(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    """Failures, after commits: stages that are skipped because of them stay skipped."""
    for stage in stages:
        one = progress[stage.stage_id]
        if one.state is not StageState.FAILED or stage.progress.state is StageState.FAILED:
            continue
        if stage.progress.state is not StageState.RUNNING:
            if not _inputs_are_there(stage, progress):
                continue
            yield StageStarted(stage_id=stage.stage_id)
        yield StageFailed(stage_id=stage.stage_id, error=one.error, retryable=False)


def _started(stages: tuple[StageStatus, ...], progress: Mapping[str, StageProgress]) -> Iterator[StageEvent]:
    for stage in stages:
        runs = progress[stage.stage_id].state is StageState.RUNNING
        if runs and stage.progress.state is not StageState.RUNNING and _inputs_are_there(stage, progress):
            yield StageStarted(stage_id=stage.stage_id)


def _inputs_are_there(stage: StageStatus, progress: Mapping[str, StageProgress]) -> bool:
    return all(progress[one].state.committed for one in stage.blocking_inputs)


class StagedJob:
    """The calls of a `StageScheduler`, from any thread, on a job that a service may know, too.

    Each event is applied here at once, and reported by a thread. `ready` asks the service. While the service cannot be
    reached, the job continues with the local state, which is the same. When the service is back, with or without its
    memory, it is brought up to date.
    """

    def __init__(
        self,
        plan: StagePlan,
        *,
        slots: int | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        clock: Callable[[], float] = time.monotonic,
        service: BlockingStageScheduler | None = None,
        job_id: str = "",
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """Begin to schedule; see `StageScheduler`.

        Args:
            plan: the stages.
            slots: as of `StageScheduler`, as for what follows.
            max_attempts: see there.
            clock: monotonic seconds.
            service: where the job is reported to; closed with the job. None: it is scheduled here alone.
            job_id: its name there: the same for a restart of the same job.
            look_seconds: between two looks for a service that went away.

        Raises:
            InvalidOptionError: an argument is outside of its range.
            SchedulingError (INSUFFICIENT_SLOTS): the live stages together need more slots than there are.
        """
        self.plan = plan
        self.job_id = job_id
        self._scheduler = StageScheduler(plan, slots=slots, max_attempts=max_attempts)
        self._metrics = StageMetrics(DRIVER)
        self._clock = clock
        self._service = service
        self._look_seconds = look_seconds
        self._changed = threading.Condition()
        self._events: deque[StageEvent] = deque()
        self._reporting = False
        self._away = False
        self._warned = False
        self._closing = False
        self._observe: Callable[[], object] | None = None
        self._told: JobStatus | None = None
        self._thread = threading.Thread(target=self._report, name="penstock stage reports", daemon=True)

    @property
    def in_touch(self) -> bool:
        """Whether a service knows how the job stands."""
        return self._service is not None and self._thread.is_alive() and not self._is_away

    @property
    def _is_away(self) -> bool:
        return self._away or (self._service is not None and self._service.is_away)

    def begin(self, *, resume: bool = True) -> tuple[str, ...]:
        """Submit the job to the service, or find it there.

        A job that has ended, in which a stage failed finally, or that had another graph, is restarted. Otherwise this
        driver has come back: apply StageReused for each returned stage whose result is there, then call `go_on`.

        Returns:
            Ids of the stages that the service knows to be committed.

        Raises:
            SchedulingError: the service cannot be asked, or has no room for the job.
        """
        if self._service is None:
            return ()
        job = None
        if resume:
            try:
                job = self._submit(restart=False)
            except SchedulingError as error:
                if error.code != "JOB_EXISTS":
                    raise
                _log.info("job %s has other stages now: it is restarted", self.job_id)
        states = {stage.progress.state for stage in job.stages} if job is not None else set()
        if job is None or job.ended or StageState.FAILED in states or job.slots != self._scheduler.slots:
            job = self._submit(restart=True)
        self._told = job
        return tuple(stage.stage_id for stage in job.stages if stage.progress.state.committed)

    def go_on(self) -> None:
        """Bring the service up to date, and report all events from now on."""
        if self._service is not None:
            self._come_back()
            self._service.expect_answers(within_seconds=_ANSWER_SECONDS)
            self._thread.start()

    def observe(self, look: Callable[[], object]) -> None:
        """Call `look` about each second, from another thread: it applies events that are not reported otherwise."""
        self._observe = look

    def state(self, stage_id: str) -> StageState:
        """State of a stage. Raises: SchedulingError (UNKNOWN_STAGE)."""
        with self._changed:
            return self._scheduler.state(stage_id)

    def progress(self, now: float) -> dict[str, StageProgress]:
        """How far each stage has come, by stage id, in the order of the plan."""
        with self._changed:
            return self._scheduler.progress(now)

    def apply(self, event: StageEvent) -> None:
        """Take note of an event, and report it. Raises: as `StageScheduler.apply`."""
        with self._changed:
            self._scheduler.apply(event)
            self._metrics.count(self.plan.name, event)
            if self._thread.is_alive():
                self._events.append(event)
                self._changed.notify_all()

    def ready(self) -> tuple[Stage, ...]:
        """The stages that may all be deployed now, batch stages first."""
        with self._changed:
            if not self._thread.is_alive():
                return self._scheduler.ready()
            answered = self._changed.wait_for(lambda: self._is_away or self._is_told(), _ANSWER_SECONDS)
            here = self._scheduler.ready()
            if self._is_away or not answered or self._told is None:
                return here
            there = tuple(stage for stage in here if stage.id in self._told.deployable)
            # A service that waits for an event that will not come must not block the job; a live stage never ends.
            batch_runs = any(
                stage.bounded and self._scheduler.state(stage.id) is StageState.RUNNING for stage in self.plan.stages
            )
            return there if there or batch_runs else here

    def close(self, *, seconds: float = _CLOSE_SECONDS) -> None:
        """Report pending events, for at most `seconds`, and release the service; one that is away is tried once more.

        May be repeated. The next driver of the job reports what the service missed.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        if self._service is not None:
            self._service.close()

    def _is_told(self) -> bool:
        return not self._events and not self._reporting

    def _submit(self, *, restart: bool) -> JobStatus:
        assert self._service is not None
        return self._service.submit(
            self.job_id,
            self.plan.graph,
            slots=self._scheduler.slots,
            max_attempts=self._scheduler.max_attempts,
            cyclic_regions=self.plan.cyclic_regions,
            restart=restart,
        )

    def _report(self) -> None:
        while True:
            with self._changed:
                # While the service is away events are kept in the state of the stages alone.
                self._changed.wait_for(
                    lambda: self._closing or (bool(self._events) and not self._is_away), self._look_seconds
                )
                closing, away = self._closing, self._is_away
                if closing and not away and not self._events:
                    return
                event = self._events.popleft() if self._events and not away else None
                self._reporting = event is not None
            if event is not None:
                self._try(self._tell, event)
            elif away:
                self._try(self._come_back)
            else:
                self._look()
            if closing and self._is_away:
                return

    def _try(self, call: Callable[..., None], *arguments: StageEvent) -> None:
        assert self._service is not None
        away: Exception | None = None
        try:
            call(*arguments)
        except (
            Exception
        ) as error:  # also an unexpected one, such as from a service of another release: the reports must not end
            away = error
        with self._changed:
            # The client of the service logs whether that answers.
            if away is not None and not self._service.is_away and not self._warned and not self._closing:
                _log.warning("the stage scheduler does not know the progress of job %s: %s", self.job_id, away)
                self._warned = True
            elif away is None and self._warned:
                _log.info("the stage scheduler knows the progress of job %s again", self.job_id)
                self._warned = False
            self._away, self._reporting = away is not None, False
            self._changed.notify_all()
        self._look()

    def _look(self) -> None:
        if self._observe is not None:
            try:
                self._observe()
            except Exception:  # such as: the session has ended meanwhile; whoever asks next sees it
                _log.debug("job %s could not be looked at", self.job_id, exc_info=True)

    def _tell(self, event: StageEvent) -> None:
        assert self._service is not None
        try:
            self._told = self._service.report(self.job_id, event)
        except SchedulerAwayError:
            raise
        except SchedulingError as error:
            # It was reported already, or the service has lost its memory.
            _log.debug("job %s is reported again: %s", self.job_id, error)
            self._come_back()

    def _come_back(self) -> None:
        """Bring the service up to date."""
        assert self._service is not None
        try:
            job = self._service.get_job(self.job_id)
        except SchedulingError as error:
            if error.code != "UNKNOWN_JOB":
                raise
            job = self._submit(restart=False)
        progress = self._take_progress()
        events = catch_up(job, progress)
        if events is None:
            job = self._submit(restart=True)
            events = catch_up(job, progress) or ()
        for event in events:
            try:
                job = self._service.report(self.job_id, event)
            except SchedulingError as error:
                if error.code not in ("ILLEGAL_EVENT", "SLOT_BUDGET_EXCEEDED"):
                    raise
                _log.debug("job %s: %s", self.job_id, error)
        self._told = job

    def _take_progress(self) -> Mapping[str, StageProgress]:
        """The state of the stages, which includes all events so far: they need not be reported one by one."""
        with self._changed:
            self._events.clear()
            return self._scheduler.progress(self._clock())
