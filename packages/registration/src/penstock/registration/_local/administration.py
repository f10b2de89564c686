"""What operators ask of a registry: states and costs, adoption, the end of leases and of orphans."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from penstock.registration._lease import rules as lease_rules
from penstock.registration._lease.record import ConsumerRecord, RegistrationPhase
from penstock.registration._lease.watch import Key, Standing, Watch, consumer_of
from penstock.registration._local.records import Records
from penstock.registration._local.registrations import Registrations
from penstock.registration._registrar import FoundConsumer, StreamConsumerRegistrar
from penstock.registration._values import (
    Consumer,
    ConsumerState,
    Lease,
    Orphan,
    OrphanFate,
    stream_arn_of,
    stream_name_of,
)
from penstock.registration.errors import (
    ConsumerNotFoundError,
    RegistrationError,
    StreamNotFoundError,
)

_logger = logging.getLogger(__name__)

CONSUMER_SHARD_HOUR_USD: Final = 0.015
"""List price of a consumer for one shard and hour in us-east-1. On-demand streams are billed by the data instead."""


class Administration:
    """The part of a registry that answers operators, over the same records and rules as the calls of jobs."""

    def __init__(
        self,
        registrar: StreamConsumerRegistrar,
        records: Records,
        registrations: Registrations,
        watch: Watch,
        consumer_shard_hour_usd: float,
    ) -> None:
        self._registrar = registrar
        self._records = records
        self._registrations = registrations
        self._watch = watch
        self._consumer_shard_hour_usd = consumer_shard_hour_usd
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._unknown_streams: set[str] = set()

    def _lock(self, key: Key) -> asyncio.Lock:
        """Within this process one call at a time asks Kinesis about a consumer."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def with_state(self, consumers: list[Consumer]) -> list[Consumer]:
        """See ServedRegistry. State and cost stay unknown where Kinesis does not answer."""
        answered = []
        for stream_arn in {consumer.stream_arn for consumer in consumers}:
            of_stream = [consumer for consumer in consumers if consumer.stream_arn == stream_arn]
            try:
                cost, found = await self._ask(stream_arn)
            except RegistrationError as error:
                _logger.warning("the state of consumers of %s is not known: %s", stream_arn, error)
                answered += of_stream
                continue
            for consumer in of_stream:
                answered.append(_described(consumer, found.get(consumer.consumer_name), cost))
        return sorted(answered, key=lambda consumer: (consumer.stream_arn, consumer.consumer_name))

    async def _end_lease(self, key: Key) -> Lease | None:
        """End the lease, whichever job holds it. Returns the lease as it was; None when no job held the consumer."""
        lease = None

        def release(record: ConsumerRecord) -> ConsumerRecord | None:
            nonlocal lease
            if record.version == 0:
                raise ConsumerNotFoundError(stream_name=record.stream_name, consumer_name=key[1])
            lease = self._consumer_of(record).lease
            return lease_rules.end(record, now=self._records.time_of_day())

        await self._records.change(key, release)
        return lease

    async def adopt(self, stream_name: str, consumer_name: str, *, stream_arn: str | None = None) -> Consumer:
        """See RegistryAdministration."""
        key = stream_arn or await self._registrar.find_stream_arn(stream_name), consumer_name
        stream_name = stream_name_of(key[0])
        async with self._lock(key):
            found = await self._registrar.find(stream_name, consumer_name, stream_arn=key[0])
            if found is None:
                raise ConsumerNotFoundError(stream_name=stream_name, consumer_name=consumer_name)
            if found.status == ConsumerState.DELETING:
                raise RegistrationError.of("CONSUMER_DELETING", stream_name=stream_name, consumer_name=consumer_name)
            arn = found.arn
            record = await self._records.change(
                key,
                lambda record: lease_rules.adopt(
                    record,
                    consumer_arn=arn,
                    is_over=self._watch.is_over(record),
                    now=self._records.time_of_day(),
                ),
            )
        if record is None:
            raise ConsumerNotFoundError(stream_name=stream_name, consumer_name=consumer_name)
        (consumer,) = await self.with_state([self._consumer_of(record)])
        return consumer

    def _consumer_of(self, record: ConsumerRecord) -> Consumer:
        return consumer_of(record, self._watch, self._records.time_of_day())

    async def collect_garbage(self, stream_name: str | None = None, *, dry_run: bool = False) -> list[Orphan]:
        """See RegistryAdministration.

        A consumer whose lease this registry has not watched for long enough is reported, and stays registered.
        """
        return [orphan async for _, found in self.orphans(stream_name, dry_run=dry_run) for orphan in found]

    async def orphans(
        self, stream_name: str | None = None, *, dry_run: bool = False, after: str = ""
    ) -> AsyncGenerator[tuple[str, list[Orphan]], None]:
        """See ServedRegistry."""
        stream_arn = await self._registrar.find_stream_arn(stream_name) if stream_name else None
        records = {one.key: one for one in await self._located() if stream_arn in (None, one.stream_arn)}
        streams = {stream for stream, _ in records} | ({stream_arn} if stream_arn else set())
        for stream in sorted(one for one in streams if one > after):
            orphans = []
            try:
                cost, found = await self._ask(stream)
            except StreamNotFoundError:
                # Its consumers are gone with it.
                if stream_arn is not None:
                    raise
                continue
            for name, consumer in sorted(found.items()):
                record = records.get((stream, name)) or ConsumerRecord(
                    stream_arn=stream, consumer_name=name, created_at=self._records.time_of_day()
                )
                standing = self._watch.sight(record).standing
                if standing is Standing.LIVE or consumer.status == ConsumerState.DELETING:
                    continue
                described = _described(self._consumer_of(record), consumer, cost)
                orphans.append(await self._judge(record, described, dry_run=dry_run))
            yield stream, orphans

    async def _located(self) -> list[ConsumerRecord]:
        """All records whose stream's ARN is known. Moves records of schema 1 to the ARNs of their streams."""
        records = await self._records.stored()
        moved = False
        for record in records:
            name = record.stream_arn
            if not record.is_by_name or record.phase is RegistrationPhase.ABSENT or name in self._unknown_streams:
                continue
            try:
                arn = stream_arn_of(record.consumer_arn) or await self._registrar.find_stream_arn(name)
            except RegistrationError as error:
                if isinstance(error, StreamNotFoundError):
                    self._unknown_streams.add(name)
                _logger.warning("consumer %s of stream %s stays as it is: %s", record.consumer_name, name, error)
                continue
            await self._records.move(record, arn)
            moved = True
        records = await self._records.stored() if moved else records
        return [one for one in records if not one.is_by_name]

    async def _judge(self, record: ConsumerRecord, consumer: Consumer, *, dry_run: bool) -> Orphan:
        if not lease_rules.is_ours(record, consumer.consumer_arn):
            reason = "the registration is not ours; adopt it first"
            return Orphan(consumer=consumer, fate=OrphanFate.KEPT, reason=reason)
        ours = replace(consumer, registration_is_ours=True)
        sight = self._watch.sight(record)
        if record.holding is not None and sight.standing is Standing.UNPROVED:
            reason = (
                f"ours; job {record.holding.job_id!r} held it, and may live: this registry has to watch its lease for"
                f" another {sight.remaining_seconds:.0f} s"
            )
            return Orphan(consumer=ours, fate=OrphanFate.KEPT, reason=reason)
        if dry_run:
            return Orphan(consumer=ours, fate=OrphanFate.DUE, reason="ours, and no lease holds it")
        try:
            async with self._lock(record.key):
                ended = await self._registrations.end_orphan(record.key, is_due=self._watch.is_over)
        except RegistrationError as error:
            return Orphan(consumer=ours, fate=OrphanFate.FAILED, reason=str(error))
        if not ended:
            return Orphan(consumer=ours, fate=OrphanFate.KEPT, reason="leased in the meantime")
        return Orphan(consumer=ours, fate=OrphanFate.ENDED, reason="ours, and no lease held it")

    async def _ask(self, stream_arn: str) -> tuple[float, dict[str, FoundConsumer]]:
        """Cost per hour of each consumer of the stream, and the consumers by name."""
        stream = await self._registrar.describe_stream(stream_arn)
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
