"""What operators ask of a registry: states and costs, adoption, the end of leases and of orphans."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final

from penstock.registration import _lease as lease_rules
from penstock.registration._clock import Clock
from penstock.registration._listing import consumer_of
from penstock.registration._lookups import FoundConsumer
from penstock.registration._record import ConsumerRecord
from penstock.registration._records import Key, Records
from penstock.registration._registrar import StreamConsumerRegistrar
from penstock.registration._registrations import Registrations
from penstock.registration._values import Consumer, ConsumerState, Lease, Orphan, OrphanFate
from penstock.registration.errors import (
    ConsumerNotFoundError,
    InvalidRequestError,
    RegistrationError,
    StreamNotFoundError,
)

_logger = logging.getLogger(__name__)

CONSUMER_SHARD_HOUR_USD: Final = 0.015
"""List price of a consumer for one shard and hour in us-east-1. On-demand streams are billed by the data instead."""


class Administration:
    """The calls of operators, over the same records and rules as those of jobs."""

    def __init__(
        self,
        registrar: StreamConsumerRegistrar,
        records: Records,
        registrations: Registrations,
        *,
        clock: Clock,
        lock: Callable[[Key], AbstractAsyncContextManager[object]],
        consumer_shard_hour_usd: float,
    ) -> None:
        self._registrar = registrar
        self._records = records
        self._registrations = registrations
        self._clock = clock
        self._lock = lock
        self._consumer_shard_hour_usd = consumer_shard_hour_usd

    async def with_state(self, consumers: builtins.list[Consumer]) -> builtins.list[Consumer]:
        """The same consumers with state and cost; without them where Kinesis does not answer."""
        answered = []
        for stream_name in {consumer.stream_name for consumer in consumers}:
            of_stream = [consumer for consumer in consumers if consumer.stream_name == stream_name]
            try:
                cost, found = await self._ask(stream_name)
            except RegistrationError as error:
                _logger.warning("the state of consumers of %s is not known: %s", stream_name, error)
                answered += of_stream
                continue
            for consumer in of_stream:
                answered.append(_described(consumer, found.get(consumer.consumer_name), cost))
        return sorted(answered, key=lambda consumer: (consumer.stream_name, consumer.consumer_name))

    async def end_lease(self, key: Key) -> Lease | None:
        """End the lease, whoever holds it. Returns it, as it was; None when nobody held the consumer."""
        lease = None

        def release(record: ConsumerRecord) -> ConsumerRecord | None:
            nonlocal lease
            now = self._clock()
            if record.version == 0:
                raise ConsumerNotFoundError(stream_name=key[0], consumer_name=key[1])
            lease = consumer_of(record, now).lease
            holding = record.holding
            if holding is None:
                return None
            return lease_rules.release(record, job_id=holding.job_id, fencing_token=holding.fencing_token, now=now)

        await self._records.change(key, release)
        return lease

    async def adopt(self, key: Key, stream_arn: str | None) -> Consumer:
        """Write down an existing registration as ours."""
        async with self._lock(key):
            found = await self._registrar.find(*key, stream_arn=stream_arn)
            if found is None:
                raise ConsumerNotFoundError(stream_name=key[0], consumer_name=key[1])
            if found.status == ConsumerState.DELETING:
                raise InvalidRequestError(field="consumer_name", reason=f"{key[1]!r} is being deleted")
            arn = found.arn
            record = await self._records.change(
                key, lambda record: lease_rules.adopt(record, consumer_arn=arn, now=self._clock())
            )
        if record is None:
            raise ConsumerNotFoundError(stream_name=key[0], consumer_name=key[1])
        (consumer,) = await self.with_state([consumer_of(record, self._clock())])
        return consumer

    async def collect_garbage(self, stream_name: str | None, *, dry_run: bool) -> builtins.list[Orphan]:
        """End what is ours and no lease holds.

        A lease that is over needs no grace period here: its holder has stopped, or was told to.
        """
        records = {record.key: record for record in await self._records.list(stream_name)}
        streams = {stream for stream, _ in records} | ({stream_name} if stream_name else set())
        orphans = []
        for stream in sorted(streams):
            try:
                cost, found = await self._ask(stream)
            except StreamNotFoundError:
                # Its consumers are gone with it.
                if stream_name is not None:
                    raise
                continue
            for name, consumer in sorted(found.items()):
                record = records.get((stream, name)) or ConsumerRecord(
                    stream_name=stream, consumer_name=name, created_at=self._clock()
                )
                if lease_rules.is_live(record, self._clock()) or consumer.status == ConsumerState.DELETING:
                    continue
                described = _described(consumer_of(record, self._clock()), consumer, cost)
                orphans.append(await self._judge(record, described, dry_run=dry_run))
        return orphans

    async def _judge(self, record: ConsumerRecord, consumer: Consumer, *, dry_run: bool) -> Orphan:
        if not lease_rules.is_ours(record, consumer.consumer_arn):
            reason = "the registration is not ours; adopt it first"
            return Orphan(consumer=consumer, fate=OrphanFate.KEPT, reason=reason)
        ours = replace(consumer, registration_is_ours=True)
        if dry_run:
            return Orphan(consumer=ours, fate=OrphanFate.DUE, reason="ours, and no lease holds it")
        try:
            async with self._lock(record.key):
                ended = await self._registrations.end_orphan(record.key, 0.0)
        except RegistrationError as error:
            return Orphan(consumer=ours, fate=OrphanFate.FAILED, reason=str(error))
        if not ended:
            return Orphan(consumer=ours, fate=OrphanFate.KEPT, reason="leased in the meantime")
        return Orphan(consumer=ours, fate=OrphanFate.ENDED, reason="ours, and no lease held it")

    async def _ask(self, stream_name: str) -> tuple[float, dict[str, FoundConsumer]]:
        """Cost per hour of each consumer of the stream, and the consumers by name."""
        stream = await self._registrar.describe_stream(stream_name)
        found = await self._registrar.list_consumers(stream.arn)
        cost = 0.0 if stream.is_on_demand else stream.open_shards * self._consumer_shard_hour_usd
        return cost, {consumer.name: consumer for consumer in found}


def _described(consumer: Consumer, found: FoundConsumer | None, cost: float) -> Consumer:
    if found is None:
        return replace(consumer, state=ConsumerState.ABSENT, cost_per_hour_usd=0.0)
    state = ConsumerState(found.status)
    if consumer.consumer_arn in ("", found.arn):
        return replace(consumer, consumer_arn=found.arn, state=state, cost_per_hour_usd=cost)
    # Deleted, and made again by somebody else: that one is not ours.
    return replace(consumer, consumer_arn=found.arn, registration_is_ours=False, state=state, cost_per_hour_usd=cost)
