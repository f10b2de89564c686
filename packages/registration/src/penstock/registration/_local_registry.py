"""The registry in the caller's own process: a registrar, a store, and the rules of `_lease`."""

from __future__ import annotations

import asyncio
import builtins
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final
from weakref import WeakValueDictionary

from penstock.registration import _lease as lease_rules
from penstock.registration._administration import CONSUMER_SHARD_HOUR_USD, Administration
from penstock.registration._clock import Clock, steady_wall_clock
from penstock.registration._config import RegistrationStrategy
from penstock.registration._lease_settings import LeaseSettings
from penstock.registration._listing import consumer_of, holder_of, is_listed
from penstock.registration._record import ConsumerRecord, RegistrationPhase
from penstock.registration._records import Key, Records
from penstock.registration._registrar import StreamConsumerRegistrar
from penstock.registration._registrations import Registrations
from penstock.registration._registry_metrics import SweepMetrics
from penstock.registration._store import LeaseStore
from penstock.registration._values import AcquireRequest, Consumer, Heartbeat, Lease, Orphan
from penstock.registration.errors import (
    AcquireTimeoutError,
    ConsumerHeldError,
    RegistrationError,
)

_logger = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS: Final = 0.5


class LocalConsumerRegistry:
    """A ConsumerRegistry over a store and Kinesis. It owns both, and closes them.

    Several of them, in several processes, may share a store.
    """

    def __init__(
        self,
        registrar: StreamConsumerRegistrar,
        store: LeaseStore,
        *,
        settings: LeaseSettings | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        consumer_shard_hour_usd: float = CONSUMER_SHARD_HOUR_USD,
    ) -> None:
        self._registrar = registrar
        self._settings = settings or LeaseSettings()
        self._clock = clock or steady_wall_clock()
        self._records = Records(store, self._clock)
        self._registrations = Registrations(registrar, self._records, self._clock)
        self._sleep = sleep
        self._administration = Administration(
            registrar,
            self._records,
            self._registrations,
            clock=self._clock,
            lock=self._lock,
            consumer_shard_hour_usd=consumer_shard_hour_usd,
        )
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._metrics: SweepMetrics | None = None

    async def acquire(self, request: AcquireRequest) -> Lease:
        """See ConsumerRegistry."""
        timeout = None if request.timeout is None else request.timeout.total_seconds()
        try:
            async with asyncio.timeout(timeout) as limit:
                return await self._acquire(request)
        except TimeoutError as error:
            if timeout is None or not limit.expired():
                raise
            raise AcquireTimeoutError(
                stream_name=request.stream_name,
                consumer_name=request.consumer_name,
                timeout_seconds=timeout,
                holder_job_id=await holder_of(self, request),
            ) from error

    async def stream_arn(self, stream_name: str) -> str:
        """See ServedRegistry."""
        return await self._registrar.find_stream_arn(stream_name)

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """See ConsumerRegistry."""
        (outcome,) = await self.heartbeat_all([lease])
        return outcome

    async def heartbeat_all(self, leases: Sequence[Lease]) -> builtins.list[Heartbeat]:
        """See ServedRegistry."""
        lost = Heartbeat(held=False, time_to_live_seconds=0.0)
        return [
            lost if time_to_live is None else Heartbeat(held=True, time_to_live_seconds=time_to_live)
            for time_to_live in await self._records.renew(leases)
        ]

    async def release(self, lease: Lease) -> bool:
        """See ConsumerRegistry. Without a grace period it returns when the consumer is gone.

        Raises:
            RegistrationError: the lease is given back, but Kinesis would not deregister. Repeating the call tries
                again.
        """
        key = (lease.stream_name, lease.consumer_name)
        record = await self._records.change(
            key,
            lambda record: lease_rules.release(
                record, job_id=lease.job_id, fencing_token=lease.fencing_token, now=self._clock()
            ),
        )
        if self._settings.grace_period > timedelta(0):
            return record is not None and record.registration_is_ours
        async with self._lock(key):
            return await self._registrations.end_orphan(key, self._grace_seconds)

    async def list_consumers(self, stream_name: str | None = None, *, with_state: bool = False) -> list[Consumer]:
        """See ConsumerRegistry."""
        now = self._clock()
        consumers = [
            consumer_of(record, now) for record in await self._records.look(stream_name) if is_listed(record, now)
        ]
        return await self._administration.with_state(consumers) if with_state else consumers

    async def force_release(self, stream_name: str, consumer_name: str) -> Lease | None:
        """See RegistryAdministration."""
        key = (stream_name, consumer_name)
        lease = await self._administration.end_lease(key)
        if self._settings.grace_period == timedelta(0):
            async with self._lock(key):
                await self._registrations.end_orphan(key, self._grace_seconds)
        return lease

    async def adopt(self, stream_name: str, consumer_name: str, *, stream_arn: str | None = None) -> Consumer:
        """See RegistryAdministration."""
        return await self._administration.adopt((stream_name, consumer_name), stream_arn)

    async def collect_garbage(self, stream_name: str | None = None, *, dry_run: bool = False) -> builtins.list[Orphan]:
        """See RegistryAdministration."""
        return await self._administration.collect_garbage(stream_name, dry_run=dry_run)

    async def reconcile(self) -> None:
        """Write down what a registry that was killed had asked of Kinesis and not noted. Called at the start.

        What Kinesis does not answer is left to whoever needs the consumer, and to the sweep.
        """
        for record in await self._records.list():
            if record.phase is not RegistrationPhase.REGISTERING:
                continue
            try:
                async with self._lock(record.key):
                    await self._registrations.reconcile(record)
            except RegistrationError as error:
                _logger.warning("%s of %s is not reconciled: %s", record.consumer_name, record.stream_name, error)

    async def sweep(self, *, watched_seconds: float = math.inf) -> builtins.list[Key]:
        """Deregister what is ours and whose grace period is over. Returns (stream, consumer name) of each.

        What Kinesis would not do is logged, and tried again by the next sweep.

        Args:
            watched_seconds: since this registry could be reached: a lease that had no such chance of a heartbeat for
                its time to live and the grace period is not taken for dead.
        """
        ended: builtins.list[Key] = []
        records = await self._records.list()
        for record in records:
            if not lease_rules.is_orphan(record, self._clock(), self._grace_seconds):
                continue
            holding = record.holding
            if holding is not None and watched_seconds < holding.time_to_live_seconds + self._grace_seconds:
                continue
            try:
                async with self._lock(record.key):
                    if await self._registrations.end_orphan(record.key, self._grace_seconds):
                        ended.append(record.key)
            except RegistrationError as error:
                _logger.warning("consumer %s of stream %s stays: %s", record.consumer_name, record.stream_name, error)
        # Made by those that sweep: registries that jobs have in their processes tell nothing.
        self._metrics = self._metrics or SweepMetrics()
        self._metrics.swept((one for one in records if one.key not in ended), self._clock())
        return ended

    async def sweep_for_ever(self, interval: timedelta) -> None:
        """Sweep now and at every interval, until cancelled. A store that fails is logged, and asked again.

        The holders of leases that ended while no registry was there are given time to tell that they live.
        """
        began = self._clock()
        while True:
            try:
                await self.sweep(watched_seconds=self._clock() - began)
            except RegistrationError as error:
                _logger.warning("leases were not swept: %s", error)
            await self._sleep(interval.total_seconds())

    async def close(self) -> None:
        """See ConsumerRegistry."""
        await self._registrar.close()
        await self._records.close()

    @property
    def _grace_seconds(self) -> float:
        return self._settings.grace_period.total_seconds()

    def _lock(self, key: Key) -> asyncio.Lock:
        """Within this process one call at a time asks Kinesis about a consumer."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def _acquire(self, request: AcquireRequest) -> Lease:
        key = (request.stream_name, request.consumer_name)
        arrived = self._registrations.next_event()
        while True:
            # Asked without the lock first: who is refused need not wait for the holder's registration.
            decision = self._decide(await self._records.read(key), request)
            if isinstance(decision, lease_rules.Refused):
                raise ConsumerHeldError(
                    stream_name=request.stream_name,
                    consumer_name=request.consumer_name,
                    holder_job_id=decision.holder.job_id,
                    held_seconds=decision.held_seconds,
                    remaining_seconds=decision.remaining_seconds,
                )
            if isinstance(decision, lease_rules.Wait):
                # Another process may release it at any moment, and there is nobody to tell us.
                await self._sleep(min(decision.seconds, _ASK_AGAIN_SECONDS))
                continue
            lock = self._lock(key)
            had_to_wait = lock.locked()
            async with lock:
                if had_to_wait:
                    decision = self._decide(await self._records.read(key), request)
                if isinstance(decision, lease_rules.Granted):
                    lease = await self._take(decision.record, request, arrived)
                    if lease is not None:
                        return lease

    async def _take(self, record: ConsumerRecord, request: AcquireRequest, arrived: int) -> Lease | None:
        """Write a granted lease, and bring the registration under it. None: another process was faster."""
        token = record.fencing_token

        def give_back(stored: ConsumerRecord) -> ConsumerRecord | None:
            released = lease_rules.release(stored, job_id=request.job_id, fencing_token=token, now=self._clock())
            # Not there yet, although it may be on its way to the store: after another write it comes too late.
            return stored if released is None and stored.version == record.version else released

        try:
            if not await self._records.write(record):
                return None
            return await self._complete(replace(record, version=record.version + 1), request, arrived)
        except BaseException:
            # Also after a cancellation, which may have come while the lease was being written.
            await self._records.change(record.key, give_back)
            raise

    def _decide(
        self, record: ConsumerRecord, request: AcquireRequest
    ) -> lease_rules.Granted | lease_rules.Refused | lease_rules.Wait:
        # Until it is registered the lease lives as long as that may take: nobody sends heartbeats for it yet.
        while_registering = self._registrar.configured(request.config).longest_seconds
        return lease_rules.acquire(
            record,
            job_id=request.job_id,
            time_to_live_seconds=max(while_registering, self._settings.time_to_live_seconds(request.time_to_live)),
            policy=request.conflict_policy,
            now=self._clock(),
        )

    async def _complete(self, granted: ConsumerRecord, request: AcquireRequest, arrived: int) -> Lease:
        """Bring the registration under a granted lease, whose life counts from then."""
        key, token, known = granted.key, granted.fencing_token, None
        given_arn = request.consumer_arn if request.strategy is RegistrationStrategy.NONE else None
        if given_arn is None:
            await self._registrations.register(key, token, request, arrived)
        else:
            known = granted
        time_to_live = self._settings.time_to_live_seconds(request.time_to_live)

        def begin(record: ConsumerRecord) -> ConsumerRecord | None:
            return lease_rules.renew(
                record if given_arn is None else lease_rules.note_given(record, consumer_arn=given_arn),
                job_id=request.job_id,
                fencing_token=token,
                now=self._clock(),
                time_to_live_seconds=time_to_live,
            )

        record = await self._records.change(key, begin, known=known)
        if record is None:
            raise await self._registrations.overtaken(key, token)
        return Lease(
            stream_name=request.stream_name,
            consumer_name=request.consumer_name,
            job_id=request.job_id,
            consumer_arn=record.consumer_arn,
            fencing_token=token,
            time_to_live_seconds=time_to_live,
            registration_is_ours=record.registration_is_ours,
        )
