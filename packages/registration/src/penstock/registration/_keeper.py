"""Heartbeats for the leases of a job."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from penstock.registration._clock import Clock, elapsed_seconds
from penstock.registration._registry import ConsumerRegistry
from penstock.registration._values import Heartbeat, Lease
from penstock.registration.errors import LeaseLostError

_logger = logging.getLogger(__name__)

OnLost = Callable[[LeaseLostError], None]

_HEARTBEATS_PER_LIFE: Final = 3
_TRIES_PER_HEARTBEAT: Final = 4


@dataclass(frozen=True, slots=True)
class KeptLease:
    """When to send the next heartbeat, and until when the lease is known to be held.

    Counted from before the request was sent: the registry counts from later, so that it does not give the consumer
    away before.
    """

    time_to_live_seconds: float
    next_heartbeat_at: float
    ends_at: float

    @classmethod
    def given(cls, time_to_live_seconds: float, sent_at: float) -> KeptLease:
        """After an acquire or a heartbeat that was sent then."""
        return cls(
            time_to_live_seconds,
            sent_at + time_to_live_seconds / _HEARTBEATS_PER_LIFE,
            sent_at + time_to_live_seconds,
        )

    def missed(self, now: float) -> KeptLease:
        """After a heartbeat without an answer: again soon."""
        pause = self.time_to_live_seconds / _HEARTBEATS_PER_LIFE / _TRIES_PER_HEARTBEAT
        return KeptLease(self.time_to_live_seconds, now + pause, self.ends_at)

    def patience_seconds(self, sent_at: float) -> float:
        """How long to wait for an answer: so long that there is time for another try over another connection."""
        third = self.time_to_live_seconds / _HEARTBEATS_PER_LIFE
        return third if sent_at >= self.ends_at else min(third, self.ends_at - sent_at)


class LeaseKeeper:
    """Keeps leases alive, a task each; an async context manager.

    Only the registry knows whether a lease is lost: after a pause of this process, or while the registry is away, the
    job goes on and asks. Should another job get the consumer meanwhile, each takes the other's subscriptions over until
    the registry answers: neither loses records, as each keeps its own positions.

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
        self._kept: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._kept.values():
            task.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    def keep(self, lease: Lease, on_lost: OnLost, *, acquired_at: float | None = None) -> None:
        """Send heartbeats for the lease from now on, in place of those for an older one of the same job and consumer.

        `on_lost` is called on the loop, and must not block. `acquired_at` is when the acquire was sent, by the keeper's
        clock; now when it is None.
        """
        self.drop(lease)
        sent_at = self._clock() if acquired_at is None else acquired_at
        self._kept[_key(lease)] = self._tasks.create_task(
            self._keep(lease, on_lost, KeptLease.given(lease.time_to_live_seconds, sent_at)),
            name=f"keep lease on {lease.consumer_name} of {lease.stream_name}",
            # Heartbeats go on for days: they are no part of the trace in which the lease was acquired.
            context=contextvars.Context(),
        )

    def drop(self, lease: Lease) -> None:
        """Send no more heartbeats for the lease. `on_lost` will not be called."""
        task = self._kept.pop(_key(lease), None)
        if task is not None:
            task.cancel()

    async def _keep(self, lease: Lease, on_lost: OnLost, kept: KeptLease) -> None:
        name = f"{lease.consumer_name} of {lease.stream_name}"
        reason, failing_since, is_doubted = None, None, False
        while reason is None:
            await self._sleep(max(0.0, kept.next_heartbeat_at - self._clock()))
            sent_at = self._clock()
            answer = await self._beat(lease, kept.patience_seconds(sent_at))
            now = self._clock()
            if isinstance(answer, Heartbeat):
                if not answer.held:
                    reason = "it ended, or another job took the consumer over"
                elif is_doubted:
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
                    "heartbeat for %s: %s: the lease may have ended, which only the registry knows; going on, and "
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
            reason=reason,
        )
        try:
            on_lost(error)
        except Exception:
            _logger.exception("on_lost failed for %s", error)

    async def _beat(self, lease: Lease, patience_seconds: float) -> Heartbeat | Exception:
        try:
            async with asyncio.timeout(max(0.0, patience_seconds)):
                return await self._registry.heartbeat(lease)
        except Exception as error:
            # Whatever it is: nobody has said that the lease is held. It counts as no answer, and ends in `on_lost`.
            return error


def _key(lease: Lease) -> tuple[str, str, str]:
    return lease.stream_name, lease.consumer_name, lease.job_id
