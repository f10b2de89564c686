"""Reading and changing records in a store that others change, too."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from penstock.registration._lease.record import ConsumerRecord, LeaseStore, RegistrationPhase, Renewal
from penstock.registration._lease.watch import Key, Watch
from penstock.registration._times import Clock
from penstock.registration._values import Lease, stream_arn_of, stream_name_of

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_NOBODY: Key = ("-", "-")
"""A record that is never written, to see whether the store answers."""


class Records:
    """The records of a store. A change is decided again when another registry wrote the record first.

    The registry's watch sees all that is read and written here.
    """

    def __init__(self, store: LeaseStore, watch: Watch, clock: Clock, wall_clock: Clock) -> None:
        self._store = store
        self._watch = watch
        self._clock = clock
        self.time_of_day = wall_clock
        """Seconds since the epoch, for people to read in records."""

    async def read(self, key: Key) -> ConsumerRecord:
        """The record as stored, or a new one if the registry does not know the consumer yet."""
        stored = await self._get(key)
        if stored is not None:
            return stored
        fresh = ConsumerRecord(stream_arn=key[0], consumer_name=key[1], created_at=self.time_of_day())
        by_name = await self._get((stream_name_of(key[0]), key[1]))
        if by_name is None:
            return fresh
        if stream_arn_of(by_name.consumer_arn) == key[0]:
            await self.move(by_name, key[0])
            return await self._get(key) or fresh
        return replace(fresh, fencing_token=by_name.fencing_token)

    async def move(self, record: ConsumerRecord, stream_arn: str) -> None:
        """Move a record of schema 1 to the ARN of its stream. Its token stays under the name.

        Safe to repeat after an interruption, also by another registry.
        """
        await self.write(replace(record, stream_arn=stream_arn, version=0))
        left = replace(record, phase=RegistrationPhase.ABSENT, consumer_arn="", holding=None, registering_token=0)
        await self.write(replace(left, registration_is_ours=False))

    async def write(self, record: ConsumerRecord) -> bool:
        """Write one record. False: it changed since it was read."""
        asked_at = self._clock()
        written = await self._timed(self._store.write(record))
        if written:
            self._watch.wrote(replace(record, version=record.version + 1), asked_at, self._clock())
        return written

    async def renew(self, stream_arn: str, lease: Lease) -> float | None:
        """Prolong a lease from now on. Returns its time to live in seconds; None when it is lost."""
        renewal = Renewal(
            stream_arn=stream_arn,
            consumer_name=lease.consumer_name,
            job_id=lease.job_id,
            fencing_token=lease.fencing_token,
            at=self.time_of_day(),
        )
        time_to_live = await self._timed(self._store.renew(renewal))
        if time_to_live is not None:
            self._watch.renewed((stream_arn, lease.consumer_name), self._clock())
        return time_to_live

    async def change(
        self,
        key: Key,
        decide: Callable[[ConsumerRecord], ConsumerRecord | None],
        *,
        known: ConsumerRecord | None = None,
    ) -> ConsumerRecord | None:
        """Write what `decide` makes of the record, and return it. None: `decide` left it alone.

        `known` is the record as the caller wrote it last: it saves the first look.
        """
        record = known or await self.read(key)
        while True:
            changed = decide(record)
            if changed is None:
                return None
            if await self.write(changed):
                return replace(changed, version=changed.version + 1)
            record = await self.read(key)

    async def list(self, stream: str | None = None) -> builtins.list[ConsumerRecord]:
        """All records whose stream's ARN is known, or the records of `stream`, in order. Writes nothing.

        Args:
            stream: the ARN of one stream, or a name, which may belong to streams in several accounts and regions.
        """
        records = [
            replace(one, stream_arn=stream_arn_of(one.consumer_arn)) if one.is_by_name else one
            for one in await self.stored()
        ]
        return [one for one in records if one.stream_arn and stream in (None, one.stream_arn, one.stream_name)]

    async def stored(self) -> builtins.list[ConsumerRecord]:
        """All records as they are stored, in order."""
        asked_at = self._clock()
        records = await self._timed(self._store.list())
        now = self._clock()
        for record in records:
            self._watch.saw(record, asked_at, now)
        return records

    async def listen(self) -> None:
        """Ask the store for anything: while it answers, the holders of leases can be heard."""
        await self._timed(self._store.get(*_NOBODY))

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def _get(self, key: Key) -> ConsumerRecord | None:
        asked_at = self._clock()
        record = await self._timed(self._store.get(*key))
        if record is not None:
            self._watch.saw(record, asked_at, self._clock())
        return record

    async def _timed(self, call: Awaitable[T]) -> T:
        asked_at = self._clock()
        answer = await call
        gap = self._watch.heard(asked_at, self._clock())
        if gap > 0:
            _logger.info("the lease store did not answer for %.1f s: leases are watched from the start again", gap)
        return answer
