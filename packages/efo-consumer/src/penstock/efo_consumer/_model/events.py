"""What readers pass on: events of a shard, and their records' columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.efo_consumer._model.shards import Shard

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
        caught_up_millis: a time, in milliseconds since the epoch, at which nothing lay beyond the event yet; None where
            that is not known, as of what may have waited on its way.
        read_millis: a time, in milliseconds since the epoch, before which no record arrived that lies beyond the event,
            unless the shard has ended: its children may hold such. None where the event does not show any.
        is_after_starvation: whether the subscription before it was cut because nobody had taken its events for minutes.
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
