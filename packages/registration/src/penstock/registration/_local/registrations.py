"""Bringing registrations with Kinesis in line with records, and records with Kinesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, cast

from penstock.registration._lease import rules as lease_rules
from penstock.registration._lease.record import ConsumerRecord, RegistrationPhase
from penstock.registration._lease.watch import Key, Watch
from penstock.registration._local.records import Records
from penstock.registration._registrar import StreamConsumerRegistrar
from penstock.registration._times import Clock
from penstock.registration._values import AcquireRequest, RegistrationStrategy, stream_name_of
from penstock.registration.errors import RegistrationError, StreamNotFoundError

_PATIENCE_SECONDS: Final = 10.0
"""How long to wait for another registry that intends to register: longer than its call takes, with retries."""


class Registrations:
    """Registers and deregisters consumers. Records each intention before the call to Kinesis, and each outcome after.

    A process may die in between: the next registry finds the intention, and completes it. Within a process the caller
    makes one call at a time per consumer.
    """

    def __init__(self, registrar: StreamConsumerRegistrar, records: Records, watch: Watch, clock: Clock) -> None:
        self._registrar = registrar
        self._records = records
        self._watch = watch
        self._clock = clock
        self._looked_up: dict[Key, tuple[int, str]] = {}
        self._events = 0
        self._begun: dict[Key, int] = {}
        self._others: dict[Key, tuple[int, float]] = {}

    def next_event(self) -> int:
        """A number that grows with each record."""
        self._events += 1
        return self._events

    async def register(self, key: Key, token: int, request: AcquireRequest, arrived: int) -> None:
        """Make the consumer ACTIVE for the lease with this token. `arrived`: the event at which the request came."""
        record = await self._records.read(key)
        if record.phase is RegistrationPhase.DEREGISTERING:
            # Another registry began it, and may be gone or about to ask Kinesis: finish it, then register.
            await self._finish_deregistration(record)
        looked_up, known_arn = self._looked_up.get(key, (-1, ""))
        registered = record.phase is RegistrationPhase.REGISTERED
        if registered and record.consumer_arn == known_arn and looked_up > arrived:
            # Looked up since this request came in, while it waited its turn: 200 concurrent tasks look twice.
            return

        async def begin() -> bool:
            if await self._another_registers(key, token):
                return False
            begun = await self._records.change(
                key,
                lambda record: (
                    lease_rules.begin_registration(record, fencing_token=token)
                    if lease_rules.holds(record, request.job_id, token)
                    else None
                ),
            )
            if begun is None:
                raise await self.overtaken(key, token)
            self._begun[key] = token
            return True

        async def abandon() -> None:
            await self._records.change(
                key, lambda record: lease_rules.abandon_registration(record, fencing_token=token)
            )

        looked_up = self.next_event()
        try:
            consumer = await self._registrar.register(
                request.stream_name,
                request.consumer_name,
                stream_arn=key[0],
                config=request.config,
                stagger=request.strategy is RegistrationStrategy.LAZY and not registered,
                before_register=begin,
                on_refused=abandon,
            )
        except RegistrationError as error:
            if error.code != "CONSUMER_LIMIT":
                raise
            raise await self._with_idle(error, key[0]) from error
        await self._records.change(
            key,
            lambda record: lease_rules.finish_registration(
                record, consumer_arn=consumer.arn, made=consumer.made, fencing_token=token
            ),
        )
        self._looked_up[key] = (looked_up, consumer.arn)

    async def _another_registers(self, key: Key, token: int) -> bool:
        """Whether another registry is about to register the consumer; for a limited time, because it may have died."""
        record = await self._records.read(key)
        theirs = record.registering_token
        if record.phase is not RegistrationPhase.REGISTERING or theirs in (0, token, self._begun.get(key)):
            return False
        seen, since = self._others.get(key, (0, 0.0))
        if seen != theirs:
            self._others[key] = theirs, self._clock()
            return True
        if self._clock() - since < _PATIENCE_SECONDS:
            return True
        del self._others[key]
        return False

    async def _with_idle(self, error: RegistrationError, stream_arn: str) -> RegistrationError:
        """The same error, with our consumers that no job uses."""
        existing = list(cast("Iterable[str]", error.facts["existing"]))
        idle = [
            record.consumer_name
            for record in await self._records.list(stream_arn)
            if record.consumer_name in existing
            and lease_rules.is_ours(record, record.consumer_arn)
            and self._watch.is_over(record)
        ]
        return RegistrationError.of(
            "CONSUMER_LIMIT",
            **{**error.facts, "ours_and_idle": idle},
        )

    async def reconcile(self, record: ConsumerRecord) -> None:
        """Finish a registration whose outcome was not recorded, if Kinesis has the consumer."""
        found = await self._registrar.find(record.stream_name, record.consumer_name, stream_arn=record.stream_arn)
        if found is None or found.status == "DELETING":
            return
        arn = found.arn

        def finish(now: ConsumerRecord) -> ConsumerRecord | None:
            if (now.phase, now.registering_token) != (record.phase, record.registering_token):
                return None
            return lease_rules.finish_registration(now, consumer_arn=arn, made=True, fencing_token=0)

        await self._records.change(record.key, finish)

    async def end_orphan(self, key: Key, *, is_due: Callable[[ConsumerRecord], bool]) -> bool:
        """End a registration that is due. Returns whether one of ours was ended. Called with the lock held.

        Decided again on each look at the record, and written only if the record did not change since: a holder whose
        heartbeat reaches any registry keeps its consumer.
        """
        record = await self._records.change(
            key,
            lambda record: (
                lease_rules.begin_deregistration(record, now=self._records.time_of_day()) if is_due(record) else None
            ),
        )
        if record is None or record.phase is RegistrationPhase.ABSENT:
            return False
        await self._finish_deregistration(record)
        return True

    async def _finish_deregistration(self, record: ConsumerRecord) -> None:
        begun = record.phase, record.consumer_arn
        arn = record.consumer_arn or await self._find_arn(record)
        if arn != record.consumer_arn:
            # Record the ARN first: if the name belongs to a new registration by now, the record has changed.
            noted = await self._records.change(
                record.key,
                lambda now: replace(now, consumer_arn=arn) if (now.phase, now.consumer_arn) == begun else None,
            )
            if noted is None:
                return
            begun = record.phase, arn
        if arn:
            await self._registrar.deregister(arn)
        await self._records.change(
            record.key,
            lambda now: lease_rules.finish_deregistration(now) if (now.phase, now.consumer_arn) == begun else None,
        )

    async def _find_arn(self, record: ConsumerRecord) -> str:
        """The ARN of a registration that was begun and whose outcome was not recorded."""
        try:
            found = await self._registrar.find(record.stream_name, record.consumer_name, stream_arn=record.stream_arn)
        except StreamNotFoundError:
            return ""
        return "" if found is None else found.arn

    async def overtaken(self, key: Key, token: int) -> RegistrationError:
        """The error for a lease that is not the newest any more."""
        newest = (await self._records.read(key)).fencing_token
        return RegistrationError.of(
            "STALE_FENCING_TOKEN",
            stream_name=stream_name_of(key[0]),
            consumer_name=key[1],
            fencing_token=token,
            newest_token=newest,
        )
