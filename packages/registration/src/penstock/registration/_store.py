"""What keeps records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.registration._record import ConsumerRecord


class LeaseStore(Protocol):
    """A durable map from (stream, consumer name) to its record, written by comparing versions.

    Several registries may use one store at once: a write succeeds only when nobody else wrote the record since it was
    read, so that no update is lost. Records are never removed.
    """

    async def get(self, stream_name: str, consumer_name: str) -> ConsumerRecord | None:
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

    async def list(self, stream_name: str | None = None) -> list[ConsumerRecord]:
        """All records, or those of a stream, ordered by stream and consumer name.

        Raises:
            LeaseStoreError: the store cannot be used.
        """
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
