"""The stage scheduler for callers without an event loop, such as a Spark driver."""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

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
# The share of a claim's remaining time after which it is renewed: two renewals may fail before it expires.
_RENEW_AFTER: Final = 1 / 3
_AWAY: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
_NOT_WHILE_AWAY: Final = ("claim", "commit_claim", "release_claim", "forget_claim")


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


class _Answers:
    """The calls of a scheduler, each with a note of whether the service answered."""

    def __init__(self, api: StageSchedulerApi) -> None:
        self._api = api
        self.within_seconds: float | None = None
        self.away_since: float | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)
        is_watched = self.within_seconds is not None and inspect.iscoroutinefunction(method) and name != "close"
        return partial(self._answer, name, method) if is_watched else method

    async def _answer(self, name: str, method: Any, *arguments: Any, **named: Any) -> Any:
        assert self.within_seconds is not None
        if self.away_since is not None and name in _NOT_WHILE_AWAY:
            raise _no_answer("the last call was not answered")
        try:
            async with asyncio.timeout(self.within_seconds + named.get("wait_seconds", 0.0)):
                answer = await method(*arguments, **named)
        except TimeoutError:
            error = _no_answer(f"no answer within {self.within_seconds:g} s")
            self._note_missing(error)
            raise error from None
        except SchedulerAwayError as error:
            if error.status in _AWAY:
                self._note_missing(error)
            raise
        except OperatorAttributesError:
            self._note_answer()
            raise
        self._note_answer()
        return answer

    def _note_missing(self, error: SchedulerAwayError) -> None:
        if self.away_since is None:
            self.away_since = time.monotonic()
            _log.warning(
                "the stage scheduler does not answer, and the run continues without it; until it is back it shows the "
                "job as it was, and this driver does not ask which stages other drivers compute: %s",
                error,
            )

    def _note_answer(self) -> None:
        if self.away_since is not None:
            _log.info("the stage scheduler answers again after %.0f s", time.monotonic() - self.away_since)
            self.away_since = None


def _no_answer(details: str) -> SchedulerAwayError:
    return SchedulerAwayError.of("SCHEDULER_CALL_FAILED", status="DEADLINE_EXCEEDED", details=details)


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
            self._answers = _Answers(make())
            return cast(StageSchedulerApi, self._answers)

        super().__init__("penstock stage scheduler", open_api)

    def expect_answers(self, *, within_seconds: float) -> None:
        """From now on, count a service that does not answer a call within this time as away.

        That is a warning, once, and a line at INFO when it answers again. Meanwhile calls that make, commit, release or
        forget claims fail at once; all others find out whether the service is back, and are for threads that may wait.
        A claim's `wait_seconds` are added to the time.
        """
        self._answers.within_seconds = within_seconds

    @property
    def is_away(self) -> bool:
        """Whether the service did not answer the last call in the time that `expect_answers` gave it."""
        return self._answers.away_since is not None

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
                    level = logging.DEBUG if self.is_away else logging.WARNING
                    _log.log(level, "a claim could not be renewed: %s", error)
                    if lost is not None and time() > runs_out_at:
                        lost(claim, f"it could not be renewed until it ran out: {error}")
                        return
        finally:
            if self._renewals.get(_key(claim)) is asyncio.current_task():
                del self._renewals[_key(claim)]


def _key(claim: Claim) -> tuple[str, str, int]:
    return claim.store, claim.fingerprint, claim.token
