"""Heartbeats for the leases of a job."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from penstock.registration._registry import ConsumerRegistry
from penstock.registration._times import Clock, elapsed_seconds
from penstock.registration._values import AcquireRequest, ConflictPolicy, Heartbeat, Lease, RegistrationStrategy
from penstock.registration.errors import (
    ConsumerDeregisteredError,
    ConsumerHeldError,
    LeaseLostError,
    RegistrationOptionError,
    StreamNotFoundError,
)
from penstock.rpc.errors import CodedError

_logger = logging.getLogger(__name__)

OnLost = Callable[[LeaseLostError], None]
OnRegained = Callable[[Lease], None]

_HEARTBEATS_PER_LIFE: Final = 3
_TRIES_PER_HEARTBEAT: Final = 4
_REGISTRATIONS: Final = 3
"""A consumer that was registered again so often within the time below is being deregistered repeatedly."""
_REGISTRATIONS_WITHIN_SECONDS: Final = 3600.0
_FINAL: Final = (ConsumerHeldError, LeaseLostError, StreamNotFoundError, RegistrationOptionError)
_FINAL_CODES: Final = frozenset({"REGISTRATION_DENIED", "REGISTRY_ACCESS", "REGISTRY_LOCATION_MISMATCH"})
"""Answers to a job that takes its lease back after which asking again is of no use."""


@dataclass(frozen=True, slots=True)
class KeptLease:
    """When to send the next heartbeat, and until when the lease is known to be held.

    Time counts from before the request was sent. The registry counts from later, so it does not end the lease earlier.
    """

    time_to_live_seconds: float
    next_heartbeat_at: float
    ends_at: float

    @classmethod
    def given(cls, time_to_live_seconds: float, sent_at: float) -> KeptLease:
        """After an acquire or a heartbeat that was sent at `sent_at`."""
        return cls(
            time_to_live_seconds,
            sent_at + time_to_live_seconds / _HEARTBEATS_PER_LIFE,
            sent_at + time_to_live_seconds,
        )

    def missed(self, now: float) -> KeptLease:
        """After a heartbeat without an answer: retry soon."""
        pause = self.time_to_live_seconds / _HEARTBEATS_PER_LIFE / _TRIES_PER_HEARTBEAT
        return KeptLease(self.time_to_live_seconds, now + pause, self.ends_at)

    def patience_seconds(self, sent_at: float) -> float:
        """How long to wait for an answer, leaving time for another attempt over another connection."""
        third = self.time_to_live_seconds / _HEARTBEATS_PER_LIFE
        return third if sent_at >= self.ends_at else min(third, self.ends_at - sent_at)


@dataclass(slots=True)
class _Kept:
    """A lease that is kept, and the leases that it replaced."""

    lease: Lease
    on_lost: OnLost
    request: AcquireRequest | None
    on_regained: OnRegained | None
    tokens: set[int]
    task: asyncio.Task[None] | None = None
    deregistered_at: list[float] = field(default_factory=list)
    """When other programs deregistered the consumer, lately."""


class LeaseKeeper:
    """Keeps leases alive, a task each; an async context manager.

    Only the registry knows whether a lease is lost: after a pause of this process, or while the registry is away, the
    job continues and asks. A lease that expired meanwhile is taken back if no other job has the consumer, which is
    registered again if it was deregistered. If another job gets the consumer meanwhile, the two jobs take over each
    other's subscriptions until the registry answers: neither loses records, as each keeps its own positions.

    Args:
        registry: that gave the leases.
        patience_seconds: for which heartbeats may stay without an answer, and never less than until the lease would
            have ended.
        clock: monotonic seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        registry: ConsumerRegistry,
        *,
        patience_seconds: float = 600.0,
        clock: Clock = elapsed_seconds,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._sleep = sleep
        self._kept: dict[tuple[str, str, str], _Kept] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for kept in self._kept.values():
            _stop(kept)
        await self._tasks.__aexit__(kind, error, traceback)

    def keep(
        self,
        lease: Lease,
        on_lost: OnLost,
        *,
        acquired_at: float | None = None,
        request: AcquireRequest | None = None,
        on_regained: OnRegained | None = None,
    ) -> None:
        """Send heartbeats for the lease from now on, instead of an older lease of the same job and consumer.

        Args:
            lease: of the registry.
            on_lost: called on the loop when the lease is lost; must not block.
            acquired_at: when the acquire was sent, by the keeper's clock; now when it is None.
            request: by which the lease was acquired. With it and `on_regained` a lease that ran out is taken back.
            on_regained: called on the loop with the lease that replaces one that expired, and that is kept from then
                on: it has a larger fencing token, and may have another consumer ARN. Must not block.
        """
        before = self._kept.pop(_key(lease), None)
        if before is not None:
            _stop(before)
        sent_at = self._clock() if acquired_at is None else acquired_at
        kept = _Kept(lease, on_lost, None if on_regained is None else request, on_regained, {lease.fencing_token})
        self._kept[_key(lease)] = kept
        self._start(kept, sent_at)

    def _start(self, kept: _Kept, sent_at: float) -> None:
        lease = kept.lease
        kept.task = self._tasks.create_task(
            self._keep(kept, KeptLease.given(lease.time_to_live_seconds, sent_at)),
            name=f"keep lease on {lease.consumer_name} of {lease.stream_name}",
            # Heartbeats continue for days: they are not part of the trace in which the lease was acquired.
            context=contextvars.Context(),
        )

    def drop(self, lease: Lease) -> Lease:
        """Send no more heartbeats for the lease, or for the lease that replaced it.

        `on_lost` will not be called. Returns the lease that was kept, to be released.
        """
        kept = self._find(lease)
        if kept is None:
            return lease
        del self._kept[_key(lease)]
        _stop(kept)
        return kept.lease

    async def register_again(self, lease: Lease) -> Lease:
        """Register the consumer of a kept lease again if it is gone, for a job that Kinesis refused for that reason.

        A job with another registry may deregister it, or an operator. A consumer that the job gave by its ARN is not
        registered here.

        Returns the lease that is kept from then on, which has a larger fencing token; its consumer's ARN is another one
        if the consumer was registered again.

        Raises:
            ConsumerDeregisteredError: it was gone too often.
            RegistrationError: it cannot be registered, or another job has it.
        """
        kept = self._find(lease)
        if kept is None or kept.request is None or kept.request.strategy is RegistrationStrategy.NONE:
            return lease
        before, now = kept.lease, self._clock()
        kept.deregistered_at = [at for at in kept.deregistered_at if now - at < _REGISTRATIONS_WITHIN_SECONDS]
        if len(kept.deregistered_at) >= _REGISTRATIONS:
            raise ConsumerDeregisteredError(
                stream_name=before.stream_name,
                consumer_name=before.consumer_name,
                times=len(kept.deregistered_at) + 1,
                within_seconds=now - kept.deregistered_at[0],
            )
        # The acquire below is by a new token: a heartbeat of the old one would take it for lost.
        _stop(kept)
        answer: Lease | Exception | None = None
        try:
            answer = await self._take_back(before, kept.request)
        finally:
            is_kept = self._find(lease) is kept
            if isinstance(answer, Lease):
                kept.lease = answer
                kept.tokens.add(answer.fencing_token)
            if is_kept:
                self._start(kept, self._clock())
        if isinstance(answer, Exception):
            raise answer
        if not is_kept:
            # Given back meanwhile.
            await self._registry.release(answer)
        elif answer.consumer_arn != before.consumer_arn:
            kept.deregistered_at.append(now)
            _logger.warning(
                "consumer %s of %s was deregistered while this job holds its lease: it is registered again, as %s. A "
                "job that keeps its leases elsewhere does that when it ends: let all jobs that read by this consumer "
                "share one registry (registryEndpoint, or one registryStore), or give each a consumer name of its own",
                answer.consumer_name,
                answer.stream_name,
                answer.consumer_arn,
            )
        return answer

    def _find(self, lease: Lease) -> _Kept | None:
        kept = self._kept.get(_key(lease))
        return kept if kept is not None and lease.fencing_token in kept.tokens else None

    async def _keep(self, keeping: _Kept, kept: KeptLease) -> None:
        lease, request = keeping.lease, keeping.request
        name = f"{lease.consumer_name} of {lease.stream_name}"
        reason, failing_since, is_doubted = None, None, False
        while reason is None:
            await self._sleep(max(0.0, kept.next_heartbeat_at - self._clock()))
            sent_at = self._clock()
            answer: Heartbeat | Lease | Exception = await self._beat(lease, kept.patience_seconds(sent_at))
            if isinstance(answer, Heartbeat) and not answer.held:
                if request is None:
                    reason = "it ended, or another job took the consumer over"
                    break
                _logger.warning("the lease on %s ran out; taking it back", name)
                sent_at = self._clock()
                answer = await self._take_back(lease, request)
                if isinstance(answer, _FINAL) or (isinstance(answer, CodedError) and answer.code in _FINAL_CODES):
                    reason = _why(answer)
                    break
            now = self._clock()
            if isinstance(answer, Lease):
                lease, kept = answer, KeptLease.given(answer.time_to_live_seconds, now)
                failing_since, is_doubted = None, False
                self._regained(keeping, lease)
                continue
            if isinstance(answer, Heartbeat):
                if is_doubted:
                    _logger.warning("the lease on %s is held still", name)
                kept = KeptLease.given(answer.time_to_live_seconds, sent_at)
                failing_since, is_doubted = None, False
                continue
            failing_since = sent_at if failing_since is None else failing_since
            if now >= kept.ends_at and now - failing_since >= self._patience_seconds:
                reason = f"no heartbeat was answered for {now - failing_since:.0f} s; the last error: {answer!r}"
            elif now >= kept.ends_at and not is_doubted:
                is_doubted = True
                _logger.warning(
                    "heartbeat for %s: %s: the lease may have ended, which only the registry knows; continuing, and "
                    "asking it for up to %g s",
                    name,
                    answer,
                    self._patience_seconds,
                )
            else:
                _logger.log(logging.INFO if is_doubted else logging.WARNING, "heartbeat for %s: %s", name, answer)
            kept = kept.missed(now)
        self._kept.pop(_key(lease), None)
        error = LeaseLostError(
            stream_name=lease.stream_name,
            consumer_name=lease.consumer_name,
            fencing_token=lease.fencing_token,
            reason=reason or "",
        )
        try:
            keeping.on_lost(error)
        except Exception:
            _logger.exception("on_lost failed for %s", error)

    def _regained(self, kept: _Kept, lease: Lease) -> None:
        kept.lease = lease
        kept.tokens.add(lease.fencing_token)
        _logger.warning(
            "the lease on %s of %s was taken back, by token %d",
            lease.consumer_name,
            lease.stream_name,
            lease.fencing_token,
        )
        try:
            if kept.on_regained is not None:
                kept.on_regained(lease)
        except Exception:
            _logger.exception("on_regained failed for %s of %s", lease.consumer_name, lease.stream_name)

    async def _take_back(self, lease: Lease, request: AcquireRequest) -> Lease | Exception:
        """Acquire the consumer again, unless another job has it now."""
        again = replace(
            request,
            conflict_policy=ConflictPolicy.REFUSE,
            after_fencing_token=lease.fencing_token,
            timeout=timedelta(seconds=self._patience_seconds) if 0 < self._patience_seconds < math.inf else None,
        )
        try:
            return await self._registry.acquire(again)
        except Exception as error:
            # Whatever it is: it is tried again with the next heartbeat, or ends in `on_lost`.
            return error

    async def _beat(self, lease: Lease, patience_seconds: float) -> Heartbeat | Exception:
        try:
            async with asyncio.timeout(max(0.0, patience_seconds)):
                return await self._registry.heartbeat(lease)
        except Exception as error:
            # Any error counts as no answer: the lease is not known to be held. It ends in `on_lost`.
            return error


def _stop(kept: _Kept) -> None:
    if kept.task is not None:
        kept.task.cancel()


def _why(error: Exception) -> str:
    if isinstance(error, ConsumerHeldError):
        return f"it ran out, and job {error.holder_job_id!r} has held the consumer for {error.held_seconds:.0f} s"
    if isinstance(error, LeaseLostError):
        return error.reason
    return f"it ran out, and cannot be taken back: {error}"


def _key(lease: Lease) -> tuple[str, str, str]:
    return lease.stream_arn or lease.stream_name, lease.consumer_name, lease.job_id
