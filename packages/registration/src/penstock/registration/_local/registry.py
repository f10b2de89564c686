"""The registry in the caller's own process: a registrar, a store, and the rules of leases."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

from opentelemetry import metrics

from penstock.aws import AwsSession
from penstock.registration._lease import rules as lease_rules
from penstock.registration._lease.record import ConsumerRecord, LeaseStore, RegistrationPhase
from penstock.registration._lease.watch import Key, Watch, consumer_of, is_listed
from penstock.registration._local.administration import CONSUMER_SHARD_HOUR_USD, Administration
from penstock.registration._local.records import Records
from penstock.registration._local.registrations import Registrations
from penstock.registration._registrar import KinesisCalls, StreamConsumerRegistrar
from penstock.registration._registry import holder_of
from penstock.registration._stores.sqlite import SqliteLeaseStore
from penstock.registration._stores.url import default_store_path
from penstock.registration._times import Clock, LeaseSettings, RegistrarConfig, elapsed_seconds
from penstock.registration._values import (
    AcquireRequest,
    Consumer,
    Heartbeat,
    Lease,
    RegistrationStrategy,
    is_arn,
)
from penstock.registration.errors import (
    AcquireTimeoutError,
    ConsumerHeldError,
    ConsumerNotFoundError,
    LeaseLostError,
    RegistrationError,
    RegistrationOptionError,
)

_GAUGES: Final = (
    ("consumers", "{consumer}", "Stream consumers that the registry knows, as of its last sweep"),
    ("leases", "{lease}", "Stream consumers that a job holds, as of the last sweep"),
    (
        "orphanConsumers",
        "{consumer}",
        "Stream consumers that the registry made, that no job holds, and that cost, as of the last sweep",
    ),
)


class SweepMetrics:
    """Counts by stream, replaced by each sweep."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        _make_instruments()
        _swept.add(self)

    def swept(self, records: Iterable[ConsumerRecord], watch: Watch) -> None:
        """Take note of what there is."""
        # A stream without consumers reports 0 once more: a series that ends keeps its last value on a graph.
        counts: dict[str, Counter[str]] = {stream: Counter() for stream, found in self.counts.items() if found.total()}
        for record in records:
            found = counts.setdefault(record.stream_name, Counter())
            is_over = watch.is_over(record)
            found["consumers"] += is_listed(record, watch)
            found["leases"] += not is_over
            found["orphanConsumers"] += is_over and lease_rules.is_ours(record, record.consumer_arn)
        self.counts = counts


# A meter keeps what it observes for ever, and asks one instrument of a name alone: registries come and go.
_swept: weakref.WeakSet[SweepMetrics] = weakref.WeakSet()


@cache
def _make_instruments() -> None:
    meter = metrics.get_meter("penstock.registration")
    for name, unit, text in _GAUGES:
        meter.create_observable_gauge(name, [_reader(name)], unit=unit, description=text)


