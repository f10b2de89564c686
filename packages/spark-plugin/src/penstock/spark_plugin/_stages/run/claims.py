"""Which of several drivers computes a stage that they share: decided by the stage scheduler where there is one."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.operator_attributes import BlockingStageScheduler, Claim, ClaimDecision, Stage
from penstock.operator_attributes.errors import ClaimLostError, SchedulingError
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.runner import StageRunner
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 2.0
"""For which an answer is held back; then it is looked whether the run goes on at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A result, and whether another driver had computed it meanwhile."""

    result: CommittedStage
    reused: bool


class StageClaims:
    """Runs bounded stages so that drivers on shared results compute each once.

    The lock on the file system is held in any case: it is what is left when the scheduler is away.
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
            owner: Names the driver, with a secret behind `#`; one that comes back with it takes over what it had
                claimed.
            lease_seconds: After which the claim of a driver that is gone is another's. None: the service's default.
        """
        self.runner = runner
        self.builder = runner.builder
        self._service = service
        self._results = results
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Wait for no other driver any more."""
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
            # What was committed was cleaned up since then, or lost.
            self._report("forgotten", partial(BlockingStageScheduler.forget_claim, claim=claim))

    def _claim(self, stage: Stage) -> Claim | None:
        """An answer that is not WAIT; None when nobody can be asked."""
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
                _log.warning("stage %s is run without a claim: %s", stage.name, error)
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
            # It is renewed until then: others would wait for as long as this driver lives. Who has it next finds the
            # marker, too.
            self._report("released", lambda service: service.release_claim(claim))
        return result

    def _report(self, what: str, call: Callable[[BlockingStageScheduler], None]) -> bool:
        """Whether the service knows."""
        assert self._service is not None
        try:
            call(self._service)
        except ClaimLostError:
            # The result has its marker: who has the claim now finds it under the lock, and computes nothing.
            _log.info("a claim ran out before it was %s", what)
        except SchedulingError as error:
            _log.warning("a claim could not be %s; it runs out by itself: %s", what, error)
            return False
        return True


class StageLookup:
    """Looks for the results of a run's bounded stages."""

    def __init__(self, builder: StageBuilder, pin: Callable[[], None]) -> None:
        """Begin to look; `pin` is called before a result is looked at, so that no other driver cleans it up."""
        self._builder = builder
        self._pin = pin

    def committed(self, stage: Stage) -> tuple[CommittedStage | None, str]:
        """The result that the stage has by its fingerprint, if all of it is there; and what was found wrong with it.

        A result that is damaged is removed: the stage is computed from what its sources hold by then.
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
            # Another driver that shares it may have found that out before, and compute it by now.
            self._builder.store.remove(folder, _wrong)
            self._builder.forget(stage)
        return wrong

    def lost_input(self, stage: Stage) -> str:
        """As `lost`, for a result that a stage was committed for in this run: it must be there."""
        if self._builder.folder(stage).committed() is None:
            self._builder.forget(stage)
            return "its committed result is gone"
        return self.lost(stage)


def _wrong(folder: StageResult) -> str:
    return folder.damage() if folder.committed() is not None else ""
