"""Streams, their shards, and the events of these that readers pass on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection


PER_SHARD = "PENSTOCK_METRICS_PER_SHARD"
"""Variable of the environment: `true` gives metrics the attribute `shard`, and so a time series for each shard."""


@cache
def per_shard() -> bool:
    """Whether the metrics of this process distinguish shards. Streams have thousands, and backends charge by series."""
    return os.environ.get(PER_SHARD, "").strip().lower() in ("1", "true", "yes")


def of_shard(stream: str, shard_id: str) -> dict[str, str]:
    """The attributes of what is counted for a shard."""
    return {"stream": stream, "shard": shard_id} if per_shard() else {"stream": stream}


MAX_EVENT_BYTES = 10 * 1024 * 1024
"""What one answer of GetRecords holds at most (API reference); events of subscriptions are smaller."""


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
class Shard:
    """A shard, as ListShards shows it or as the end of its parent names it.

    Attributes:
        shard_id: such as `shardId-000000000000`.
        parent_shard_ids: none, one after a split, two after a merge. Expired parents may be named or missing.
        starting_hash_key: decimal, inclusive, as the service writes it.
        ending_hash_key: decimal, inclusive.
        starting_sequence_number: before the first record; None where only the parent's end named the shard.
        ending_sequence_number: None while the shard is open, or where that is not known.
    """

    shard_id: str
    parent_shard_ids: tuple[str, ...] = ()
    starting_hash_key: str = ""
    ending_hash_key: str = ""
    starting_sequence_number: str | None = None
    ending_sequence_number: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether records can still be written to it."""
        return self.ending_sequence_number is None

    def is_covered_by(self, children: Collection[Shard]) -> bool:
        """Whether these are all of its children, if hash keys are known.

        Every hash key of a shard is one of a child's; ListShards may show one child before the other.
        """
        if not all(one.ending_hash_key for one in (self, *children)):
            return True
        key, last = int(self.starting_hash_key), int(self.ending_hash_key)
        for child in sorted(children, key=lambda one: int(one.starting_hash_key)):
            if int(child.starting_hash_key) > key:
                return False
            key = max(key, int(child.ending_hash_key) + 1)
        return key > last


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


@dataclass(frozen=True)
class ShardEvent:
    """What one SubscribeToShard event or one GetRecords call brought.

    Attributes:
        records: WIRE_SCHEMA, in sequence order; 0 rows for an event of an idle shard.
        continuation: the sequence number to resume AFTER; None at the end of the shard, and in answers of GetRecords
            before the shard's first record, which have no child shards and only have the lag.
        millis_behind_latest: how far the event is behind the shard's tip; None where the service does not say.
        child_shards: non-empty exactly at the shard's end.
        nbytes: data and partition keys, in bytes.
        caught_up_millis: a time, in milliseconds since the epoch, at which no record was after the event yet; None if
            unknown, because the event may have waited on its way.
        read_millis: a time, in milliseconds since the epoch, before which no record after the event arrived, unless
            the shard has ended: its children may hold such records. None if the event does not show a time.
        is_after_starvation: whether the subscription before it was cut because its events were not taken for minutes.
        quiet_seconds: for how long answers have been empty, where the service never says how far behind they are: then
            a `millis_behind_latest` of 0 is a guess. None where the service says it.
        is_over: whether the shard has ended and has no children, because its stream was disabled.
    """

    records: pa.RecordBatch
    continuation: str | None
    millis_behind_latest: int | None
    child_shards: tuple[Shard, ...]
    nbytes: int
    caught_up_millis: int | None = None
    read_millis: int | None = None
    is_after_starvation: bool = False
    quiet_seconds: float | None = None
    is_over: bool = False