def _reader(name: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
    def read(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        found: Counter[str] = Counter()
        for one in list(_swept):
            for stream, counts in one.counts.items():
                found[stream] += counts[name]
        return [metrics.Observation(count, {"stream": stream}) for stream, count in found.items()]

    return read


_logger = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS: Final = 0.5


class LocalConsumerRegistry(Administration):
    """A ConsumerRegistry over a store and Kinesis. It owns both, and closes them.

    Several registries, in processes on several machines, may share a store: whatever their clocks say, no registry ends
    a lease that is renewed through another one.

    Args:
        registrar: asks Kinesis.
        store: keeps the leases.
        settings: how long leases live, and what they leave behind.
        clock: monotonic seconds, also of times in which the machine slept; all decisions are made by it.
        wall_clock: seconds since the epoch, recorded for people to read.
        sleep: waits for seconds of `clock`.
        consumer_shard_hour_usd: for costs.
    """

    def __init__(
        self,
        registrar: StreamConsumerRegistrar,
        store: LeaseStore,
        *,
        settings: LeaseSettings | None = None,
        clock: Clock = elapsed_seconds,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        consumer_shard_hour_usd: float = CONSUMER_SHARD_HOUR_USD,
    ) -> None:
        self._settings = settings or LeaseSettings()
        watch = Watch(self._settings.grace_period.total_seconds())
        records = Records(store, watch, clock, wall_clock)
        registrations = Registrations(registrar, records, watch, clock)
        super().__init__(registrar, records, registrations, watch, consumer_shard_hour_usd)
        self._sleep = sleep
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
        time_to_live = await self._records.renew(await self._arn_of(lease), lease)
        return Heartbeat(held=time_to_live is not None, time_to_live_seconds=time_to_live or 0.0)

    async def release(self, lease: Lease, *, disown: bool = False) -> bool:
        """See ConsumerRegistry. Without a grace period it returns when the consumer is gone.

        Raises:
            RegistrationError: the lease is given back, but Kinesis would not deregister. Repeating the call tries
                again.
        """
        key = (await self._arn_of(lease), lease.consumer_name)
        record = await self._records.change(
            key,
            lambda record: lease_rules.release(
                record,
                job_id=lease.job_id,
                fencing_token=lease.fencing_token,
                now=self._records.time_of_day(),
                disowned_arn=lease.consumer_arn if disown else "",
            ),
        )
        if self._settings.grace_period > timedelta(0):
            return record is not None and record.registration_is_ours
        return await self._end_orphan(key)

    async def list_consumers(self, stream_name: str | None = None, *, with_state: bool = False) -> list[Consumer]:
        """See ConsumerRegistry."""
        records = await self._records.list(stream_name)
        now = self._records.time_of_day()
        consumers = [consumer_of(record, self._watch, now) for record in records if is_listed(record, self._watch)]
        return await self.with_state(consumers) if with_state else consumers

    async def force_release(self, stream_name: str, consumer_name: str) -> Lease | None:
        """See RegistryAdministration."""
        key = await self._known_key(stream_name, consumer_name)
        lease = await self._end_lease(key)
        if self._settings.grace_period == timedelta(0):
            await self._end_orphan(key)
        return lease

    async def reconcile(self) -> None:
        """Record the outcomes of registrations that a killed registry had begun. Called at the start.

        Consumers that Kinesis does not describe are left to the next acquire, and to the sweep.
        """
        for record in await self._located():
            if record.phase is not RegistrationPhase.REGISTERING:
                continue
            try:
                async with self._lock(record.key):
                    await self._registrations.reconcile(record)
            except RegistrationError as error:
                _logger.warning("%s of %s is not reconciled: %s", record.consumer_name, record.stream_arn, error)

    async def sweep(self) -> list[Key]:
        """Deregister our consumers whose grace period is over. Returns (stream ARN, consumer name) of each.

        A lease ends after this registry saw it unchanged, sweep by sweep, for its time to live and the grace period.
        Errors of Kinesis are logged, and the next sweep retries.
        """
        ended, _ = await self._sweep()
        return ended

    async def _sweep(self) -> tuple[list[Key], list[ConsumerRecord]]:
        """The consumers that were ended, and the records of those that may end later."""
        ended: list[Key] = []
        records = await self._located()
        for record in records:
            if record.phase is RegistrationPhase.ABSENT or not self._watch.is_due(record):
                continue
            try:
                if await self._end_orphan(record.key):
                    ended.append(record.key)
            except RegistrationError as error:
                _logger.warning("consumer %s of %s stays: %s", record.consumer_name, record.stream_arn, error)
        # Made by those that sweep: registries inside jobs report none.
        self._metrics = self._metrics or SweepMetrics()
        self._metrics.swept((one for one in records if one.key not in ended), self._watch)
        return ended, [one for one in records if not self._watch.is_due(one)]

    async def sweep_for_ever(self, interval: timedelta) -> None:
        """Sweep now and at every interval, until cancelled. Errors of the store are logged, and the next sweep retries.

        Between sweeps it polls the store, because leases are watched only while the store answers.
        """
        while True:
            try:
                await self.sweep()
            except RegistrationError as error:
                _logger.warning("leases were not swept: %s", error)
            await self._pass(interval.total_seconds())

    async def sweep_once(self) -> None:
        """Sweep until each current lease was renewed, released, or is over.

        Raises:
            RegistrationError: the store cannot be used.
        """
        _, records = await self._sweep()
        waiting = {one.key: one.version for one in records}
        while waiting:
            await self._pass(self._watch.step_seconds)
            _, records = await self._sweep()
            waiting = {one.key: one.version for one in records if waiting.get(one.key) == one.version}

    async def _pass(self, seconds: float) -> None:
        """Wait, and poll the store meanwhile."""
        while seconds > 0:
            step = min(seconds, self._watch.step_seconds)
            await self._sleep(step)
            seconds -= step
            if seconds > 0:
                try:
                    await self._records.listen()
                except RegistrationError as error:
                    _logger.info("the store of leases does not answer: %s", error)

    async def close(self) -> None:
        """See ConsumerRegistry."""
        await self._registrar.close()
        await self._records.close()

    async def _arn_of(self, lease: Lease) -> str:
        return lease.stream_arn or await self._registrar.find_stream_arn(lease.stream_name)

    async def _known_key(self, stream_name: str, consumer_name: str) -> Key:
        """The key of a consumer that the registry knows, without a call to Kinesis.

        Raises:
            ConsumerNotFoundError: the registry does not know the consumer.
            RegistrationOptionError: there are several streams of that name.
        """
        if is_arn(stream_name):
            return stream_name, consumer_name
        found = await self._records.list(stream_name)
        keys = sorted(one.key for one in found if one.consumer_name == consumer_name)
        if not keys:
            raise ConsumerNotFoundError(stream_name=stream_name, consumer_name=consumer_name)
        if len(keys) > 1:
            arns = ", ".join(arn for arn, _ in keys)
            raise RegistrationOptionError(
                option="stream_name", reason=f"{stream_name!r} may be any of {arns}: give its ARN"
            )
        return keys[0]

    async def _end_orphan(self, key: Key) -> bool:
        async with self._lock(key):
            return await self._registrations.end_orphan(key, is_due=self._watch.is_due)

    async def _acquire(self, request: AcquireRequest) -> Lease:
        key = (request.stream_arn or await self._registrar.find_stream_arn(request.stream_name), request.consumer_name)
        arrived = self._registrations.next_event()
        while True:
            # Decide without the lock first: a refused request need not wait for the holder's registration.
            decision = self._decide(await self._records.read(key), request)
            if isinstance(decision, lease_rules.Refused):
                raise ConsumerHeldError(
                    stream_name=request.stream_name,
                    consumer_name=request.consumer_name,
                    holder_job_id=decision.holder.job_id,
                    held_seconds=decision.held_seconds,
                    remaining_seconds=decision.remaining_seconds,
                )
            if isinstance(decision, lease_rules.Lost):
                raise LeaseLostError(
                    stream_name=request.stream_name,
                    consumer_name=request.consumer_name,
                    fencing_token=request.after_fencing_token or 0,
                    reason=decision.reason,
                )
            if isinstance(decision, lease_rules.Wait):
                # Another process may release it at any moment, without an event: poll.
                await self._sleep(min(decision.seconds, self._watch.step_seconds, _ASK_AGAIN_SECONDS))
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
        """Write a granted lease, and register the consumer for it. None: another process was faster."""
        token = record.fencing_token

        def give_back(stored: ConsumerRecord) -> ConsumerRecord | None:
            now = self._records.time_of_day()
            released = lease_rules.release(stored, job_id=request.job_id, fencing_token=token, now=now)
            # The write may still be on its way to the store: writing the record again makes it too late.
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
    ) -> lease_rules.Granted | lease_rules.Refused | lease_rules.Wait | lease_rules.Lost:
        # During the registration the lease lives as long as that may take: no heartbeats are sent for it yet.
        while_registering = self._registrar.longest_seconds(request.config)
        return lease_rules.acquire(
            record,
            job_id=request.job_id,
            time_to_live_seconds=max(while_registering, self._settings.time_to_live_seconds(request.time_to_live)),
            policy=request.conflict_policy,
            sight=self._watch.sight(record),
            now=self._records.time_of_day(),
            claim=request.claim,
            after_token=request.after_fencing_token,
        )

    async def _complete(self, granted: ConsumerRecord, request: AcquireRequest, arrived: int) -> Lease:
        """Register the consumer for a granted lease, whose time to live starts then."""
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
                now=self._records.time_of_day(),
                time_to_live_seconds=time_to_live,
            )

        record = await self._records.change(key, begin, known=known)
        if record is None:
            raise await self._registrations.overtaken(key, token)
        return Lease(
            stream_name=request.stream_name,
            stream_arn=key[0],
            consumer_name=request.consumer_name,
            job_id=request.job_id,
            consumer_arn=record.consumer_arn,
            fencing_token=token,
            time_to_live_seconds=time_to_live,
            registration_is_ours=record.registration_is_ours,
        )


def open_local_registry(
    session: AwsSession,
    store_path: Path | None = None,
    *,
    store: LeaseStore | None = None,
    config: RegistrarConfig | None = None,
    settings: LeaseSettings | None = None,
    consumer_shard_hour_usd: float = CONSUMER_SHARD_HOUR_USD,
) -> LocalConsumerRegistry:
    """The in-process registry, over `store` or a SQLite file that it shares with other endpoints and regions."""
    if store is None:
        store = SqliteLeaseStore(store_path or default_store_path(), namespace=session.endpoint_url("kinesis"))
    return LocalConsumerRegistry(
        StreamConsumerRegistrar(KinesisCalls(session), config),
        store,
        settings=settings,
        consumer_shard_hour_usd=consumer_shard_hour_usd,
    )
