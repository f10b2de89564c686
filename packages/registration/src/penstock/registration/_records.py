"""Reading and changing records in a store that others change, too."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.registration import _lease as lease_rules
from penstock.registration._clock import Clock
from penstock.registration._record import ConsumerRecord
from penstock.registration._store import LeaseStore, Renewal
from penstock.registration._values import Lease

Key = tuple[str, str]


class Records:
    """The records of a store, with changes that are decided again when somebody else was faster."""

    def __init__(self, store: LeaseStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def read(self, key: Key) -> ConsumerRecord:
        """The record as stored, or that of a consumer of which nobody heard yet."""
        stored = await self._store.get(*key)
        if stored is not None:
            return await self._settle(stored)
        return ConsumerRecord(stream_name=key[0], consumer_name=key[1], created_at=self._clock())

    async def write(self, record: ConsumerRecord) -> bool:
        """Write one record. False: it changed since it was read."""
        (written,) = await self._store.write([record])
        return written

    async def renew(self, leases: Sequence[Lease]) -> builtins.list[float | None]:
        """Prolong leases from now on. Returns the time to live of each in seconds; None when it is lost."""
        now = self._clock()
        return await self._store.renew(
            [
                Renewal(
                    stream_name=lease.stream_name,
                    consumer_name=lease.consumer_name,
                    job_id=lease.job_id,
                    fencing_token=lease.fencing_token,
                    at=now,
                )
                for lease in leases
            ]
        )

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

    async def list(self, stream_name: str | None = None) -> builtins.list[ConsumerRecord]:
        """All records, or those of a stream, in order."""
        return [await self._settle(record) for record in await self._store.list(stream_name)]

    async def look(self, stream_name: str | None = None) -> builtins.list[ConsumerRecord]:
        """The same as they are stored, for who only shows them: nothing is written, as the store may be another's."""
        return await self._store.list(stream_name)

    async def _settle(self, record: ConsumerRecord) -> ConsumerRecord:
        """Write down what a clock that was set back makes of the record, so that it counts from now on."""
        settled = lease_rules.settled(record, self._clock())
        if settled is not record and await self.write(settled):
            return replace(settled, version=settled.version + 1)
        # Somebody else was faster: whoever writes this one will learn of it.
        return settled

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()
