"""Claims in this process: the book of claims, its store, and the callers that wait."""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.operator_attributes._schedule.claims import (
    DEFAULT_LEASE_SECONDS,
    Claim,
    ClaimBook,
    ClaimDecision,
    ClaimRecord,
)
from penstock.operator_attributes._schedule.job_store import StoreWriter
from penstock.operator_attributes.errors import InvalidOptionError, SchedulerAwayError

_MAX_WAIT_SECONDS: Final = 20.0
"""For an answer that is held back: less than the deadline of a call."""


class ClaimCalls:
    """The part of a `LocalStageScheduler` that answers the calls about claims."""

    def __init__(self, book: ClaimBook, writer: StoreWriter, clock: Callable[[], float]) -> None:
        self._book = book
        self._writer = writer
        self._claim_clock = clock
        self._claims_changed = asyncio.Event()
        self._closed = False

    async def claim(
        self,
        store: str,
        fingerprint: str,
        *,
        owner: str,
        lease_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> Claim:
        """See `StageSchedulerApi.claim`."""
        if not wait_seconds >= 0:  # nor what is not a number
            raise InvalidOptionError("wait_seconds", wait_seconds, "not negative")
        lease = DEFAULT_LEASE_SECONDS if lease_seconds is None else lease_seconds
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, _MAX_WAIT_SECONDS)
        while True:
            self._check_open()
            # Taken before the answer, so that a change after it is not missed.
            changed = self._claims_changed
            answer = await self._writer.change(self._decide(store, fingerprint, owner, lease))
            left = deadline - loop.time()
            if answer.decision is not ClaimDecision.WAIT or left <= 0:
                return answer
            try:
                async with asyncio.timeout(min(left, answer.expires_seconds)):
                    await changed.wait()
            except TimeoutError:
                continue

    async def renew_claim(self, claim: Claim) -> Claim:
        """See `StageSchedulerApi.renew_claim`."""
        self._check_open()

        async def renew() -> Claim:
            answer, record = self._book.renew(claim, self._claim_clock())
            await self._remember(record)
            return answer

        return await self._writer.change(renew())

    async def commit_claim(
        self, claim: Claim, *, location: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        """See `StageSchedulerApi.commit_claim`."""
        self._check_open()

        async def commit() -> None:
            await self._remember(self._book.commit(claim, location=location, rows=rows, size_bytes=size_bytes))

        await self._writer.change(commit())

    async def release_claim(self, claim: Claim) -> None:
        """See `StageSchedulerApi.release_claim`."""
        self._check_open()
        await self._writer.change(self._drop_if(self._book.is_held, claim))

    async def forget_claim(self, claim: Claim) -> None:
        """See `StageSchedulerApi.forget_claim`."""
        self._check_open()
        await self._writer.change(self._drop_if(self._book.is_committed, claim))

    async def _decide(self, store: str, fingerprint: str, owner: str, lease: float) -> Claim:
        answer, record = self._book.claim(store, fingerprint, owner, lease_seconds=lease, now=self._claim_clock())
        if record is not None:
            await self._remember(record)
        return answer

    async def _drop_if(self, condition: Callable[[Claim], bool], claim: Claim) -> None:
        if condition(claim):
            await self._unwrite(claim.store, claim.fingerprint)
            self._book.remove(claim.store, claim.fingerprint)
            self._announce_claims()

    async def _remember(self, record: ClaimRecord) -> None:
        await self._writer.write(lambda store: store.put_claim(record))
        for forgotten in self._book.put(record):
            await self._unwrite(*forgotten.key)
        self._announce_claims()

    async def _unwrite(self, store: str, fingerprint: str) -> None:
        await self._writer.write(lambda kept: kept.remove_claim(store, fingerprint))

    def _announce_claims(self) -> None:
        """Wake the callers that wait."""
        self._claims_changed.set()
        self._claims_changed = asyncio.Event()

    def _check_open(self) -> None:
        if self._closed:
            raise SchedulerAwayError.of("SCHEDULER_CLOSED")
