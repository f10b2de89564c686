"""The registry in the caller's own process: a registrar, a store, and the rules of `_lease`."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from weakref import WeakValueDictionary

from penstock.registration import _lease as lease_rules
from penstock.registration._clock import Clock, steady_wall_clock
from penstock.registration._config import RegistrationStrategy
from penstock.registration._record import ConsumerRecord, RegistrationPhase
from penstock.registration._registrar import StreamConsumerRegistrar
from penstock.registration._store import LeaseStore
from penstock.registration._values import AcquireRequest, Consumer, Heartbeat, Lease
from penstock.registration.errors import (
    AcquireTimeoutError,
    ConsumerHeldError,
    RegistrationError,
    RegistrationOptionError,
    StaleFencingTokenError,
    StreamNotFoundError,
)

_logger = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS: Final = 0.5

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class LeaseSettings:
    """How long leases live, and what they leave behind.

    Raises:
        RegistrationOptionError: naming the option that is out of range.
    """

    default_time_to_live: timedelta = timedelta(seconds=30)
    """For requests that name none. Default: 30 s, so that a job whose JVM pauses does not lose its consumer."""
    longest_time_to_live: timedelta = timedelta(minutes=5)
    """Cap for requests that name one. Default: 5 minutes."""
    grace_period: timedelta = timedelta(0)
    """Between the end of the last lease and the de-registration.

    Default: none, for a registry that ends with its process."""

    def __post_init__(self) -> None:
        if self.default_time_to_live <= timedelta(0):
            raise RegistrationOptionError(option="default_time_to_live", reason="must be positive")
        if self.longest_time_to_live < self.default_time_to_live:
            raise RegistrationOptionError(
                option="longest_time_to_live", reason="must not be less than default_time_to_live"
            )
        if self.grace_period < timedelta(0):
            raise RegistrationOptionError(option="grace_period", reason="must not be negative")

    def time_to_live_seconds(self, wanted: timedelta | None) -> float:
        """What a request gets."""
        return min(wanted or self.default_time_to_live, self.longest_time_to_live).total_seconds()


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
    ) -> None:
        self._registrar = registrar
        self._store = store
        self._settings = settings or LeaseSettings()
        self._clock = clock or steady_wall_clock()
        self._sleep = sleep
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._looked_up: dict[Key, tuple[int, str]] = {}
        self._events = 0

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
            ) from error

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """See ConsumerRegistry."""
        record = await self._change(
            (lease.stream_name, lease.consumer_name),
            lambda record: lease_rules.renew(
                record, job_id=lease.job_id, fencing_token=lease.fencing_token, now=self._clock()
            ),
        )
        if record is None or record.holding is None:
            return Heartbeat(held=False, time_to_live_seconds=0.0)
        return Heartbeat(held=True, time_to_live_seconds=record.holding.time_to_live_seconds)

    async def release(self, lease: Lease) -> bool:
        """See ConsumerRegistry. Without a grace period it returns when the consumer is gone.

        Raises:
            RegistrationError: the lease is given back, but Kinesis would not deregister. Repeating the call tries
                again.
        """
        key = (lease.stream_name, lease.consumer_name)
        record = await self._change(
            key,
            lambda record: lease_rules.release(
                record, job_id=lease.job_id, fencing_token=lease.fencing_token, now=self._clock()
            ),
        )
        if self._settings.grace_period > timedelta(0):
            return record is not None and record.registration_is_ours
        async with self._lock(key):
            return await self._end_orphan(key)

    async def list_consumers(self, stream_name: str | None = None) -> list[Consumer]:
        """See ConsumerRegistry."""
        now = self._clock()
        return [
            _consumer_of(record, now)
            for record in await self._store.list(stream_name)
            if record.phase is not RegistrationPhase.ABSENT or lease_rules.is_live(record, now)
        ]

    async def sweep(self) -> builtins.list[Key]:
        """Deregister what is ours and whose grace period is over. Returns (stream, consumer name) of each.

        What Kinesis would not do is logged, and tried again by the next sweep.
        """
        ended = []
        for record in await self._store.list():
            if not lease_rules.is_orphan(record, self._clock(), self._grace_seconds):
                continue
            try:
                async with self._lock(record.key):
                    if await self._end_orphan(record.key):
                        ended.append(record.key)
            except RegistrationError as error:
                _logger.warning("consumer %s of stream %s stays: %s", record.consumer_name, record.stream_name, error)
        return ended

    async def sweep_for_ever(self, interval: timedelta) -> None:
        """Sweep now and at every interval, until cancelled. A store that fails is logged, and asked again."""
        while True:
            try:
                await self.sweep()
            except RegistrationError as error:
                _logger.warning("leases were not swept: %s", error)
            await self._sleep(interval.total_seconds())

    async def close(self) -> None:
        """See ConsumerRegistry."""
        self._registrar.close()
        await self._store.close()

    @property
    def _grace_seconds(self) -> float:
        return self._settings.grace_period.total_seconds()

    def _lock(self, key: Key) -> asyncio.Lock:
        """Within this process one call at a time asks Kinesis about a consumer."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def _acquire(self, request: AcquireRequest) -> Lease:
        key = (request.stream_name, request.consumer_name)
        arrived = self._next_event()
        while True:
            # Asked without the lock first: who is refused need not wait for the holder's registration.
            decision = self._decide(await self._read(key), request)
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
            async with self._lock(key):
                decision = self._decide(await self._read(key), request)
                if isinstance(decision, lease_rules.Granted):
                    (written,) = await self._store.write([decision.record])
                    if written:
                        return await self._complete(decision.record.fencing_token, request, arrived)

    def _decide(
        self, record: ConsumerRecord, request: AcquireRequest
    ) -> lease_rules.Granted | lease_rules.Refused | lease_rules.Wait:
        # Until it is registered the lease lives as long as that may take: nobody sends heartbeats for it yet.
        while_registering = self._registrar.longest_seconds
        return lease_rules.acquire(
            record,
            job_id=request.job_id,
            time_to_live_seconds=max(while_registering, self._settings.time_to_live_seconds(request.time_to_live)),
            policy=request.conflict_policy,
            now=self._clock(),
        )

    async def _complete(self, token: int, request: AcquireRequest, arrived: int) -> Lease:
        """Bring the registration under a granted lease; give the lease back if that fails."""
        key = (request.stream_name, request.consumer_name)
        try:
            if request.strategy is RegistrationStrategy.NONE:
                arn = request.consumer_arn or ""
                await self._change(key, lambda record: lease_rules.adopt(record, consumer_arn=arn))
            else:
                await self._register(key, token, request, arrived)
            time_to_live = self._settings.time_to_live_seconds(request.time_to_live)
            record = await self._change(
                key,
                lambda record: lease_rules.renew(
                    record,
                    job_id=request.job_id,
                    fencing_token=token,
                    now=self._clock(),
                    time_to_live_seconds=time_to_live,
                ),
            )
            if record is None:
                raise await self._overtaken(key, token)
        except BaseException:
            await self._change(
                key,
                lambda record: lease_rules.release(
                    record, job_id=request.job_id, fencing_token=token, now=self._clock()
                ),
            )
            raise
        return Lease(
            stream_name=request.stream_name,
            consumer_name=request.consumer_name,
            job_id=request.job_id,
            consumer_arn=record.consumer_arn,
            fencing_token=token,
            time_to_live_seconds=time_to_live,
            registration_is_ours=record.registration_is_ours,
        )

    async def _register(self, key: Key, token: int, request: AcquireRequest, arrived: int) -> None:
        record = await self._read(key)
        if record.phase is RegistrationPhase.DEREGISTERING:
            # Begun by somebody who may be gone, or about to ask Kinesis: finish it, and register anew.
            await self._finish_deregistration(record)
        looked_up, known_arn = self._looked_up.get(key, (-1, ""))
        registered = record.phase is RegistrationPhase.REGISTERED
        if registered and record.consumer_arn == known_arn and looked_up > arrived:
            # Looked up since this request came in, while it waited its turn: 200 tasks at once ask twice.
            return

        async def begin() -> None:
            begun = await self._change(
                key,
                lambda record: (
                    lease_rules.begin_registration(record, fencing_token=token)
                    if lease_rules.holds(record, request.job_id, token)
                    else None
                ),
            )
            if begun is None:
                raise await self._overtaken(key, token)

        looked_up = self._next_event()
        consumer = await self._registrar.register(
            request.stream_name,
            request.consumer_name,
            stream_arn=request.stream_arn,
            stagger=request.strategy is RegistrationStrategy.LAZY and not registered,
            before_register=begin,
        )
        await self._change(
            key,
            lambda record: lease_rules.finish_registration(
                record, consumer_arn=consumer.arn, made=consumer.made, fencing_token=token
            ),
        )
        self._looked_up[key] = (looked_up, consumer.arn)

    async def _end_orphan(self, key: Key) -> bool:
        """End a registration whose time has come. Returns whether there was one of ours. Called with the lock held."""
        record = await self._change(
            key,
            lambda record: lease_rules.begin_deregistration(
                record, now=self._clock(), grace_seconds=self._grace_seconds
            ),
        )
        if record is None or record.phase is RegistrationPhase.ABSENT:
            return False
        await self._finish_deregistration(record)
        return True

    async def _finish_deregistration(self, record: ConsumerRecord) -> None:
        arn = record.consumer_arn or await self._find_arn(record)
        if arn:
            await self._registrar.deregister(arn)
        begun = record.phase, record.consumer_arn
        await self._change(
            record.key,
            lambda now: lease_rules.finish_deregistration(now) if (now.phase, now.consumer_arn) == begun else None,
        )

    async def _find_arn(self, record: ConsumerRecord) -> str:
        """Of a registration that was begun, and whose end nobody lived to write down."""
        try:
            found = await self._registrar.find(record.stream_name, record.consumer_name)
        except StreamNotFoundError:
            return ""
        return "" if found is None else found.arn

    async def _overtaken(self, key: Key, token: int) -> StaleFencingTokenError:
        newest = (await self._read(key)).fencing_token
        return StaleFencingTokenError(
            stream_name=key[0], consumer_name=key[1], fencing_token=token, newest_token=newest
        )

    async def _read(self, key: Key) -> ConsumerRecord:
        stored = await self._store.get(*key)
        if stored is not None:
            return stored
        return ConsumerRecord(stream_name=key[0], consumer_name=key[1], created_at=self._clock())

    async def _change(
        self, key: Key, decide: Callable[[ConsumerRecord], ConsumerRecord | None]
    ) -> ConsumerRecord | None:
        """Write what `decide` makes of the record, again and again until nobody wrote in between. None: left alone."""
        while True:
            changed = decide(await self._read(key))
            if changed is None:
                return None
            (written,) = await self._store.write([changed])
            if written:
                return replace(changed, version=changed.version + 1)

    def _next_event(self) -> int:
        self._events += 1
        return self._events


def _consumer_of(record: ConsumerRecord, now: float) -> Consumer:
    holding = record.holding
    lease = None
    if holding is not None and lease_rules.is_live(record, now):
        lease = Lease(
            stream_name=record.stream_name,
            consumer_name=record.consumer_name,
            job_id=holding.job_id,
            consumer_arn=record.consumer_arn,
            fencing_token=holding.fencing_token,
            time_to_live_seconds=lease_rules.remaining_seconds(record, now),
            registration_is_ours=record.registration_is_ours,
        )
    return Consumer(
        stream_name=record.stream_name,
        consumer_name=record.consumer_name,
        consumer_arn=record.consumer_arn,
        registration_is_ours=record.registration_is_ours,
        lease=lease,
        age_seconds=max(0.0, now - record.created_at),
    )
