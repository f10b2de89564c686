"""A consumer's batches as single records, with checkpoints behind those that the caller is done with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A user record.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        sequence_number: decimal digits; user records of one aggregate share it.
        sub_sequence_number: its place within an aggregate, from 0; 0 for a record that is in none.
        partition_key: as its producer gave it.
        approximate_arrival_timestamp: by the service's clock, in UTC.
        data: as its producer gave it.
    """

    stream_name: str
    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    approximate_arrival_timestamp: datetime
    data: bytes


_COLUMNS = (
    "streamName",
    "shardId",
    "sequenceNumber",
    "subSequenceNumber",
    "partitionKey",
    "approximateArrivalTimestamp",
    "data",
)


def records_of(batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
    """The rows of a batch in READ_SCHEMA, in order."""
    return map(ConsumerRecord, *(batch.column(name).to_pylist() for name in _COLUMNS))
