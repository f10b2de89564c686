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
from penstock.spark_plugin._stages.store.store import CommittedStage

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
        builder: StageBuilder,
        *,
        service: BlockingStageScheduler | None = None,
        results: str = "",
        owner: str = "",
        lease_seconds: float | None = None,
    ) -> None:
        """Begin without any claim.

        Args:
            runner: Runs what is claimed.
            builder: Names it.
            service: Decides; None leaves it to the file system.
            results: Names the folder of results, the same in all drivers.
            owner: Names the driver, with a secret behind `#`; one that comes back with it takes over what it had
                claimed.
            lease_seconds: After which the claim of a driver that is gone is another's. None: the service's default.
        """
        self._runner = runner
        self._builder = builder
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
        folder = self._builder.folder(stage)
        while True:
            claim = self._claim(stage)
            if claim is None or claim.decision is ClaimDecision.COMPUTE:
                return Outcome(result=self._compute(stage, claim), reused=False)
            result = folder.committed()
            if result is not None and not folder.damage(result):
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
                    f"{self._builder.name(stage)}/{self._builder.fingerprint(stage)}",
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
            return self._runner.run_bounded(stage, self._stopped)
        try:
            result = self._runner.run_bounded(stage, self._stopped)
        except BaseException:
            self._report("released", lambda service: service.release_claim(claim))
            raise
        location = self._builder.folder(stage).location
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
