"""The stage scheduler for callers without an event loop, such as a Spark driver."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.operator_attributes._schedule.api import StageSchedulerApi
from penstock.operator_attributes._schedule.claims import Claim, ClaimDecision
from penstock.operator_attributes._schedule.local import LocalStageScheduler
from penstock.operator_attributes._schedule.remote import RemoteStageScheduler
from penstock.operator_attributes.errors import (
    ClaimLostError,
    OperatorAttributesError,
    SchedulerAwayError,
    SchedulingError,
)
from penstock.rpc import ClientSecurity, Synchronous, synchronous

_log = logging.getLogger(__name__)
# Of the time that a claim has left: two renewals may fail before it runs out.
_RENEW_AFTER: Final = 1 / 3


def open_stage_scheduler(
    endpoint: str | None = None, security: ClientSecurity | None = None, *, store_path: Path | None = None
) -> "BlockingStageScheduler":
    """Open the stage scheduler at `endpoint`, or without one a scheduler in this process.

    Args:
        endpoint: `host:port` of a stage scheduler service.
        security: TLS and token of that service; none unless given.
        store_path: SQLite file of the scheduler in this process; without one it keeps jobs in memory.

    Raises:
        RpcOptionError: a file cannot be read, or the token would cross the network in plain text.
        JobStoreError: the file cannot be used, or another scheduler uses it.
    """

    def make() -> StageSchedulerApi:
        if endpoint is not None:
            return RemoteStageScheduler(endpoint, security)
        if store_path is not None:
            from penstock.operator_attributes._schedule.sqlite_store import SqliteJobStore

            return LocalStageScheduler(store=SqliteJobStore(store_path))
        return LocalStageScheduler()

    return BlockingStageScheduler(make)


class BlockingStageScheduler(Synchronous[StageSchedulerApi]):
    """The calls of `StageSchedulerApi`, blocking, from any thread; a context manager.

    It lives on a daemon thread, which never keeps the process alive, and in the process that opened it: after a fork,
    calls raise SCHEDULER_OF_OTHER_PROCESS, and `close` does nothing. Claims that are to be computed are renewed in the
    background until they are committed, released or lost.
    """

    def __init__(self, make: Callable[[], StageSchedulerApi]) -> None:
        """Start the thread and call `make` there."""
        self._renewals: dict[tuple[str, str, int], asyncio.Task[None]] = {}

        async def open_api() -> StageSchedulerApi:
            return make()

        super().__init__("penstock stage scheduler", open_api)

    submit = synchronous(StageSchedulerApi.submit)
    report = synchronous(StageSchedulerApi.report)
    get_job = synchronous(StageSchedulerApi.get_job)
    get_plan = synchronous(StageSchedulerApi.get_plan)
    watch = synchronous(StageSchedulerApi.watch)
    list_jobs = synchronous(StageSchedulerApi.list_jobs)
    forget_claim = synchronous(StageSchedulerApi.forget_claim)

    def _closed(self) -> Exception:
        return SchedulerAwayError.of("SCHEDULER_CLOSED")

    def _forked(self, *, made_in: int, used_in: int) -> Exception:
        return SchedulingError.of("SCHEDULER_OF_OTHER_PROCESS", opened_in=made_in, used_in=used_in)

    def claim(
        self,
        store: str,
        fingerprint: str,
        *,
        owner: str,
        lease_seconds: float | None = None,
        wait_seconds: float = 0.0,
        lost: Callable[[Claim, str], object] | None = None,
    ) -> Claim:
        """See `StageSchedulerApi.claim`. One that says COMPUTE is renewed until it is committed or released.

        `lost` is called with it, on a thread that is not to wait, and with why, when it may be another's before that.
        """

        async def claim() -> Claim:
            granted = await self._api.claim(
                store, fingerprint, owner=owner, lease_seconds=lease_seconds, wait_seconds=wait_seconds
            )
            if granted.decision is ClaimDecision.COMPUTE:
                self._renewals[_key(granted)] = asyncio.create_task(self._renew(granted, lost), name="renew claim")
            return granted

        return self._call(claim)

    def commit_claim(
        self, claim: Claim, *, location: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """See `StageSchedulerApi.commit_claim`."""

        async def commit() -> None:
            await self._api.commit_claim(claim, location=location, rows=rows, size_bytes=size_bytes)
            self._stop_renewing(claim)

        self._call(commit)

    def release_claim(self, claim: Claim) -> None:
        """See `StageSchedulerApi.release_claim`."""

        async def release() -> None:
            self._stop_renewing(claim)
            await self._api.release_claim(claim)

        self._call(release)

    def _stop_renewing(self, claim: Claim) -> None:
        task = self._renewals.pop(_key(claim), None)
        if task is not None:
            task.cancel()

    async def _renew(self, claim: Claim, lost: Callable[[Claim, str], object] | None) -> None:
        left, time = claim.expires_seconds, asyncio.get_running_loop().time
        runs_out_at = time() + left
        try:
            while True:
                await asyncio.sleep(left * _RENEW_AFTER)
                asked_at = time()
                try:
                    left = (await self._api.renew_claim(claim)).expires_seconds
                    runs_out_at = asked_at + left
                except ClaimLostError as error:
                    # Without `lost` the caller learns of it from its commit.
                    _log.warning("%s", error)
                    if lost is not None:
                        lost(claim, str(error))
                    return
                except OperatorAttributesError as error:
                    _log.warning("a claim could not be renewed: %s", error)
                    if lost is not None and time() > runs_out_at:
                        lost(claim, f"it could not be renewed until it ran out: {error}")
                        return
        finally:
            if self._renewals.get(_key(claim)) is asyncio.current_task():
                del self._renewals[_key(claim)]


def _key(claim: Claim) -> tuple[str, str, int]:
    return claim.store, claim.fingerprint, claim.token
