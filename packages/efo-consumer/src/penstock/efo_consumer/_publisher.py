"""The contract of record publishers: FLIP-128's RecordPublisher, pulled by its caller, in Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.efo_consumer._positions import ShardPosition

WIRE_SCHEMA = pa.schema(
    [
        pa.field("data", pa.binary()),
        pa.field("partitionKey", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        pa.field("encryptionType", pa.string()),
    ]
)
"""The columns of `ShardEvent.records`; `encryptionType` is null where the service says none."""


class RecordPublisherType(StrEnum):
    """How records are read (FLIP-128 `flink.stream.recordpublisher`)."""

    EFO = "efo"
    POLLING = "polling"


@dataclass(frozen=True)
class StreamIdentity:
    """A stream by its name, and by its ARN where that is known (needed across accounts)."""

    name: str
    arn: str | None = None

    @classmethod
    def of(cls, name: str) -> StreamIdentity:
        """The stream of a position's name, which may be its ARN; that is then kept as its name, too."""
        return cls(name, name if name.startswith("arn:") else None)

    @property
    def request(self) -> dict[str, str]:
        """The members of a request that say which stream is meant."""
        return {"StreamName": self.name} if self.arn is None else {"StreamARN": self.arn}


@dataclass(frozen=True)
class ChildShard:
    """A shard that continues the one that ended.

    Attributes:
        shard_id: the child.
        parent_shard_ids: one parent after a split, two after a merge.
        starting_hash_key: decimal, inclusive, as the service writes it.
        ending_hash_key: decimal, inclusive.
    """

    shard_id: str
    parent_shard_ids: tuple[str, ...]
    starting_hash_key: str
    ending_hash_key: str


@dataclass(frozen=True)
class ShardEvent:
    """What one SubscribeToShard event or one GetRecords call brought.

    Attributes:
        records: WIRE_SCHEMA, in sequence order; 0 rows for an event of an idle shard.
        continuation: the sequence number to resume AFTER; None at the end of the shard, and in answers of GetRecords
            before the shard's first record, which have no child shards and only tell the lag.
        millis_behind_latest: how far the event is behind the shard's tip.
        child_shards: non-empty exactly at the shard's end.
        nbytes: data and partition keys, in bytes.
        caught_up_millis: a time, in milliseconds since the epoch, at which nothing lay beyond the event yet; None where
            that is not known, as of what may have waited on its way.
        is_after_starvation: whether the subscription before it was cut because nobody had taken its events for minutes.
    """

    records: pa.RecordBatch
    continuation: str | None
    millis_behind_latest: int
    child_shards: tuple[ChildShard, ...]
    nbytes: int
    caught_up_millis: int | None = None
    is_after_starvation: bool = False


class RecordPublisher(Protocol):
    """Publishes the records of shards, one generator per shard."""

    def publish(
        self, stream: StreamIdentity, shard_id: str, position: ShardPosition
    ) -> AsyncGenerator[ShardEvent, None]:
        """Yield the shard's events from `position` on, in order, without gap or repeat.

        The caller pulls: the next event is fetched, and the HTTP/2 window credited, only as events are taken.
        Ends after the event that has child shards. `aclose()`, or cancelling the caller, ends the
        subscription.

        Raises:
            RecordPublisherFatalError: the service said that trying again is useless.
            RecordPublisherRetriesError: every attempt failed.
        """
        ...

    async def close(self) -> None:
        """End every subscription and connection of this publisher."""
        ...
