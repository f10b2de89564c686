"""What keeps records."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.registration._lease.record import ConsumerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """One heartbeat, to be written."""

    stream_arn: str
    consumer_name: str
    job_id: str
    fencing_token: int
    at: float
    """When it was asked for, in seconds since the epoch, for people to read."""


class LeaseStore(Protocol):
    """A durable map from (stream ARN, consumer name) to its record, written by comparing versions.

    Several registries may use one store at once: a write succeeds only when nobody else wrote the record since it was
    read, so that no update is lost. Records are never removed.
    """

    async def get(self, stream_arn: str, consumer_name: str) -> ConsumerRecord | None:
        """The record as last written; None when there never was one.

        Raises:
            LeaseStoreError: the store cannot be used.
        """
        ...

    async def write(self, records: Sequence[ConsumerRecord]) -> list[bool]:
        """Write each record whose stored version is still its `version` (0: not stored), as version + 1.

        Returns one entry per record: whether it was written. What is True is durable. Each record is on its own:
        one that comes too late does not hold up the others.

        Raises:
            LeaseStoreError: the store cannot be used; nothing was written.
        """
        ...

    async def renew(self, renewals: Sequence[Renewal]) -> builtins.list[float | None]:
        """Prolong each lease that is still the newest of its consumer, as `rules.renew` would, in one step.

        Returns one entry per renewal: the lease's time to live in seconds; None when it is another's, or ended. The
        version counts up, so that whoever read the record before must read again. What is not None is durable.

        Raises:
            LeaseStoreError: the store cannot be used; unknown what was written.
        """
        ...

    async def list(self) -> list[ConsumerRecord]:
        """All records, ordered by stream ARN and consumer name.

        Raises:
            LeaseStoreError: the store cannot be used.
        """
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
