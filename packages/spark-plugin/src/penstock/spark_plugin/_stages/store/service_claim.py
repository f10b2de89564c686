"""Claims that the stage scheduler decides, for stores without conditional writes."""

import logging
import os
import socket
import threading
from collections.abc import Callable

from penstock.operator_attributes import BlockingStageScheduler, Claim, ClaimDecision
from penstock.operator_attributes.errors import ClaimLostError, SchedulingError
from penstock.spark_plugin.errors import StoreLostError, StoreUnusableError

_log = logging.getLogger(__name__)


class ServiceClaim:
    """See `StoreClaim`: the client of the service renews it."""

    def __init__(
        self,
        service: BlockingStageScheduler,
        store: str,
        key: str,
        *,
        seconds: float,
        lost: Callable[[StoreLostError], None] | None = None,
    ) -> None:
        """Hold nothing yet. `lost`: called, on its own thread, if another driver gets the claim before its release."""
        self._service = service
        self._store = store
        self._key = key
        self._seconds = seconds
        self._when_lost = lost
        self._claim: Claim | None = None
        self._lost: StoreLostError | None = None
        self._seen: tuple[str, int] | None = None
        self.holder = "another driver"
        self.holder_lives = False

    @property
    def token(self) -> int:
        return self._claim.token if self._claim is not None else 0

    def acquire(self) -> bool:
        self._lost = None
        try:
            claim = self._service.claim(
                self._store,
                self._key,
                owner=f"process {os.getpid()} on {socket.gethostname()}",
                lease_seconds=self._seconds,
                lost=self._lose,
            )
        except SchedulingError as error:
            raise StoreUnusableError(
                self._store, f"the stage scheduler, which decides who may write there, does not answer: {error}"
            ) from error
        if claim.decision is ClaimDecision.COMPUTE:
            self._claim, self._seen = claim, None
            return True
        # Not by its end: that moves also when the scheduler is restarted.
        seen, self._seen = self._seen, (claim.owner, claim.renewals)
        self.holder_lives = seen is not None and seen != self._seen
        self.holder = f"{claim.owner}, by the stage scheduler"
        return False

    def check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def release(self, *, remove: bool = False) -> None:
        claim, self._claim = self._claim, None
        if claim is None or self._lost is not None:
            return
        try:
            self._service.release_claim(claim)
        except ClaimLostError:
            pass  # it has run out
        except SchedulingError as error:
            _log.warning(
                "the claim on %s could not be released, and runs out in %.0f s: %s", self._store, self._seconds, error
            )

    def _lose(self, claim: Claim, reason: str) -> None:
        # This is the thread of the client, which must not wait for queries to stop.
        if self._claim is not claim:
            return
        self._lost = StoreLostError(self._store, reason)
        _log.error("%s", self._lost)
        if self._when_lost is not None:
            threading.Thread(
                target=self._when_lost, args=(self._lost,), name=f"penstock lost {self._key}", daemon=True
            ).start()
